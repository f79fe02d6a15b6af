"""Sentences of the live grammar are plans that pass validation; what it leaves out is what it says that it does."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_domain import ToyDomain

from polyarm_core.chains.live_grammar import SLOTS, live_grammar, number_pattern
from polyarm_core.chains.parser import parse_plan
from polyarm_core.chains.printer import format_plan
from polyarm_core.chains.terms import Action, Plan, Wait, WaitAgents
from polyarm_core.chains.validation import stuck_agents, validate
from polyarm_core.errors import InvalidValue
from polyarm_core.llm.interface import is_lark

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
llguidance = pytest.importorskip("llguidance")
allowed_tokens = pytest.importorskip("llguidance.numpy")

BYTES = llguidance.LLTokenizer("byte")


def matcher(grammar, tokenizer=BYTES):
    made = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def accepts(start, text: str) -> bool:
    """Whether a text is a whole sentence."""
    fresh = start.deep_copy()
    tokens = BYTES.tokenize_str(text)
    return fresh.validate_tokens(tokens) == len(tokens) and fresh.consume_tokens(tokens) and fresh.is_accepting()


def sample(start, tokenizer, rng, limit=4000) -> list[int]:
    """Tokens of a random sentence: each is drawn evenly from those that the grammar allows."""
    fresh = start.deep_copy()
    mask = allowed_tokens.allocate_token_bitmask(1, tokenizer.vocab_size)
    tokens = []
    while not fresh.is_stopped():
        allowed_tokens.fill_next_token_bitmask(fresh, mask)
        allowed = np.nonzero(np.unpackbits(mask[0].view(np.uint8), bitorder="little")[: tokenizer.vocab_size])[0]
        assert len(allowed), "a dead end"
        tokens.append(int(rng.choice(allowed)))
        assert fresh.consume_token(tokens[-1])
        assert len(tokens) < limit
    return tokens


def sentences(start, count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield BYTES.decode_str([token for token in sample(start, BYTES, rng) if token < 256])


@pytest.mark.parametrize("agents", [1, 2, 3, 5])
def test_random_sentences_are_valid_plans(agents):
    domain = ToyDomain(agents)
    state = domain.start(0)
    waits = 0
    for text in sentences(matcher(live_grammar(domain, state)), 60, seed=agents):
        plan = parse_plan(text, domain.agents)
        assert validate(plan, domain, state) == ()
        waits += text.count("Wait_agents")
        if agents <= 2:
            assert format_plan(plan) == re.sub(r"(\d\.\d+?)0*\b", r"\1", text)  # it writes three decimals
    assert (waits > 0) == (agents > 1)


@pytest.mark.parametrize("layout", ["coordination_ring", "counter_circuit", "asymmetric_advantages"])
def test_random_sentences_in_kitchens_of_episodes(layout):
    from polyarm_core.chains.fuzz import episode_states
    from polyarm_core.domains.overcooked.domain import OvercookedDomain

    domain = OvercookedDomain(layout)
    for seed, state in enumerate(episode_states(domain, 6, seed=1)):
        for text in sentences(matcher(live_grammar(domain, state)), 5, seed):
            assert validate(parse_plan(text, domain.agents), domain, state) == ()


@pytest.mark.slow
def test_random_tokens_of_the_default_model():
    import llguidance.hf
    from transformers import AutoTokenizer

    from polyarm_core.llm.weights import prepare

    text_tokenizer = AutoTokenizer.from_pretrained(prepare("smollm2-135m-instruct"), local_files_only=True)
    tokenizer = llguidance.hf.from_tokenizer(text_tokenizer)
    rng = np.random.default_rng(0)
    for agents in (2, 3):
        domain = ToyDomain(agents)
        state = domain.start(0)
        start = matcher(live_grammar(domain, state), tokenizer)
        for _ in range(300):
            text = text_tokenizer.decode(sample(start, tokenizer, rng), skip_special_tokens=True)
            assert validate(parse_plan(text, domain.agents), domain, state) == ()


# -- waits for agents ------------------------------------------------------------------------------------------------

PRESS = Action("Press", ("button",))


def chains(agents: int):
    """Short chains full of waits, whose steps need not exist."""

    def chain(me: int):
        atoms = st.builds(
            WaitAgents,
            st.sampled_from([f"agent_{i + 1}" for i in range(agents) if i != me]),
            st.sampled_from(["start", "done"]),
            st.integers(1, 6),
        )
        step = (
            st.just(PRESS)
            | st.builds(lambda atom: Wait((atom,)), atoms)
            | st.builds(lambda x, y, c: Wait((x, y), c), atoms, atoms, st.sampled_from(["&", "|"]))
        )
        return st.lists(step, max_size=6).map(tuple)

    return st.tuples(*(chain(i) for i in range(agents))).map(
        lambda all_chains: Plan(tuple((f"agent_{i + 1}", chain) for i, chain in enumerate(all_chains)))
    )


TWO, THREE = ToyDomain(2), ToyDomain(3)
GRAMMAR_TWO = matcher(live_grammar(TWO, TWO.start(0)))
GRAMMAR_THREE = matcher(live_grammar(THREE, THREE.start(0)))


def within_two(plan: Plan) -> bool:
    """What the grammar for two agents promises to let through: valid as well if ``|`` is read as ``&`` and the first
    agent's ``start`` as ``done``, and few rising waits of the first agent."""
    strict = {}
    for agent, chain in plan.items():
        strict[agent] = tuple(
            Wait(
                tuple(WaitAgents(a.agent, "done" if agent == "agent_1" else a.milestone, a.step) for a in step.atoms),
                step.connective and "&",
            )
            if isinstance(step, Wait)
            else step
            for step in chain
        )
    rising, highest = 0, 0
    for step in plan["agent_1"]:
        for atom in step.atoms if isinstance(step, Wait) else ():
            if atom.step > highest:
                rising, highest = rising + 1, atom.step
    return rising <= SLOTS and not stuck_agents(strict)


