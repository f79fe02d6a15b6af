"""Execution of plans: against a plain interpreter, under replacement at any frame, and every way to stall."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import ToyDomain, ToyState

from polyarm_core.chains.executor import COMPARE, RECHECK, ChainExecutor, Detection, roll_out
from polyarm_core.chains.terms import Action, Plan, Step, Wait, WaitAgents, WaitEntity
from polyarm_core.domains.interface import ActionStatus
from polyarm_core.errors import InvalidValue, UnknownName

DOMAIN = ToyDomain(agents=3)
AGENTS = DOMAIN.agents
PRESS, TAKE, DROP = Action("Press", ("button",)), Action("Take", ("crate",)), Action("Drop")
DOOR_OPEN = WaitEntity("door", "open", "==", True)
NEVER = 10_000


def go(cell: int) -> Action:
    return Action("Go", (f"cell_{cell}",))


def wait(*atoms: WaitAgents | WaitEntity, by: str | None = None) -> Wait:
    return Wait(atoms, by)  # type: ignore[arg-type]


def done(agent: int, step: int) -> WaitAgents:
    return WaitAgents(f"agent_{agent}", "done", step)


def started(agent: int, step: int) -> WaitAgents:
    return WaitAgents(f"agent_{agent}", "start", step)


def plan(*chains: tuple[Step, ...]) -> Plan:
    return Plan(tuple(zip(AGENTS, chains, strict=False)))


# --- strategies ---

WALKS = st.integers(0, 3).map(go)
ACTIONS = st.one_of(WALKS, WALKS, st.sampled_from([PRESS, TAKE, DROP, go(5)]))
MILESTONES = st.builds(
    WaitAgents, st.sampled_from((*AGENTS, "agent_9")), st.sampled_from(("start", "done")), st.integers(0, 5)
)
CONDITIONS = st.sampled_from(
    [
        DOOR_OPEN,
        WaitEntity("door", "travel", ">", 0.5),
        WaitEntity("crate", "carried", "==", True),
        WaitEntity("agent_1", "cell", ">=", 2),
        WaitEntity("agent_2", "cell", "!=", 2),
        WaitEntity("agent_3", "carries", "==", "crate"),
        WaitEntity("cell_0", "occupied", "==", False),
        WaitEntity("ghost", "cell", "==", 1),
    ]
)


def waits(atoms: st.SearchStrategy) -> st.SearchStrategy[Wait]:
    both = st.builds(lambda a, b, by: Wait((a, b), by), atoms, atoms, st.sampled_from("&|"))
    return st.one_of(atoms.map(lambda a: Wait((a,))), both)


def plans(actions: st.SearchStrategy, atoms: st.SearchStrategy | None, length: int = 5) -> st.SearchStrategy[Plan]:
    steps = actions if atoms is None else st.one_of(actions, waits(atoms))
    chain = st.lists(steps, max_size=length).map(tuple)
    return st.tuples(chain, chain, chain).map(lambda chains: plan(*chains))


ANY_PLAN = plans(ACTIONS, st.one_of(MILESTONES, CONDITIONS))
WALKING_PLAN = plans(WALKS, MILESTONES)


# --- helpers ---


def patient(a_plan: Plan, domain: ToyDomain = DOMAIN) -> ChainExecutor[ToyState]:
    """An executor whose limits never fire."""
    return ChainExecutor(domain, a_plan, wait_deadline=NEVER, patience=NEVER)


def frames(
    executor: ChainExecutor[ToyState], state: ToyState, count: int, domain: ToyDomain = DOMAIN
) -> Iterator[tuple[ToyState, tuple[Action | None, ...], tuple[Detection, ...], ToyState]]:
    """(state, intents, detections, state after) of each frame."""
    for _ in range(count):
        intents = executor.intents(state)
        controls = domain.control(state, intents)
        after = domain.step(state, controls)
        yield state, intents, executor.advance(state, controls, after), after
        state = after


def detections(executor: ChainExecutor[ToyState], state: ToyState, count: int) -> list[Detection]:
    return [d for _, _, found, _ in frames(executor, state, count, executor.domain) for d in found]  # type: ignore[arg-type]


class Interpreter:
    """The rules of syncplan.md §1 and 2 as plainly as possible: a set of milestones, nothing cached."""

    def __init__(self, a_plan: Plan) -> None:
        self.plan = a_plan
        self.milestones: set[tuple[str, str, int]] = set()

    def head(self, agent: str) -> int:
        """Number of the first step that is not done, from 1."""
        return next(k for k in range(1, 100) if (agent, "done", k) not in self.milestones)

    def holds(self, atom: WaitAgents | WaitEntity, state: ToyState) -> bool:
        if isinstance(atom, WaitAgents):
            return (atom.agent, atom.milestone, atom.step) in self.milestones
        for entity in DOMAIN.entities(state):
            if entity.name == atom.entity:
                return COMPARE[atom.comparison](entity.values[atom.attribute], atom.value)
        return False

    def satisfied(self, a_wait: Wait, state: ToyState) -> bool:
        return (any if a_wait.connective == "|" else all)(self.holds(atom, state) for atom in a_wait.atoms)

    def intents(self, state: ToyState) -> tuple[Action | None, ...]:
        while True:
            before = set(self.milestones)
            for agent, chain in self.plan.items():
                k = self.head(agent)
                if k <= len(chain):
                    self.milestones.add((agent, "start", k))
                    step = chain[k - 1]
                    if isinstance(step, Wait) and self.satisfied(step, state):
                        self.milestones.add((agent, "done", k))
            if before == self.milestones:
                break
        heads = [(chain, self.head(agent)) for agent, chain in self.plan.items()]
        steps = [chain[k - 1] if k <= len(chain) else None for chain, k in heads]
        return tuple(step if isinstance(step, Action) else None for step in steps)

    def advance(self, before: ToyState, controls: tuple[int, ...], after: ToyState) -> None:
        for agent, chain in self.plan.items():
            k = self.head(agent)
            step = chain[k - 1] if k <= len(chain) else None
            if isinstance(step, Action):
                if DOMAIN.progress(before, controls, after, agent, step).status is ActionStatus.DONE:
                    self.milestones.add((agent, "done", k))


# --- laws ---


@settings(max_examples=120)
@given(ANY_PLAN)
def test_it_agrees_with_the_plain_interpreter(a_plan: Plan) -> None:
    """So milestones are sticky, waits pass together, and no step starts before its predecessors are done."""
    executor, reference = patient(a_plan), Interpreter(a_plan)
    state = DOMAIN.start(0)
    for _ in range(25):
        intents = executor.intents(state)
        assert intents == reference.intents(state)
        assert executor.pointers() == tuple(reference.head(agent) - 1 for agent in AGENTS)
        controls = DOMAIN.control(state, intents)
        after = DOMAIN.step(state, controls)
        executor.advance(state, controls, after)
        reference.advance(state, controls, after)
        state = after


@given(plans(WALKS, None))
def test_without_waits_every_plan_finishes(a_plan: Plan) -> None:
    executor = ChainExecutor(DOMAIN, a_plan)
    found = detections(executor, DOMAIN.start(0), 30)
    assert executor.finished and executor.pointers() == tuple(len(chain) for chain in a_plan.values())
    assert [d.kind for d in found] == ["chain_end"]


@given(ANY_PLAN)
def test_what_remains_of_a_fresh_executor_is_the_plan(a_plan: Plan) -> None:
    assert patient(a_plan).remaining() == a_plan


@settings(max_examples=120)
@given(ANY_PLAN, st.integers(0, 12), st.booleans(), st.booleans())
def test_what_remains_continues_alike(a_plan: Plan, moment: int, settled: bool, renewed: bool) -> None:
    """In a new executor, and in the same one: replacing loses no step and does none twice."""
    executor = patient(a_plan)
    state = DOMAIN.start(0)
    for *_, after in frames(executor, state, moment):
        state = after
    if settled:
        executor.intents(state)
    remaining = executor.remaining()
    other = patient(remaining)
    if renewed:
        other = executor.copy()
        other.replace(remaining)
    pairs = zip(frames(executor, state, 20), frames(other, state, 20), strict=True)
    for (_, intents, _, after), (_, same, _, also_after) in pairs:
        assert (intents, after) == (same, also_after)
    left = zip(executor.remaining().values(), other.remaining().values(), strict=True)
    assert all(len(a) == len(b) for a, b in left)


@given(ANY_PLAN, st.integers(0, 10))
def test_runs_repeat_and_copies_are_independent(a_plan: Plan, moment: int) -> None:
    executor, again = ChainExecutor(DOMAIN, a_plan), ChainExecutor(DOMAIN, a_plan)
    state = DOMAIN.start(0)
    for (*first, after), (*second, _) in zip(
        frames(executor, state, moment), frames(again, state, moment), strict=True
    ):
        assert first == second
        state = after
    copy, other = executor.copy(), executor.copy()
    expected = list(frames(copy, state, 25))
    other.replace(plan((go(0),)))
    list(frames(other, state, 5))
    assert list(frames(executor, state, 25)) == expected


@settings(max_examples=120)
@given(WALKING_PLAN)
def test_deadlocks_and_stalls_are_found_exactly(a_plan: Plan) -> None:
    """Walks always end, so an agent that never ends its chain waits in vain or in a circle, and nobody else does.

    Who is named never goes on. Whoever never goes on is named, or waits for somebody so explained and has no way out.
    """
    executor = patient(a_plan)
    reported: list[tuple[Detection, tuple[int, ...]]] = []
    for _, _, found, _ in frames(executor, DOMAIN.start(0), 40):
        reported += [(d, executor.pointers()) for d in found if d.kind != "chain_end"]
    stuck = {agent for agent, p in zip(AGENTS, executor.pointers(), strict=True) if p < len(a_plan[agent])}
    for detection, then in reported:
        for agent in detection.agents:
            i = AGENTS.index(agent)
            assert agent in stuck and then[i] == executor.pointers()[i]
    named = {agent for detection, _ in reported for agent in detection.agents}
    assert bool(stuck) == bool(named)
    explained = set(named)
    for _ in AGENTS:
        for agent in stuck - explained:
            head = a_plan[agent][executor.pointers()[AGENTS.index(agent)]]
            assert isinstance(head, Wait)
            open_for = [a for a in head.atoms if isinstance(a, WaitAgents)]
            way_out = any(a.agent in AGENTS and a.agent not in stuck and in_chain(a_plan, a) for a in open_for)
            if any(a.agent in explained for a in open_for) and not (way_out and head.connective == "|"):
                explained.add(agent)
    assert explained >= stuck


def in_chain(a_plan: Plan, atom: WaitAgents) -> bool:
    return 1 <= atom.step <= len(a_plan[atom.agent])


@settings(max_examples=120)
@given(WALKING_PLAN)
def test_a_deadlock_is_reported_in_the_frame_in_which_a_full_search_finds_it(a_plan: Plan) -> None:
    executor, reference = patient(a_plan), Interpreter(a_plan)
    state = DOMAIN.start(0)
    reported = False
    for _ in range(25):
        intents = executor.intents(state)
        reference.intents(state)
        reported |= any(d.kind == "deadlock" for d in executor.check(state))
        # Who has no claim is free; so is, again and again, whoever has an alternative that is free in each claim.
        claims: dict[str, list[set[str]]] = {agent: [] for agent in AGENTS}
        for agent in AGENTS:
            k = reference.head(agent)
            step = a_plan[agent][k - 1] if k <= len(a_plan[agent]) else None
            if isinstance(step, Wait):
                open_for = [a for a in step.atoms if not reference.holds(a, state)]
                targets = [a.agent for a in open_for if a.agent in AGENTS and in_chain(a_plan, a)]  # type: ignore
                if step.connective == "|":
                    claims[agent] += [set(targets)] if targets else []
                else:
                    claims[agent] += [{target} for target in targets]
        free: set[str] = set()
        for _ in AGENTS:
            free |= {agent for agent in AGENTS if all(claim & free for claim in claims[agent])}
        assert reported == (free != set(AGENTS))
        controls = DOMAIN.control(state, intents)
        after = DOMAIN.step(state, controls)
        assert not executor.advance(state, controls, after) or executor.finished
        reference.advance(state, controls, after)
        state = after


@settings(max_examples=120)
@given(ANY_PLAN)
def test_who_is_said_to_wait_in_vain_does(a_plan: Plan) -> None:
    executor = patient(a_plan)
    vain: dict[str, int] = {}
    seen: set[tuple[object, ...]] = set()
    for _, _, found, _ in frames(executor, DOMAIN.start(0), 40):
        for d in found:
            assert (d.kind, d.agents, d.reason, executor.pointers()) not in seen
            seen.add((d.kind, d.agents, d.reason, executor.pointers()))
            if "in vain" in d.reason:
                vain[d.agents[0]] = executor.pointers()[AGENTS.index(d.agents[0])]
    for agent, pointer in vain.items():
        assert executor.pointers()[AGENTS.index(agent)] == pointer


# --- waits ---


def test_a_wait_for_what_was_reached_before_passes_at_once() -> None:
    executor = patient(plan((go(1),), (go(3), go(2), wait(done(1, 1)), wait(started(1, 1)), PRESS)))
    list(frames(executor, DOMAIN.start(0), 2))
    assert executor.pointers()[1] == 2
    assert executor.intents(DOMAIN.start(0)._replace(positions=(1, 2, 1)))[1] == PRESS


def test_a_condition_that_is_over_does_not_count() -> None:
    """A condition is not sticky: both sides of ``&`` must hold in the same frame."""
    both = wait(done(1, 1), WaitEntity("cell_0", "occupied", "==", True), by="&")
    executor = patient(plan((go(1),), (both,)))
    list(frames(executor, DOMAIN.start(0), 3))
    assert executor.pointers()[:2] == (1, 0)


def test_start_milestones_count_in_the_same_frame_in_any_order() -> None:
    executor = patient(plan((wait(started(2, 1)), go(2)), (wait(started(3, 1)), go(2)), (go(2),)))
    assert executor.intents(DOMAIN.start(0)) == (go(2), go(2), go(2))


def test_active_waits_have_deadline_and_owner() -> None:
    executor = ChainExecutor(DOMAIN, plan((wait(done(2, 1), DOOR_OPEN, by="&"),), (go(3),)), wait_deadline=7, frame=5)
    executor.intents(DOMAIN.start(0))
    (active,) = executor.waiting()
    assert (active.agent, active.step, active.since, active.deadline) == ("agent_1", 1, 5, 12)
    assert active.owners == ("agent_2",)


@pytest.mark.parametrize(
    ("comparison", "value", "holds"),
    [("==", 2, True), ("!=", 2, False), ("<", 3, True), ("<=", 2, True), (">", 2, False), (">=", 3, False)],
)
def test_comparisons(comparison: str, value: int, holds: bool) -> None:
    executor = patient(plan((), (wait(WaitEntity("agent_2", "cell", comparison, value)), go(0))))  # type: ignore[arg-type]
    assert (executor.intents(DOMAIN.start(0))[1] is not None) == holds


def test_a_copy_has_its_own_clock_of_waits() -> None:
    executor = patient(plan((wait(done(2, 1)), wait(done(2, 2))), (go(3), go(0))))
    state = DOMAIN.start(0)
    executor.intents(state)
    copy = executor.copy()
    list(frames(copy, state, 3))
    assert [(w.step, w.since) for w in executor.waiting()] == [(1, 0)]
    assert [(w.step, w.since) for w in copy.waiting()] == [(2, 1)]


def test_an_end_is_taken_in_once() -> None:
    executor = patient(plan((go(1), go(0))))
    state = DOMAIN.start(0)
    controls = DOMAIN.control(state, executor.intents(state))
    after = DOMAIN.step(state, controls)
    for _ in range(2):
        executor.advance(state, controls, after)
    assert executor.pointers()[0] == 1


# --- what goes wrong, in words ---

STALLS: list[tuple[Plan, str]] = [
    (
        plan((wait(done(2, 2)),), (go(3),)),
        "agent_1 waits in vain at step 1, Wait_agents(agent_2, done, 2): "
        "there is no step 2: the chain of agent_2 has 1 step",
    ),
    (
        plan((wait(done(2, 1)),)),
        "agent_1 waits in vain at step 1, Wait_agents(agent_2, done, 1): "
        "there is no step 1: the chain of agent_2 has no steps",
    ),
    (
        plan((wait(done(9, 1)),)),
        "agent_1 waits in vain at step 1, Wait_agents(agent_9, done, 1): there is no agent agent_9",
    ),
    (
        plan((wait(WaitEntity("ghost", "cell", "==", 1)),)),
        "agent_1 waits in vain at step 1, Wait_entity(ghost, cell, ==, 1): there is no ghost",
    ),
    (
        plan((wait(WaitEntity("door", "cell", "==", 1)),)),
        "agent_1 waits in vain at step 1, Wait_entity(door, cell, ==, 1): door has no cell",
    ),
    (
        plan((wait(WaitEntity("door", "status", "<", 1)),)),
        "agent_1 waits in vain at step 1, Wait_entity(door, status, <, 1): "
        "status of door is 'closed', which has no order with 1",
    ),
    (
        plan((wait(DOOR_OPEN), PRESS), (go(3),)),
        "agent_1 waits in vain at step 1, Wait_entity(door, open, ==, true): "
        "nothing that can still be done brings about door open == true",
    ),
    (
        plan((wait(DOOR_OPEN, WaitEntity("crate", "carried", "==", True), by="|"),)),
        "agent_1 waits in vain at step 1, Wait_entity(door, open, ==, true) | Wait_entity(crate, carried, ==, true): "
        "nothing that can still be done brings about door open == true and "
        "nothing that can still be done brings about crate carried == true",
    ),
    (plan((DROP,)), "agent_1 failed at step 1, Drop(): agent_1 carries nothing"),
]


@pytest.mark.parametrize(("a_plan", "reason"), STALLS, ids=[reason for _, reason in STALLS])
def test_stalls_say_why_and_only_once(a_plan: Plan, reason: str) -> None:
    found = [d for d in detections(ChainExecutor(DOMAIN, a_plan), DOMAIN.start(0), 30) if d.kind == "stall"]
    assert [(d.agents, d.reason, d.frame) for d in found] == [(("agent_1",), reason, 0)]


def test_a_wait_for_what_only_comes_after_another_wait_in_a_circle_is_in_vain() -> None:
    """No circle in the graph: one agent waits for a condition, the other for a step behind that wait."""
    chains = plan((wait(DOOR_OPEN), go(1)), (wait(done(1, 2)), PRESS))
    found = detections(ChainExecutor(DOMAIN, chains), DOMAIN.start(0), 5)
    assert [(d.kind, d.agents) for d in found] == [("stall", ("agent_1",))]
    crossed = plan((wait(DOOR_OPEN), TAKE), (wait(WaitEntity("crate", "carried", "==", True)), PRESS))
    found = detections(ChainExecutor(DOMAIN, crossed), DOMAIN.start(0), 5)
    assert {d.agents for d in found} == {("agent_1",), ("agent_2",)}


def test_an_alternative_that_time_can_bring_about_is_a_way_out() -> None:
    state = DOMAIN.start(0)._replace(door=0)
    circle = plan((wait(done(2, 1), DOOR_OPEN, by="|"), go(0)), (wait(done(1, 2)),))
    assert [d.kind for d in detections(ChainExecutor(DOMAIN, circle), state, 10)] == ["chain_end"]
    # Nobody presses the button: the alternative is none, and the circle is closed.
    found = detections(ChainExecutor(DOMAIN, circle), DOMAIN.start(0), 10)
    assert [d.kind for d in found] == ["deadlock"]


def test_a_hand_over_of_waits_in_one_frame_is_no_deadlock() -> None:
    """Agent 1 begins to wait for agent 2 in the frame in which agent 2's wait for agent 1 ends."""
    executor = ChainExecutor(DOMAIN, plan((go(1), wait(done(2, 2))), (wait(done(1, 1)), go(3))))
    state, kinds = DOMAIN.start(0), []
    for _ in range(12):
        intents = executor.intents(state)
        controls = DOMAIN.control(state, intents)
        after = DOMAIN.step(state, controls)
        kinds += [detection.kind for detection in executor.advance(state, controls, after)]
        state = after
    assert "deadlock" not in kinds
    assert executor.finished


