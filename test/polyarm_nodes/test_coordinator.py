"""The coordinator as a process over DDS; plant, twin and arms are played by the test with real messages."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("polyarm.msg", reason="needs the built messages")

from diagnostic_msgs.msg import DiagnosticArray
from harness import Probe, probe, running
from polyarm.msg import (
    ActionResult,
    ArmHead,
    ArmState,
    EntityState,
    PlanCall,
    PlanState,
    ReplanRequest,
    SlotOpening,
    SlotVerdict,
    Staleness,
    WorldState,
)
from polyarm.msg import Plan as PlanMessage

from polyarm_core.chains import terms
from polyarm_core.chains.terms import Plan, Wait, WaitAgents, WaitEntity
from polyarm_core.constraints import Action
from polyarm_core.control.executive import SlotPlan
from polyarm_core.control.modes import UNPLANNED, Head, Standing
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.orchestrator import Decision
from polyarm_core.slots import ArmVerdict
from polyarm_nodes import qos, topics
from polyarm_nodes.convert import action_to_message, pose_fields, verdict_to_message
from polyarm_nodes.graph import NodeSpec
from polyarm_nodes.plan_convert import (
    HeardState,
    Vocabulary,
    plan_from_message,
    plan_to_message,
    request_to_message,
    state_from_message,
    state_to_message,
)
from polyarm_nodes.validation import Malformed

pytestmark = pytest.mark.ros

DOMAIN = ArmsDomain("sort")
SORT = DOMAIN.scenario
WORDS = Vocabulary.of(DOMAIN)
TWIN, PLANT, DETECTOR = 77, 88, 99  # epochs
TEAPOT = action_to_message(Action("move", "teapot", "pad2"))
JUGGLE = action_to_message(Action("juggle", "pink_polygon", "pad2"))
STRANGER = verdict_to_message(ArmVerdict("eve", Action("stay"), Decision.ADMIT), 1.0)


class Cell:
    """Plant, twin and arms of the abstract task: what heads say is carried out, and told as the real nodes tell it."""

    episodes = 1000

    def __init__(self, node: Probe) -> None:
        self.probe = node
        self.plans = node.record(PlanMessage, topics.PLAN, qos.PLAN)
        self.states = node.record(PlanState, topics.PLAN_STATE, qos.PLAN_STATE)
        self.calls = node.record(PlanCall, topics.PLAN_CALLS, qos.PLAN_CALLS)
        self.diagnostics = node.record(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self.out = {
            kind: node.node.create_publisher(kind, name, profile)
            for kind, name, profile in (
                (WorldState, topics.WORLD, qos.WORLD),
                (SlotOpening, topics.SLOT_OPENING, qos.OPENINGS),
                (SlotVerdict, topics.VERDICTS, qos.VERDICTS),
                (ActionResult, topics.ACTION_RESULTS, qos.RESULTS),
                (ReplanRequest, topics.REPLAN_REQUESTS, qos.REPLAN_REQUESTS),
                (Staleness, topics.STALENESS, qos.STALENESS),
            )
        }
        self.sequences = dict.fromkeys(self.out, 0)
        self.state = DOMAIN.start(0)
        self.episode = self.slot = 0

    def send(self, message: Any, epoch: int) -> None:
        kind = type(message)
        self.sequences[kind] += 1
        message.episode, message.epoch, message.sequence = self.episode, epoch, self.sequences[kind]
        self.out[kind].publish(message)

    def begin(self, seed: int = 0) -> None:
        node = self.probe
        node.wait(lambda: all(p.get_subscription_count() for p in self.out.values()), "the coordinator listens")
        node.wait(lambda: node.node.count_publishers(topics.PLAN_STATE) == 1, "the coordinator joins")
        Cell.episodes += 1
        self.episode, self.slot, self.state = Cell.episodes, 0, DOMAIN.start(seed)
        self.show()

    def show(self, state: ArmsState | None = None) -> None:
        """Publish the world."""
        self.state = state or self.state
        view = DOMAIN.world.view(self.state)
        message = WorldState(
            slot=self.slot, conditions=sorted(view.world.conditions), success=DOMAIN.succeeded(self.state)
        )
        message.blocked = [name for name, _ in self.state.blocked]
        for name, position in view.world.positions.items():
            entity = EntityState(name=name, held_by=view.world.held_by.get(name, ""))
            pose_fields(entity, position, (1.0, 0.0, 0.0, 0.0))
            message.entities.append(entity)
        message.arms = [ArmState(name=arm, status=ArmState.STATUS_IDLE) for arm in SORT.arms]
        self.send(message, PLANT)

    def open(self, deadline: float = 20.0) -> None:
        """Open the next slot on the world that was shown last."""
        self.slot += 1
        self.send(
            SlotOpening(
                slot=self.slot,
                execution=SlotOpening.EXECUTION_GRANTED,
                deadline=deadline,
                world_sequence=self.sequences[WorldState],
                expected=list(SORT.arms),
            ),
            TWIN,
        )

    def told(self, deadline: float = 20.0) -> HeardState:
        """What the arms are told in the open slot."""

        def here() -> list[PlanState]:
            return [m for m in self.states if (m.episode, m.slot, m.twin_epoch) == (self.episode, self.slot, TWIN)]

        self.probe.wait(lambda: bool(here()), f"plan state of slot {self.slot}", deadline)
        return state_from_message(here()[-1], WORDS, SORT)

    def act(self, told: HeardState, silent: bool = False) -> Mapping[str, Action]:
        """Carry out what the heads say; verdicts and results are told, and the world unless ``silent``."""
        actions = {arm: head.action or Action("stay") for arm, head in told.heads.items()}
        controls = tuple(DOMAIN.control_of(action) for action in actions.values())
        outcome = DOMAIN.outcome(self.state, controls)
        verdicts = [
            ArmVerdict(a, act, Decision.ADMIT if act.is_stay or a in outcome.admitted else Decision.WAIT)
            for a, act in actions.items()
        ]
        self.send(SlotVerdict(slot=self.slot, verdicts=[verdict_to_message(v, 2.0) for v in verdicts]), TWIN)
        if not silent:
            self.finish(outcome.admitted)
        self.state = DOMAIN.step(self.state, controls)
        if not silent:
            self.show()
        return dict(outcome.admitted)

    def finish(self, admitted: Mapping[str, Action]) -> None:
        for arm, action in admitted.items():
            message = ActionResult(arm=arm, slot=self.slot, outcome=ActionResult.OUTCOME_SUCCEEDED)
            message.action = action_to_message(action)
            self.send(message, PLANT)

    def a_slot(self) -> HeardState:
        self.open()
        told = self.told()
        self.act(told)
        return told

    def heard_plans(self) -> list[PlanMessage]:
        return [m for m in self.plans if m.episode == self.episode]

    def heard_calls(self, count: int) -> list[PlanCall]:
        """Calls and repairs of the episode, once so many have come: topics are not ordered among each other."""

        def here() -> list[PlanCall]:
            return [m for m in self.calls if m.episode == self.episode]

        self.probe.wait(lambda: len(here()) >= count, f"{count} calls", 10.0)
        return here()

    def request(self, number: int, reason: str = "stale") -> None:
        self.send(request_to_message(number, reason, "blue_square has moved", (), 0.9), DETECTOR)

    def values(self) -> dict[str, str]:
        """Of the newest diagnostics of the coordinator, with its message."""
        for array in reversed(self.diagnostics):
            for status in array.status:
                if status.name.endswith("coordinator"):
                    level = int.from_bytes(status.level, "little")
                    return {v.key: v.value for v in status.values} | {"text": status.message, "level": str(level)}
        return {}

    def wait_for_value(self, key: str, value: str) -> None:
        self.probe.wait(lambda: value in self.values().get(key, ""), f"diagnostics: {key} = {value}", 10.0)


@contextmanager
def coordinator(out: Path, **parameters: Any) -> Iterator[tuple[Cell, Any]]:
    spec = NodeSpec("coordinator", "coordinator", "/", {"scenario": "sort", **parameters}, respawn=True)
    with running([spec], out, check_fields=False) as runner, probe() as node:
        yield Cell(node), runner


@pytest.fixture(scope="module")
def cell(module_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    with coordinator(tmp_path_factory.mktemp("coordinator"), detector=True) as (made, _):
        yield made


def test_a_plan_is_published_before_the_arms_are_told_and_is_followed_to_the_end(cell: Cell) -> None:
    cell.begin()
    lefts = []
    while not DOMAIN.succeeded(cell.state):
        told = cell.a_slot()
        assert told.sound and told.number == 1
        lefts.append(sum(map(len, told.remaining.values())))
        for arm, head in told.heads.items():
            if head.action is not None:  # a head is the first step of what is left
                assert str(told.remaining[arm][0]).startswith(f"{head.action.verb}({head.action.entity}")
    (plan,) = cell.heard_plans()
    heard = plan_from_message(plan, WORDS)
    assert (heard.number, heard.reason, heard.slot) == (1, "start", 1)
    assert lefts == sorted(lefts, reverse=True) and lefts[0] == sum(map(len, heard.plan.values()))
    (call,) = cell.heard_calls(1)
    assert (call.source, call.reason, call.number) == (PlanCall.SOURCE_COORDINATOR, "start", 1)


def test_the_outcome_of_a_slot_is_waited_for_before_the_next_is_told(cell: Cell) -> None:
    cell.begin()
    cell.open()
    admitted = cell.act(cell.told(), silent=True)
    assert admitted
    finished = cell.slot
    cell.show()
    cell.open()
    cell.probe.spin(0.3)
    assert not [m for m in cell.states if (m.episode, m.slot) == (cell.episode, cell.slot)]
    cell.slot = finished
    cell.finish(admitted)
    cell.slot += 1
    before = [m for m in cell.states if (m.episode, m.slot) == (cell.episode, finished)][-1]
    left = {chain.agent: len(chain.steps) for chain in before.remaining}
    told = cell.told()
    assert all(len(told.remaining[arm]) < left[arm] for arm in admitted)


def test_a_request_for_another_plan_is_met_once_and_one_about_an_old_plan_not_at_all(cell: Cell) -> None:
    cell.begin()
    ignored = int(cell.values().get("requests_ignored", "0"))
    cell.a_slot()
    moved = next(s for k in range(20) if (s := DOMAIN.disturb(cell.state, "A1", k / 20)) is not None)
    cell.show(moved)
    cell.request(1)
    cell.request(7)
    cell.probe.spin(0.2)
    told = cell.a_slot()
    assert told.sound and told.number == 2
    first, second = cell.heard_plans()
    assert (first.reason, second.reason, second.number, second.slot) == ("start", "stale", 2, 2)
    calls = cell.heard_calls(2)[1:]
    assert {(call.reason, call.cause) for call in calls} == {("stale", "blue_square has moved")}
    assert calls[-1].number == 2
    cell.request(1)
    cell.wait_for_value("requests_ignored", str(ignored + 2))


def test_the_detector_s_word_on_the_world_of_the_slot_counts(cell: Cell) -> None:
    cell.begin()
    cell.a_slot()
    moved = next(s for k in range(20) if (s := DOMAIN.disturb(cell.state, "A1", k / 20)) is not None)
    cell.show(moved)
    cell.open()
    cell.send(
        Staleness(
            slot=cell.slot,
            world_sequence=cell.sequences[WorldState],
            plan=1,
            probability=0.9,
            threshold=0.5,
            stale=True,
        ),
        DETECTOR,
    )
    assert cell.told().number == 2 and cell.heard_plans()[-1].reason == "stale"


def test_a_detector_that_has_fallen_silent_is_waited_for_once(tmp_path: Path) -> None:
    with coordinator(tmp_path, detector=True, detector_wait=1.0) as (cell, _):
        cell.begin()
        for _ in range(3):
            assert cell.a_slot().sound
        cell.wait_for_value("unwatched", "1")
        cell.probe.spin(1.5)
        assert cell.values()["unwatched"] == "1"
        looked = cell.sequences[WorldState]
        cell.send(Staleness(slot=cell.slot, world_sequence=looked, plan=1, threshold=0.5), DETECTOR)
        cell.probe.spin(0.3)
        cell.a_slot()
        cell.wait_for_value("unwatched", "2")  # since it was heard again


def test_a_slot_that_was_decided_without_the_coordinator_is_followed_by_a_word_of_it(cell: Cell) -> None:
    """Hybrid arms that have missed it once go on by themselves until they hear it again."""
    cell.begin()
    cell.open()
    admitted = cell.act(cell.told(), silent=True)
    acted = cell.slot
    cell.show()
    cell.open()  # it waits for results, and the arms do not wait for it
    stays = [ArmVerdict(arm, Action("stay"), Decision.ADMIT) for arm in SORT.arms]
    cell.send(SlotVerdict(slot=cell.slot, verdicts=[verdict_to_message(v, 2.0) for v in stays]), TWIN)
    told = cell.told()
    assert not told.sound and set(told.heads.values()) == {UNPLANNED}
    cell.slot = acted
    cell.finish(admitted)
    cell.slot += 1
    cell.show()
    told = cell.a_slot()
    assert told.sound and told.number == 1


def test_another_episode_begins_with_a_first_plan(cell: Cell) -> None:
    cell.begin(1)
    assert cell.a_slot().number == 1
    cell.begin(2)
    told = cell.a_slot()
    assert (told.number, told.slot, cell.heard_plans()[-1].reason) == (1, 1, "start")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (ReplanRequest(plan=1, reason="boredom"), "reason 'boredom' is unknown; valid: start"),
        (ReplanRequest(plan=1, reason="stale", agents=["dave"]), "agent 'dave' is unknown; valid: alice, bob, chad"),
        (ReplanRequest(plan=0, reason="stale"), "plan must be above 0"),
        (ReplanRequest(plan=1, reason="stale", probability=float("nan")), "probability = nan is not finite"),
        (ActionResult(arm="dave", slot=1, outcome=1), "arm 'dave' is unknown"),
        (ActionResult(arm="bob", slot=1, outcome=9), "outcome = 9"),
        (ActionResult(arm="bob", slot=1, outcome=1, action=TEAPOT), "unknown entity 'teapot'"),
        (ActionResult(arm="bob", slot=1, outcome=1, action=JUGGLE), "bob has no action 'juggle pink_polygon"),
        (SlotVerdict(slot=1, verdicts=[STRANGER]), "agent 'eve' is unknown"),
        (WorldState(), "entities without a pose"),
        (SlotOpening(slot=1, deadline=float("inf")), "deadline = inf is not finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_malformed_is_refused_and_changes_nothing(cell: Cell, message: Any, why: str) -> None:
    cell.begin()
    cell.a_slot()
    cell.diagnostics.clear()
    cell.send(message, PLANT)
    cell.wait_for_value("last_refusal", why)
    cell.show()
    assert cell.a_slot().number == 1


# -- messages ---------------------------------------------------------------------------------------------------------

PLAN = Plan.of(
    {
        "alice": (
            terms.Action("move", ("pink_polygon", "panel3")),
            Wait((WaitEntity("panel3", "occupied", "==", False),)),
        ),
        "bob": (Wait((WaitAgents("alice", "done", 1), WaitAgents("alice", "start", 2)), "|"),),
        "chad": (),
    }
)
HEADS = {
    "alice": Head(Standing.ACT, Action("move", "pink_polygon", "panel3")),
    "bob": Head(Standing.WAIT),
    "chad": Head(Standing.ENDED),
}
TOLD = SlotPlan(4, 2, True, HEADS, PLAN, {"bob": "step 1"})


def test_plans_and_what_arms_are_told_arrive_as_they_were_sent() -> None:
    plan = plan_to_message(3, PLAN, "stale")
    plan.epoch = plan.sequence = 1
    heard = plan_from_message(plan, WORDS)
    assert (heard.plan, heard.number, heard.reason) == (PLAN, 3, "stale")
    state = state_to_message(TOLD)
    state.epoch = state.sequence = 1
    told = state_from_message(state, WORDS, SORT)
    assert (told.heads, told.remaining, told.number, told.sound) == (HEADS, PLAN, 2, True)
    assert told.reserved == {"pink_polygon", "panel3"} and state.heads[1].why == "step 1"


def changed_chain(agent: int, *steps: str) -> Callable[[PlanState], None]:
    def change(message: PlanState) -> None:
        message.remaining[agent].steps = list(steps)

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.remaining.pop(), "remaining are of alice, bob; valid: alice, bob, chad"),
        (lambda m: m.remaining.reverse(), "remaining are of chad, bob, alice"),
        (lambda m: m.heads.pop(), "heads are of alice, bob; valid"),
        (lambda m: setattr(m.heads[0], "standing", 9), "standing of alice = 9"),
        (lambda m: setattr(m.heads[0].action, "entity", "teapot"), "action.entity 'teapot' is unknown"),
        (lambda m: setattr(m.heads[0].action, "placement", "roof"), "action.placement 'roof' is unknown"),
        (lambda m: setattr(m, "sound", False), "heads say what to do although the plan is not followed"),
        (lambda m: setattr(m, "plan", 0), "plan = 0 is sound"),
        (lambda m: setattr(m, "sequence", 0), "epoch and sequence of the sender"),
        (changed_chain(0, "move(pink_polygon"), "step 1 of alice: line 1, column 18"),
        (changed_chain(0, "move(pink_polygon, panel3), move(pink_polygon, pad4)"), "step 1 of alice"),
        (changed_chain(0, "juggle(pink_polygon)"), "action 'juggle' is unknown; valid: move"),
        (changed_chain(0, "move(pink_polygon)"), "has 1 arguments; valid: 2"),
        (changed_chain(0, "move(teapot, panel3)"), "'teapot' is unknown"),
        (changed_chain(2, "Wait_agents(dave, done, 1)"), "valid agents: alice, bob"),
        (changed_chain(2, "Wait_agents(chad, done, 1)"), "valid agents: alice, bob"),
        (changed_chain(2, "Wait_agents(alice, done, 3)"), "the chain of alice has 2 steps"),
        (changed_chain(2, "Wait_entity(teapot, place, ==, pad2)"), "entity 'teapot' is unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_names_things_that_do_not_exist_is_refused(change: Callable[[PlanState], Any], why: str) -> None:
    message = state_to_message(TOLD)
    message.epoch = message.sequence = 1
    change(message)
    with pytest.raises(Malformed, match=re.escape(why)):
        state_from_message(message, WORDS, SORT)


# -- models -----------------------------------------------------------------------------------------------------------


class Model(BaseHTTPRequestHandler):
    """An OpenAI-compatible server: as slow as it is told to be, with the search's plan, another text, or an error."""

    delay: ClassVar[float] = 0.0
    answer: ClassVar[str | None] = None  # None = 503

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/tokenize":
            status, answer = 404, {}
        elif Model.answer is None:
            status, answer = 503, {"error": {"message": "no weights"}}
        else:
            time.sleep(Model.delay)
            usage = {"prompt_tokens": 10, "completion_tokens": 20}
            status = 200
            answer = {"choices": [{"text": Model.answer, "finish_reason": "stop"}], "usage": usage}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except BrokenPipeError:  # who asked has gone
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    http.server_close()


