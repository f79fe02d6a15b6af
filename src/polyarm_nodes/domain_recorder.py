"""Recorder of a domain that moves in frames: the same as a cell's, with other topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from polyarm.msg import (
    Detection,
    Disturbance,
    EpisodeResult,
    FrameControl,
    FrameState,
    Plan,
    PlanCall,
    PlanState,
    Staleness,
)
from rclpy.qos import QoSProfile

from polyarm_core.domains.registry import make_domain
from polyarm_nodes import qos, topics
from polyarm_nodes.lifecycle import run_node
from polyarm_nodes.parameters import DOMAIN, Parameter
from polyarm_nodes.recorder import PARAMETERS, Recorder


class DomainRecorder(Recorder):
    """Writes what plant, coordinator, detector and agents say."""

    sources = (topics.FRAME_STATE, topics.FRAME_CONTROLS, topics.PLAN_STATE)

    def parameter_table(self) -> Mapping[str, Parameter]:
        """The domain instead of a scenario."""
        return {"domain": DOMAIN, **{name: item for name, item in PARAMETERS.items() if name != "scenario"}}

    def contents(self, values: Mapping[str, Any]) -> tuple[dict[str, tuple[type, QoSProfile]], dict[str, str]]:
        """Topics of a domain, and its name."""
        table: dict[str, tuple[type, QoSProfile]] = {
            topics.FRAME_STATE: (FrameState, qos.FRAME_STATE),
            topics.FRAME_CONTROLS: (FrameControl, qos.FRAME_CONTROLS),
            topics.PLAN: (Plan, qos.PLAN),
            topics.PLAN_STATE: (PlanState, qos.PLAN_STATE),
            topics.PLAN_CALLS: (PlanCall, qos.PLAN_CALLS),
            topics.STALENESS: (Staleness, qos.STALENESS),
            topics.DETECTIONS: (Detection, qos.DETECTIONS),
            topics.DISTURBANCES: (Disturbance, qos.DISTURBANCES),
            topics.EPISODE_RESULT: (EpisodeResult, qos.EPISODE),
        }
        found = {topics.cell_topic(self.get_namespace(), name): item for name, item in table.items()}
        found["/diagnostics"] = (DiagnosticArray, qos.DIAGNOSTICS)
        return found, {"domain": make_domain(values["domain"]).name}


def main() -> None:
    """Run the node."""
    run_node(DomainRecorder, niceness=5)