def test_a_deadlock_tells_its_cycle_in_words() -> None:
    chains = plan((go(0), wait(done(2, 2)), go(1)), (go(2), wait(done(3, 1))), (wait(done(1, 3)),))
    (found,) = detections(ChainExecutor(DOMAIN, chains), DOMAIN.start(0), 10)
    assert (found.kind, found.frame, set(found.agents)) == ("deadlock", 1, set(AGENTS))
    at = found.cycle.index("agent_1")
    assert found.cycle[at:] + found.cycle[:at] == ("agent_1", "agent_2", "agent_3")
    assert "agent_1 waits for agent_2 (step 2, Wait_agents(agent_2, done, 2))" in found.reason
    assert found.reason.endswith(": none of them can go on")


def test_a_wait_that_takes_too_long_names_its_owner() -> None:
    domain = ToyDomain(agents=2, width=40)
    state = domain.start(0)._replace(door=domain.opening)
    executor = ChainExecutor(domain, plan((wait(done(2, 1)),), (go(39),)), wait_deadline=10, patience=NEVER)
    (found,) = detections(executor, state, 30)
    assert (found.kind, found.agents, found.frame) == ("stall", ("agent_1", "agent_2"), 10)
    assert found.reason.endswith("agent_2 should have ended it")


@pytest.mark.parametrize(
    ("chains", "door", "whom"),
    [
        (plan((wait(DOOR_OPEN),), (go(39), PRESS)), -1, "agent_2"),
        (plan((wait(DOOR_OPEN),), ()), 0, "time"),
    ],
)
def test_the_owner_of_a_condition_is_who_can_bring_it_about(chains: Plan, door: int, whom: str) -> None:
    domain = ToyDomain(agents=2, width=40, opening=100)
    state = domain.start(0)._replace(door=door, positions=(0, 5))
    found = detections(ChainExecutor(domain, chains, wait_deadline=10, patience=NEVER), state, 20)
    assert found[0].reason.endswith(f"{whom} should have ended it")


