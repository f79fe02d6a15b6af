"""Bridge of the plant without physics: for work on coordination alone."""

from __future__ import annotations

from collections.abc import Mapping

from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_nodes import topics
from polyarm_nodes.lifecycle import run_node
from polyarm_nodes.parameters import KINEMATIC_BRIDGE, Parameter
from polyarm_nodes.plant_bridge import PlantBridge


class KinematicBridge(PlantBridge):
    """Actions take a fixed time."""

    def __init__(self) -> None:
        super().__init__(topics.PLANT)

    def parameter_table(self) -> Mapping[str, Parameter]:
        return KINEMATIC_BRIDGE

    def make_plant(self) -> KinematicPlant:
        return KinematicPlant(self.scenario, duration=self.values["action_duration"])


def main() -> None:
    """Run the node."""
    run_node(KinematicBridge)
