"""What the rest of Polyarm asks of a language model: score enumerated answers, generate text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from polyarm_core.errors import InvalidValue, PolyarmError

MAX_GENERATED_TOKENS = 256


class ModelError(PolyarmError):
    """A language model gave no answer; an agent that catches this one class survives everything a model can do."""


class ModelUnavailable(ModelError):
    """The model cannot be reached, loaded or is overloaded; asking again later may help."""


class ModelTimeout(ModelError):
    """The answer did not come before the deadline."""


class ModelRefused(ModelError):
    """The model rejects this request as it stands; asking again is pointless."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model reads before it answers.

    Attributes:
        static: task, vocabulary and rules; equal from slot to slot, so that a backend computes it once and keeps it.
            Becomes the system message of models with a chat template.
        dynamic: the state in this slot; becomes the user message.
    """

    static: str
    dynamic: str


@dataclass(frozen=True, slots=True)
class Scores:
    """How probable the model finds each candidate answer.

    Attributes:
        mean_logprobs: mean token log-probability of each candidate given the prompt (eq. 6), nats, in the order of the
            candidates.
        prompt_tokens: length of the prompt, chat template included.
        candidate_tokens: sum of the candidates' lengths.
        seconds: wall time of the computation, waiting in a queue excluded.
    """

    mean_logprobs: tuple[float, ...]
    prompt_tokens: int
    candidate_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Generation:
    """Generated text.

    Attributes:
        text: what the model wrote, special tokens removed.
        prompt_tokens, tokens: lengths of the prompt and of the text.
        seconds: wall time of the computation.
        finished: the model (or the grammar) ended the text; False = cut off by the token limit.
    """

    text: str
    prompt_tokens: int
    tokens: int
    seconds: float
    finished: bool


class LanguageModel(Protocol):
    """A model that can be asked. Implementations are safe to call from several threads.

    White space around a candidate does not count: each backend puts between prompt and answer what its model expects
    there (nothing after a chat template, one space after plain text).
    """

    def score(self, prompt: Prompt, candidates: Sequence[str]) -> Scores:
        """Mean token log-probability of each candidate (eq. 6).

        Raises:
            ModelError: no scores; the subclass says whether a later attempt can succeed.
        """
        ...

    def score_batch(self, items: Sequence[tuple[Prompt, Sequence[str]]]) -> list[Scores]:
        """Scores of several decisions, e.g. of all arms in one slot, in the order given. Raises as :meth:`score`."""
        ...

    def generate(
        self, prompt: Prompt, grammar: str | None = None, max_tokens: int = MAX_GENERATED_TOKENS
    ) -> Generation:
        """The most probable text, token by token, free or constrained.

        Args:
            prompt: what the model reads.
            grammar: a Lark grammar (it has a rule ``start``) or else a regular expression that the whole text matches;
                None = free text.
            max_tokens: where the text is cut off, at the latest.

        Raises:
            ModelError: no text; ``ModelRefused`` for a grammar that is not well formed.
        """
        ...


def choose(mean_logprobs: Sequence[float], noise: float = 0.0) -> int:
    """Index of the candidate with the highest mean token log-probability (eq. 6).

    Ties go to the candidate that comes first, so the caller's order is the tie-break. bfloat16 arithmetic moves a score
    by up to 0.07; ``noise`` makes everything within that distance of the best a tie, for choices that must come out
    the same on other hardware or with another batch size.

    Args:
        mean_logprobs: one score for each candidate, nats; at least one.
        noise: width of the band below the best score that counts as a tie, nats, >= 0.

    Raises:
        InvalidValue: no scores, or a negative or undefined noise.
    """
    if not mean_logprobs:
        raise InvalidValue("mean_logprobs", mean_logprobs, "at least one")
    if not noise >= 0.0:
        raise InvalidValue("noise", noise, "a number >= 0")
    threshold = max(mean_logprobs) - noise
    return next(index for index, score in enumerate(mean_logprobs) if score >= threshold)


def check_candidates(candidates: Sequence[str]) -> list[str]:
    """The candidates without white space around them.

    Raises:
        ModelRefused: there are none, or one is blank.
    """
    stripped = [candidate.strip() for candidate in candidates]
    if not stripped or not all(stripped):
        raise ModelRefused(f"candidates = {list(candidates)!r}: at least one is needed, none may be blank")
    return stripped


def is_lark(grammar: str) -> bool:
    """Whether ``grammar`` is a Lark grammar (it has a rule ``start``) rather than a regular expression."""
    return any(line.replace(" ", "").startswith("start:") for line in grammar.splitlines())
