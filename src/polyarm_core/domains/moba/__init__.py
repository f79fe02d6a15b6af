"""A small open stand-in for the MOBA of the SyncPlan paper: five controlled heroes against five scripted ones."""

from polyarm_core.domains.moba.domain import MobaDomain
from polyarm_core.domains.moba.game import MobaState

__all__ = ["MobaDomain", "MobaState"]
