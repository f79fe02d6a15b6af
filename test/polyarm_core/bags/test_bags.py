"""Reading, tabulating, explaining and recovering bags, without ROS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyarm_core.bags.definitions import Definition, NoDefinition, contained_types, load_definition
from polyarm_core.bags.explain import REASONS, explain_bag, reason_in_words
from polyarm_core.bags.reader import Bag, BagError, constant_name
from polyarm_core.bags.recover import recover
from polyarm_core.bags.table import bag_figures, episodes_of_bag, info_table
from polyarm_core.bags.writer import BagWriter, qos
from polyarm_core.episode import VETO_RULES
from polyarm_core.errors import InvalidValue, UnknownName

Recorded = Callable[..., Path]


def test_a_bag_comes_back_as_it_was_written(recorded: Recorded) -> None:
    with Bag(recorded()) as bag:
        assert bag.count == 12 and bag.duration == pytest.approx(7.0)
        assert bag.custom["scenario"] == "sort"
        times = [item.at for item in bag.messages()]
        assert times == sorted(times) and len(times) == 12
        (opening, *_) = bag.messages(["/cell/slot_opening"])
        assert opening.message.expected == ["alice", "bob", "chad"]
        (verdict, *_) = bag.messages([bag.topic_of_type("polyarm/msg/SlotVerdict")])
        assert constant_name(verdict.message.verdicts[1], "RULE_", 1) == "exclusion"
        assert constant_name(verdict.message.verdicts[1], "RULE_", 77) == "77"
        with pytest.raises(UnknownName, match="polyarm/msg/GrantTable"):
            bag.topic_of_type("polyarm/msg/GrantTable")


def test_the_table_is_counted_from_the_messages(recorded: Recorded) -> None:
    (episode,) = episodes_of_bag(recorded())
    assert (episode.scenario, episode.episode, episode.seed) == ("sort", 1, 7)
    assert episode.success and episode.reason == ""
    assert (episode.slots, episode.reports, episode.admitted, episode.silent) == (2, 3, 1, 1)
    assert episode.vetoes_exclusion == 1 == episode.vetoes
    assert episode.failed_actions == 1 and episode.arm_contacts == 2 and episode.prompt_tokens == 200
    assert episode.decision_times == pytest.approx((0.5, 1.0, 0.25))
    assert episode.verdict_times == pytest.approx((1.5, 0.5))
    assert episode.model_times == pytest.approx((0.4,))
    assert episode.decided_by == {"heuristic": 1, "model": 1, "only_choice": 1}
    assert (episode.sim_time, episode.wall_time) == (3.25, 5.0)  # the last motion ended at 3.25 s of simulation
    figures = bag_figures([episode])
    assert figures["sort.success_rate"] == 1.0 and figures["sort.vetoes.exclusion"] == 1


def test_an_episode_without_a_result_is_judged_by_what_was_recorded(recorded: Recorded) -> None:
    (episode,) = episodes_of_bag(recorded(ended=False))
    assert episode.success and episode.seed == 7 and episode.scenario == "sort"


def test_an_explanation_names_rule_element_and_rival(recorded: Recorded) -> None:
    path = recorded()
    text = "\n".join(explain_bag(path))
    assert "the twin asks alice, bob, chad" in text
    assert "alice proposes move blue_square to panel3 (by its model, score -1.25, 400 ms); declares placement:" in text
    assert "alice: move blue_square to panel3 is admitted under token 41" in text
    assert (
        "bob: move pink_polygon to panel3 must drop it and choose again: "
        "placement:panel3 is taken by alice (exclusion)" in text
    )
    assert "chad waits and keeps the intention: no report came before the deadline (silent)" in text
    assert "alice: move blue_square to panel3 failed after 0.0 s of simulation: slip, the cube slipped" in text
    assert "verdict after 1.5 s: 1 admitted by optimal (proven optimal)" in text
    assert text.splitlines()[-1].startswith("episode 1 (seed 7): success after 2 slots")

    second = list(explain_bag(path, slot=2))
    assert second[0] == "episode 1 (seed 7), slot 2" and not any("slot 1" in line for line in second)
    assert list(explain_bag(path, episode=4)) == ["nothing was recorded of episode 4"]


def test_every_rule_has_words() -> None:
    assert set(REASONS) == {*VETO_RULES, "silent"}
    for rule in REASONS:
        words = reason_in_words(rule, "placement:panel3", "bob")
        assert "{" not in words and words
    assert reason_in_words("new_rule", "x", "") == "new_rule, x"


def test_info_lists_every_topic(recorded: Recorded) -> None:
    from rich.console import Console

    console = Console(width=160)
    with console.capture() as capture:
        console.print(*info_table(recorded()), sep="\n")
    text = capture.get()
    assert "12 messages in 7.0 s" in text
    assert "/cell/alice/joint_states" in text and "polyarm/msg/SlotVerdict" in text


def test_what_is_no_bag_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="nowhere"):
        Bag(tmp_path / "nowhere")
    with pytest.raises(InvalidValue, match=r"metadata\.yaml"):
        Bag(tmp_path)
    (tmp_path / "metadata.yaml").write_text("rosbag2_bagfile_information: {version: 9}\n")
    with pytest.raises(BagError, match="cannot be read"):
        Bag(tmp_path)


def test_a_bag_is_never_overwritten(recorded: Recorded) -> None:
    path = recorded()
    with pytest.raises(InvalidValue, match="does not exist yet"):
        BagWriter(path, {})


def test_messages_of_an_unannounced_topic_are_refused(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "b", {}) as bag, pytest.raises(InvalidValue, match="/x"):
        bag.write("/x", 0, b"")
    with pytest.raises(InvalidValue, match="reliable or best_effort"):
        qos("certain", "volatile", 1)


@pytest.mark.parametrize("lost", [1, 200, 5000])
def test_a_torn_bag_is_recovered_up_to_the_tear(maker: Any, tmp_path: Path, lost: int) -> None:
    """Whatever is torn off the end, what comes back is a prefix, and what was flushed before survives."""
    message = maker.make("SlotOpening", expected=["alice"])
    data = bytes(maker.types.serialize_cdr(message, message.__msgtype__))
    whole = BagWriter(tmp_path / "torn", {})
    whole.add_topic("/cell/slot_opening", maker.definition("SlotOpening"), [qos("reliable", "transient_local", 1)])
    for number in range(100):
        whole.write("/cell/slot_opening", 1000 + number, data)
        if number % 10 == 9:
            whole.flush()
    file = tmp_path / "torn" / "torn.mcap"
    content = file.read_bytes()  # as a kill leaves it: flushed, without index and metadata
    file.write_bytes(content[: len(content) - lost])
    whole._writer.abort()
    assert not (tmp_path / "torn" / "metadata.yaml").exists()

    count = recover(tmp_path / "torn", tmp_path / "whole")
    with Bag(tmp_path / "whole") as bag:
        times = [item.at for item in bag.messages()]
        (topic,) = bag.topics
    assert times == list(range(1000, 1000 + count))
    # A chunk of ten messages is at most 10 * (31 + len(data)) + 100 bytes of payload and index each.
    torn_chunks = 1 + lost // (10 * (31 + len(data)))
    assert count >= 100 - 10 * torn_chunks
    assert topic.durability == "transient_local"
    assert topic.type_hash == maker.types.hash_rihs01("polyarm/msg/SlotOpening")


def test_recovering_what_is_no_bag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="one MCAP file"):
        recover(tmp_path, tmp_path / "whole")
    (tmp_path / "x.mcap").write_bytes(b"no magic")
    with pytest.raises(BagError, match="nothing can be read"):
        recover(tmp_path, tmp_path / "whole")


def test_contained_types_are_found_whatever_the_field_looks_like() -> None:
    text = """
