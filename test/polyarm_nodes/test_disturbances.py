"""What happens to the plant beside what the arms do: in a bridge's process as in one process, told to everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("polyarm.msg", reason="needs the built messages")

from harness import Probe, probe, running, specs, with_parameters
from polyarm.msg import Action as ActionMessage
from polyarm.msg import ActionResult, ArmVerdict, Disturbance, EntityState, Grant, GrantTable, SlotVerdict, WorldState
from polyarm.srv import ResetWorld
from sensor_msgs.msg import JointState

from polyarm_core.conditions import ConditionTracker
from polyarm_core.constraints import Action
from polyarm_core.control.disturbance import LEVELS, Disturber, draw_schedule
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.domains.arms import ArmsDomain
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.scenario import Scenario, load_scenario
from polyarm_core.world import WorldView, locate
from polyarm_nodes import qos, topics
from polyarm_nodes.convert import action_to_message, snapshot_from_message
from polyarm_nodes.parameters import KINEMATIC_BRIDGE, MUJOCO_BRIDGE
from polyarm_nodes.validation import Malformed

pytestmark = pytest.mark.ros

ONLY_PLANT = ("arm_agent", "episode_monitor", "digital_twin", "model_server")
IDLE, MOVING, PROTECTIVE_STOP = 1, 2, 4
Script = list[dict[str, Action]]
Events = list[tuple[int, str, str]]


class Twin:
    """The twin's verdicts, played by the test."""

    def __init__(self, node: Probe) -> None:
        self.probe = node
        self.worlds = node.record(WorldState, topics.WORLD, qos.every_sample(qos.WORLD))
        self.results = node.record(ActionResult, topics.ACTION_RESULTS, qos.RESULTS)
        self.events = node.record(Disturbance, topics.DISTURBANCES, qos.DISTURBANCES)
        self.verdicts = node.node.create_publisher(SlotVerdict, topics.VERDICTS, qos.VERDICTS)
        self.episode = self.token = 0

    def begin(self, seed: int) -> None:
        node = self.probe
        node.wait(lambda: self.verdicts.get_subscription_count() > 0, "plant")
        node.wait(lambda: node.node.count_publishers(topics.DISTURBANCES) > 0, "plant tells what happens")
        answer = node.call(ResetWorld, topics.RESET_WORLD, ResetWorld.Request(seed=seed))
        assert answer.success, answer.message
        self.episode = answer.episode
        node.wait(lambda: bool(self.worlds) and self.worlds[-1].episode == self.episode, "world of the episode")
        del self.results[:], self.events[:]

    def decide(self, slot: int, admitted: dict[str, Action], episode: int = 0) -> None:
        message = SlotVerdict(episode=episode or self.episode, slot=slot, epoch=5, sequence=slot)
        for arm, action in admitted.items():
            self.token += 1
            verdict = ArmVerdict(arm=arm, action=action_to_message(action), decision=ArmVerdict.DECISION_ADMIT)
            verdict.lease.token, verdict.lease.duration = self.token, 30.0
            message.verdicts.append(verdict)
        message.verdicts.append(ArmVerdict(arm="nobody", action=ActionMessage(verb="stay"), decision=3))
        self.verdicts.publish(message)

    def status(self, arm: str) -> int:
        return next(a.status for a in self.worlds[-1].arms if a.name == arm)


def play(scenario: Scenario, seed: int, slots: int) -> tuple[Script, Events, KinematicPlant]:
    """Slots in one process, every third without an admitted action; what was admitted, what happened, how it ended."""
    plant = KinematicPlant(scenario, seed)
    disturber = Disturber(plant, MirroredArms(ArmsDomain(scenario)), draw_schedule(scenario, "severe", seed))
    script: Script = []
    for slot in range(1, slots + 1):
        disturber.before_slot(slot)
        admitted: dict[str, Action] = {}
        view = WorldView(scenario, plant.world(true_conditions(scenario, plant)))
        for arm in sorted(scenario.arms) if slot % 3 else []:
            options = [a for a in view.legal(arm) if not a.is_stay and a.entity not in names(admitted)]
            options = [a for a in options if not a.placement or a.placement not in names(admitted)]
            if options and plant.arm(arm).status != "protective_stop":
                admitted[arm] = options[0]
        script.append(admitted)
        for arm, action in admitted.items():
            plant.start_action(arm, action)
        while not plant.idle:
            plant.step(5)
            disturber.in_slot(slot)
    disturber.before_slot(slots + 1)
    return script, [(h.slot, h.kind, h.what) for h in disturber.happened], plant


def names(actions: dict[str, Action]) -> set[str]:
    return {name for action in actions.values() for name in (action.entity, action.placement)}


def true_conditions(scenario: Scenario, plant: KinematicPlant) -> frozenset[str]:
    return ConditionTracker(scenario).true_now(plant.world(), plant.readings(), plant.held_conditions())


