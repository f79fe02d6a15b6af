"""Follows the slots of a cell from what a node hears of them: worlds, openings, verdicts and results.

Topics are not ordered among each other: verdicts and results may come before the opening of their slot, and an opening
before the world that it is based on. What comes early waits; what is of an older episode, of an older twin or of a slot
that is over changes nothing. A pure state machine: time is an argument (seconds of a steady clock), and what a node has
to know comes back as events, in order::

    events = slots.hear(message, now)
    if slots.is_known(now):  # the world of the slot, and what the last one came to
        events = slots.open(slots.current)  # from now on the last one is over
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from polyarm.msg import ActionResult, SlotOpening, SlotVerdict, WorldState

from polyarm_core.constraints import Action
from polyarm_core.orchestrator import Decision
from polyarm_core.scenario import Scenario
from polyarm_core.slots import ArmVerdict, Snapshot
from polyarm_nodes.convert import action_of_arm, snapshot_from_message
from polyarm_nodes.plan_convert import verdicts_from_message
from polyarm_nodes.validation import Malformed, check_message

AHEAD = 256
"""Verdicts and results that are kept until their slot is opened; a team's fit."""
OUTCOMES = {
    ActionResult.OUTCOME_SUCCEEDED: "succeeded",
    ActionResult.OUTCOME_FAILED: "failed",
    ActionResult.OUTCOME_STOPPED: "stopped",
    ActionResult.OUTCOME_REFUSED: "stopped",  # it never started: nobody has failed at it
}
Message: TypeAlias = WorldState | SlotOpening | SlotVerdict | ActionResult
WORDS: dict[type[Message], str] = {
    WorldState: "world state",
    SlotOpening: "slot opening",
    SlotVerdict: "slot verdict",
    ActionResult: "action result",
}


class Refused(Exception):
    """A message that changes nothing; ``kind`` is ``malformed`` or ``stale``."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True)
class Result:
    """An action of a slot has ended: ``succeeded``, ``failed`` or ``stopped``, with the plant's reason."""

    episode: int
    slot: int
    arm: str
    action: Action
    outcome: str
    reason: str


@dataclass(frozen=True)
class _Verdicts:
    """The answers of a twin, by its epoch, in a slot."""

    episode: int
    slot: int
    epoch: int
    verdicts: tuple[ArmVerdict, ...]


@dataclass(eq=False)
class Slot:
    """A slot, from its opening until the next one has been opened here as well.

    Attributes:
        opening: of the twin.
        received: s, steady; when it came.
        opened: the node has opened it, see `SlotFollowing.open`.
        verdicts: of its twin; None = they have not come.
        ended: arms whose result has come.
        early: results that the node has not been told, as it has not opened the slot.
    """

    opening: SlotOpening
    received: float
    opened: bool = False
    verdicts: tuple[ArmVerdict, ...] | None = None
    ended: set[str] = field(default_factory=set)
    early: list[Result] = field(default_factory=list)

    @property
    def acting(self) -> set[str]:
        """Arms whose action was admitted and has not ended yet, as far as is known."""
        admitted = {v.arm for v in self.verdicts or () if v.decision is Decision.ADMIT and not v.action.is_stay}
        return admitted - self.ended

    def is_of(self, heard: _Verdicts | Result) -> bool:
        """Whether verdicts of its twin, or a result, whichever twin it is for, are of this slot."""
        opening = self.opening
        if isinstance(heard, _Verdicts) and heard.epoch != opening.epoch:
            return False
        return (heard.episode, heard.slot) == (opening.episode, opening.slot)


@dataclass(frozen=True)
class Begun:
    """Event: the plant is in another episode; nothing of the last one counts."""

    episode: int


@dataclass(frozen=True)
class Announced:
    """Event: the twin has opened a slot; ``last`` is the one before it, as far as is known."""

    slot: Slot
    last: Slot | None


@dataclass(frozen=True)
class Judged:
    """Event: the verdicts of a slot are here, whether the node has opened it or not."""

    slot: Slot


@dataclass(frozen=True)
class Ended:
    """Event: a result of a slot that the node has opened, or will not open any more."""

    slot: Slot
    result: Result


@dataclass(frozen=True)
class Missed:
    """Event: a result of this episode, of a slot that is over."""

    result: Result


Event: TypeAlias = Begun | Announced | Judged | Ended | Missed


