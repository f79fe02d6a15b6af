"""One arm's agent under any way of control: by the head of its chain, or by its own model."""

from __future__ import annotations

from collections.abc import Collection

from polyarm_core.agents import ArmAgent, Choice, DecidedBy, Deliberation
from polyarm_core.constraints import STAY, Action, Declaration
from polyarm_core.control.modes import Control, Head, Standing
from polyarm_core.declaration import declare
from polyarm_core.scenario import Scenario
from polyarm_core.world import WorldView


class ChainAgent:
    """Decides one arm's action of a slot.

    Args:
        scenario: the task.
        arm: its name.
        control: who picks the actions.
        stay_patience: of the arm's own choice, see `ArmAgent`.

    Attributes:
        own: the agent that asks the arm's own model.
    """

    def __init__(self, scenario: Scenario, arm: str, control: Control, stay_patience: int = 1) -> None:
        self.scenario = scenario
        self.arm = arm
        self.control = control
        self.own = ArmAgent(scenario, arm, stay_patience)
        self._chosen: Action | None = None

    def reset(self) -> None:
        """A new episode begins."""
        self.own.reset()
        self._chosen = None

    def decide(self, view: WorldView, head: Head, reserved: Collection[str] = ()) -> Choice | Deliberation:
        """The choice where the plan makes it; what the arm's own model has to decide where that is asked.

        Args:
            view: the world.
            head: what the plan says of the arm.
            reserved: entities and placements of which the rest of the plan makes use; left alone by an arm that has
                nothing to do in the plan.
        """
        self._chosen = None
        by_chain = self.control is not Control.REACTIVE and head.standing in (Standing.ACT, Standing.WAIT)
        if by_chain and head.action is not None:
            self._chosen = head.action
            return Choice(head.action, declare(self.scenario, self.arm, head.action, view.where), DecidedBy.CHAIN)
        if by_chain or (self.control is Control.PLANNED and head.standing is Standing.ENDED):
            return Choice(STAY, Declaration(), DecidedBy.CHAIN)
        if self.control is Control.PLANNED:  # safe hold: nobody has said what to do
            return Choice(STAY, Declaration(), DecidedBy.FALLBACK)
        return self.own.deliberate(view, reserved if head.standing is Standing.ENDED else ())

    def on_verdict(self, action: Action, decision: str) -> None:
        """The twin's answer. A vetoed head is tried again while it is the head; only own choices are remembered."""
        if action != self._chosen:
            self.own.on_verdict(action, decision)

    def on_failure(self, action: Action) -> None:
        """The plant could not carry the action out; of a head, the follower keeps count."""
        if action != self._chosen:
            self.own.on_failure(action)
