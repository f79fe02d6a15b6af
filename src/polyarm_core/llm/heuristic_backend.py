"""No model at all: a fixed rule in a model's place, for tests and measurements that are not about models."""

from __future__ import annotations

import time
from collections.abc import Sequence

from polyarm_core.constraints import STAY_VERB
from polyarm_core.llm.interface import (
    MAX_GENERATED_TOKENS,
    Generation,
    ModelRefused,
    Prompt,
    Scores,
    check_candidates,
)


class HeuristicModel:
    """Prefers acting to staying, and among actions the order in which they are given.

    Never a default: a team that runs on it shows nothing about language models. Words stand in for tokens in the
    counts, and the scores are ranks, not log-probabilities.
    """

    def score(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """Scores -1, -2, ... in the order given, whatever begins with ``stay`` after everything else."""
        started = time.perf_counter()
        texts = check_candidates(candidates)
        order = sorted(range(len(texts)), key=lambda index: (texts[index].split()[0] == STAY_VERB, index))
        rank = {index: place for place, index in enumerate(order, start=1)}
        return Scores(
            mean_logprobs=tuple(-float(rank[index]) for index in range(len(texts))),
            prompt_tokens=len(prompt.static.split()) + len(prompt.dynamic.split()),
            candidate_tokens=sum(len(text.split()) for text in texts),
            seconds=time.perf_counter() - started,
        )

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """Scores of each decision by itself."""
        return [self.score(prompt, candidates) for prompt, candidates in items]

    def generate(
        self, prompt: Prompt, grammar: str | None = None, max_tokens: int = MAX_GENERATED_TOKENS
    ) -> Generation:
        """Refused: there is no text without a model.

        Raises:
            ModelRefused: always.
        """
        raise ModelRefused("the heuristic backend writes no text; name a model: backend transformers or openai")
