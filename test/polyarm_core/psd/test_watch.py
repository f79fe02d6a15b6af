"""The plan of a cell held against its world within and between slots; the detector is the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.constraints import Action
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.domains.arms.world import LIFT
from polyarm_core.orchestrator import Decision
from polyarm_core.psd.detector import LearnedDetector, OracleDetector, find_weights
from polyarm_core.psd.watch import Look, PlanWatch
from polyarm_core.slots import ArmSnapshot, ArmStatus, ArmVerdict
from polyarm_core.world import WorldView

DOMAINS = {name: ArmsDomain(name) for name in ("sort", "cabinet", "sweep")}
SEARCH = {name: SearchCoordinator(domain) for name, domain in DOMAINS.items()}
RESTING = ArmSnapshot(ArmStatus.IDLE)


class Cell:
    """Twin, plant and coordinator of an abstract cell, as far as the watch hears them."""

    def __init__(self, task: str, seed: int = 0) -> None:
        self.domain = DOMAINS[task]
        self.watch = PlanWatch(MirroredArms(self.domain), lambda: OracleDetector(self.domain))
        self.state = self.domain.start(seed)
        self.slot, self.number = 1, 1
        plan = SEARCH[task].plan(PlanRequest(self.state)).plan
        assert plan is not None
        self.executor: ChainExecutor[ArmsState] = ChainExecutor(self.domain, plan)
        assert self.watch.on_opening(1, *self.seen()) is None  # there is no plan yet

    def seen(self, state: ArmsState | None = None) -> tuple[WorldView, Mapping[str, ArmSnapshot]]:
        state = state or self.state
        view = self.domain.world.view(state)
        world = replace(view.world, blocked=frozenset(name for name, _ in state.blocked))
        stops = zip(self.domain.agents, state.stopped, strict=True)
        arms = {arm: ArmSnapshot(ArmStatus.PROTECTIVE_STOP) if left else RESTING for arm, left in stops}
        return WorldView(view.scenario, world), arms

    def tell(self) -> None:
        self.watch.on_plan(self.slot, self.number, True, self.executor.remaining())

    def act(self) -> dict[str, Action]:
        """Heads become admitted actions; returns them."""
        self.controls = self.domain.control(self.state, self.executor.intents(self.state))
        return dict(self.domain.outcome(self.state, self.controls).admitted)

    def verdicts(self, admitted: Mapping[str, Action]) -> None:
        self.watch.on_verdicts([ArmVerdict(arm, action, Decision.ADMIT) for arm, action in admitted.items()])

    def end(self, admitted: Mapping[str, Action]) -> Look | None:
        """All actions succeed and the next slot opens."""
        for arm, action in admitted.items():
            self.watch.on_result(arm, action, "succeeded", "")
        after = self.domain.step(self.state, self.controls)
        self.executor.advance(self.state, self.controls, after)
        self.executor.check(after)  # waits that are over are no part of the rest, as in the coordinator
        self.state, self.slot = after, self.slot + 1
        return self.watch.on_opening(self.slot, *self.seen())

    def carried(self, admitted: Mapping[str, Action]) -> WorldView:
        """Halfway: what is moved hangs over its destination, in a gripper."""
        view, _ = self.seen()
        positions, held = dict(view.world.positions), dict(view.world.held_by)
        for arm, action in admitted.items():
            if action.entity in positions:
                x, y, z = self.domain.scenario.placements[action.placement].xyz
                positions[action.entity], held[action.entity] = (x, y, z + LIFT), arm
        return WorldView(view.scenario, replace(view.world, positions=positions, held_by=held))


@pytest.mark.parametrize("task", DOMAINS)
def test_what_the_plan_does_is_never_news(task: str) -> None:
    for seed in range(3):
        cell = Cell(task, seed)
        while not cell.domain.succeeded(cell.state):
            cell.tell()
            admitted = cell.act()
            looks = [cell.watch.on_world(*cell.seen())]
            cell.verdicts(admitted)
            if task != "sweep":
                looks.append(cell.watch.on_world(cell.carried(admitted), cell.seen()[1]))
            looks.append(cell.end(admitted))
            for look in looks:
                assert look is not None and (look.number, look.stale, look.ask) == (1, False, False)


def displaced(cell: Cell, name: str, place: str) -> ArmsState:
    k = cell.domain.world.index[name]
    return cell.state._replace(places=(*cell.state.places[:k], place, *cell.state.places[k + 1 :]))


def test_a_situation_is_asked_about_once_for_each_plan() -> None:
    cell = Cell("sort")  # seed 0: blue on panel5, pink on pad2, yellow on panel7
    cell.tell()
    moved = cell.seen(displaced(cell, "blue_square", "panel7" if "panel7" not in cell.state.places else "pad6"))
    first = cell.watch.on_world(*moved)
    assert first is not None and first.stale and first.ask
    again = cell.watch.on_world(*moved)
    assert again is not None and again.stale and not again.ask
    other = cell.watch.on_world(*cell.seen(displaced(cell, "blue_square", "pad4")))
    assert other is not None and other.ask is other.stale
    good = cell.watch.on_world(*cell.seen())
    assert good is not None and not good.stale
    back = cell.watch.on_world(*moved)
    assert back is not None and back.stale and not back.ask
    cell.number = 2
    cell.tell()
    anew = cell.watch.on_world(*moved)
    assert anew is not None and (anew.number, anew.ask) == (2, True)


def test_what_is_put_back_between_two_slots_is_noticed_when_the_next_one_opens() -> None:
    """The object is where it was one slot ago, so over frames nothing has changed; but it was to be elsewhere."""
    cell = Cell("sort")
    cell.watch = PlanWatch(MirroredArms(cell.domain), lambda: LearnedDetector.load(cell.domain, find_weights("closed")))
    cell.watch.on_opening(1, *cell.seen())
    cell.tell()
    admitted = cell.act()
    cell.verdicts(admitted)
    before = cell.state
    for arm, action in admitted.items():
        cell.watch.on_result(arm, action, "succeeded", "")
    after = cell.domain.step(before, cell.controls)
    k = cell.domain.world.index["pink_polygon"]
    assert after.places[k] != before.places[k]
    back = after._replace(places=(*after.places[:k], before.places[k], *after.places[k + 1 :]))
    look = cell.watch.on_opening(2, *cell.seen(back))
    assert look is not None and look.stale and look.ask


def test_what_an_action_has_lost_follows_the_plant() -> None:
    cell = Cell("sort")
    cell.tell()
    admitted = cell.act()
    cell.verdicts(admitted)
    arm, action = next((arm, action) for arm, action in admitted.items() if action.verb == "move")
    lost = None
    for place in cell.domain.scenario.placements:
        if place in cell.state.places:
            continue
        state = displaced(cell, action.entity, place)
        oracle = OracleDetector(cell.domain)
        if oracle.observe(state, cell.executor.remaining()):
            lost = state
            break
    assert lost is not None
    look = cell.watch.on_world(*cell.seen(lost))
    assert look is not None and not look.stale  # as far as is known, the arm is carrying it
    cell.watch.on_result(arm, action, "failed", "slip")
    look = cell.watch.on_world(*cell.seen(lost))
    assert look is not None and look.stale and look.ask


def test_the_order_in_which_a_slot_is_heard_does_not_matter() -> None:
    """Verdicts and results before the plan state: the same is left of the plan at the next opening."""
    early, late = Cell("sort"), Cell("sort")
    for _ in range(2):
        left = early.executor.remaining()
        early.tell()
        admitted = early.act()
        early.verdicts(admitted)
        late.act()
        late.verdicts(admitted)
        for arm, action in admitted.items():
            late.watch.on_result(arm, action, "succeeded", "")
        late.watch.on_plan(late.slot, 1, True, left)
        first = early.end(admitted)
        late.executor, late.state, late.slot = early.executor.copy(), early.state, early.slot
        second = late.watch.on_opening(late.slot, *late.seen())
        assert first == second and first is not None and not first.stale
        assert early.watch._follower.remaining() == late.watch._follower.remaining()


def test_nothing_is_said_without_a_plan_that_is_followed() -> None:
    cell = Cell("sort")
    assert cell.watch.on_world(*cell.seen()) is None
    cell.tell()
    assert cell.watch.on_world(*cell.seen()) is not None
    cell.watch.on_plan(5, 2, True, cell.executor.remaining())  # of a slot that is not open
    assert cell.watch.number == 1
    cell.watch.on_plan(1, 1, False, cell.executor.remaining())
    assert cell.watch.on_world(*cell.seen()) is None
    cell.tell()
    cell.watch.on_reset()
    assert cell.watch.on_world(*cell.seen()) is None and cell.watch.number == 0