uint8 RULE_UNSET=0
string<=64 arm      # ArmState name
Action action
geometry_msgs/Pose pose
Grant[<=128] grants
std_msgs/Header[3] headers
Header header
float64[] numbers
string<=96[<=64] names
string NAME="Pose pose"
"""
    assert contained_types("polyarm/msg/X", text) == [
        "polyarm/msg/Action",
        "geometry_msgs/msg/Pose",
        "polyarm/msg/Grant",
        "std_msgs/msg/Header",
        "std_msgs/msg/Header",
    ]


def test_definitions_come_from_the_first_prefix_that_has_the_package(tmp_path: Path) -> None:
    for number, prefix in enumerate(("first", "second")):
        folder = tmp_path / prefix / "share" / "pack" / "msg"
        folder.mkdir(parents=True)
        (folder / "Outer.msg").write_text(f"Inner inner # {number}\n")
        (folder / "Inner.msg").write_text("uint8 x\n")
        (folder / "Outer.json").write_text(
            f'{{"type_hashes": [{{"type_name": "pack/msg/Outer", "hash_string": "RIHS01_{number}"}}]}}'
        )
    definition = load_definition("pack/msg/Outer", [tmp_path / "first", tmp_path / "second"])
    expected = "Inner inner # 0\n\n" + "=" * 80 + "\nMSG: pack/Inner\nuint8 x\n"
    assert definition == Definition("pack/msg/Outer", expected, "RIHS01_0")
    with pytest.raises(NoDefinition, match="pack/msg/Absent"):
        load_definition("pack/msg/Absent", [tmp_path / "first"])
    with pytest.raises(NoDefinition, match="'other' of message type other/msg/X"):
        load_definition("other/msg/X", [tmp_path / "first"])
    with pytest.raises(InvalidValue, match="package/msg/Name"):
        load_definition("pack/Outer", [])