def plan_text(seed: int) -> str:
    return SearchCoordinator(DOMAIN).plan(PlanRequest(DOMAIN.start(seed))).text


def test_without_a_model_the_arms_hold_and_a_late_answer_is_dropped(tmp_path: Path, model_url: str) -> None:
    Model.delay, Model.answer = 0.0, None
    options = {"fallback": False, "warm_up": 0.0, "timeout": 1.0, "attempts": 1, "rest": 0.2, "plan_hold": 0.1}
    with coordinator(tmp_path, coordinator="openai:fake", model_url=model_url, **options) as (cell, _):
        cell.begin()
        cell.open(5.0)
        told = cell.told()
        assert not told.sound and told.number == 0
        assert {head.standing for m in cell.states for head in m.heads} == {ArmHead.STANDING_UNPLANNED}
        assert cell.heard_calls(1)[0].number == 0 and "503" in cell.calls[0].error
        cell.wait_for_value("text", "no plan, the arms hold")
        assert cell.values()["level"] == "1"
        # It comes up, but too slow; once it is fast enough, the slot that is held open gets its plan.
        Model.delay, Model.answer = 1.5, plan_text(0)
        cell.open(200.0)
        cell.probe.wait(lambda: int(cell.values().get("refused_late_answer", "0")) > 0, "a late answer", 20.0)
        # How often it was asked before, while the first slot was held, is a matter of time.
        cell.probe.wait(lambda: any("no answer in time" in call.error for call in cell.calls), "a call given up", 10.0)
        Model.delay = 0.0
        told = cell.told()
        assert told.sound and told.number == 1
        assert cell.heard_plans()[0].slot == cell.slot
        cell.probe.wait(lambda: (cell.calls[-1].number, cell.calls[-1].tokens) == (1, 20), "the call of the plan", 10.0)


