"""The arms as a domain: the abstract world against twin and plant, plans from the search, events."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.chains import terms
from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.terms import Plan, Wait, WaitAgents, WaitEntity
from polyarm_core.conditions import ConditionTracker
from polyarm_core.constraints import STAY, Action
from polyarm_core.coordinator.episode import run_episode
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.declaration import declare
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.domains.arms.search import patched
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.liveness import RelayGraph
from polyarm_core.orchestrator import Decision
from polyarm_core.scenario import load_scenario, parse_scenario, scenario_names
from polyarm_core.slots import Answered, ArmSnapshot, ArmStatus, Opened, Report, SlotProtocol, Snapshot
from polyarm_core.world import WorldView, succeeded

SCENARIOS = ("cabinet", "grocery", "rope", "sandwich", "sort", "sort_crowded", "sort_relay", "sweep")
laws = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31)
names = st.sampled_from(SCENARIOS)


@cache
def make(name: str) -> ArmsDomain:
    return ArmsDomain(name)


def proposals(domain: ArmsDomain, state: ArmsState, draw: random.Random, share: float = 0.7) -> tuple[int, ...]:
    """Controls that are legal with this share, else anything."""
    controls = []
    for arm in domain.agents:
        legal = [domain.control_of(action) for action in domain.world.legal(state, arm)]
        anything = range(domain.control_count)
        controls.append(draw.choice(legal) if draw.random() < share else draw.choice(anything))
    return tuple(controls)


def wandered(domain: ArmsDomain, seed: int, slots: int) -> ArmsState:
    """A state after some slots in which arms propose what they like, with events in between."""
    draw = random.Random(seed)
    state = domain.start(seed)
    for _ in range(slots):
        if draw.random() < 0.15:
            state = domain.disturb(state, draw.choice(domain.disturbances).name, draw.random()) or state
        state = domain.step(state, proposals(domain, state, draw))
    return state


def test_every_scenario_can_be_made_and_solved() -> None:
    assert set(SCENARIOS) <= set(scenario_names())
    for name in scenario_names():
        domain = make(name)
        for seed in range(2):
            state = domain.start(seed)
            bound, plan = next(domain.bounded_candidates(state))
            result = roll_out(ChainExecutor(domain, plan), state, domain.horizon)
            assert result.success, (name, seed, result.detections)
            assert bound <= result.frames <= 40


# -- the abstract world -----------------------------------------------------------------------------------------------


@laws
@given(name=names, seed=seeds, slots=st.integers(0, 12))
def test_a_view_shows_the_state(name: str, seed: int, slots: int) -> None:
    """What the twin mirrors is enough to know the state, but for what it cannot see: clocks, stops and blocks."""
    domain = make(name)
    state = wandered(domain, seed, slots)
    view = domain.world.view(state)
    again = domain.world.observe(
        view,
        slot=state.slot,
        stopped={arm: left for arm, left in zip(domain.agents, state.stopped, strict=True) if left},
        blocked=dict(state.blocked),
    )
    assert again == state._replace(waited=(0,) * len(domain.agents), finished=succeeded(domain.scenario, view.world))


@laws
@given(name=names, seed=seeds, slots=st.integers(0, 10))
def test_a_slot_ends_as_the_twin_would_end_it(name: str, seed: int, slots: int) -> None:
    """The pure slot against the twin's state machine, on the same world and proposals."""
    domain, draw = make(name), random.Random(seed)
    state = wandered(domain, seed, slots)._replace(waited=(0,) * len(domain.agents), stopped=(0,) * len(domain.agents))
    state = state._replace(blocked=(), finished=False)
    controls = proposals(domain, state, draw)
    actions = {arm: domain.action_of(control) for arm, control in zip(domain.agents, controls, strict=True)}
    assert admitted_by_twin(domain, state, actions) == dict(domain.outcome(state, controls).admitted)


