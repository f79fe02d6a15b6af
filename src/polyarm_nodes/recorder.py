"""Recorder node: everything that coordinates, as it came over the wire, into a rosbag2 directory (MCAP).

Messages are not deserialised: subscriptions are raw, and what arrives is stored, with the time of its reception.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from polyarm.msg import (
    ActionResult,
    Detection,
    Disturbance,
    EpisodeResult,
    GrantTable,
    IntentReport,
    Plan,
    PlanCall,
    PlanState,
    ReplanRequest,
    SlotOpening,
    SlotVerdict,
    Staleness,
    WorldState,
)
from rclpy.clock import Clock, ClockType
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import JointState

from polyarm_core.bags.definitions import NoDefinition, ament_prefixes, load_definition
from polyarm_core.bags.writer import BagWriter
from polyarm_core.bags.writer import qos as bag_qos
from polyarm_core.bench.figures import version
from polyarm_core.errors import InvalidValue
from polyarm_core.scenario import Scenario, load_scenario
from polyarm_nodes import qos, topics
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import SCENARIO, Parameter, declare_parameters

PARAMETERS = {
    "scenario": SCENARIO,
    "out": Parameter("bag", "directory of the bag; with _2, _3, ... appended when it exists already"),
    "also": Parameter("/tf|/tf_static", "regular expression: further topics that are recorded when they appear"),
    "flush_period": Parameter(1.0, "s after which what was recorded is safe from a kill", 0.05, 60.0),
    "discovery_period": Parameter(1.0, "s between two looks for further topics", 0.1, 60.0),
}
QUEUE = 1000  # messages that may wait per topic while a chunk is written
READINESS_PERIOD = 0.05  # s between two looks whether the cell is connected
READINESS_LIMIT = 10.0  # s after which the recorder says that it listens, whoever is missing


def cell_topics(scenario: Scenario, namespace: str) -> dict[str, tuple[type, QoSProfile]]:
    """Absolute topic names of a cell with message type and the profile that its publishers use."""

    def name(topic: str) -> str:
        return topics.cell_topic(namespace, topic)

    table: dict[str, tuple[type, QoSProfile]] = {
        name(topics.SLOT_OPENING): (SlotOpening, qos.OPENINGS),
        name(topics.INTENTS): (IntentReport, qos.REPORTS),
        name(topics.VERDICTS): (SlotVerdict, qos.VERDICTS),
        name(topics.GRANTS): (GrantTable, qos.GRANTS),
        name(topics.WORLD): (WorldState, qos.WORLD),
        name(topics.ACTION_RESULTS): (ActionResult, qos.RESULTS),
        name(topics.EPISODE_RESULT): (EpisodeResult, qos.EPISODE),
        name(topics.PLAN): (Plan, qos.PLAN),
        name(topics.PLAN_STATE): (PlanState, qos.PLAN_STATE),
        name(topics.PLAN_CALLS): (PlanCall, qos.PLAN_CALLS),
        name(topics.STALENESS): (Staleness, qos.STALENESS),
        name(topics.REPLAN_REQUESTS): (ReplanRequest, qos.REPLAN_REQUESTS),
        name(topics.DETECTIONS): (Detection, qos.DETECTIONS),
        name(topics.DISTURBANCES): (Disturbance, qos.DISTURBANCES),
        "/clock": (ClockMessage, qos.CLOCK),
        "/diagnostics": (DiagnosticArray, qos.DIAGNOSTICS),
    }
    for arm in scenario.arms:
        table[name(f"{arm}/{topics.JOINT_STATES}")] = (JointState, qos.JOINT_STATES)
    return table


def free_path(path: Path) -> Path:
    """``path``, or the first of ``path_2``, ``path_3``, ... that is free: a restarted recorder overwrites nothing."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}_{number}")
    return candidate


