"""The recorder as a process of its own: what was published is in the bag, by two independent readers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy", reason="ROS 2 is not installed")
pytest.importorskip("polyarm.msg", reason="the messages are not built")
pytest.importorskip("rosbags", reason="rosbags is not installed")

import rclpy
from polyarm.msg import (
    ActionResult,
    ArmVerdict,
    Disturbance,
    EpisodeResult,
    IntentReport,
    PlanState,
    SlotOpening,
    SlotVerdict,
    WorldState,
)
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import JointState

from polyarm_core.bags.definitions import ament_prefixes, load_definition
from polyarm_core.bags.reader import Bag, BagError
from polyarm_core.bags.recover import recover
from polyarm_core.scenario import load_scenario
from polyarm_nodes import qos, topics
from polyarm_nodes.recorder import cell_topics

pytestmark = pytest.mark.ros  # gives each test a ROS domain of its own


@pytest.fixture
def cell(ros_domain: int) -> Iterator[Node]:
    """A node in /cell."""
    context = Context()
    rclpy.init(context=context, domain_id=ros_domain)
    node = Node("cell", namespace="/cell", context=context)
    yield node
    node.destroy_node()
    context.try_shutdown()


def wait(node: Node, condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Spin until the condition holds; fail when it does not within the deadline."""
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        executor.spin_once(timeout_sec=0.02)
    executor.remove_node(node)
    executor.shutdown()


