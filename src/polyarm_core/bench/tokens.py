"""Tokens that a language model would read and write, counted for whoever stands in its place.

The heuristic reads no prompt and the search writes no text, so figures about control would say nothing about what a
model costs. Here the same questions are put into the same prompts and counted with a model's own tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from polyarm_core.coordinator.interface import Coordinator, PlanAnswer, PlanRequest
from polyarm_core.coordinator.prompts import coordinator_prompt
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import MissingExtra
from polyarm_core.llm.interface import MAX_GENERATED_TOKENS, Generation, LanguageModel, Prompt, Scores
from polyarm_core.llm.weights import prepare

State = TypeVar("State")

TOKENIZER = "smollm2-135m-instruct"
"""Whose tokens are counted where nobody says otherwise: the package's own model."""
KEPT = 4096  # texts whose count is remembered: static parts of prompts are counted over and over


class TokenCounter:
    """Counts tokens of a text; special tokens and chat templates are left out.

    Args:
        model: packaged name or folder.

    Raises:
        MissingExtra: no tokenizers.
        UnknownName, ModelUnavailable: see `llm.weights.prepare`.
    """

    def __init__(self, model: str = TOKENIZER) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizers", "models") from None
        tokenizer: Any = Tokenizer.from_file(str(Path(prepare(model)) / "tokenizer.json"))
        self.count = lru_cache(KEPT)(lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))

    def prompt(self, prompt: Prompt) -> int:
        """Tokens of both parts of a prompt."""
        return int(self.count(prompt.static) + self.count(prompt.dynamic))


class CountingModel:
    """A language model whose scores carry the counts of the tokenizer."""

    def __init__(self, model: LanguageModel, counter: TokenCounter) -> None:
        self._model, self._counter = model, counter

    def score(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """The model's own scores."""
        read = sum(map(self._counter.count, candidates))
        scores = self._model.score(prompt, candidates)
        return replace(scores, prompt_tokens=self._counter.prompt(prompt), candidate_tokens=read)

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """Scores of each decision by itself."""
        return [self.score(prompt, candidates) for prompt, candidates in items]

    def generate(
        self, prompt: Prompt, grammar: str | None = None, max_tokens: int = MAX_GENERATED_TOKENS
    ) -> Generation:
        """The model's own text and counts."""
        return self._model.generate(prompt, grammar, max_tokens)


class CountingCoordinator(Generic[State]):
    """A coordinator without a model, whose answers carry what a model's prompt and the same plan would have taken."""

    def __init__(self, coordinator: Coordinator[State], domain: Domain[State], counter: TokenCounter) -> None:
        self.name = coordinator.name
        self._coordinator: Coordinator[State] = coordinator
        self._domain: Domain[State] = domain
        self._counter = counter

    def plan(self, request: PlanRequest[State]) -> PlanAnswer:
        """The coordinator's own answer."""
        answer = self._coordinator.plan(request)
        read = self._counter.prompt(coordinator_prompt(self._domain, request))
        return replace(answer, prompt_tokens=read, tokens=int(self._counter.count(answer.text)))
