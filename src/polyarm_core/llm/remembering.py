"""A model that is asked every question once: the most probable text does not change when it is asked for again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from polyarm_core.llm.interface import MAX_GENERATED_TOKENS, Generation, LanguageModel, Prompt, Scores

Question = tuple[Prompt, str | None, int]


class RememberingModel:
    """Answers a question that was asked before from memory. Implements ``LanguageModel``.

    For benchmarks, in which many trials begin in the same state, or stand still in one. Whoever asks while the same
    question is being answered waits for that answer. An answer from memory says in ``seconds`` what it took to write.
    Only the most probable text is remembered (``generate``): scores and drawn texts are passed on. A failure is not
    remembered.

    Args:
        model: is asked; texts can be drawn if it can draw them.
        name: for people.

    Attributes:
        remembered: answers that were given from memory.
    """

    def __init__(self, model: LanguageModel, name: str) -> None:
        self.model: Any = model
        self.name = name
        self.remembered = 0
        self._answers: dict[Question, Future[Generation]] = {}
        self._lock = threading.Lock()

    def score(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """As the model's."""
        scores: Scores = self.model.score(prompt, candidates)
        return scores

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """As the model's."""
        batch: list[Scores] = self.model.score_batch(items)
        return batch

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
        drawn: Generation = self.model.sample(prompt, temperature, seed, grammar, max_tokens)
        return drawn