def test_an_action_that_takes_too_long_is_a_stall_of_its_agent() -> None:
    busy = tuple(go(cell) for _ in range(10) for cell in (0, 3))
    found = detections(ChainExecutor(DOMAIN, plan((go(5),), busy), patience=20), DOMAIN.start(0), 30)
    assert [(d.kind, d.agents, d.frame) for d in found] == [("stall", ("agent_1",), 20)]
    assert found[0].reason == "agent_1 has been at step 1, Go(cell_5) for 20 frames"


def test_a_replaced_plan_gets_new_patience() -> None:
    slow = plan((go(5),), tuple(go(cell) for _ in range(20) for cell in (0, 3)))
    executor = ChainExecutor(DOMAIN, slow, patience=20)
    state = DOMAIN.start(0)
    for *_, after in frames(executor, state, 22):
        state = after
    executor.replace(executor.remaining())
    assert [d.frame for d in detections(executor, state, 25)] == [42]


def test_a_failing_agent_is_not_blamed_for_another_s_blockade() -> None:
    found = detections(ChainExecutor(DOMAIN, plan((DROP,), (go(5),))), DOMAIN.start(0), 20)
    assert [(d.kind, d.agents) for d in found] == [("stall", ("agent_1",)), ("no_progress", ("agent_2",))]


