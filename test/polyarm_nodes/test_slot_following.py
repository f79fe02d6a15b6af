"""Slots that are followed from messages in any order; no node runs here."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("polyarm.msg", reason="needs the built messages")

from hypothesis import given
from hypothesis import strategies as st
from polyarm.msg import ActionResult, ArmState, EntityState, SlotOpening, SlotVerdict, WorldState

from polyarm_core.constraints import Action
from polyarm_core.orchestrator import Decision
from polyarm_core.scenario import load_scenario
from polyarm_core.slots import ArmVerdict
from polyarm_nodes.convert import action_to_message, pose_fields, verdict_to_message
from polyarm_nodes.slot_following import (
    AHEAD,
    Announced,
    Begun,
    Ended,
    Event,
    Judged,
    Missed,
    Refused,
    Slot,
    SlotFollowing,
)

SORT = load_scenario("sort")
ARMS = tuple(SORT.arms)
MOVES = {
    "alice": Action("move", "pink_polygon", "pad2"),
    "bob": Action("move", "pink_polygon", "pad4"),
    "chad": Action("move", "pink_polygon", "pad6"),
}
WAIT = 1.0  # s
FIRST, TWIN, PLANT = 5, 70, 80  # episode and epochs; older ones are stale


def world(episode: int, sequence: int, epoch: int = PLANT) -> WorldState:
    message = WorldState(episode=episode, epoch=epoch, sequence=sequence)
    for name in SORT.entities:
        entity = EntityState(name=name)
        pose_fields(entity, (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
        message.entities.append(entity)
    message.arms = [ArmState(name=arm, status=ArmState.STATUS_IDLE) for arm in ARMS]
    return message


def opening(episode: int, slot: int, sequence: int, world_sequence: int, epoch: int = TWIN) -> SlotOpening:
    return SlotOpening(
        episode=episode, slot=slot, epoch=epoch, sequence=sequence, world_sequence=world_sequence, deadline=20.0
    )


def verdict(episode: int, slot: int, admitted: Sequence[str], epoch: int = TWIN) -> SlotVerdict:
    verdicts = [ArmVerdict(a, MOVES[a], Decision.ADMIT if a in admitted else Decision.WAIT) for a in ARMS[:-1]]
    verdicts.append(ArmVerdict(ARMS[-1], MOVES[ARMS[-1]] if ARMS[-1] in admitted else Action("stay"), Decision.ADMIT))
    message = SlotVerdict(episode=episode, slot=slot, epoch=epoch, sequence=1)
    message.verdicts = [verdict_to_message(v, 2.0) for v in verdicts]
    return message


def result(episode: int, slot: int, arm: str, outcome: int = ActionResult.OUTCOME_SUCCEEDED) -> ActionResult:
    return ActionResult(
        episode=episode,
        slot=slot,
        arm=arm,
        outcome=outcome,
        epoch=PLANT,
        sequence=1,
        action=action_to_message(MOVES[arm]),
    )


@dataclass
class Seen:
    """What a node has come to know of a slot: its verdicts, the results it was told, and what it opened without."""

    key: tuple[int, int, int]  # episode, slot, twin
    admitted: frozenset[str] | None = None
    results: dict[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()  # arms of the last slot


class Node:
    """Opens every slot as soon as it may."""

    def __init__(self) -> None:
        self.slots = SlotFollowing(SORT, WAIT)
        self.seen: list[Seen] = []
        self.begun: list[int] = []
        self.missed: list[str] = []
        self.refused: list[str] = []

    def hear(self, message: Any, now: float = 0.0) -> list[Event]:
        try:
            events = self.slots.hear(message, now)
        except Refused as why:
            self.refused.append(why.kind)
            return []
        self.note(events)
        slot, before, snapshot = self.slots.current, self.slots.before, self.slots.snapshot
        if slot is not None and not slot.opened and self.slots.is_known(now):
            assert snapshot is not None
            assert snapshot.episode == slot.opening.episode and snapshot.sequence >= slot.opening.world_sequence
            self.seen.append(Seen(_key(slot), unknown=frozenset(before.acting if before else ())))
            told = self.slots.open(slot)
            assert self.slots.before is None
            self.note(told)
            if slot.verdicts is not None:
                self.judge(slot)
        return events

    def note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Begun):
                self.begun.append(event.episode)
            elif isinstance(event, Judged):
                if event.slot.opened:
                    self.judge(event.slot)
            elif isinstance(event, Ended):
                seen = self.seen[-1]  # nothing is heard of a slot that is not open, or is over
                assert seen.key == _key(event.slot) and event.result.arm not in seen.results
                assert event.result.action == MOVES[event.result.arm]
                seen.results[event.result.arm] = event.result.outcome
            elif isinstance(event, Missed):
                self.missed.append(event.result.arm)

    def judge(self, slot: Slot) -> None:
        (seen,) = (seen for seen in self.seen if seen.key == _key(slot))
        assert seen.admitted is None
        verdicts = slot.verdicts or ()
        seen.admitted = frozenset(v.arm for v in verdicts if v.decision is Decision.ADMIT and not v.action.is_stay)


def _key(slot: Slot) -> tuple[int, int, int]:
    return slot.opening.episode, slot.opening.slot, slot.opening.epoch


OUTCOMES = {
    ActionResult.OUTCOME_SUCCEEDED: "succeeded",
    ActionResult.OUTCOME_FAILED: "failed",
    ActionResult.OUTCOME_STOPPED: "stopped",
    ActionResult.OUTCOME_REFUSED: "stopped",
}


@dataclass(eq=False)
class Told:
    """A message, and those that must have come before it."""

    message: Any
    after: tuple[Told, ...] = ()


@dataclass(repr=False)
class History:
    """What is said in a cell, and what a node must make of it in whatever order it comes."""

    messages: list[Told] = field(default_factory=list)
    slots: list[Seen] = field(default_factory=list)
    episodes: list[int] = field(default_factory=list)
    stale_openings: int = 0

    def __repr__(self) -> str:
        return f"History of {self.slots}"

    def add(self, message: Any, *after: Told | None) -> Told:
        self.messages.append(Told(message, tuple(item for item in after if item is not None)))
        return self.messages[-1]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Some slots, in which a twin may be started again and another episode may begin.

    The order is what the cell brings about by itself: worlds among themselves, openings among themselves, and an
    opening after all that the node needs to open the last slot, as the arms answer only what it has told them. A new
    twin goes on from the last slot in which anything was admitted.
    """
    history = History()
    episode, number, twin, sequence = FIRST, 0, TWIN, 0
    last_world: Told | None = None
    last_opening: Told | None = None
    outcome: list[Told] = []  # of the last slot
    needed: list[Told] = []  # for the last slot to be opened by the node
    for k in range(draw(st.integers(1, 5))):
        happens = draw(st.sampled_from(["slot", "slot", "slot", "twin", "episode"])) if k else "episode"
        if happens == "episode" and k:
            episode, number = episode + 1, 0
        if happens == "episode":
            history.episodes.append(episode)
        if happens == "twin":  # the old one has died before it judged the slot
            for lost in outcome:
                history.messages.remove(lost)
            outcome = []
            history.slots[-1].admitted, history.slots[-1].results = None, {}
            acted = [seen.key[1] for seen in history.slots if seen.key[0] == episode and seen.admitted]
            twin, sequence, number = twin + 1, 0, draw(st.integers(max(acted, default=0), number))
        number, sequence = number + 1, sequence + 1
        over = outcome if happens == "episode" else []  # with the episode; else it may come later
        last_world = history.add(world(episode, 1 + k), last_world, *over, *needed)
        last_opening = history.add(opening(episode, number, sequence, 1 + k, twin), last_opening, *over, *needed)
        needed = [last_world, last_opening, *outcome]
        admitted = draw(st.lists(st.sampled_from(ARMS), unique=True))
        outcome = [history.add(verdict(episode, number, admitted, twin))]
        known = any(seen.key[:2] == (episode, number) for seen in history.slots)
        ended = {}
        for arm in admitted:
            code = draw(st.sampled_from(sorted(OUTCOMES)))
            ended[arm] = OUTCOMES[code]
            # A result does not say for which twin it is: numbers that were used before are told apart by its time.
            outcome.append(history.add(result(episode, number, arm, code), last_opening if known else None))
        history.slots.append(Seen((episode, number, twin), frozenset(admitted), ended))
        stale = draw(st.sampled_from(["", "world", "opening", "verdict", "episode", "twin"]))
        if stale == "world":
            history.add(world(episode, 1 + k), last_world)
        elif stale == "opening":
            history.add(last_opening.message, last_opening)
            history.stale_openings += 1
        elif stale == "verdict":
            outcome.append(history.add(verdict(episode, number, ARMS, twin), outcome[0]))
        elif stale == "episode":
            history.add(verdict(FIRST - 1, number, ARMS, twin))
            history.add(result(FIRST - 1, number, "bob"))
        elif stale == "twin":
            history.add(verdict(episode, number, ARMS, TWIN - 1))
    return history


