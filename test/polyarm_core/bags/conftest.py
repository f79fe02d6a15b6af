"""Bags written without ROS from the message definitions of this package, with known content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed")

import numpy as np
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from polyarm_core.bags.definitions import Definition
from polyarm_core.bags.writer import BagWriter, qos

MESSAGES = Path(__file__).resolve().parents[3] / "msg"
TOPICS = {
    "/cell/world": "WorldState",
    "/cell/slot_opening": "SlotOpening",
    "/cell/intents": "IntentReport",
    "/cell/verdicts": "SlotVerdict",
    "/cell/action_results": "ActionResult",
    "/cell/episode_result": "EpisodeResult",
    "/cell/alice/joint_states": "sensor_msgs/msg/JointState",
    "/cell/bob/joint_states": "sensor_msgs/msg/JointState",
    "/cell/chad/joint_states": "sensor_msgs/msg/JointState",
}
START = 1_700_000_000_000_000_000  # ns


class Maker:
    """Makes messages by name with the fields that matter, and writes them into a bag."""

    def __init__(self) -> None:
        self.types: Any = get_typestore(Stores.ROS2_JAZZY)
        own: dict[str, Any] = {}
        for path in MESSAGES.glob("*.msg"):
            own.update(get_types_from_msg(path.read_text(), f"polyarm/msg/{path.stem}"))
        self.types.register(own)

    def make(self, name: str, /, **fields: Any) -> Any:
        """A message with all other fields zero, as a node would send it."""
        full = name if "/" in name else f"polyarm/msg/{name}"
        values: dict[str, Any] = {}
        for field, (kind, detail) in self.types.fielddefs[full][1]:
            if field in fields:
                values[field] = fields.pop(field)
            elif kind.name == "NAME":
                values[field] = self.make(detail)
            elif kind.name == "BASE":
                values[field] = {"string": "", "bool": False}.get(detail[0], 0)
            elif kind.name == "SEQUENCE" and detail[0][0].name == "BASE" and detail[0][1][0] not in ("string", "bool"):
                values[field] = np.zeros(0, detail[0][1][0])
            else:
                values[field] = []
        assert not fields, f"{full} has no field {sorted(fields)}"
        return self.types.types[full](**values)

    def definition(self, name: str) -> Definition:
        full = name if "/" in name else f"polyarm/msg/{name}"
        text, _ = self.types.generate_msgdef(full, ros_version=2)
        return Definition(full, text, self.types.hash_rihs01(full))

    def write(
        self,
        path: Path,
        messages: list[tuple[float, str, Any]],
        custom: dict[str, str],
        topics: Mapping[str, str] = TOPICS,
    ) -> None:
        """``messages``: seconds since the start, topic, message."""
        with BagWriter(path, custom) as bag:
            for topic, name in topics.items():
                bag.add_topic(topic, self.definition(name), [qos("reliable", "volatile", 10)])
            for at, topic, message in messages:
                data = bytes(self.types.serialize_cdr(message, message.__msgtype__))
                bag.write(topic, START + round(at * 1e9), data)


@pytest.fixture(scope="session")
def maker() -> Maker:
    return Maker()


def conflict(maker: Maker, *, ended: bool = True) -> list[tuple[float, str, Any]]:
    """One episode of two slots: bob yields to alice in the first, chad is silent; the second brings success."""
    make = maker.make
    move = make("Action", verb="move", entity="blue_square", placement="panel3")
    other = make("Action", verb="move", entity="pink_polygon", placement="panel3")
    arm = make("ArmState", name="alice", status=1)

    def world(at: float, success: bool = False) -> tuple[float, str, Any]:
        entity = make("EntityState", name="blue_square", placement="pad2")
        state = make("WorldState", episode=1, seed=7, epoch=5, sim_time=at, success=success, entities=[entity],
                     arms=[arm], arm_contacts=2 if success else 0)  # fmt: skip
        return at, "/cell/world", state

    def opening(at: float, slot: int) -> tuple[float, str, Any]:
        return at, "/cell/slot_opening", make("SlotOpening", episode=1, slot=slot, expected=["alice", "bob", "chad"])

    def report(at: float, slot: int, name: str, action: Any, **more: Any) -> tuple[float, str, Any]:
        declaration = make("Declaration", exclusive=["placement:panel3"], requires_held=["door_open"])
        message = make("IntentReport", episode=1, slot=slot, arm=name, epoch=9, sequence=slot, action=action,
                       declaration=declaration, **more)  # fmt: skip
        return at, "/cell/intents", message

    def verdict(at: float, slot: int, answers: list[Any]) -> tuple[float, str, Any]:
        message = make("SlotVerdict", episode=1, slot=slot, epoch=3, strategy="optimal", admitted=1, upper_bound=1,
                       proven=True, verdicts=answers)  # fmt: skip
        return at, "/cell/verdicts", message

    admit = make("ArmVerdict", arm="alice", action=move, decision=1, lease=make("Lease", token=41))
    yields = make("ArmVerdict", arm="bob", action=other, decision=2, rule=1, element="placement:panel3", rival="alice")
    silent = make("ArmVerdict", arm="chad", action=make("Action", verb="stay"), decision=3, rule=8, element="chad")
    stay = make("ArmVerdict", arm="alice", action=make("Action", verb="stay"), decision=1)
    messages = [
        world(0.0),
        opening(1.0, 1),
        report(1.5, 1, "alice", move, decided_by=1, model_time=0.4, prompt_tokens=200, score=-1.25),
        report(2.0, 1, "bob", other, decided_by=2),
        verdict(2.5, 1, [admit, yields, silent]),
        (3.0, "/cell/action_results", make("ActionResult", episode=1, slot=1, arm="alice", epoch=5, sequence=1,
                                           action=move, outcome=2, sim_time=3.25, reason="slip",
                                           text="the cube slipped")),
        opening(4.0, 2),
        report(4.25, 2, "alice", make("Action", verb="stay"), decided_by=3),
        verdict(4.5, 2, [stay]),
        world(5.0, success=True),
    ]  # fmt: skip
    if ended:
        messages.append((6.0, "/cell/episode_result", make(
            "EpisodeResult", scenario="sort", episode=1, seed=7, success=True, slots=2, sim_time=5.0)))  # fmt: skip
        messages.append((7.0, "/cell/world", world(7.0)[2]))  # after the end: no longer this episode's affair
    return messages


@pytest.fixture
def recorded(maker: Maker, tmp_path: Path) -> Callable[..., Path]:
    """Writes the conflict episode and returns the bag."""

    def write(**options: Any) -> Path:
        path = tmp_path / "bag"
        maker.write(path, conflict(maker, **options), {"scenario": "sort"})
        return path

    return write