class Recorder(PolyarmNode):
    """Subscribes to all topics of the cell and writes what it hears.

    Attributes:
        sources: topics that must have a publisher before the recorder counts as a listener of the results.
    """

    sources: tuple[str, ...] = (topics.WORLD, topics.ACTION_RESULTS, topics.VERDICTS, topics.INTENTS)

    def __init__(self) -> None:
        super().__init__("recorder")
        self._bag: BagWriter | None = None
        self._types: dict[str, str] = {}
        self._profiles: dict[str, QoSProfile] = {}
        self._hopeless: set[str] = set()
        self._subscribed: dict[str, Subscription] = {}
        self._sign: tuple[str, type, QoSProfile] | None = None

    def parameter_table(self) -> Mapping[str, Parameter]:
        """This recorder's parameters."""
        return PARAMETERS

    def contents(self, values: Mapping[str, Any]) -> tuple[dict[str, tuple[type, QoSProfile]], dict[str, str]]:
        """Topics, as of `cell_topics`, and what the bag says of itself."""
        scenario = load_scenario(values["scenario"])
        return cell_topics(scenario, self.get_namespace()), {
            "scenario": scenario.name,
            # Whole, so that the bag can be drawn where the file is not, or is another one.
            "scenario_definition": scenario.model_dump_json(),
            "assistance": scenario.assistance,
        }

    def configure(self) -> None:
        """Open the bag and subscribe to the cell's topics."""
        values = declare_parameters(self, self.parameter_table())
        try:
            self._also = re.compile(values["also"])
        except re.error as error:
            raise InvalidValue("also", values["also"], f"a regular expression ({error})") from None
        table, custom = self.contents(values)
        self._definitions = {f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}": None for kind, _ in table.values()}
        self._definitions = {name: load_definition(name, ament_prefixes()) for name in self._definitions}
        self._bag = BagWriter(
            free_path(Path(values["out"]).absolute()),
            {**custom, "polyarm_version": version(), "namespace": self.get_namespace()},
        )
        # The monitor begins as soon as its results have a listener, so they get theirs last: what a plant says before
        # it knows the recorder is lost. Nothing of the results is, they are latched.
        sign = topics.cell_topic(self.get_namespace(), topics.EPISODE_RESULT)
        for topic, (kind, profile) in table.items():
            if topic != sign:
                self._subscribe(topic, kind, profile)
        self._sign = (sign, *table[sign]) if sign in table else None
        self._listening_by = time.monotonic() + READINESS_LIMIT
        self.create_steady_timer(READINESS_PERIOD, self._listen)
        # Steady time: recording goes on when the simulated clock stands still or jumps back.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(values["flush_period"], self._flush, clock=steady)
        self.create_timer(values["discovery_period"], self._discover, clock=steady)
        self.get_logger().info(f"recording to {self._bag.path}")

    def close(self) -> None:
        """Finalise the bag: index and metadata.yaml."""
        if self._bag is None:
            return
        bag, self._bag = self._bag, None
        for topic in self._types:
            self._announce(bag, topic)
        bag.close()
        self.get_logger().info(f"recorded {sum(bag.counts.values())} messages to {bag.path}")

    def _subscribe(self, topic: str, kind: type, profile: QoSProfile) -> None:
        self._types[topic] = f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
        self._profiles[topic] = profile
        wanted = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=QUEUE,
            reliability=profile.reliability,
            durability=profile.durability,
        )
        self._subscribed[topic] = self.create_subscription(kind, topic, self._callback(topic), wanted, raw=True)

    def _listen(self) -> None:
        if self._sign is None:
            return
        needed = [topics.cell_topic(self.get_namespace(), name) for name in self.sources]
        connected = all(self._subscribed[topic].get_publisher_count() for topic in needed if topic in self._subscribed)
        if connected or time.monotonic() > self._listening_by:
            sign, self._sign = self._sign, None
            self._subscribe(*sign)

    def _callback(self, topic: str) -> Callable[[bytes, Any], None]:
        def receive(data: bytes, info: Any) -> None:
            if self._bag is None:
                return
            if topic not in self._bag.counts:
                self._announce(self._bag, topic)
            self._bag.write(topic, info["received_timestamp"], data)

        return receive

    def _announce(self, bag: BagWriter, topic: str) -> None:
        """Announce a topic with the QoS that its publishers really offer, so that playing it back offers the same."""
        profile = self._profiles[topic]
        found = [] if self.context is None or not self.context.ok() else self.get_publishers_info_by_topic(topic)
        offers = {
            (
                "best_effort" if end.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT else "reliable",
                "transient_local" if end.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL else "volatile",
            )
            for end in found
        } or {
            (
                "best_effort" if profile.reliability == ReliabilityPolicy.BEST_EFFORT else "reliable",
                "transient_local" if profile.durability == DurabilityPolicy.TRANSIENT_LOCAL else "volatile",
            )
        }
        definition = self._definitions[self._types[topic]]
        bag.add_topic(
            topic,
            definition,
            # Discovery does not carry the depth, so it is the profile's.
            [bag_qos(reliability, durability, profile.depth) for reliability, durability in sorted(offers)],
        )

    def _flush(self) -> None:
        if self._bag is not None:
            self._bag.flush()
            count = sum(self._bag.counts.values())
            self.report(DiagnosticStatus.OK, "recording", messages=count, bag=self._bag.path.name)

    def _discover(self) -> None:
        for topic, type_names in self.get_topic_names_and_types():
            if topic in self._types or topic in self._hopeless or not self._also.fullmatch(topic):
                continue
            publishers = self.get_publishers_info_by_topic(topic)
            if not publishers:
                continue
            try:
                self._add_discovered(topic, type_names, publishers)
            except (NoDefinition, InvalidValue, ImportError, AttributeError) as error:
                self._hopeless.add(topic)
                self.report(DiagnosticStatus.WARN, f"{topic} is not recorded: {error}")

    def _add_discovered(self, topic: str, type_names: list[str], publishers: list[Any]) -> None:
        if len(type_names) != 1:
            raise InvalidValue(f"type of {topic}", type_names, "one type")
        package, _, name = type_names[0].partition("/msg/")
        kind = getattr(importlib.import_module(f"{package}.msg"), name)
        self._definitions[type_names[0]] = load_definition(type_names[0], ament_prefixes())
        reliable = all(p.qos_profile.reliability == ReliabilityPolicy.RELIABLE for p in publishers)
        latched = all(p.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for p in publishers)
        profile = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=QUEUE,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
        )
        self._subscribe(topic, kind, profile)


def main() -> None:
    """Run the node."""
    run_node(Recorder, niceness=5)