def in_some_order(history: History, shuffle: random.Random) -> list[Any]:
    """A legal order of its messages."""
    left, order = list(history.messages), []
    while left:
        told = shuffle.choice([told for told in left if not any(other in left for other in told.after)])
        left.remove(told)
        order.append(told.message)
    return order


@given(histories(), st.randoms(use_true_random=False))
def test_whatever_the_order_every_slot_is_the_same(history: History, shuffle: random.Random) -> None:
    node = Node()
    for message in in_some_order(history, shuffle):
        node.hear(message)
    assert node.seen == history.slots
    assert node.begun == history.episodes
    assert node.refused == ["stale"] * history.stale_openings and not node.missed


def opened(*messages: Any) -> Node:
    """A node that has opened slot 1, and heard more."""
    node = Node()
    for message in (world(FIRST, 1), opening(FIRST, 1, 1, 1), *messages):
        node.hear(message)
    return node


def test_what_does_not_come_is_waited_for_for_a_while_and_is_late_then() -> None:
    node = opened(verdict(FIRST, 1, ["alice", "bob"]), result(FIRST, 1, "bob"), world(FIRST, 2))
    node.hear(opening(FIRST, 2, 2, 2), 10.0)
    assert not node.slots.is_known(10.0 + 0.99 * WAIT) and node.slots.is_known(10.0 + WAIT)
    assert node.slots.before is not None and node.slots.before.acting == {"alice"}
    node.hear(world(FIRST, 3), 10.0 + WAIT)
    assert [(seen.key[1], seen.unknown) for seen in node.seen] == [(1, frozenset()), (2, {"alice"})]
    node.hear(result(FIRST, 1, "alice"))
    node.hear(result(FIRST - 1, 2, "bob"))
    node.hear(verdict(FIRST, 1, ["chad"]))
    assert node.missed == ["alice"] and node.seen[-1] == Seen((FIRST, 2, TWIN), unknown=frozenset({"alice"}))