def test_a_condition_that_loses_its_last_chance_is_noticed() -> None:
    """In the frame after its agent stops acting; within a few frames where that agent goes on with other things."""
    chains = plan((wait(WaitEntity("agent_2", "cell", "==", 5)),), (go(3), go(2)))
    assert [(d.kind, d.frame) for d in detections(ChainExecutor(DOMAIN, chains), DOMAIN.start(0), 20)] == [("stall", 2)]
    walk = tuple(go(cell) for _ in range(10) for cell in (0, 3))
    chains = plan((wait(WaitEntity("crate", "cell", "==", 5)),), (TAKE, DROP, *walk))
    (found,) = detections(ChainExecutor(DOMAIN, chains), DOMAIN.start(0), 20)
    assert found.kind == "stall" and 3 < found.frame <= 3 + RECHECK


def test_an_action_that_can_never_be_done_is_a_stall_when_it_starts() -> None:
    domain = ToyDomain(walls=(2,))
    executor = ChainExecutor(domain, plan((go(1), go(3)), ()), patience=NEVER)
    (found,) = detections(executor, domain.start(0), 10)
    assert (found.frame, found.agents) == (1, ("agent_1",))
    assert found.reason == "agent_1 can never do step 2, Go(cell_3): a wall is between agent_1 and cell_3"


