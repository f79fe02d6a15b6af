"""Follows a plan slot by slot from what everybody hears: worlds, verdicts of the twin, results of the plant.

It decides nothing of its own, so every node that hears the same has the same heads: the agents for their next
action, the coordinator for what keeps the plan from going on.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyarm_core.chains.executor import ActiveWait, ChainExecutor, Detection
from polyarm_core.chains.terms import Plan
from polyarm_core.constraints import Action
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import UNPLANNED, Head, Standing
from polyarm_core.declaration import declare
from polyarm_core.domains.arms import ArmsState
from polyarm_core.domains.arms.slot import SlotOutcome
from polyarm_core.orchestrator import Decision
from polyarm_core.slots import ArmVerdict

TRIES = 2
"""Failures of one action in a row after which the chain cannot go on."""
REFUSED_FOR = 12
"""Slots after which such an action may be planned again although nothing has moved: the arms may stand otherwise."""
PATIENCE, WAIT_DEADLINE = 24, 24
"""Slots after which an action, or a wait, counts as a stall; a third of that without any change counts as no progress,
which is longer than a stop or a block lasts."""


class PlanFollower:
    """One plan in execution.

    Args:
        domain: its last slot is written by the follower; each follower needs its own.

    Attributes:
        epoch: of the plan that is followed; 0 = none yet.
        waited: slots for which each arm has wanted to act in vain, as the twin counts them.
    """

    def __init__(self, domain: MirroredArms) -> None:
        self.domain = domain
        self.epoch = 0
        self.waited = dict.fromkeys(domain.agents, 0)
        self._executor = ChainExecutor(domain, Plan(()), patience=PATIENCE, wait_deadline=WAIT_DEADLINE)
        self._state: ArmsState | None = None
        self._verdicts: dict[str, ArmVerdict] = {}
        self._succeeded: dict[str, Action] = {}
        self._failures: dict[str, tuple[Action, int, str]] = {}
        self._refused: dict[tuple[str, Action], ArmsState] = {}  # with the state in which it failed last

    # -- what is heard --------------------------------------------------------------------------------------------

    def adopt(self, plan: Plan, epoch: int) -> bool:
        """Follow another plan from now on; one of an older epoch is ignored. Returns whether it was taken."""
        if epoch <= self.epoch:
            return False
        self.epoch = epoch
        self._failures.clear()
        self._executor.replace(plan)
        return True

    def open(self, state: ArmsState) -> tuple[Detection, ...]:
        """A slot opens: take in what the last one did, and look at waits and actions in the new state."""
        executor = self._executor
        if not self.epoch:
            self._state = state
            return ()
        found: tuple[Detection, ...] = ()
        if self._state is not None:
            before = self._state
            self.domain.carried_out = self._outcome(before)
            self.domain.failed = {a: (act, why) for a, (act, n, why) in self._failures.items() if n >= TRIES}
            found = executor.advance(before, self.domain.control(before, executor.intents(before)), state)
        self._state = state
        self._verdicts, self._succeeded = {}, {}
        executor.recheck()  # the world may have changed unseen while the arms moved
        return found + executor.check(state)

    def on_verdicts(self, verdicts: Sequence[ArmVerdict]) -> None:
        """The twin's answers of the open slot."""
        for verdict in verdicts:
            self._verdicts[verdict.arm] = verdict
            vain = not verdict.action.is_stay and verdict.decision is not Decision.ADMIT
            self.waited[verdict.arm] = self.waited[verdict.arm] + 1 if vain else 0

    def on_result(self, arm: str, action: Action, outcome: str, reason: str) -> None:
        """An action of the open slot has ended: ``succeeded``, ``failed`` or ``stopped``, with the plant's reason."""
        if outcome == "succeeded":
            self._succeeded[arm] = action
            self._failures.pop(arm, None)
        elif outcome == "failed":
            known, count, _ = self._failures.get(arm, (action, 0, ""))
            count = count + 1 if known == action else 1
            self._failures[arm] = (action, count, reason)
            if count >= TRIES and self._state is not None:
                self._refused[arm, action] = self._state

    def refused(self, state: ArmsState) -> tuple[tuple[str, str, str, str], ...]:
        """What the plant could not carry out while everything lay as in this state, see `ArmsState`.

        Without it a plan of which the first step cannot be carried out would be made again and again.
        """
        self._refused = {
            key: then
            for key, then in self._refused.items()
            if (then.places, then.holders) == (state.places, state.holders) and state.slot - then.slot <= REFUSED_FOR
        }
        return tuple(sorted((arm, a.verb, a.entity, a.placement) for arm, a in self._refused))

    def _outcome(self, before: ArmsState) -> SlotOutcome:
        where = self.domain.world.where(before)
        needed: set[str] = set()
        for arm, action in self._succeeded.items():
            least = declare(self.domain.scenario, arm, action, where)
            needed |= least.requires_held | least.requires_produced
        vetoes = {
            arm: " ".join(filter(None, (v.rule.value if v.rule else "", v.element, v.rival)))
            for arm, v in self._verdicts.items()
            if v.decision is not Decision.ADMIT
        }
        return SlotOutcome(dict(self._succeeded), vetoes, frozenset(needed))

    # -- what follows -----------------------------------------------------------------------------------------------

    def heads(self) -> dict[str, Head]:
        """What the plan says of every arm in the open slot."""
        if self._state is None or not self.epoch:
            return dict.fromkeys(self.domain.agents, UNPLANNED)
        domain, executor = self.domain, self._executor
        controls = domain.control(self._state, executor.intents(self._state))
        waiting = {wait.agent for wait in executor.waiting()}
        heads = {}
        for arm, control in zip(domain.agents, controls, strict=True):
            if control:
                heads[arm] = Head(Standing.ACT, domain.action_of(control))
            else:
                heads[arm] = Head(Standing.WAIT if arm in waiting else Standing.ENDED)
        return heads

    def remaining(self) -> Plan:
        """What is left of the plan, as a plan by itself."""
        return self._executor.remaining()

    def waiting(self) -> tuple[ActiveWait, ...]:
        """The waits that hold their arms in the open slot."""
        return self._executor.waiting()

    def reached(self, wait: ActiveWait) -> tuple[bool, ...]:
        """For each atom of a wait, whether it is satisfied in the open slot."""
        assert self._state is not None
        return tuple(self._executor.satisfied(atom, self._state) for atom in wait.wait.atoms)
