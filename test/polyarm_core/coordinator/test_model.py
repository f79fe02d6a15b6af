"""The model coordinator: what becomes of good, bad and repeated answers, and a real model held to the live grammar."""

from __future__ import annotations

import pytest
from tiny_language_model import save_tiny_model

from polyarm_core.chains.parser import parse_plan
from polyarm_core.chains.printer import format_plan
from polyarm_core.chains.validation import validate
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.model import ModelCoordinator
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.llm.interface import Generation, ModelUnavailable

DOMAIN = OvercookedDomain("coordination_ring")
START = DOMAIN.start(0)
GOOD = '"agent_1": Interact(onion_dispenser_1), Interact(pot_1)\n"agent_2":'
OTHER = '"agent_1": Interact(onion_dispenser_2)\n"agent_2": Interact(dish_dispenser_1)'
UNREADABLE = "First, the agents should take an onion."
UNKNOWN = '"agent_1": Interact(pot_9)\n"agent_2":'


class Script:
    """A language model that writes what it is told, in order, and keeps what it was shown."""

    def __init__(self, *texts: str | None) -> None:
        self.texts = list(texts)
        self.prompts: list[str] = []
        self.grammars: list[str | None] = []

    def generate(self, prompt, grammar=None, max_tokens=256):
        self.prompts.append(prompt.dynamic)
        self.grammars.append(grammar)
        text = self.texts.pop(0)
        if text is None:
            raise ModelUnavailable("the server is down")
        return Generation(text, prompt_tokens=10, tokens=5, seconds=0.5, finished=True)


class Drawing(Script):
    """The same, and its further texts can be drawn."""

    def sample(self, prompt, temperature, seed, grammar=None, max_tokens=256):
        return self.generate(prompt, grammar, max_tokens)


def coordinator(*texts, **how):
    model = Script(*texts)
    return ModelCoordinator(DOMAIN, model, **{"decoding": "free", **how}), model


def test_a_valid_answer_is_the_plan():
    asked, model = coordinator(GOOD)
    answer = asked.plan(PlanRequest(START))
    assert answer.plan == parse_plan(GOOD, DOMAIN.agents)
    assert (answer.text, answer.prompt_tokens, answer.tokens, answer.error) == (GOOD, 10, 5, "")
    assert asked.use.invalid_share == 0.0 and asked.last_retries == 0
    assert model.grammars == [None]


@pytest.mark.parametrize(("bad", "shown"), [(UNREADABLE, "line 1"), (UNKNOWN, "pot_9")])
def test_a_bad_answer_is_shown_with_its_error_once(bad, shown):
    asked, model = coordinator(bad, GOOD)
    answer = asked.plan(PlanRequest(START))
    assert answer.plan == parse_plan(GOOD, DOMAIN.agents)
    assert shown not in model.prompts[0] and shown in model.prompts[1]
    assert (answer.prompt_tokens, answer.tokens) == (20, 10)
    assert asked.use.invalid_share == 0.5 and asked.last_retries == 1


def test_no_plan_after_the_last_retry_says_all_reasons():
    asked, model = coordinator(UNREADABLE, UNKNOWN, GOOD)
    answer = asked.plan(PlanRequest(START))
    assert answer.plan is None
    assert "expected" in answer.error and "pot_9" in answer.error
    assert (asked.use.syntax, asked.use.semantic, asked.use.unplanned) == (1, 1, 1)
    assert model.texts == [GOOD]  # it was not asked a third time


def test_fallback_answers_while_the_model_is_down():
    asked, _ = coordinator(None, fallback=SearchCoordinator(DOMAIN))
    answer = asked.plan(PlanRequest(START))
    assert answer.plan is not None and not validate(answer.plan, DOMAIN, START)
    assert (asked.use.model_errors, asked.use.outputs, asked.use.fallbacks) == (1, 0, 1)
    alone, _ = coordinator(None)
    answer = alone.plan(PlanRequest(START))
    assert answer.plan is None and "the server is down" in answer.error


def test_a_plan_that_failed_is_not_given_again():
    asked, model = coordinator(GOOD, GOOD, OTHER)
    asked.plan(PlanRequest(START))
    answer = asked.plan(PlanRequest(START, "no_progress", None, (), 9))
    assert answer.plan == parse_plan(OTHER, DOMAIN.agents)
    assert "has just failed" in model.prompts[2]
    assert asked.use.repeated == 1 and asked.use.invalid_share == 0.0


def test_what_is_left_of_a_failed_plan_is_not_given_again():
    asked, _ = coordinator(GOOD, GOOD)
    left = parse_plan(GOOD, DOMAIN.agents)
    answer = asked.plan(PlanRequest(START, "stall", left, (), 9))
    assert answer.plan is None and "has just failed" in answer.error


def test_a_plan_that_did_not_fail_may_be_repeated():
    asked, _ = coordinator(GOOD, GOOD, GOOD, GOOD)
    asked.plan(PlanRequest(START))
    assert asked.plan(PlanRequest(START, "stale", None, (), 5)).plan is not None  # the world changed, not the plan
    moved = START._replace(positions=(START.positions[1], START.positions[0]))
    assert asked.plan(PlanRequest(moved, "no_progress", None, (), 9)).plan is not None  # other state
    assert asked.plan(PlanRequest(START, "start")).plan is not None  # another episode