def test_an_event_is_looked_at_in_the_next_frame() -> None:
    """A door that falls shut while nobody is left to open it; an agent that is put behind a wall."""
    executor = ChainExecutor(DOMAIN, plan((PRESS,), (wait(DOOR_OPEN), go(5))))
    state = DOMAIN.start(0)
    for *_, after in frames(executor, state, 3):
        state = after
    disturbed = DOMAIN.disturb(state, "T1", 0.0)
    assert disturbed is not None
    assert [d.kind for d in executor.check(disturbed)] == ["stall"]
    walled = ToyDomain(walls=(2,), width=9)
    executor = ChainExecutor(walled, plan((go(1),)))
    executor.intents(walled.start(0))
    (found,) = executor.check(walled.start(0)._replace(positions=(5, 6)))
    assert "a wall is between" in found.reason


def test_a_wait_for_a_silent_agent_is_a_stall_until_it_is_heard() -> None:
    executor = patient(plan((wait(done(2, 1)),), (go(3), go(2))))
    state = DOMAIN.start(0)
    assert not executor.check(state)
    executor.set_silent(["agent_2"])
    (found,) = executor.check(state)
    assert found.reason.endswith("nothing is heard from agent_2") and found.kind == "stall"
    executor.set_silent([])
    assert not executor.check(state)


