"""Every question is asked once, whoever asks and however many at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from polyarm_core.llm.interface import Generation, ModelTimeout, Prompt, Scores
from polyarm_core.llm.remembering import RememberingModel


class Slow:
    """Writes when it is let, and says how often it was asked; a question with ``?`` fails the first time."""

    def __init__(self):
        self.asked = []
        self.lock = threading.Lock()
        self.may = threading.Event()
        self.may.set()

    def generate(self, prompt, grammar=None, max_tokens=256):
        with self.lock:
            self.asked.append((prompt, grammar, max_tokens))
            count = len(self.asked)
        assert self.may.wait(30)
        if prompt.dynamic.endswith("?") and count == 1:
            raise ModelTimeout("too slow")
        return Generation(f"{prompt.dynamic} {grammar} {max_tokens} {count}", 3, 4, 7.5, True)

    def sample(self, prompt, temperature, seed, grammar=None, max_tokens=256):
        return self.generate(prompt, f"{temperature} {seed}", max_tokens)

    def score(self, prompt, candidates):
        return Scores(tuple(float(len(text)) for text in candidates), 1, 2, 0.1)

    def score_batch(self, items):
        return [self.score(*item) for item in items]


def test_many_who_ask_the_same_get_the_answer_to_one_question():
    slow = Slow()
    model = RememberingModel(slow, "slow")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: model.generate(Prompt("a", "b"), "g", 9), range(20)))
    assert len(slow.asked) == 1 and len(set(answers)) == 1
    assert model.remembered == 19
    assert answers[0].seconds == 7.5


@pytest.mark.parametrize("other", [(Prompt("a", "c"), "g", 9), (Prompt("b", "b"), "g", 9), (Prompt("a", "b"), None, 9),
                                   (Prompt("a", "b"), "g", 8)])  # fmt: skip
def test_another_question_is_asked(other):
    slow = Slow()
    model = RememberingModel(slow, "slow")
    first = model.generate(Prompt("a", "b"), "g", 9)
    assert model.generate(*other) != first
    assert model.generate(Prompt("a", "b"), "g", 9) == first
    assert len(slow.asked) == 2


def test_a_failure_reaches_all_who_wait_for_it_and_is_not_remembered():
    slow = Slow()
    slow.may.clear()
    model = RememberingModel(slow, "slow")

    def ask():
        try:
            return model.generate(Prompt("", "really?")).text
        except ModelTimeout:
            return "failed"

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        while model.remembered < 3:
            time.sleep(0.001)
        slow.may.set()
        assert {answer.result() for answer in asked} == {"failed"}
    assert model.generate(Prompt("", "really?")).text.startswith("really?")


def test_scores_and_drawn_texts_are_passed_on():
    slow = Slow()
    model = RememberingModel(slow, "slow")
    drawn = {model.sample(Prompt("", "b"), 1.0, 5, None, 10).text for _ in range(3)}
    assert len(drawn) == 3 and len(slow.asked) == 3
    assert model.score(Prompt("", "b"), ["one", "three"]).mean_logprobs == (3.0, 5.0)
    assert [scores.mean_logprobs for scores in model.score_batch([(Prompt("", ""), ["a"])])] == [(1.0,)]
