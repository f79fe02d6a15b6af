"""A plant without physics: an action takes a fixed time and then its effect is there.

What the effects are, `AbstractWorld` says, so that ropes and pans work as well. For work on coordination alone
(protocol tests, benches with dozens of arms). It has the part of `Simulation`'s interface that a bridge without joints
needs and runs in the same `SimulationLoop`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from polyarm_core.constraints import MOVE_VERB, Action
from polyarm_core.declaration import declare
from polyarm_core.domains.arms.world import AbstractWorld, ArmsState
from polyarm_core.errors import InvalidValue
from polyarm_core.liveness import draw_start
from polyarm_core.plant.simulation import TICK, ArmView
from polyarm_core.plant.skills import ActionResult, ArmBusy, Status
from polyarm_core.scenario import Operator, Scenario, Vec3
from polyarm_core.world import World, nearest_placement


class KinematicPlant:
    """Entities at placements, arms that are busy for a while.

    Args:
        scenario: what stands where.
        seed: of the start.
        duration: simulated s that an action takes, >= 0.
    """

    def __init__(self, scenario: Scenario, seed: int = 0, duration: float = 1.0) -> None:
        if not duration >= 0.0:
            raise InvalidValue("duration", duration, "simulated seconds, 0 or more")
        self.scenario = scenario
        self.episode = 0
        self.seed = seed
        self.arm_contacts = 0
        self._duration = duration
        self._abstract = AbstractWorld(scenario)
        self._results: list[ActionResult] = []
        self._running: dict[str, tuple[Action, float, Any]] = {}
        self._status: dict[str, Status] = {}
        self._ticks = 0
        self.reset(seed)

    def close(self) -> None:
        """Nothing to release."""

    def reset(self, seed: int | None = None, start: Mapping[str, str] | None = None) -> None:
        """A new episode; actions in progress end with reason ``reset``."""
        for arm in list(self._running):
            self.stop(arm, "reset")
        self.seed = self.seed if seed is None else seed
        self._state: ArmsState = self._abstract.state(draw_start(self.scenario, self.seed) if start is None else start)
        self._blocked: frozenset[str] = frozenset()
        self._status = dict.fromkeys(self.scenario.arms, "idle")
        self._ticks = 0
        self.episode += 1

    @property
    def time(self) -> float:
        """Simulated time since the episode began, s."""
        return self._ticks * TICK

    @property
    def idle(self) -> bool:
        """No arm is busy."""
        return not self._running

    def step(self, ticks: int = 1) -> None:
        """Let time pass; actions whose time is over take effect, in the order of the arms."""
        self._ticks += ticks
        for arm, (action, started, tag) in sorted(self._running.items()):
            if self.time - started < self._duration:
                continue
            del self._running[arm]
            occupant = self._occupant(action)
            if occupant:
                text = f"{occupant} is on {action.placement}"
                self._finish(arm, action, "failed", "occupied", text, started, tag)
            else:
                self._state = self._abstract.apply(self._state, {arm: action})
                self._finish(arm, action, "succeeded", "", "", started, tag)

    def _occupant(self, action: Action) -> str:
        """What stands in the way of an action that ends on a placement, or ""."""
        if not action.placement:
            return ""
        if action.placement in self._blocked:
            return "something"
        where = self._abstract.where(self._state)
        return next((e for e, p in where.items() if p == action.placement and e != action.entity), "")

    def _finish(self, arm: str, action: Action, outcome: Any, reason: str, text: str, started: float, tag: Any) -> None:
        self._status[arm] = "idle" if outcome == "succeeded" else "holding"
        self._results.append(ActionResult(arm, action, outcome, reason, text, started, self.time - started, tag))

    def start_action(self, arm: str, action: Action, zones: Collection[str] | None = None, tag: Any = None) -> None:
        """Begin an action. Raises ArmBusy, UnknownName, InvalidValue as `Simulation.start_action`."""
        self.scenario.arm(arm)
        if arm in self._running or self._status[arm] == "protective_stop":
            raise ArmBusy(arm, self._status[arm])
        if self.scenario.operator(arm, action.verb, action.entity, action.placement) is None:
            if action.verb != MOVE_VERB:
                raise InvalidValue("action", str(action), f"{MOVE_VERB!r} or an operator of {arm}")
            self.scenario.entity(action.entity)
            self.scenario.placement(action.placement)
        self._running[arm] = (action, self.time, tag)
        self._status[arm] = "moving"

    def go_home(self, arm: str, zones: Collection[str] = (), tag: Any = None) -> None:
        """Arms have no posture here: an arm that holds is idle again."""
        self.scenario.arm(arm)
        if arm in self._running:
            raise ArmBusy(arm, "moving")
        self._status[arm] = "idle"

    def stop(self, arm: str, reason: str) -> None:
        """Stop an arm's action; it holds and its entity stays where it was."""
        self._break_off(arm, "stopped", reason, "stopped on the way")

    def release(self, arm: str) -> None:
        """Open an arm's gripper whatever it does: its action fails, and what it holds is held no more."""
        self.scenario.arm(arm)
        self._state = self._state._replace(holders=tuple("" if a == arm else a for a in self._state.holders))
        self._break_off(arm, "failed", "slip", "slipped out of the gripper")

    def relied_on(self) -> dict[str, str]:
        """Arm -> what its action holds, where another arm is in the second half of an action that requires it held."""
        found: dict[str, str] = {}
        for arm, (action, _, _) in self._running.items():
            operator = self._operator(arm, action)
            holds = set(operator.holds) if operator is not None else set()
            for other, (its, started, _) in self._running.items() if holds else ():
                if self.time - started >= self._duration / 2 and self._requires(other, its) & holds:
                    found[arm] = action.entity
        return found

    def slip(self, arm: str) -> None:
        """What an arm holds open slips from its gripper and falls shut: the action fails, and those that require it."""
        self.scenario.arm(arm)
        self._break_off(arm, "failed", "slip", "slipped out of the gripper")

    def protective_stop(self, arm: str, text: str) -> None:
        """Stop an arm until `clear`, as its own safety would."""
        self.scenario.arm(arm)
        self._break_off(arm, "stopped", "protective_stop", text)
        self._status[arm] = "protective_stop"

    def clear(self, arm: str) -> None:
        """Clear an arm's protective stop; it holds and takes actions again."""
        if self._status[arm] == "protective_stop":
            self._status[arm] = "holding"

    def _break_off(self, arm: str, outcome: Any, reason: str, text: str) -> None:
        """End an action before its time, and those that cannot go on without it."""
        if arm not in self._running:
            return
        action, started, tag = self._running.pop(arm)
        self._finish(arm, action, outcome, reason, text, started, tag)
        operator = self._operator(arm, action)
        for other, (its, _, _) in list(self._running.items()):
            mate = self._operator(other, its)
            if operator is not None and mate is not None and arm in mate.group and its.verb == action.verb:
                self._break_off(other, "stopped", "partner", f"{arm} ended: {reason}")
            elif operator is not None and self._requires(other, its) & set(operator.holds) - self.held_conditions():
                self._break_off(other, "stopped", "not_held", f"{arm} does not hold {action.entity} any more")

    def _operator(self, arm: str, action: Action) -> Operator | None:
        return self.scenario.operator(arm, action.verb, action.entity, action.placement)

    def _requires(self, arm: str, action: Action) -> frozenset[str]:
        return declare(self.scenario, arm, action, self._abstract.where(self._state)).requires_held

    def place_entity(self, entity: str, xyz: tuple[float, float, float], quat: Any = (1.0, 0.0, 0.0, 0.0)) -> None:
        """Put an entity on the placement nearest to a point, as a person would. Raises UnknownName."""
        half = self.scenario.entity(entity).shape.height / 2
        k = self._abstract.index[entity]
        places, holders = list(self._state.places), list(self._state.holders)
        places[k], holders[k] = nearest_placement(self.scenario, xyz, half), ""
        self._state = self._state._replace(places=tuple(places), holders=tuple(holders))

    def block(self, placement: str, blocked: bool = True) -> None:
        """Put something on a placement that is no entity of the task, or take it away. Raises UnknownName."""
        self.scenario.placement(placement)
        self._blocked = self._blocked | {placement} if blocked else self._blocked - {placement}

    def arm(self, name: str) -> ArmView:
        """An arm without joints. Raises UnknownName."""
        self.scenario.arm(name)
        nothing = np.zeros(0)
        return ArmView(name, (), nothing, nothing, 0.0, "", self._status[name])

    def readings(self) -> dict[str, float]:
        """What sensors would measure of ropes and pans; nothing else is measured here."""
        return self._abstract.readings(self._state)

    def held_conditions(self) -> frozenset[str]:
        """What the running actions hold."""
        operators = (
            self.scenario.operator(arm, action.verb, action.entity, action.placement)
            for arm, (action, _, _) in self._running.items()
        )
        return frozenset(name for operator in operators if operator is not None for name in operator.holds)

    def zones_entered(self, arm: str) -> frozenset[str]:
        """Arms have no links here."""
        return frozenset()

    def results(self) -> list[ActionResult]:
        """Results since the last call."""
        results, self._results = self._results, []
        return results

    def poses(self) -> dict[str, tuple[Any, Any]]:
        """Pose of every entity: on its placement, upright."""
        upright = np.array([1.0, 0.0, 0.0, 0.0])
        return {e: (np.array(xyz), upright) for e, xyz in self._positions().items()}

    def _positions(self) -> Mapping[str, Vec3]:
        return self._abstract.view(self._state).world.positions

    def held_by(self) -> dict[str, str]:
        """Entity -> arm: what was lifted, and in the second half of a move its entity."""
        held = {e: arm for e, arm in zip(self._abstract.objects, self._state.holders, strict=True) if arm}
        for arm, (action, started, _) in self._running.items():
            if action.verb == MOVE_VERB and self.time - started >= self._duration / 2:
                held[action.entity] = arm
        return held

    def world(self, conditions: frozenset[str] = frozenset()) -> World:
        """The world as the core sees it."""
        return World(self._positions(), conditions, self.held_by(), self._blocked)