def admitted_by_twin(domain: ArmsDomain, state: ArmsState, actions: Mapping[str, Action]) -> dict[str, Action]:
    scenario, view = domain.scenario, domain.world.view(state)
    protocol = SlotProtocol(scenario, epoch=1)
    idle = {arm: ArmSnapshot(ArmStatus.IDLE) for arm in scenario.arms}
    (opened,) = protocol.on_world(Snapshot(1, 0, 1, 1, 0.0, view.world, idle), 0.0)
    assert isinstance(opened, Opened)
    answers = []
    for arm, action in actions.items():
        try:
            declaration = declare(scenario, arm, action, view.where)
        except UnknownName:  # another arm's verb: the twin will say so
            declaration = declare(scenario, arm, STAY, view.where)
        report = Report(arm, 1, opened.slot, 1, 1, 1, action, declaration)
        refusal, effects = protocol.on_report(report, 0.0)
        assert not refusal
        answers += [effect for effect in effects if isinstance(effect, Answered)]
    (answered,) = answers
    return {v.arm: v.action for v in answered.verdicts if v.decision is Decision.ADMIT and not v.action.is_stay}


@laws
@given(name=names, seed=seeds)
def test_whatever_is_legal_can_be_written_and_is_not_called_impossible(name: str, seed: int) -> None:
    domain, draw = make(name), random.Random(seed)
    state = start = domain.start(seed)
    for _ in range(10):
        for arm in domain.agents:
            for action in domain.world.legal(state, arm):
                if action.is_stay:
                    continue
                written = terms.Action(action.verb, tuple(filter(None, (action.entity, action.placement))))
                template = next(t for t in domain.vocabulary if t.name == action.verb)
                assert written.arguments in domain.arguments(state, arm, template)
                assert domain.impossible(state, arm, written) is None
                assert domain.impossible(start, arm, written) is None  # it was to become legal later
                assert domain.action_of(domain.control_of(action)) == action
        state = domain.step(state, proposals(domain, state, draw, share=1.0))


@laws
@given(name=names, seed=seeds, slots=st.integers(0, 10), draw=st.floats(0.0, 1.0, exclude_max=True))
def test_events_leave_the_goal_in_reach_and_objects_apart(name: str, seed: int, slots: int, draw: float) -> None:
    domain = make(name)
    state = wandered(domain, seed, slots)
    for event in domain.disturbances:
        after = domain.disturb(state, event.name, draw)
        if after is None:
            continue
        assert RelayGraph(domain.scenario).reaches_goal(domain.world.where(after)) is not False
        standing = [place for place in after.places if place in domain.scenario.placements]
        assert len(set(standing)) == len(standing)
        changed = {field for field, was, now in zip(state._fields, state, after, strict=True) if was != now}
        assert (
            changed <= {"A1": {"places"}, "A2": {"places", "holders"}, "A3": {"stopped"}, "A4": {"blocked"}}[event.name]
        )


# -- slots ------------------------------------------------------------------------------------------------------------


def play(domain: ArmsDomain, state: ArmsState, *intents: dict[str, str]) -> ArmsState:
    """Slots in which arms propose what is written, e.g. ``{"alice": "move mug coaster_mug"}``."""
    for slot in intents:
        actions = {arm: terms.Action((words := text.split())[0], tuple(words[1:])) for arm, text in slot.items()}
        state = domain.step(state, domain.control(state, [actions.get(arm) for arm in domain.agents]))
    return state


def test_nothing_is_fetched_that_nobody_holds_the_door_for() -> None:
    domain = make("cabinet")
    start = domain.world.state({"mug": "left_inner", "cup": "right_inner"})
    fetch, hold = {"chad": "move mug coaster_mug"}, {"alice": "hold left_door"}
    assert play(domain, start, fetch).places == start.places
    assert play(domain, start, hold, fetch).places == start.places  # the door closes by itself
    assert play(domain, start, fetch | hold).places == ("coaster_mug", "right_inner")


