"""The arms of the scenarios as a domain: an abstract world in which one frame is one slot of the digital twin."""

from polyarm_core.domains.arms.domain import ArmsDomain
from polyarm_core.domains.arms.world import ArmsState

__all__ = ["ArmsDomain", "ArmsState"]
