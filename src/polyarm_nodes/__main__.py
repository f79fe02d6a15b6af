"""Entry of every node: ``python -m polyarm_nodes NODE [--ros-args ...]``; ``ros2 run polyarm NODE`` ends here too."""

from __future__ import annotations

import importlib
import signal
import sys

NODES = (
    "arm_agent",
    "digital_twin",
    "coordinator",
    "psd",
    "mujoco_bridge",
    "kinematic_bridge",
    "driver_bridge",
    "domain_bridge",
    "domain_coordinator",
    "domain_agent",
    "domain_psd",
    "domain_recorder",
    "recorder",
    "episode_monitor",
)


def main(node: str | None = None) -> None:
    """Run one node. Exit code 2 and the list of nodes for a name that is none."""
    # Imports take a second or two; a Ctrl-C during them ends the process silently instead of with a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if node is None:
        if len(sys.argv) < 2 or sys.argv[1] not in NODES:
            given = sys.argv[1] if len(sys.argv) > 1 else "nothing"
            print(f"usage: python -m polyarm_nodes NODE [--ros-args ...]; got {given}; nodes: {', '.join(NODES)}")
            raise SystemExit(2)
        node = sys.argv.pop(1)
    importlib.import_module(f"polyarm_nodes.{node}").main()


if __name__ == "__main__":
    main()