@settings(CALM, max_examples=400)
@given(chains(2))
def test_two_agents_get_exactly_what_is_promised(plan):
    valid = validate(plan, TWO, TWO.start(0)) == ()
    assert accepts(GRAMMAR_TWO, format_plan(plan)) == (valid and within_two(plan))


@settings(CALM, max_examples=200)
@given(chains(3), st.permutations(range(3)))
def test_more_agents_get_what_waits_for_earlier_blocks(plan, order):
    blocks = Plan(tuple(plan.chains[i] for i in order))
    earlier = all(
        atom.agent in [name for name, _ in blocks.chains[:i]]
        for i, (_, chain) in enumerate(blocks.chains)
        for step in chain
        if isinstance(step, Wait)
        for atom in step.atoms
    )
    valid = validate(blocks, THREE, THREE.start(0)) == ()
    assert accepts(GRAMMAR_THREE, format_plan(blocks)) == (valid and earlier)


@pytest.mark.parametrize(
    ("one", "two", "accepted"),
    [
        ("Wait_agents(agent_2, done, 2)", "Drop(), Drop()", True),
        ("Wait_agents(agent_2, done, 3)", "Drop(), Drop()", False),  # no such step
        ("Wait_agents(agent_2, done, 16)", ", ".join(["Drop()"] * 16), True),
        ("Drop()", "Wait_agents(agent_1, done, 1)", True),
        ("Drop()", "Wait_agents(agent_1, done, 2)", False),
        ("Wait_agents(agent_2, done, 1)", "Wait_agents(agent_1, done, 1)", False),  # a circle
        ("Wait_agents(agent_2, start, 1)", "Wait_agents(agent_1, start, 1)", True),  # a rendezvous
        ("Wait_agents(agent_2, done, 1), Drop()", "Drop(), Wait_agents(agent_1, done, 2)", True),  # there and back
        ("Wait_agents(agent_1, done, 1)", "Drop()", False),
        (", ".join(["Drop()"] * 17), "", False),
    ],
)
def test_waits_of_two_agents(one, two, accepted):
    text = f'"agent_1": {one}\n"agent_2":{two and " "}{two}'
    assert accepts(GRAMMAR_TWO, text) == accepted


# -- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        "Go(cell_7)",
        "Fly(cell_1)",
        "Go(cell_1",
        "Go( cell_1)",
        "Wait_entity(door, status, <, open)",
        "Wait_entity(door, status, ==, ajar)",
        "Wait_entity(crate, cell, <, 0)",
        "Wait_entity(crate, cell, ==, 7)",
        "Wait_entity(crate, cell, ==, 07)",
        "Wait_entity(door, travel, ==, 1.001)",
        "Wait_entity(door, cell, ==, 1)",
    ],
)
def test_what_does_not_exist_cannot_be_written(step):
    assert not accepts(GRAMMAR_TWO, f'"agent_1": {step}\n"agent_2":')


