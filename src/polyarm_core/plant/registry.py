"""The skill of each verb: those of every task, and the operators of the tasks that have some."""

from __future__ import annotations

from polyarm_core.plant.hold_skill import Hold, HomeFromHandle
from polyarm_core.plant.lockstep import Carry, Lift, Lower, SetDown
from polyarm_core.plant.skills import BUILT_IN, HOME_VERB, Skill
from polyarm_core.plant.sweep import Dump, Sweep

SKILLS: dict[str, Skill] = {
    **BUILT_IN,
    HOME_VERB: HomeFromHandle(),
    "hold": Hold(),
    "lift": Lift(),
    "carry": Carry(),
    "lower": Lower(),
    "set_down": SetDown(),
    "sweep": Sweep(),
    "dump": Dump(),
}
"""Verb -> skill. A task with actions of its own adds a line."""