def test_the_end_of_all_chains_is_reported_unless_the_task_is_done() -> None:
    assert [d.kind for d in detections(ChainExecutor(DOMAIN, plan()), DOMAIN.start(0), 3)] == ["chain_end"]
    finish = plan((PRESS,), (TAKE, wait(DOOR_OPEN), go(6), DROP))
    assert detections(ChainExecutor(DOMAIN, finish), DOMAIN.start(0), 15) == []


# --- replacing ---


def test_replacing_keeps_a_running_action_that_heads_the_new_chain() -> None:
    executor = patient(plan((go(3),), (go(0),)))
    state = DOMAIN.start(0)
    executor.intents(state)
    executor.replace(plan((go(3), PRESS), (go(1), wait(started(1, 1))), (wait(started(2, 1)),)))
    # Its start milestone is kept before the next frame is even asked for; the other agent's action is a new one.
    assert executor.pointers() == (0, 0, 0)
    assert executor.remaining() == plan((go(3), PRESS), (go(1),), (wait(started(2, 1)),))


def test_replacing_forgets_milestones_waits_deadlines_and_reports() -> None:
    circle = plan((wait(done(2, 1)),), (wait(done(1, 1)),))
    executor = ChainExecutor(DOMAIN, circle, wait_deadline=5)
    state = DOMAIN.start(0)
    assert [d.kind for d in detections(executor, state, 4)] == ["deadlock"]
    executor.replace(circle)
    assert [(d.kind, d.frame) for d in detections(executor, state, 3)] == [("deadlock", 4)]
    executor.replace(plan((wait(done(2, 1)),), (go(3),)))
    assert [d.kind for d in detections(executor, state, 4)] == ["chain_end"]