WORKS = format_plan(SearchCoordinator(DOMAIN).best(START))  # GOOD and OTHER deliver nothing


@pytest.mark.parametrize(
    ("texts", "taken", "outputs"),
    [
        ((WORKS, OTHER), WORKS, 1),  # what succeeds is taken at once
        ((GOOD, OTHER, UNREADABLE, WORKS), WORKS, 4),
        ((GOOD, OTHER, UNKNOWN, OTHER, WORKS), GOOD, 4),  # too late
        ((GOOD, None), GOOD, 1),  # the model is down by then
    ],
)
def test_the_first_plan_that_succeeds_in_the_imagination_is_taken(texts, taken, outputs):
    model = Drawing(*texts)
    asked = ModelCoordinator(DOMAIN, model, decoding="free", samples=4)
    answer = asked.plan(PlanRequest(START))
    assert (answer.text, answer.plan) == (taken, parse_plan(taken, DOMAIN.agents))
    assert asked.use.outputs == outputs and answer.tokens == 5 * outputs
    assert asked.use.calls == 1 and asked.last_retries == 0


def test_late_in_an_episode_a_plan_must_be_faster():
    model = Drawing(WORKS, GOOD)
    asked = ModelCoordinator(DOMAIN, model, decoding="free", samples=2)
    assert asked.plan(PlanRequest(START, "stale", None, (), DOMAIN.horizon - 10)).text == WORKS
    assert asked.use.drawn == 1


def test_wrong_settings_are_refused():
    with pytest.raises(UnknownName, match="constrained, free"):
        coordinator(decoding="beam")
    with pytest.raises(InvalidValue):
        coordinator(retries=-1)
    with pytest.raises(InvalidValue):
        coordinator(samples=0)
    with pytest.raises(InvalidValue, match="cannot draw"):
        coordinator(samples=2)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    from polyarm_core.llm.batched import BatchedModel
    from polyarm_core.llm.transformers_backend import TransformersModel

    return BatchedModel(TransformersModel(str(save_tiny_model(tmp_path_factory.mktemp("tiny"))), dtype="float32"))


@pytest.mark.parametrize("layout", ["coordination_ring", "forced_coordination"])
@pytest.mark.parametrize("variant", ["base", "compact"])
def test_constrained_decoding_of_a_random_model_is_valid(tiny, layout, variant):
    """Whatever a model prefers, what it finishes under the live grammar can be executed."""
    domain = OvercookedDomain(layout)
    state = domain.start(0)
    asked = ModelCoordinator(domain, tiny, variant=variant, max_tokens=900, max_steps=3)
    answer = asked.plan(PlanRequest(state))
    assert answer.plan is not None, answer.error
    assert not validate(answer.plan, domain, state, max_steps=3)
    assert asked.use.invalid_share == 0.0


def test_constrained_decoding_never_repeats_a_failed_plan(tiny):
    """Greedy decoding of the same state gives the same text; then an action that it began with is not offered."""
    asked = ModelCoordinator(DOMAIN, tiny, variant="compact", max_tokens=900, max_steps=3)
    plans = [asked.plan(PlanRequest(START)).plan]
    plans += [asked.plan(PlanRequest(START, "chain_end", None, (), frame)).plan for frame in (3, 6)]
    assert None not in plans
    assert len(set(plans)) == 3
    assert asked.use.repeated >= 1 and asked.use.unplanned == 0
    assert asked.plan(PlanRequest(START)).plan == plans[0]  # the next episode knows nothing of it


def test_free_decoding_of_a_random_model_is_refused_with_a_reason(tiny):
    asked = ModelCoordinator(DOMAIN, tiny, variant="compact", decoding="free", max_tokens=24)
    answer = asked.plan(PlanRequest(START))
    assert answer.plan is None and "cut off after 24 tokens" in answer.error
    assert asked.use.invalid_share == 1.0 and asked.use.outputs == 2


def test_forced_tokens_cost_no_pass_and_count(tiny, monkeypatch):
    """The backend takes what the grammar leaves no choice about as written; the text and its length stay the same."""
    from polyarm_core.llm.interface import Prompt

    prompt, grammar = Prompt("Answer.", "Yes or no?"), "(yes|no), and nothing but the truth"
    passes = []
    network = tiny.model._model
    forward = network.forward
    monkeypatch.setattr(network, "forward", lambda *args, **how: passes.append(1) or forward(*args, **how))
    whole = tiny.generate(prompt, grammar)
    assert whole.finished and whole.text in ("yes, and nothing but the truth", "no, and nothing but the truth")
    assert len(passes) < whole.tokens / 3
    cut = tiny.generate(prompt, grammar, max_tokens=5)
    assert (cut.tokens, cut.finished) == (5, False) and whole.text.startswith(cut.text)
