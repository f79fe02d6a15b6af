"""The arms' domain as it is executed for real: what a slot did is heard, not computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyarm_core.chains import terms
from polyarm_core.constraints import Action
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.domains.arms.slot import SlotOutcome
from polyarm_core.domains.interface import ActionStatus, Progress
from polyarm_core.slots import ArmSnapshot, ArmStatus
from polyarm_core.world import WorldView

EXPECTED = 4
"""Slots that a stop or a block is expected to last; nobody can see how long it will."""
NOTHING_DONE = SlotOutcome({}, {}, frozenset())


class MirroredArms(ArmsDomain):
    """Entities, waits and progress as in `ArmsDomain`, but the outcome of a slot is what twin and plant made of it.

    Args:
        simulation: the domain in which plans are imagined; roll-outs run there (see `coordinator.search.imagined`).

    Attributes:
        carried_out: of the last slot: actions that succeeded, and why the others did not.
        failed: arm -> the action that has failed too often for another try, with the reason.
    """

    def __init__(self, simulation: ArmsDomain) -> None:
        super().__init__(simulation.scenario)
        self.simulation = simulation
        self.carried_out = NOTHING_DONE
        self.failed: Mapping[str, tuple[Action, str]] = {}

    def outcome(self, state: ArmsState, controls: Sequence[int]) -> SlotOutcome:
        """What the last slot came to, whatever the arguments say."""
        return self.carried_out

    def progress(
        self, before: ArmsState, controls: Sequence[int], after: ArmsState, agent: str, action: terms.Action
    ) -> Progress:
        """As in the domain; an action that has failed too often is given up."""
        progress = super().progress(before, controls, after, agent, action)
        if progress.status is ActionStatus.RUNNING and agent in self.failed:
            failed, reason = self.failed[agent]
            if self.control_of(failed) == self._control_of.get(action, -1):
                return Progress(ActionStatus.FAILED, reason)
        return progress

    def mirrored(
        self,
        view: WorldView,
        slot: int,
        arms: Mapping[str, ArmSnapshot],
        waited: Mapping[str, int] | None = None,
        stopped: Mapping[str, int] | None = None,
        blocked: Mapping[str, int] | None = None,
    ) -> ArmsState:
        """The state that the twin's mirror shows at the beginning of a slot.

        Args:
            view: of the world; every object of the scenario must be in it.
            slot: its number, from 1; the state counts slots that have passed.
            arms: what the plant says of each arm.
            waited: slots for which each arm has wanted to act in vain.
            stopped, blocked: slots that stops and blocks will last; where this is not known, ``EXPECTED``.
        """
        halted = [name for name, arm in arms.items() if arm.status is ArmStatus.PROTECTIVE_STOP]
        state = self.world.observe(
            view,
            slot - 1,
            {name: (stopped or {}).get(name, EXPECTED) for name in halted},
            {name: (blocked or {}).get(name, EXPECTED) for name in view.world.blocked},
        )
        if any(state.holders):
            # A sensor may not say of a grasp what the abstract world expects, e.g. of a rope's end that hangs low: then
            # the arm counts as empty-handed, if that explains better what the arms may do.
            empty = state._replace(holders=("",) * len(state.holders))
            state = max((state, empty), key=lambda reading: self._agreement(reading, view))
        return state._replace(waited=tuple((waited or {}).get(name, 0) for name in self.agents))

    def _agreement(self, state: ArmsState, view: WorldView) -> int:
        """Arms to which the same is legal in the state as in the view."""
        abstract = self.world.view(state)
        return sum(set(abstract.legal(arm)) == set(view.legal(arm)) for arm in self.agents)

    def situation(self, state: ArmsState) -> ArmsState:
        """As in the domain; what arms have waited so far makes no other plan good either."""
        return super().situation(state)._replace(waited=(0,) * len(self.agents))