@pytest.mark.parametrize(
    ("bad", "error"),
    [(Plan((("agent_7", ()),)), UnknownName), (Plan((("agent_1", ()), ("agent_1", ()))), InvalidValue)],
)
def test_a_plan_that_is_refused_changes_nothing(bad: Plan, error: type[Exception]) -> None:
    executor = patient(plan((go(3),), (wait(done(1, 1)), go(0))))
    state = DOMAIN.start(0)
    for *_, after in frames(executor, state, 1):
        state = after
    expected = list(frames(executor.copy(), state, 10))
    with pytest.raises(error):
        executor.replace(bad)
    assert list(frames(executor, state, 10)) == expected
    with pytest.raises(error):
        ChainExecutor(DOMAIN, bad)


@pytest.mark.parametrize("limits", [{"wait_deadline": 0}, {"patience": 0}])
def test_limits_are_checked(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidValue, match="at least 1 frame"):
        ChainExecutor(DOMAIN, plan(), **limits)  # type: ignore[arg-type]


def test_what_remains_drops_waits_and_renumbers_across_chains() -> None:
    executor = patient(
        plan(
            (go(1), wait(done(2, 1)), go(2), wait(done(2, 4)), go(0)),
            (go(2), wait(DOOR_OPEN), go(0), go(1)),
            (wait(done(1, 2), DOOR_OPEN, by="&"), wait(done(1, 5)), wait(done(1, 1), DOOR_OPEN, by="|"), go(2)),
        )
    )
    state = DOMAIN.start(0)
    for *_, after in frames(executor, state, 1):
        state = after
    # agent_1 and agent_2 have done step 1. agent_1's step 2 waits for what is done and goes; the last three renumber.
    assert executor.remaining() == plan(
        (go(2), wait(done(2, 3)), go(0)),
        (wait(DOOR_OPEN), go(0), go(1)),
        (wait(DOOR_OPEN), wait(done(1, 3)), go(2)),
    )


