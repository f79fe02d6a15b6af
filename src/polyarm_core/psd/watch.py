"""The plan of a cell held against its world at the plant's rate: what the PSD node does, without messages.

A pure state machine. When a slot opens, the follower takes in what the last one did, and the detector compares the
world with what is left of the plan then: over the last slots, and with what the last one should have led to. Within the
slot the world is compared with its opening, by the same rest of the plan; what an admitted action moves counts as where
it was when the slot opened, unless the action came to nothing: only what happens beside the plan shall show.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from polyarm_core.chains.terms import Plan
from polyarm_core.constraints import Action
from polyarm_core.control.follower import PlanFollower
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.domains.arms import ArmsState
from polyarm_core.domains.arms.world import PAN
from polyarm_core.orchestrator import Decision
from polyarm_core.psd.detector import StalenessDetector
from polyarm_core.slots import ArmSnapshot, ArmVerdict
from polyarm_core.world import WorldView


class GlancingDetector(StalenessDetector, Protocol):
    """A detector that can also compare a state with the one that was expected instead."""

    def glance(self, state: ArmsState, remaining: Plan, expected: ArmsState) -> float:
        """As ``observe``, but no frame has passed."""
        ...


@dataclass(frozen=True)
class Look:
    """What the detector says of the plan in one state of the world.

    Attributes:
        slot: that is open.
        number: of the plan.
        probability, threshold: the plan counts as stale where the first is above the second.
        ask: nobody has asked for another plan in this situation yet, and somebody should.
    """

    slot: int
    number: int
    probability: float
    threshold: float
    ask: bool

    @property
    def stale(self) -> bool:
        """Whether the plan counts as stale."""
        return self.probability > self.threshold


class PlanWatch:
    """One episode after the other.

    Args:
        domain: of the scenario; its last slot is written by the follower.
        make_detector: a fresh detector of stale plans for each episode.

    Attributes:
        slot: that is open, 0 = none.
        number: of the plan, 0 = none.
        sound: it is followed.
    """

    def __init__(self, domain: MirroredArms, make_detector: Callable[[], GlancingDetector]) -> None:
        self.domain = domain
        self._make_detector = make_detector
        self.on_reset()

    def on_reset(self) -> None:
        """Another episode begins: what was seen and asked before counts no more."""
        self.slot = self.number = 0
        self.sound = False
        self._detector = self._make_detector()
        self._follower = PlanFollower(self.domain)
        self._opening: ArmsState | None = None
        self._waited = dict(self._follower.waited)  # when the slot opened
        self._verdicts: tuple[ArmVerdict, ...] = ()
        self._results: list[tuple[str, Action, str, str]] = []
        self._asked: set[Hashable] = set()

    def on_opening(self, slot: int, view: WorldView, arms: Mapping[str, ArmSnapshot]) -> Look | None:
        """A slot opens in this world, and the results of the last one are in; None where no plan is followed."""
        follower = self._follower
        state = self.domain.mirrored(view, slot, arms, follower.waited)
        expected = self._expected(state)
        self.slot, self._waited, self._opening = slot, dict(follower.waited), state
        self._verdicts, self._results = (), []
        follower.open(state)
        remaining = follower.remaining()
        seen = self._detector.glance(state, remaining, expected), self._detector.observe(state, remaining)
        return self._look(state, max(seen))

    def on_plan(self, slot: int, number: int, sound: bool, remaining: Plan) -> None:
        """The coordinator says where the plan stands in the open slot; its word counts.

        Args:
            slot: where it is not the open one, nothing changes.
            number: of the plan, 0 = none.
            sound: it is followed.
            remaining: what is left of it.
        """
        if slot != self.slot or self._opening is None:
            return
        self.sound = sound and number > 0
        if number == 0 or (number == self.number and remaining == self._follower.remaining()):
            return
        if number != self.number:
            self._asked.clear()
            self._detector.reset(remaining)
        self.number = number
        self._follower = PlanFollower(self.domain)
        self._follower.waited = dict(self._waited)
        self._follower.open(self._opening)
        self._follower.adopt(remaining, number)
        # Topics are not ordered among each other: what the plan leads to may have been heard before the plan.
        self._follower.on_verdicts(self._verdicts)
        for result in self._results:
            self._follower.on_result(*result)

    def on_verdicts(self, verdicts: Sequence[ArmVerdict]) -> None:
        """The twin's answers of the open slot."""
        self._verdicts = tuple(verdicts)
        self._follower.on_verdicts(verdicts)

    def on_result(self, arm: str, action: Action, outcome: str, reason: str) -> None:
        """An action of the open slot has ended: ``succeeded``, ``failed`` or ``stopped``, with the plant's reason."""
        self._results.append((arm, action, outcome, reason))
        self._follower.on_result(arm, action, outcome, reason)

    def on_world(self, view: WorldView, arms: Mapping[str, ArmSnapshot]) -> Look | None:
        """The world within the open slot; None where no slot is open or no plan is followed."""
        if self._opening is None or not self.sound:
            return None
        state = self._beside(self.domain.mirrored(view, self.slot, arms, self._follower.waited))
        expected = self._without_what_ended(self._opening, state)
        return self._look(state, self._detector.glance(state, self._follower.remaining(), expected))

    def _look(self, state: ArmsState, probability: float) -> Look | None:
        if not self.sound:
            return None
        threshold, ask = self._detector.threshold, False
        if probability > threshold:
            situation = self.domain.situation(state)
            ask = situation not in self._asked
            self._asked.add(situation)
        return Look(self.slot, self.number, probability, threshold, ask)

    def _expected(self, now: ArmsState) -> ArmsState:
        """The state that the last slot should have led to, of which nothing but what has happened beside it differs.

        Stops and blocks may end at any time.
        """
        if self._opening is None:
            return now
        done = {arm: action for arm, action, outcome, _ in self._results if outcome == "succeeded"}
        return self._without_what_ended(self.domain.world.apply(self._opening, done), now)

    def _without_what_ended(self, before: ArmsState, now: ArmsState) -> ArmsState:
        blocked = {name for name, _ in now.blocked}
        return before._replace(
            stopped=tuple(min(a, b) for a, b in zip(before.stopped, now.stopped, strict=True)),
            blocked=tuple((name, left) for name, left in before.blocked if name in blocked),
        )

    def _beside(self, now: ArmsState) -> ArmsState:
        """The state as it would be if the admitted actions had not begun."""
        opening, world = self._opening, self.domain.world
        assert opening is not None
        vain = {arm for arm, _, outcome, _ in self._results if outcome != "succeeded"}
        moving = [v.action for v in self._verdicts if v.decision is Decision.ADMIT and v.arm not in vain]
        kept = {action.entity for action in moving}
        if any(action.verb in ("sweep", "dump") for action in moving):
            kept |= {n for n, place in zip(world.objects, opening.places, strict=True) if place in (*kept, PAN)}
        keeps = [name in kept for name in world.objects]
        return now._replace(
            places=tuple(a if keep else b for a, b, keep in zip(opening.places, now.places, keeps, strict=True)),
            holders=tuple(a if keep else b for a, b, keep in zip(opening.holders, now.holders, keeps, strict=True)),
            produced=opening.produced if moving else now.produced,
            finished=opening.finished,
        )
