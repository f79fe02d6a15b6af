"""Names of topics and services, relative to the cell's namespace. Arms add their own namespace below it."""

from __future__ import annotations

SLOT_OPENING = "slot_opening"
INTENTS = "intents"
VERDICTS = "verdicts"
GRANTS = "grants"
WORLD = "world"
ACTION_RESULTS = "action_results"
EPISODE_RESULT = "episode_result"

PLAN = "plan"
PLAN_STATE = "plan_state"
PLAN_CALLS = "plan_calls"
STALENESS = "staleness"
REPLAN_REQUESTS = "replan_requests"
DETECTIONS = "detections"
DISTURBANCES = "disturbances"
FRAME_STATE = "frame_state"
FRAME_CONTROLS = "frame_controls"

JOINT_STATES = "joint_states"
GRIPPER_COMMAND = "gripper/command"
SAFETY_MODE = "safety_mode"
SPEED_SCALING = "speed_scaling"

# The node of whatever plant there is has this name, so that another plant changes no other name.
PLANT = "plant"
RESET_WORLD = f"{PLANT}/reset_world"
SET_PAUSE = f"{PLANT}/set_pause"
STEP_SIMULATION = f"{PLANT}/step_simulation"


def cell_topic(namespace: str, name: str) -> str:
    """Absolute name of a cell topic, e.g. ``cell_topic("/cell", "world") == "/cell/world"``."""
    return f"{namespace.rstrip('/')}/{name}"


def parent_namespace(namespace: str) -> str:
    """The cell's namespace as seen from an arm's: ``/cell/alice`` -> ``/cell``, ``/alice`` -> ``/``."""
    return namespace.rstrip("/").rpartition("/")[0] or "/"