@pytest.fixture
def start(ros_domain: int, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts recorders that write to ``tmp_path/bag``."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*parameters: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "polyarm_nodes", "recorder", "--ros-args", "-r", "__ns:=/cell"]
        for parameter in ("scenario:=sort", f"out:={tmp_path / 'bag'}", "flush_period:=0.1", *parameters):
            command += ["-p", parameter]
        environment = {
            **os.environ,
            "ROS_DOMAIN_ID": str(ros_domain),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=10)


def publish_a_slot(cell: Node) -> dict[str, Any]:
    """Publish one message on some topics once the recorder listens; returns them by absolute topic."""
    messages = [
        ("world", WorldState(episode=1, seed=7), qos.WORLD),
        ("slot_opening", SlotOpening(episode=1, slot=1, epoch=5, expected=["alice", "bob"]), qos.OPENINGS),
        ("intents", IntentReport(arm="bob", slot=1, epoch=9, sequence=1), qos.REPORTS),
        (
            "verdicts",
            SlotVerdict(slot=1, verdicts=[ArmVerdict(arm="bob", decision=ArmVerdict.DECISION_ADMIT)]),
            qos.VERDICTS,
        ),
        ("plan_state", PlanState(episode=1, slot=1, plan=2, sound=True), qos.PLAN_STATE),
        ("disturbances", Disturbance(episode=1, slot=1, kind="moved"), qos.DISTURBANCES),
        ("alice/joint_states", JointState(name=["a"], position=[0.5]), qos.JOINT_STATES),
    ]
    publishers = [cell.create_publisher(type(message), topic, profile) for topic, message, profile in messages]
    wait(cell, lambda: all(publisher.get_subscription_count() > 0 for publisher in publishers))
    time.sleep(0.3)  # the recorder's end of the match, for the topics that are not latched
    for publisher, (_, message, _) in zip(publishers, messages, strict=True):
        publisher.publish(message)
    return {f"/cell/{topic}": message for topic, message, _ in messages}


def stop(process: subprocess.Popen[str], number: int) -> str:
    process.send_signal(number)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    return output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_bag_holds_what_was_published(
    cell: Node, start: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: int
) -> None:
    process = start()
    sent = publish_a_slot(cell)
    wait(cell, lambda: _flushed(tmp_path / "bag", len(sent)))
    stop(process, number)

    with Bag(tmp_path / "bag") as bag:
        recorded = {item.topic: item for item in bag.messages() if item.topic.startswith("/cell/")}
        by_name = {topic.name: topic for topic in bag.topics}
        assert bag.custom["scenario"] == "sort"
    assert set(recorded) == set(sent)
    assert recorded["/cell/intents"].message.arm == "bob"
    assert recorded["/cell/slot_opening"].message.expected == ["alice", "bob"]
    assert recorded["/cell/intents"].size == len(serialize_message(sent["/cell/intents"]))
    # Playing the bag must offer what the publishers offered.
    assert (by_name["/cell/world"].reliability, by_name["/cell/world"].durability) == ("reliable", "transient_local")
    assert (by_name["/cell/verdicts"].reliability, by_name["/cell/verdicts"].durability) == ("reliable", "volatile")
    assert by_name["/cell/alice/joint_states"].reliability == "best_effort"
    # Topics on which nothing came are listed all the same.
    assert by_name["/cell/action_results"].count == 0

    _check_with_mcap(tmp_path / "bag", sent)
    _check_metadata(tmp_path / "bag")


def test_the_monitor_is_kept_waiting_until_every_source_is_connected(
    cell: Node, start: Callable[..., subprocess.Popen[str]]
) -> None:
    results = cell.create_publisher(EpisodeResult, topics.EPISODE_RESULT, qos.EPISODE)
    kinds = {
        topics.WORLD: (WorldState, qos.WORLD),
        topics.VERDICTS: (SlotVerdict, qos.VERDICTS),
        topics.INTENTS: (IntentReport, qos.REPORTS),
    }
    publishers = [cell.create_publisher(kind, topic, profile) for topic, (kind, profile) in kinds.items()]
    start()
    wait(cell, lambda: all(publisher.get_subscription_count() for publisher in publishers))
    time.sleep(0.5)  # many looks of the recorder
    assert not results.get_subscription_count()
    actions = cell.create_publisher(ActionResult, topics.ACTION_RESULTS, qos.RESULTS)
    wait(cell, lambda: results.get_subscription_count() == 1)
    assert actions.get_subscription_count() == 1


def test_everything_that_is_said_about_plans_is_recorded() -> None:
    recorded = set(cell_topics(load_scenario("sort"), "/cell"))
    for name in ("PLAN", "PLAN_STATE", "PLAN_CALLS", "STALENESS", "REPLAN_REQUESTS", "DETECTIONS", "DISTURBANCES"):
        assert f"/cell/{getattr(topics, name)}" in recorded


def _flushed(bag: Path, messages: int) -> bool:
    """Whether the file on the disk holds that many messages of the cell, read as a stream (it has no index yet)."""
    from mcap.exceptions import McapError
    from mcap.records import Channel, Message
    from mcap.stream_reader import StreamReader

    channels: dict[int, str] = {}
    found: set[str] = set()
    try:
        with (bag / "bag.mcap").open("rb") as file:
            for record in StreamReader(file).records:
                if isinstance(record, Channel):
                    channels[record.id] = record.topic
                elif isinstance(record, Message):
                    found.add(channels[record.channel_id])
    except (McapError, OSError):
        pass
    return len([topic for topic in found if topic.startswith("/cell/")]) >= messages


def _check_with_mcap(bag: Path, sent: dict[str, Any]) -> None:
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    with (bag / "bag.mcap").open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        seen = {
            channel.topic: (message.data, decoded)
            for _, channel, message, decoded in reader.iter_decoded_messages()
            if channel.topic in sent
        }
    # Padding bytes of the wire format are arbitrary, so the messages are compared.
    assert {topic: deserialize_message(data, type(sent[topic])) for topic, (data, _) in seen.items()} == sent
    assert seen["/cell/verdicts"][1].verdicts[0].arm == "bob"


def _check_metadata(bag: Path) -> None:
    """The fields that rosbag2_storage's metadata version 9 (Jazzy) reads, with their types."""
    metadata = yaml.safe_load((bag / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    assert metadata["version"] == 9
    assert metadata["storage_identifier"] == "mcap"
    assert metadata["relative_file_paths"] == ["bag.mcap"]
    assert metadata["duration"]["nanoseconds"] >= 0
    assert abs(metadata["starting_time"]["nanoseconds_since_epoch"] / 1e9 - time.time()) < 120
    assert metadata["compression_format"] == "" and metadata["compression_mode"] == ""
    assert isinstance(metadata["ros_distro"], str) and isinstance(metadata["custom_data"], dict)
    counts = 0
    for item in metadata["topics_with_message_count"]:
        counts += item["message_count"]
        topic = item["topic_metadata"]
        assert topic["name"].startswith("/") and topic["serialization_format"] == "cdr"
        package, _, name = topic["type"].split("/")
        share = next(
            p / "share" / package / "msg" / f"{name}.json"
            for p in ament_prefixes()
            if (p / "share" / package / "msg").is_dir()
        )
        hashes = {t["type_name"]: t["hash_string"] for t in json.loads(share.read_text())["type_hashes"]}
        assert topic["type_description_hash"] == hashes[topic["type"]]
        for profile in topic["offered_qos_profiles"]:
            assert profile["history"] == "keep_last"
            assert profile["reliability"] in {"reliable", "best_effort"}
            assert profile["durability"] in {"volatile", "transient_local"}
            assert profile["liveliness"] == "automatic"
            assert set(profile["deadline"]) == {"sec", "nsec"}
    assert counts == metadata["message_count"] == metadata["files"][0]["message_count"]


def test_a_killed_recorder_loses_nothing_that_was_flushed(
    cell: Node, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start()
    sent = publish_a_slot(cell)
    wait(cell, lambda: _flushed(tmp_path / "bag", len(sent)))
    process.kill()
    process.wait(timeout=10)

    with pytest.raises(BagError, match="polyarm bag recover"):
        Bag(tmp_path / "bag")
    recover(tmp_path / "bag", tmp_path / "whole")
    with Bag(tmp_path / "whole") as bag:
        assert set(sent) <= {item.topic for item in bag.messages()}
        hashes = {topic.type_name: topic.type_hash for topic in bag.topics}
    for name, type_hash in hashes.items():
        assert type_hash == load_definition(name, ament_prefixes()).type_hash

    # A restarted recorder must not destroy what the killed one left.
    again = start()
    wait(cell, lambda: (tmp_path / "bag_2").is_dir())
    time.sleep(0.2)
    stop(again, signal.SIGINT)
    assert not (tmp_path / "bag" / "metadata.yaml").exists()
    assert (tmp_path / "bag_2" / "metadata.yaml").exists()


def test_a_wrong_parameter_ends_it_with_the_reason(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = start("also:='['")
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "also" in output and "regular expression" in output
    assert "Traceback" not in output
    assert not (tmp_path / "bag").exists()