@pytest.mark.parametrize(
    "step",
    [
        "Go(cell_6)",
        "Wait_entity(door, travel, >=, 0.125)",
        "Wait_entity(crate, cell, !=, 0) & Wait_entity(door, open, ==, true)",
    ],
)
def test_what_exists_can(step):
    assert accepts(GRAMMAR_TWO, f'"agent_1": {step}\n"agent_2":')


def test_impossible_actions_are_left_out_and_states_make_a_difference():
    walled = ToyDomain(walls=(5,))
    grammar = matcher(live_grammar(walled, walled.start(0)))
    assert accepts(grammar, '"agent_1": Go(cell_4)\n"agent_2":')
    assert not accepts(grammar, '"agent_1": Go(cell_6)\n"agent_2":')
    beyond = walled.start(0)._replace(positions=(6, 2))
    assert accepts(matcher(live_grammar(walled, beyond)), '"agent_1": Go(cell_6)\n"agent_2":')


def test_chains_are_as_long_as_said():
    grammar = matcher(live_grammar(TWO, TWO.start(0), max_steps=3))
    assert accepts(grammar, '"agent_1": Drop(), Drop(), Drop()\n"agent_2": Drop(), Drop(), Drop()')
    assert not accepts(grammar, '"agent_1": Drop(), Drop(), Drop(), Drop()\n"agent_2":')
    assert not accepts(grammar, '"agent_1":\n"agent_2": Drop(), Drop(), Drop(), Drop()')
    with pytest.raises(InvalidValue, match="max_steps"):
        live_grammar(TWO, TWO.start(0), max_steps=0)


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_agents_that_can_do_nothing(agents):
    class Idle(ToyDomain):
        def arguments(self, state, agent, template):
            return super().arguments(state, agent, template) if agent == "agent_3" else ()

        def entities(self, state):
            return ()

    domain = Idle(agents)
    start = matcher(live_grammar(domain, domain.start(0)))
    for text in sentences(start, 10, seed=0):
        assert validate(parse_plan(text, domain.agents), domain, domain.start(0)) == ()


def test_more_agents_than_the_memory_holds():
    domain = ToyDomain(2)
    domain.agents = tuple(f"agent_{i + 1}" for i in range(12))
    state = domain.start(0)._replace(positions=(0,) * 12)
    start = matcher(live_grammar(domain, state))
    for text in sentences(start, 5, seed=0):
        assert validate(parse_plan(text, domain.agents), domain, state) == ()
        assert "Wait_agents" not in text
    for steps in (15, 16, 17):
        text = "\n".join(f'"{agent}": ' + ", ".join(["Drop()"] * steps) for agent in domain.agents)
        assert accepts(start, text) == (steps <= 16)


def test_names_with_signs_of_regular_expressions_are_taken_as_they_are():
    class Odd(ToyDomain):
        def arguments(self, state, agent, template):
            return (("a/b+c.d (x)",),) if template.name == "Go" else ()

        def impossible(self, state, agent, action):
            return None

    domain = Odd()
    start = matcher(live_grammar(domain, domain.start(0)))
    assert accepts(start, '"agent_1": Go("a/b+c.d (x)")\n"agent_2":')
    assert not accepts(start, '"agent_1": Go("a/bbc.d (x)")\n"agent_2":')


def test_the_backends_know_it_for_a_lark_grammar():
    assert is_lark(live_grammar(TWO, TWO.start(0)))
    assert is_lark(live_grammar(THREE, THREE.start(0)))


@CALM
@given(st.integers(-1200, 1200), st.integers(0, 1500), st.integers(0, 3), st.data())
def test_numbers_in_a_range(low, size, decimals, data):
    high = low + size
    pattern = re.compile(number_pattern(low, high, decimals))

    def text(number: int) -> str:
        digits = str(abs(number)).zfill(decimals + 1)
        point = f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits
        return f"-{point}" if number < 0 else point

    for number in (low, high, data.draw(st.integers(low, high))):
        assert pattern.fullmatch(text(number))
    for number in (low - 1, high + 1, data.draw(st.integers(-5000, 5000))):
        assert bool(pattern.fullmatch(text(number))) == (low <= number <= high)
    assert not pattern.fullmatch("0" + text(max(low, 1)))


def test_an_empty_range_has_no_pattern():
    with pytest.raises(InvalidValue):
        number_pattern(3, 2)
