"""One table of parameters for every node: name, default, range, meaning. Declared, checked and documented from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyarm_core.errors import InvalidValue


@dataclass(frozen=True)
class Parameter:
    """One parameter: its default fixes its type; ``low``/``high`` or ``choices`` bound it."""

    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    choices: Sequence[str] | None = None

    def expected(self) -> str:
        """What is accepted, in words."""
        if self.choices is not None:
            return "one of " + ", ".join(self.choices)
        kind = type(self.default).__name__
        if self.low is None and self.high is None:
            return f"a {kind}"
        low = "-inf" if self.low is None else f"{self.low:g}"
        high = "inf" if self.high is None else f"{self.high:g}"
        return f"a {kind} in [{low}, {high}]"

    def check(self, name: str, value: Any) -> Any:
        """The value, or InvalidValue with what would be accepted."""
        if isinstance(self.default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        ok = isinstance(value, type(self.default)) and isinstance(value, bool) == isinstance(self.default, bool)
        if ok and self.choices is not None:
            ok = value in self.choices
        if ok and isinstance(value, float):
            ok = not math.isnan(value)
        if ok and self.low is not None:
            ok = value >= self.low
        if ok and self.high is not None:
            ok = value <= self.high
        if not ok:
            raise InvalidValue(name, value, self.expected())
        return value


SCENARIO = Parameter("sort", "packaged scenario name or path of a scenario file")
DOMAIN = Parameter("overcooked:coordination_ring", "world that moves in frames: overcooked:LAYOUT, moba, arms:SCENARIO")
LISTENERS = Parameter(0, "listeners beside the team, such as a recorder, that must be there before it begins", 0, 100)
METHOD = Parameter("search+stall", "who plans and what asks for a new plan: COORDINATOR+TRIGGER[+repair]")
CONTROL = Parameter(
    "reactive",
    "who picks the actions: each arm's model, the coordinator's chains, or the chains where there are any",
    choices=("reactive", "planned", "hybrid"),
)
# The levels of control.disturbance, which is not imported: it would bring the physics into every process.
DISTURB = Parameter("none", "what happens beside what the arms do, by seed", choices=("none", "standard", "severe"))
LEASE_DURATION = Parameter(2.0, "s that a lease stays valid after its last renewal (steady clock)", 0.1, 60.0)
EXECUTION = Parameter(
    "granted",
    "granted: move under a lease only; optimistic: start before the verdict",
    choices=("granted", "optimistic"),
)

DIGITAL_TWIN: Mapping[str, Parameter] = {
    "scenario": SCENARIO,
    "execution": EXECUTION,
    "strategy": Parameter("optimal", "how the orchestrator resolves", choices=("optimal", "maximal", "fixed_point")),
    "deadline": Parameter(0.0, "s that a slot waits for reports; 0 = the scenario's", 0.0, 3600.0),
    "absent_after": Parameter(2, "slots without a report after which an arm is not waited for", 1, 1000),
    "absent_grace": Parameter(0.5, "s that a slot waits when only absent arms are missing", 0.0, 3600.0),
    "settle": Parameter(0.02, "s for which the world must have looked the same before a slot opens", 0.0, 60.0),
    "idle_slots": Parameter(
        3, "slots in which nothing is admitted that may pass without a new world state; 0 = any number", 0, 100_000
    ),
    "complete_declarations": Parameter(True, "add what the scene's rules say an action must at least declare"),
    "guard_dead_ends": Parameter(True, "veto actions after which the goal could no longer be reached"),
    "lease_duration": LEASE_DURATION,
    "lease_limit": Parameter(300.0, "s after which a lease is renewed no more", 1.0, 86400.0),
    "trace_file": Parameter("", "append the monotonic time of every slot opening to this file; empty = none"),
}

ARM_AGENT: Mapping[str, Parameter] = {
    "scenario": SCENARIO,
    "arm": Parameter("", "the scenario's arm that this node speaks for"),
    "model": Parameter("", "BACKEND:NAME instead of the scenario's model; empty = the scenario's"),
    "model_url": Parameter("", "address of the model's server; empty = from model_port_file or the scenario"),
    "model_port_file": Parameter("", "file in which the model server writes its port"),
    "model_timeout": Parameter(0.0, "s that one decision may take; 0 = the scenario's", 0.0, 3600.0),
    "stay_patience": Parameter(1, "slots in a row that the arm may stay although it could act", 0, 1000),
    "control": CONTROL,
    "plan_timeout": Parameter(
        0.0, "s that a slot waits for its plan state; 0 = 0.7 of the slot's deadline, hybrid at most 2", 0.0, 3600.0
    ),
    "trace_file": Parameter("", "append the monotonic times of every slot to this file; empty = none"),
}

COORDINATOR: Mapping[str, Parameter] = {
    "scenario": SCENARIO,
    "control": Parameter("planned", CONTROL.meaning, choices=("planned", "hybrid")),
    "coordinator": Parameter("search", "who makes plans: search, BACKEND:NAME of a model, or a model of the scenario"),
    "model_url": Parameter("", "address of the model's server; empty = from model_port_file or the scenario"),
    "model_port_file": Parameter("", "file in which the model server writes its port"),
    "model_timeout": Parameter(0.0, "s that one text of the model may take; 0 = the model's own", 0.0, 3600.0),
    "variant": Parameter(
        "base", "of the prompt: for a model as it comes, or two for tuned ones", choices=("base", "sft", "compact")
    ),
    "decoding": Parameter(
        "constrained", "of the model: by a grammar, so that every text is a valid plan", choices=("constrained", "free")
    ),
    "fallback": Parameter(True, "the search makes the plan when the model gives none; false = the arms hold"),
    "warm_up": Parameter(120.0, "s that a model may take to load before the coordinator joins without it", 0.0, 3600.0),
    "repair": Parameter(True, "mend plans before anybody is asked for a new one"),
    "detector": Parameter(False, "a staleness detector runs in the cell"),
    "detector_wait": Parameter(0.3, "s that an opening waits for its word on the world", 0.0, 60.0),
    "result_wait": Parameter(1.0, "s that an opening waits for the results of the last slot", 0.0, 60.0),
    "plan_hold": Parameter(
        0.5, "share of a slot's deadline for which planned arms are kept waiting while a plan is made", 0.0, 0.9
    ),
    "timeout": Parameter(60.0, "s after which an answer is given up", 0.1, 3600.0),
    "attempts": Parameter(3, "calls in a row without a plan after which the coordinator rests", 1, 1000),
    "rest": Parameter(8.0, "s of that rest", 0.1, 3600.0),
    "calls": Parameter(40, "calls in an episode, at most", 1, 100_000),
    "trace_file": Parameter("", "append the monotonic times of every slot and call to this file; empty = none"),
}

PSD: Mapping[str, Parameter] = {
    "scenario": SCENARIO,
    "detector": Parameter("closed", "of stale plans: closed or bilinear, which come with the package, or PATH.npz"),
    "result_wait": Parameter(0.9, "s that an opening waits for the results of the last slot", 0.0, 60.0),
}

MUJOCO_BRIDGE: Mapping[str, Parameter] = {
    "scenario": SCENARIO,
    "execution": EXECUTION,
    "disturb": DISTURB,
    "real_time_factor": Parameter(1.0, "1 = real time, k = k times faster, 0 = as fast as it can", 0.0, 1000.0),
    "lease_duration": LEASE_DURATION,
    "world_period": Parameter(0.1, "s between two world states (steady clock)", 0.01, 10.0),
    "joint_state_rate": Parameter(50.0, "Hz, simulated", 1.0, 500.0),
    "clock_rate": Parameter(100.0, "Hz, simulated", 1.0, 500.0),
    "controller": Parameter("joint_trajectory_controller", "name of the arms' trajectory controller"),
}

KINEMATIC_BRIDGE: Mapping[str, Parameter] = {
    **{
        name: MUJOCO_BRIDGE[name]
        for name in ("scenario", "execution", "disturb", "real_time_factor", "lease_duration", "world_period")
    },
    "action_duration": Parameter(1.0, "simulated s that every action takes", 0.0, 3600.0),
}

DRIVER_BRIDGE: Mapping[str, Parameter] = {
    "scenario": Parameter("sort_demo", "packaged cell name or path of a cell file"),
    "execution": Parameter("granted", "arms of a real cell move under a lease only", choices=("granted",)),
    "lease_duration": LEASE_DURATION,
    "world_period": MUJOCO_BRIDGE["world_period"],
    "velocity_scaling": Parameter(1.0, "share of the speeds that the cell file allows", 0.05, 1.0),
}


def declare_parameters(node: Any, table: Mapping[str, Parameter]) -> dict[str, Any]:
    """Declare a node's parameters from its table and return their validated values.

    Raises:
        InvalidValue: a value of the wrong type or out of range; names the parameter and what is accepted.
    """
    from rcl_interfaces.msg import ParameterDescriptor

    values: dict[str, Any] = {}
    for name, parameter in table.items():
        descriptor = ParameterDescriptor(
            description=parameter.meaning, additional_constraints=parameter.expected(), dynamic_typing=True
        )
        raw = node.declare_parameter(name, parameter.default, descriptor).value
        values[name] = parameter.check(name, raw)
    return values