def test_holding_is_done_once_it_has_served() -> None:
    domain = make("cabinet")
    start = domain.world.state({"mug": "left_inner", "cup": "right_inner"})
    hold, fetch = terms.Action("hold", ("left_door",)), terms.Action("move", ("mug", "coaster_mug"))
    alone = domain.control(start, [hold, None, None])
    served = domain.control(start, [hold, None, fetch])
    assert domain.progress(start, alone, domain.step(start, alone), "alice", hold).status.value == "running"
    assert domain.progress(start, served, domain.step(start, served), "alice", hold).status.value == "done"


def test_a_rope_is_lifted_by_both_or_not_at_all() -> None:
    domain = make("rope")
    start = domain.start(0)
    a, b = {"alice": "lift end_a"}, {"bob": "lift end_b"}
    assert play(domain, start, a).holders == ("", "")
    lifted = play(domain, start, a | b)
    assert lifted.holders == ("alice", "bob")
    carried = play(domain, lifted, {"alice": "carry end_a groove_a", "bob": "carry end_b groove_b"})
    assert not domain.succeeded(carried)
    assert domain.succeeded(play(domain, carried, {"alice": "lower end_a groove_a", "bob": "lower end_b groove_b"}))


def test_a_rope_that_one_arm_has_lost_is_set_down_and_lifted_again() -> None:
    domain = make("rope")
    lifted = play(domain, domain.start(0), {"alice": "lift end_a", "bob": "lift end_b"})
    lost = domain.disturb(lifted, "A2", 0.0)
    assert lost is not None and sum(map(bool, lost.holders)) == 1
    plan = SearchCoordinator(domain).best(lost)
    assert plan is not None
    assert [str(chain[0]).partition("(")[0] for chain in plan.values() if chain].count("set_down") == 1
    assert roll_out(ChainExecutor(domain, plan), lost, domain.horizon).success


