"""All QoS profiles of Polyarm's topics, in one place, so that publishers and subscribers cannot disagree."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy


def _profile(depth: int, *, reliable: bool = True, latched: bool = False) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def every_sample(profile: QoSProfile) -> QoSProfile:
    """The same for a subscriber that must miss nothing while it is busy, where others want the newest only."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=256, reliability=profile.reliability, durability=profile.durability
    )


def kept(profile: QoSProfile) -> QoSProfile:
    """The same for a publisher that keeps its newest samples for who asks for them, and for a subscriber that asks.

    A connection can be ready at one end a second before it is at the other; a whole episode may fit into that.
    """
    return QoSProfile(
        history=profile.history,
        depth=profile.depth,
        reliability=profile.reliability,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
    )


# A late joiner needs the newest of these at once: the open slot, the world, the leases in force, the last episode.
OPENINGS = _profile(1, latched=True)
WORLD = _profile(1, latched=True)
GRANTS = _profile(1, latched=True)
EPISODE = _profile(10, latched=True)
PLAN = _profile(1, latched=True)
PLAN_STATE = _profile(1, latched=True)
FRAME_STATE = _profile(1, latched=True)
# Each of these counts once; a team of 128 must fit into the history while the twin is busy.
REPORTS = _profile(256)
VERDICTS = _profile(16)
RESULTS = _profile(256)
# Also what a coordinator says in its first moments after a restart must be heard by who counts it.
PLAN_CALLS = _profile(64, latched=True)
STALENESS = _profile(64)
REPLAN_REQUESTS = _profile(64)
DETECTIONS = _profile(64, latched=True)
DISTURBANCES = _profile(64)
FRAME_CONTROLS = _profile(256)
# Streams: the newest sample makes the older ones worthless.
JOINT_STATES = _profile(5, reliable=False)
CLOCK = _profile(1, reliable=False)
COMMANDS = _profile(5)
STATUS = _profile(1, latched=True)
DIAGNOSTICS = _profile(50)
