"""A model that is asked every question once: the most probable text does not change when it is asked for again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from polyarm_core.llm.interface import MAX_GENERATED_TOKENS, Generation, LanguageModel, Prompt, Scores

Question = tuple[Prompt, str | None, int]


class Writer(LanguageModel, Protocol):
    """A language model from which texts can be drawn, too."""

    name: str

    def sample(
        self,
        prompt: Prompt,
        temperature: float,
        seed: int,
        grammar: str | None = None,
        max_tokens: int = MAX_GENERATED_TOKENS,
    ) -> Generation:
        """A text, every token drawn with its probability at this temperature."""
        ...


class RememberingModel:
    """Answers a question that was asked before from memory. Implements ``LanguageModel``.

    For benchmarks, in which many trials begin in the same state, or stand still in one. Whoever asks while the same
    question is being answered waits for that answer. An answer from memory says in ``seconds`` what it took to write.
    Only the most probable text is remembered (``generate``): scores and drawn texts are passed on. A failure is not
    remembered.

    Args:
        model: is asked.

    Attributes:
        remembered: answers that were given from memory.
    """

    def __init__(self, model: Writer) -> None:
        self.model = model
        self.name = model.name
        self.remembered = 0
        self._answers: dict[Question, Future[Generation]] = {}
        self._lock = threading.Lock()

    def score(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """As the model's."""
        return self.model.score(prompt, candidates)

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """As the model's."""
        return self.model.score_batch(items)

    def generate(
        self, prompt: Prompt, grammar: str | None = None, max_tokens: int = MAX_GENERATED_TOKENS
    ) -> Generation:
        """As the model's, from memory where it has answered this before."""
        question = (prompt, grammar, max_tokens)
        with self._lock:
            answer = self._answers.get(question)
            if answer is None:
                mine = self._answers[question] = Future()
            else:
                self.remembered += 1
        if answer is not None:
            return answer.result()  # whoever asked first has the model's deadline
        try:
            mine.set_result(self.model.generate(prompt, grammar=grammar, max_tokens=max_tokens))
        except BaseException as error:
            with self._lock:
                del self._answers[question]
            mine.set_exception(error)
        return mine.result()

    def sample(
        self,
        prompt: Prompt,
        temperature: float,
        seed: int,
        grammar: str | None = None,
        max_tokens: int = MAX_GENERATED_TOKENS,
    ) -> Generation:
        """As the model's."""
        return self.model.sample(prompt, temperature, seed, grammar, max_tokens)