def test_a_stopped_arm_and_a_blocked_placement_are_out_of_use_for_some_slots() -> None:
    domain = make("sort")
    start = domain.world.state({"blue_square": "panel1", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"})
    move = {"alice": "move blue_square pad2"}
    assert domain.step(start, domain.control(start, [None] * 3)).places == start.places
    for state in (
        start._replace(stopped=(3, 0, 0)),
        start._replace(blocked=(("pad2", 3),)),
    ):
        for _ in range(3):
            state = play(domain, state, move)
            assert state.places == start.places
        assert play(domain, state, move).places[0] == "pad2"


def test_a_slice_that_carries_others_stays() -> None:
    domain = make("sandwich")
    places = dict(zip(domain.world.objects, domain.start(0).places, strict=True))
    places |= {"bread_bottom": "layer1", "bacon": "layer2"}
    state = domain.world.state(places)
    moved = {domain.disturb(state, "A1", k / 50) for k in range(50)} - {None}
    k = domain.world.index["bread_bottom"]
    assert len(moved) > 10 and all(after is not None and after.places[k] == "layer1" for after in moved)
    assert any(after is not None and after.places != state.places for after in moved)


# -- plans ------------------------------------------------------------------------------------------------------------


@laws
@given(name=names, seed=seeds)
def test_plans_hold_whatever_the_arms_speed(name: str, seed: int) -> None:
    """The waits say all that is needed: arms that hesitate at random still finish, without ever being stuck."""
    domain, draw = make(name), random.Random(seed)
    state = domain.start(seed)
    executor: ChainExecutor[ArmsState] = ChainExecutor(domain, next(domain.candidates(state)))
    for _ in range(400):
        if domain.succeeded(state):
            break
        intents = executor.intents(state)
        controls = domain.control(state, [intent if draw.random() < 0.5 else None for intent in intents])
        after = domain.step(state, controls)
        executor.advance(state, controls, after)
        state = after
    assert domain.succeeded(state)


def test_a_step_waits_for_what_it_needs_and_for_nothing_else() -> None:
    domain = make("sort")
    state = domain.world.state({"blue_square": "panel5", "pink_polygon": "panel7", "yellow_trapezoid": "panel1"})
    plan = next(domain.candidates(state))
    carried = {  # object -> (arm, step number, placement) of its moves
        name: [
            (arm, number, step.arguments[1])
            for arm, chain in plan.items()
            for number, step in enumerate(chain, 1)
            if isinstance(step, terms.Action) and step.arguments[0] == name
        ]
        for name in domain.world.objects
    }
    assert {name: len(moves) for name, moves in carried.items()} == {
        "blue_square": 2,
        "pink_polygon": 2,
        "yellow_trapezoid": 3,
    }
    waits = [atom for chain in plan.values() for step in chain if isinstance(step, Wait) for atom in step.atoms]
    assert WaitEntity("pink_polygon", "place", "==", "panel5") in waits
    assert all(
        atom.value != domain.scenario.entities[atom.entity].goal for atom in waits if isinstance(atom, WaitEntity)
    )
    alone = domain.world.state({"blue_square": "panel1", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"})
    assert not any(isinstance(step, Wait) for chain in next(domain.candidates(alone)).values() for step in chain)


def test_a_patch_renumbers_what_it_waits_for() -> None:
    move = [terms.Action("move", (name, "pad2")) for name in ("a", "b", "c")]
    plan = Plan.of(
        {
            "alice": (move[0], move[1]),
            "bob": (
                Wait((WaitAgents("alice", "done", 1),)),
                Wait((WaitAgents("alice", "done", 2), WaitEntity("x", "met", "==", True)), "&"),
                move[2],
            ),
        }
    )
    remaining = Plan.of({"alice": (move[1],), "bob": ()})
    assert patched(plan, "bob", remaining)["bob"] == (
        Wait((WaitAgents("alice", "done", 1), WaitEntity("x", "met", "==", True)), "&"),
        move[2],
    )


def test_the_closed_rule_sees_what_a_step_does_not_name() -> None:
    domain = make("cabinet")
    state = domain.world.state({"mug": "left_inner", "cup": "right_outer"})
    fetch = terms.Action("move", ("mug", "coaster_mug"))
    assert domain.refers(state, "chad", fetch) == {"mug", "coaster_mug"}
    assert domain.depends(state, "chad", fetch) >= {
        "mug",
        "coaster_mug",
        "chad",
        "left_inner",
        "left_door_open",
        "alice",
    }
    assert not domain.depends(state, "chad", fetch) & {"cup", "right_outer", "bob"}
    hold = terms.Action("hold", ("left_door",))
    assert domain.refers(state, "alice", hold) == set()
    assert domain.depends(state, "alice", hold) >= {"alice", "left_door_open", "left_in_use", "mug"}


def test_what_nobody_brings_about_is_hopeless() -> None:
    domain = make("sort")
    state = domain.world.state({"blue_square": "panel1", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"})
    plan = Plan.of({"alice": (terms.Action("move", ("blue_square", "pad2")),), "bob": (), "chad": ()})
    for entity, attribute, value, expected in (
        ("blue_square", "place", "pad2", True),
        ("blue_square", "place", "panel3", False),
        ("blue_square", "at_goal", True, True),
        ("pink_polygon", "at_goal", True, False),
        ("pad2", "occupied", True, True),
        ("panel1", "occupied", False, True),
        ("panel3", "occupied", False, False),
        ("panel3", "blocked", True, True),
    ):
        assert domain.can_become(state, WaitEntity(entity, attribute, "==", value), plan) == expected, (
            entity,
            attribute,
        )


@pytest.mark.parametrize(
    ("arm", "action", "reason"),
    [
        ("alice", terms.Action("move", ("blue_square", "pad6")), "out of alice's reach"),
        ("chad", terms.Action("move", ("blue_square", "panel7")), "no progress"),
        ("alice", terms.Action("move", ("blue_square", "panel1")), "no progress"),
        ("chad", terms.Action("move", ("blue_square", "panel5")), "cannot come within"),
        ("bob", terms.Action("fly", ("blue_square",)), "no action"),
    ],
)
def test_what_can_never_be_done_is_named(arm: str, action: terms.Action, reason: str) -> None:
    domain = make("sort")
    state = domain.world.state({"blue_square": "panel1", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"})
    assert reason in str(domain.impossible(state, arm, action))


def test_names_that_would_be_mixed_up_are_refused() -> None:
    data = make("sort").scenario.model_dump(mode="json", exclude_none=True)
    data["conditions"] = {"panel3": {"kind": "occupied", "placement": "panel3"}}
    with pytest.raises(InvalidValue, match="panel3"):
        ArmsDomain(parse_scenario(data))


@pytest.mark.parametrize("name", ["sort_crowded", "cabinet", "rope"])
def test_the_search_coordinator_finishes_in_spite_of_events(name: str) -> None:
    domain = make(name)

    class Event:
        deferred = True

        def __init__(self, name: str, frame: int, draw: float) -> None:
            self.name, self.frame, self.draw = name, frame, draw

    coordinator = SearchCoordinator(domain)
    for seed in range(3):
        draw = random.Random(seed)
        events = [Event(event.name, draw.randrange(1, 6), draw.random()) for event in domain.disturbances]
        episode = run_episode(domain, coordinator, schedule=events, policy="stall", seed=seed)
        assert episode.success, (seed, episode.plans)


# -- physics ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("rope", 0), ("sweep", 0), ("cabinet", 1), ("sandwich", 0), ("sort", 1)])
def test_physics_goes_the_same_way_slot_by_slot(name: str, seed: int) -> None:
    """A plan carried out in MuJoCo: after every slot placements, grippers, conditions and legal actions agree."""
    from polyarm_core.plant.simulation import Simulation

    domain = make(name)
    simulation = Simulation(domain.scenario, seed)
    tracker = ConditionTracker(domain.scenario)

    def agree(state: ArmsState) -> None:
        bare = simulation.world()
        true = tracker.true_now(bare, simulation.readings(), simulation.held_conditions())
        seen, expected = WorldView(domain.scenario, replace(bare, conditions=true)), domain.world.view(state)
        shown = domain.world.observe(seen)
        assert (shown.places, shown.holders) == (state.places, state.holders)
        assert true == expected.world.conditions
        assert all(seen.legal(arm) == expected.legal(arm) for arm in domain.agents)

    try:
        state = domain.start(seed)
        agree(state)
        executor: ChainExecutor[ArmsState] = ChainExecutor(domain, next(domain.candidates(state)))
        while not domain.succeeded(state):
            controls = domain.control(state, executor.intents(state))
            for arm, action in domain.outcome(state, controls).admitted.items():
                simulation.start_action(arm, action)
            assert simulation.run_until_idle(120.0)
            assert all(result.outcome == "succeeded" for result in simulation.results())
            after = domain.step(state, controls)
            executor.advance(state, controls, after)
            state = after
            agree(state)
    finally:
        simulation.close()


def test_an_arm_that_still_holds_an_object_may_put_it_down_where_it_is() -> None:
    """Its last motion failed in front of a full panel: the way out is in no move that brings the object on."""
    domain = ArmsDomain(load_scenario("sort"))
    start = domain.start(0)
    names = domain.world.objects
    places = {"blue_square": "panel7", "pink_polygon": "panel3", "yellow_trapezoid": "panel1"}
    held = {"yellow_trapezoid": "alice"}
    state = start._replace(
        places=tuple(places[name] for name in names), holders=tuple(held.get(name, "") for name in names)
    )
    down = terms.Action("move", ("yellow_trapezoid", "panel1"))
    assert domain.impossible(state, "alice", down) is None
    move = next(t for t in domain.vocabulary if t.name == "move")
    assert down.arguments in domain.arguments(state, "alice", move)
    answer = SearchCoordinator(domain).plan(PlanRequest(state, "start", None, (), 0))
    assert answer.plan is not None and roll_out(ChainExecutor(domain, answer.plan), state, domain.horizon).success
    # Nobody else may, and neither may she what lies on a panel.
    free = state._replace(holders=("",) * len(names))
    assert "no progress" in str(domain.impossible(free, "alice", down))
    assert down.arguments not in domain.arguments(free, "alice", move)
