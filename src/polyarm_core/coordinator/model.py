"""A language model as coordinator: one call, one joint plan; checked before anybody sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, get_args, runtime_checkable

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.live_grammar import live_grammar
from polyarm_core.chains.parser import ChainSyntaxError, parse_plan
from polyarm_core.chains.terms import Action, Plan
from polyarm_core.chains.validation import MAX_STEPS, validate
from polyarm_core.coordinator.interface import Coordinator, PlanAnswer, PlanRequest, State
from polyarm_core.coordinator.prompts import REJECTED, Variant, compact_state, coordinator_prompt
from polyarm_core.coordinator.search import imagined
from polyarm_core.domains.interface import ActionTemplate, Domain
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.llm.interface import Generation, LanguageModel, ModelError, Prompt

Decoding = Literal["constrained", "free"]
DECODINGS: tuple[Decoding, ...] = get_args(Decoding)

MAX_TOKENS = 400  # of an answer; two chains of sixteen steps have about 350
RETRIES = 1  # of one call, each shown what was wrong
SHOWN = 400  # characters of an error that the model is shown
FAILURES = ("deadlock", "stall", "no_progress", "chain_end")  # reasons that the old plan is to blame for
TEMPERATURE = 1.0  # of plans that are drawn


@runtime_checkable
class Sampler(Protocol):
    """A language model from which texts can be drawn."""

    def sample(
        self, prompt: Prompt, temperature: float, seed: int, grammar: str | None = None, max_tokens: int = MAX_TOKENS
    ) -> Generation:
        """A text, every token drawn with its probability at this temperature; the same seed draws the same text."""
        ...


@dataclass
class ModelUse:
    """Counts over the life of a coordinator.

    Attributes:
        calls: requests for a plan.
        outputs: texts that the model wrote, retries included.
        syntax, semantic: outputs that could not be read, or name what is not there.
        repeated: valid outputs that repeat a plan that has just failed.
        drawn: further plans of which the best was wanted, valid or not.
        unplanned: requests for which the model gave no plan at all.
        fallbacks: of those, how many the fallback answered.
        model_errors: attempts in which the model gave no text.
        seconds, prompt_tokens, tokens: sums over all outputs.
    """

    calls: int = 0
    outputs: int = 0
    syntax: int = 0
    semantic: int = 0
    repeated: int = 0
    drawn: int = 0
    unplanned: int = 0
    fallbacks: int = 0
    model_errors: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def invalid_share(self) -> float:
        """Share of outputs that were no valid plan; 0 before the first."""
        return (self.syntax + self.semantic) / self.outputs if self.outputs else 0.0


class ModelCoordinator(Generic[State]):
    """Implements ``Coordinator`` with a language model.

    An output becomes a plan only if it can be read, is valid in the state of the request, and is not the plan that has
    just failed: the one whose rest is being replaced for a failure, or one that was made before in a state that reads
    the same. Otherwise the model is asked once more and shown what was wrong. When constrained decoding repeats a
    failed plan, the first action of one agent, the agents in turn, is no longer offered to it in this state, so that
    the next attempt must differ.

    With ``samples`` above 1 a plan is played out in the imagination, without disturbances, before anybody sees it.
    Where it does not reach the target by the horizon, up to ``samples - 1`` others are drawn from the model, and the
    first that does is taken; where none does, the first plan is. Every plan is still the model's own, but a simulator
    is needed.

    Args:
        domain: in which the plans are made.
        model: writes them.
        variant: of the prompt.
        decoding: ``constrained`` by a grammar made from the live state, so that every finished output is valid, or
            ``free``.
        max_tokens: of an output; one that is cut off is no plan.
        fallback: answers when the model has no plan; agents keep working while a model is down.
        retries: further attempts after an output that is no use.
        max_steps: longest chain.
        samples: plans of which the first is taken that succeeds in the imagination; 1 takes the model at its word.
        temperature: at which further ones are drawn.
        name: as in tables.

    Attributes:
        use: counts.
        last_retries: attempts beyond the first in the last call.

    Raises:
        UnknownName: no such decoding.
        InvalidValue: a negative number of retries, no sample, or several from a model that cannot draw.
    """

    def __init__(
        self,
        domain: Domain[State],
        model: LanguageModel,
        *,
        variant: Variant = "base",
        decoding: Decoding = "constrained",
        max_tokens: int = MAX_TOKENS,
        fallback: Coordinator[State] | None = None,
        retries: int = RETRIES,
        max_steps: int = MAX_STEPS,
        samples: int = 1,
        temperature: float = TEMPERATURE,
        name: str = "model",
    ) -> None:
        if decoding not in DECODINGS:
            raise UnknownName("decoding", decoding, DECODINGS)
        if retries < 0:
            raise InvalidValue("retries", retries, "0 or more")
        if samples < 1:
            raise InvalidValue("samples", samples, "at least 1")
        if samples > 1 and not isinstance(model, Sampler):
            raise InvalidValue("samples", samples, f"1: {type(model).__name__} cannot draw a text")
        self.domain = domain
        self.model = model
        self.variant = variant
        self.decoding = decoding
        self.max_tokens = max_tokens
        self.fallback = fallback
        self.retries = retries
        self.max_steps = max_steps
        self.samples = samples
        self.temperature = temperature
        self.name = name
        self.use = ModelUse()
        self.last_retries = 0
        # Of this episode, by the text of the state:
        self._made: set[tuple[str, Plan]] = set()
        self._banned: dict[str, set[tuple[str, Action]]] = {}

    def plan(self, request: PlanRequest[State]) -> PlanAnswer:
        """A plan by the model, else by the fallback, else none with the reasons of every attempt."""
        started, written = time.perf_counter(), self.use.seconds

        def spent() -> float:  # an answer from memory counts as long as it took to write
            return max(time.perf_counter() - started, self.use.seconds - written)

        self.use.calls += 1
        if request.reason == "start":
            self._made.clear()
            self._banned.clear()
        history, errors = request.history, []
        text, prompt_tokens, tokens = "", 0, 0
        here = "\n".join(compact_state(self.domain, request.state))
        for attempt in range(1 + self.retries):
            self.last_retries = attempt
            prompt = coordinator_prompt(self.domain, replace(request, history=history), self.variant)
            try:
                grammar = self._grammar(request.state, here) if self.decoding == "constrained" else None
                generation = self.model.generate(prompt, grammar=grammar, max_tokens=self.max_tokens)
            except ModelError as error:
                self.use.model_errors += 1
                errors.append(str(error))
                break  # asking at once again helps nobody
            text = generation.text.strip()
            self._count(generation)
            prompt_tokens += generation.prompt_tokens
            tokens += generation.tokens
            plan, error_text = self._read(text, request)
            if plan is not None and not self._has_failed(plan, request, here):
                if self.samples > 1 and not self._succeeds(plan, request):
                    plan, text, more = self._drawn(plan, text, request, prompt, grammar, here)
                    prompt_tokens += more[0]
                    tokens += more[1]
                self._made.add((here, plan))
                return PlanAnswer(plan, text, spent(), prompt_tokens, tokens)
            if plan is not None:
                self.use.repeated += 1
                error_text = "this plan has just failed, make another one"
                self._ban(plan, here)
            elif not generation.finished:
                error_text = f"cut off after {generation.tokens} tokens; {error_text}"
            errors.append(error_text)
            history = (*request.history, f"{REJECTED}: {error_text[:SHOWN]}")
        self.use.unplanned += 1
        reason = "; then: ".join(errors)
        if self.fallback is not None:
            self.use.fallbacks += 1
            answer = self.fallback.plan(request)
            error_text = answer.error and f"{reason}; fallback {self.fallback.name}: {answer.error}"
            return PlanAnswer(
                answer.plan,
                answer.text,
                spent(),
                prompt_tokens + answer.prompt_tokens,
                tokens + answer.tokens,
                error_text,
            )
        return PlanAnswer(None, text, spent(), prompt_tokens, tokens, reason)

    def _count(self, generation: Generation) -> None:
        self.use.outputs += 1
        self.use.seconds += generation.seconds
        self.use.prompt_tokens += generation.prompt_tokens
        self.use.tokens += generation.tokens

    def _drawn(
        self, plan: Plan, text: str, request: PlanRequest[State], prompt: Prompt, grammar: str | None, here: str
    ) -> tuple[Plan, str, tuple[int, int]]:
        """The first drawn plan that succeeds in the imagination, else the given one; and tokens read and written."""
        assert isinstance(self.model, Sampler)
        read = written = 0
        for _ in range(self.samples - 1):
            self.use.drawn += 1
            try:
                generation = self.model.sample(prompt, self.temperature, self.use.drawn, grammar, self.max_tokens)
            except ModelError:
                self.use.model_errors += 1
                break  # there is a plan already
            self._count(generation)
            read += generation.prompt_tokens
            written += generation.tokens
            other, _ = self._read(generation.text.strip(), request)
            if other is not None and not self._has_failed(other, request, here) and self._succeeds(other, request):
                return other, generation.text.strip(), (read, written)
        return plan, text, (read, written)

    def _succeeds(self, plan: Plan, request: PlanRequest[State]) -> bool:
        """Whether a plan reaches the target by the horizon if nothing happens."""
        domain = imagined(self.domain)
        executor: ChainExecutor[State] = ChainExecutor(domain, plan, frame=request.frame)
        return roll_out(executor, request.state, domain.horizon).success

    def _read(self, text: str, request: PlanRequest[State]) -> tuple[Plan | None, str]:
        """The valid plan in a text, or why there is none."""
        try:
            plan = parse_plan(text, self.domain.agents)
        except ChainSyntaxError as error:
            self.use.syntax += 1
            return None, str(error)
        problems = validate(plan, self.domain, request.state, self.max_steps)
        if problems:
            self.use.semantic += 1
            return None, "; ".join(map(str, problems))
        return plan, ""

    def _has_failed(self, plan: Plan, request: PlanRequest[State], here: str) -> bool:
        return request.reason in FAILURES and (plan == request.previous or (here, plan) in self._made)

    def _ban(self, plan: Plan, here: str) -> None:
        """Keep the first action of one agent out of the next plans for this state."""
        banned = self._banned.setdefault(here, set())
        heads = [
            (agent, next((step for step in chain if isinstance(step, Action)), None)) for agent, chain in plan.chains
        ]
        acting = [(agent, head) for agent, head in heads if head is not None]
        if acting:
            banned.add(acting[len(banned) % len(acting)])

    def _grammar(self, state: Any, here: str) -> str:
        return live_grammar(_Without(self.domain, self._banned.get(here, set())), state, self.max_steps)


class _Without:
    """A domain that does not offer certain actions to certain agents."""

    def __init__(self, domain: Domain[Any], banned: set[tuple[str, Action]]) -> None:
        self._domain = domain
        self._banned = banned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._domain, name)

    def arguments(self, state: Any, agent: str, template: ActionTemplate) -> tuple[tuple[str, ...], ...]:
        return tuple(
            arguments
            for arguments in self._domain.arguments(state, agent, template)
            if (agent, Action(template.name, arguments)) not in self._banned
        )