# --- roll-outs ---


def test_a_roll_out_leaves_executor_and_state_alone() -> None:
    executor = ChainExecutor(DOMAIN, plan((PRESS,), (TAKE, wait(DOOR_OPEN), go(6), DROP)))
    state = DOMAIN.start(0)
    first = roll_out(executor, state, DOMAIN.horizon)
    assert first.success and first.detections == () and first.final_state.delivered
    assert executor.frame == 0 and executor.pointers() == (0, 0, 0)
    assert roll_out(executor, state, DOMAIN.horizon) == first
    assert not roll_out(executor, state, first.frames - 1).success
    assert roll_out(executor, first.final_state, DOMAIN.horizon).frames == 0


@pytest.mark.parametrize(
    ("stop", "check"),
    [
        ((), lambda r: r.success and [d.kind for d in r.detections] == ["deadlock"]),
        (("deadlock",), lambda r: not r.success and r.frames == 0),
    ],
)
def test_a_roll_out_stops_where_it_is_told_to(stop: tuple[str, ...], check: Callable[..., bool]) -> None:
    chains = plan((PRESS, TAKE, wait(DOOR_OPEN), go(6), DROP), (wait(done(3, 1)),), (wait(done(2, 1)),))
    assert check(roll_out(ChainExecutor(DOMAIN, chains), DOMAIN.start(0), DOMAIN.horizon, stop))  # type: ignore[arg-type]
