"""A plant without physics: an action takes a fixed time and then its entity is where it should be.

For work on coordination alone (protocol tests, benches with dozens of arms). It has the part of `Simulation`'s
interface that a bridge without joints needs and runs in the same `SimulationLoop`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from polyarm_core.constraints import MOVE_VERB, Action
from polyarm_core.errors import InvalidValue
from polyarm_core.liveness import draw_start
from polyarm_core.plant.simulation import TICK, ArmView
from polyarm_core.plant.skills import ActionResult, ArmBusy, Status
from polyarm_core.scenario import Scenario, Vec3
from polyarm_core.world import World


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
        self._where = dict(draw_start(self.scenario, self.seed)) if start is None else dict(start)
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
            occupant = next((e for e, p in self._where.items() if p == action.placement and e != action.entity), "")
            if occupant and action.placement:
                text = f"{occupant} is on {action.placement}"
                self._finish(arm, action, "failed", "occupied", text, started, tag)
            else:
                if action.entity in self._where and action.placement:
                    self._where[action.entity] = action.placement
                self._finish(arm, action, "succeeded", "", "", started, tag)

    def _finish(self, arm: str, action: Action, outcome: Any, reason: str, text: str, started: float, tag: Any) -> None:
        self._status[arm] = "idle" if outcome == "succeeded" else "holding"
        self._results.append(ActionResult(arm, action, outcome, reason, text, started, self.time - started, tag))

    def start_action(self, arm: str, action: Action, zones: Collection[str] | None = None, tag: Any = None) -> None:
        """Begin an action. Raises ArmBusy, UnknownName, InvalidValue as `Simulation.start_action`."""
        self.scenario.arm(arm)
        if arm in self._running:
            raise ArmBusy(arm, "moving")
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
        if arm in self._running:
            action, started, tag = self._running.pop(arm)
            self._finish(arm, action, "stopped", reason, "stopped on the way", started, tag)

    def clear(self, arm: str) -> None:
        """There is no protective stop here."""

    def arm(self, name: str) -> ArmView:
        """An arm without joints. Raises UnknownName."""
        self.scenario.arm(name)
        nothing = np.zeros(0)
        return ArmView(name, (), nothing, nothing, 0.0, "", self._status[name])

    def readings(self) -> dict[str, float]:
        """Nothing is measured here."""
        return {}

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
        return {e: (np.array(self._centre(e, p)), upright) for e, p in self._where.items()}

    def _centre(self, entity: str, placement: str) -> Vec3:
        x, y, z = self.scenario.placements[placement].xyz
        return (x, y, z + self.scenario.entities[entity].shape.height / 2)

    def held_by(self) -> dict[str, str]:
        """Entity -> arm: an entity is in the gripper while its action runs."""
        return {}

    def world(self, conditions: frozenset[str] = frozenset()) -> World:
        """The world as the core sees it."""
        return World({e: self._centre(e, p) for e, p in self._where.items()}, conditions)