class SlotFollowing:
    """The open slot of a cell and, until the node has opened that as well, the one before it.

    Args:
        scenario: whose arms, entities and actions messages may name.
        result_wait: s for which a slot waits for the verdicts and results of the one before it.

    Attributes:
        episode: of the plant; 0 = no world was heard.
        snapshot: the plant's newest world.
        current: the slot that the twin has opened last.
        before: the one before it, until the current one is opened here.
    """

    def __init__(self, scenario: Scenario, result_wait: float) -> None:
        self.episode = 0
        self.snapshot: Snapshot | None = None
        self.current: Slot | None = None
        self.before: Slot | None = None
        self._scenario = scenario
        self._result_wait = result_wait
        self._ahead: deque[_Verdicts | Result] = deque(maxlen=AHEAD)

    def hear(self, message: Message, now: float) -> list[Event]:
        """Take a message.

        Raises:
            Refused: it is malformed, or an opening that is older than what is known. Worlds, verdicts and results that
                are merely late are passed over.
        """
        try:
            if isinstance(message, WorldState):
                return self._on_world(snapshot_from_message(message, self._scenario))
            if isinstance(message, SlotOpening):
                check_message(message)
                return self._on_opening(message, now)
            heard = self._read_verdicts(message) if isinstance(message, SlotVerdict) else self._read_result(message)
        except Malformed as why:
            raise Refused("malformed", f"{WORDS[type(message)]}: {why}") from None
        events = self._take(heard)
        if events is None and isinstance(heard, Result) and heard.episode == self.episode:
            return [Missed(heard)]
        return events or []

    def is_known(self, now: float) -> bool:
        """Whether the world of the current slot, and what the one before it came to, are here, or overdue."""
        slot, before, snapshot = self.current, self.before, self.snapshot
        if slot is None or snapshot is None:
            return False
        opening = slot.opening
        if snapshot.episode != opening.episode or snapshot.sequence < opening.world_sequence:
            return False
        if before is None or now - slot.received >= self._result_wait:
            return True
        judged = before.verdicts is not None or before.opening.epoch != opening.epoch  # a dead twin judges no more
        return judged and not before.acting

    def open(self, slot: Slot) -> list[Event]:
        """The node opens a slot; it is told what was heard of it before. Verdicts may be in ``slot.verdicts`` already.

        With the current slot opened, the one before it is over: its results count no more.
        """
        if slot is self.current:
            self.before = None
        slot.opened = True
        return self._told(slot)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _on_world(self, snapshot: Snapshot) -> list[Event]:
        known = self.snapshot
        if known is not None and (snapshot.epoch, snapshot.sequence) <= (known.epoch, known.sequence):
            return []
        self.snapshot = snapshot
        if snapshot.episode == self.episode:
            return []
        self.episode = snapshot.episode
        self.before = None
        if self.current is not None and self.current.opening.episode != self.episode:
            self.current = None
        return [Begun(self.episode)]

    def _on_opening(self, opening: SlotOpening, now: float) -> list[Event]:
        if opening.episode < self.episode:
            why = f"slot {opening.slot} of episode {opening.episode}, the plant is in {self.episode}"
            raise Refused("stale", why)
        last = self.current
        if last is not None and (opening.epoch, opening.sequence) <= (last.opening.epoch, last.opening.sequence):
            raise Refused("stale", f"slot {opening.slot} of twin {opening.epoch} was opened already")
        self.current = Slot(opening, now)
        events: list[Event] = [Announced(self.current, last)]
        if last is not None and last.opening.episode == opening.episode:
            self.before = last
            events += self._told(last)
        ahead = list(self._ahead)
        self._ahead.clear()
        for heard in ahead:
            events += self._take(heard) or []
        return events

    def _read_verdicts(self, message: SlotVerdict) -> _Verdicts:
        verdicts = verdicts_from_message(message, self._scenario)
        return _Verdicts(message.episode, message.slot, message.epoch, verdicts)

    def _read_result(self, message: ActionResult) -> Result:
        check_message(message)
        if message.outcome not in OUTCOMES:
            raise Malformed(f"outcome = {message.outcome}; valid: {sorted(OUTCOMES)}")
        if message.arm not in self._scenario.arms:
            raise Malformed(f"arm {message.arm!r} is unknown; valid: {', '.join(self._scenario.arms)}")
        action = action_of_arm(message.action, message.arm, self._scenario)
        outcome = OUTCOMES[message.outcome]
        return Result(message.episode, message.slot, message.arm, action, outcome, message.reason)

    def _take(self, heard: _Verdicts | Result) -> list[Event] | None:
        """Take what is of a slot, or keep it for one that is still to be opened; None = its slot is over."""
        slot = next((s for s in (self.current, self.before) if s is not None and s.is_of(heard)), None)
        if slot is None:
            if not self._is_ahead(heard):
                return None
            self._ahead.append(heard)
            return []
        if isinstance(heard, _Verdicts):
            if slot.verdicts is not None:
                return []
            slot.verdicts = heard.verdicts
            return [Judged(slot)]
        slot.ended.add(heard.arm)
        slot.early.append(heard)
        return self._told(slot) if slot.opened or slot is self.before else []

    def _is_ahead(self, heard: _Verdicts | Result) -> bool:
        """Whether it may be of a slot of which the opening is still to come."""
        if self.current is None:
            return True
        opening = self.current.opening
        if isinstance(heard, _Verdicts) and heard.epoch != opening.epoch:
            return heard.epoch > opening.epoch  # a twin that was started again may count from a lower slot
        return (heard.episode, heard.slot) > (opening.episode, opening.slot)

    def _told(self, slot: Slot) -> list[Event]:
        results, slot.early = slot.early, []
        return [Ended(slot, result) for result in results]