@pytest.fixture(params=["sort", "rope", "cabinet"])
def task(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_the_bridge_lets_happen_what_happens_in_one_process(tmp_path: Path, task: str) -> None:
    scenario = load_scenario(task)
    graph = specs(tmp_path, leave_out=ONLY_PLANT, scenario=task)
    with running(with_parameters(graph, "kinematic_bridge", disturb="severe"), tmp_path), probe() as node:
        twin = Twin(node)
        for seed in (0, 1, 2, 3):
            follows(twin, scenario, seed)


def follows(twin: Twin, scenario: Scenario, seed: int) -> None:
    """The same actions in both: the same events, the same world at the end."""
    script, expected, plant = play(scenario, seed, slots=8)
    twin.begin(seed)
    results = 0
    for slot, admitted in enumerate(script, start=1):
        results += len(admitted)
        twin.decide(slot + 5, {}, episode=twin.episode - 1)  # of an episode that is over
        twin.decide(slot, admitted)
        twin.probe.wait(lambda count=results: len(twin.results) >= count, f"results of slot {slot}")  # type: ignore[misc]
    twin.probe.wait(lambda: len(twin.events) >= len(expected), f"{len(expected)} events of seed {seed}")
    twin.probe.wait(lambda: same(twin.worlds[-1], scenario, plant), f"the world of seed {seed}")
    assert [(event.slot, event.kind, event.what) for event in twin.events] == expected != []
    shows_events_before_a_slot_can_open(twin, script)


def same(message: WorldState, scenario: Scenario, plant: KinematicPlant) -> bool:
    world = plant.world()
    return (
        {e.name: e.placement for e in message.entities} == locate(scenario, world)
        and set(message.blocked) == world.blocked
        and snapshot_from_message(message, scenario).world.blocked == world.blocked
        and all((a.status == PROTECTIVE_STOP) == (plant.arm(a.name).status == "protective_stop") for a in message.arms)
    )


def shows_events_before_a_slot_can_open(twin: Twin, script: Script) -> None:
    """The first world in which the leases of a slot have ended has what comes before the next one."""
    worlds = [world for world in twin.worlds if world.episode == twin.episode]
    for event in twin.events:
        if event.kind not in ("blocked", "moved") or not script[event.slot - 2]:
            continue  # a slot without an admitted action is followed by the next one at once
        over = (w for w in worlds if w.slot == event.slot - 1 and not any(arm.token for arm in w.arms))
        world = next(over)
        if event.kind == "blocked":
            assert event.what.split()[0] in world.blocked
        else:
            entity, *_, place = event.what.split()
            assert next(e.placement for e in world.entities if e.name == entity) == place


def test_who_has_broken_off_is_brought_home_before_anybody_starts(tmp_path: Path) -> None:
    """With physics the way home takes time: the bridge's loop goes on, and what is granted meanwhile waits."""
    graph = specs(tmp_path, leave_out=ONLY_PLANT, plant="mujoco", real_time_factor=2.0)
    with running(with_parameters(graph, "mujoco_bridge", disturb="standard"), tmp_path), probe() as node:
        twin = Twin(node)
        joints = node.record(JointState, "bob/joint_states", qos.JOINT_STATES)
        grants = node.node.create_publisher(GrantTable, topics.GRANTS, qos.GRANTS)
        twin.begin(seed=0)
        node.wait(lambda: bool(joints) and grants.get_subscription_count() > 0, "joint states")
        home, action = joints[-1].position, Action("move", "blue_square", "panel3")
        twin.decide(1, {"bob": action})

        def distance(state: JointState) -> float:
            return max(abs(a - b) for a, b in zip(state.position, home, strict=True))

        node.wait(lambda: distance(joints[-1]) > 0.1, "bob leaves his home")
        lease = Grant(arm="bob", slot=1, token=twin.token, action=action_to_message(action))
        grants.publish(GrantTable(episode=twin.episode, epoch=5, sequence=1, duration=0.01, grants=[lease]))
        node.wait(lambda: bool(twin.results), "the lease expires on the way")
        assert twin.results[0].reason == "lease_expired"
        farthest = lambda: max(map(distance, joints))  # noqa: E731
        node.wait(lambda: distance(joints[-1]) < farthest() - 0.02, "bob has stood, and is on his way home")
        del twin.worlds[:]
        twin.decide(2, {"alice": Action("move", "pink_polygon", "panel3")})
        node.wait(lambda: len(twin.results) > 1, "result")
        node.spin(0.3)
        assert (twin.results[1].arm, twin.results[1].slot) == ("alice", 2)
        moving = [{arm.name for arm in world.arms if arm.status == MOVING} for world in twin.worlds]
        assert {"bob"} in moving and {"alice"} in moving and {"alice", "bob"} not in moving
        assert twin.status("bob") == IDLE and distance(joints[-1]) < 0.1


def test_levels_are_those_of_the_core() -> None:
    for table in (MUJOCO_BRIDGE, KINEMATIC_BRIDGE):
        assert set(table["disturb"].choices or ()) == set(LEVELS) and table["disturb"].default == "none"


def test_a_block_of_what_is_no_placement_is_refused() -> None:
    scenario = load_scenario("sort")
    message = WorldState(episode=1, epoch=1, sequence=1, blocked=["attic"])
    message.entities = [EntityState(name=name) for name in scenario.entities]
    with pytest.raises(Malformed, match="blocked placement 'attic' is unknown; valid: "):
        snapshot_from_message(message, scenario)
    message.blocked = ["pad2"]
    assert snapshot_from_message(message, scenario).world.blocked == {"pad2"}