def test_a_slot_on_a_world_that_has_not_come_is_not_known_however_long_it_takes() -> None:
    node = opened(verdict(FIRST, 1, []), opening(FIRST, 2, 2, 2))
    assert not node.slots.is_known(1e6)
    node.hear(world(FIRST, 1, PLANT - 1))
    assert not node.slots.is_known(1e6)
    node.hear(world(FIRST, 2))
    assert len(node.seen) == 2


def test_of_a_slot_that_was_not_opened_the_results_are_told_once_the_next_one_comes() -> None:
    """Verdicts are told at once: who has to say something before them must know that it is too late."""
    slots = SlotFollowing(SORT, WAIT)
    assert [type(e) for e in slots.hear(opening(FIRST, 1, 1, 1), 0.0)] == [Announced]
    (judged,) = slots.hear(verdict(FIRST, 1, ["bob"]), 0.0)
    assert isinstance(judged, Judged) and judged.slot is slots.current and not judged.slot.opened
    assert slots.hear(result(FIRST, 1, "bob", ActionResult.OUTCOME_FAILED), 0.0) == []
    announced, ended = slots.hear(opening(FIRST, 2, 2, 1), 0.0)
    assert isinstance(announced, Announced) and announced.last is judged.slot
    assert isinstance(ended, Ended) and (ended.slot, ended.result.outcome) == (judged.slot, "failed")


def test_no_more_is_kept_than_a_team_can_say() -> None:
    for later in (AHEAD - 1, AHEAD):
        node = Node()
        for message in [result(FIRST, 1, "bob"), *[result(FIRST, 2 + k, "chad") for k in range(later)]]:
            node.hear(message)
        node.hear(world(FIRST, 1))
        node.hear(opening(FIRST, 1, 1, 1))
        assert set(node.seen[0].results) == ({"bob"} if later < AHEAD else set())


@pytest.mark.parametrize(
    ("message", "kind", "why"),
    [
        (WorldState(), "malformed", "world state: entities without a pose"),
        (SlotOpening(deadline=float("nan")), "malformed", "slot opening: deadline"),
        (result(FIRST, 1, "bob", 9), "malformed", "action result: outcome = 9; valid:"),
        (ActionResult(arm="eve", outcome=1), "malformed", "action result: arm 'eve' is unknown; valid: alice, bob"),
        (ActionResult(arm="bob", outcome=1), "malformed", "action result: action.verb is empty"),
        (
            SlotVerdict(verdicts=[verdict_to_message(ArmVerdict("eve", Action("stay"), Decision.ADMIT), 1.0)]),
            "malformed",
            "slot verdict: agent 'eve' is unknown",
        ),
        (opening(FIRST, 1, 1, 1), "stale", f"slot 1 of twin {TWIN} was opened already"),
        (opening(FIRST, 4, 9, 1, TWIN - 1), "stale", f"slot 4 of twin {TWIN - 1} was opened already"),
        (opening(FIRST - 1, 9, 9, 1), "stale", f"slot 9 of episode {FIRST - 1}, the plant is in {FIRST}"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_refused_says_why_and_changes_nothing(message: Any, kind: str, why: str) -> None:
    node = opened()
    current, snapshot = node.slots.current, node.slots.snapshot
    with pytest.raises(Refused, match=re.escape(why)) as refused:
        node.slots.hear(message, 0.0)
    assert refused.value.kind == kind
    assert (node.slots.current, node.slots.snapshot, node.slots.before) == (current, snapshot, None)