def test_a_text_that_is_no_plan_is_not_followed_and_the_search_stands_in(tmp_path: Path, model_url: str) -> None:
    Model.delay, Model.answer = 0.0, '"alice": move(teapot, pad2)'
    with coordinator(tmp_path, coordinator="openai:fake", model_url=model_url, control="hybrid") as (cell, _):
        cell.begin()
        cell.open()
        assert not cell.told().sound  # nobody waits in hybrid
        cell.act(cell.told())
        cell.probe.spin(0.5)
        told = cell.a_slot()
        call = cell.heard_calls(1)[0]
        assert told.sound and call.prompt_tokens == 20  # two texts were refused
        assert call.number == 1 and "the search stood in" in call.error
        cell.wait_for_value("fallbacks", "1")


def test_while_a_model_hangs_the_search_stands_in(tmp_path: Path, model_url: str) -> None:
    Model.delay, Model.answer = 0.0, plan_text(0)
    with coordinator(tmp_path, coordinator="openai:fake", model_url=model_url, timeout=1.0) as (cell, _):
        cell.begin()
        Model.delay = 90.0
        cell.open(60.0)
        told = cell.told()
        assert told.sound and told.number == 1
        given_up, stood_in = cell.heard_calls(2)
        assert (given_up.number, given_up.error) == (0, "no answer in time")
        assert stood_in.number == 1 and "the search stood in" in stood_in.error
        Model.delay = 0.0


def test_of_two_coordinators_the_older_one_stands_back_until_the_newer_has_gone(tmp_path: Path) -> None:
    with coordinator(tmp_path) as (cell, _):
        cell.begin()
        assert cell.a_slot().number == 1
        node = cell.probe.node
        states = node.create_publisher(PlanState, topics.PLAN_STATE, qos.PLAN_STATE)
        plans = node.create_publisher(PlanMessage, topics.PLAN, qos.PLAN)
        cell.probe.wait(lambda: plans.get_subscription_count() > 1, "it hears of other plans")
        plan = plan_to_message(5, PLAN, "start")
        plan.episode, plan.slot, plan.epoch, plan.sequence = cell.episode, 1, time.time_ns(), 1
        plans.publish(plan)
        cell.wait_for_value("refused_rival", "1")
        cell.open()
        cell.wait_for_value("text", "a newer coordinator holds the plan")
        assert not [m for m in cell.states if (m.episode, m.slot) == (cell.episode, cell.slot)]
        node.destroy_publisher(states)
        assert cell.told().number == 6


def test_a_new_coordinator_joins_a_running_episode_with_a_higher_number(tmp_path: Path) -> None:
    with coordinator(tmp_path) as (cell, runner):
        cell.begin()
        cell.a_slot()
        old = cell.a_slot()
        os.kill(runner.pid("coordinator"), signal.SIGKILL)
        deadline = time.monotonic() + 30.0
        while cell.plans[-1].epoch == old.epoch:  # the slot that is open, and the world, are told to who comes late
            assert time.monotonic() < deadline, "no new coordinator"
            runner._supervise()
            cell.probe.spin(0.1)
        assert cell.plans[-1].reason == "start" and cell.plans[-1].epoch > old.epoch
        assert cell.plans[-1].number > old.number  # although nobody tells it of that
        cell.probe.wait(lambda: cell.out[Staleness].get_subscription_count() > 0, "it hears the detector")
        cell.send(Staleness(slot=2, plan=old.number + 3, threshold=0.5), DETECTOR)  # which knows of later plans
        cell.request(cell.plans[-1].number)
        cell.probe.spin(0.3)
        new = cell.a_slot()
        assert new.sound and new.epoch > old.epoch and new.number == old.number + 4
