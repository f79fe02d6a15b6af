"""Test harness: a graph of real processes, and a probe node in this process that talks to it over real DDS."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from polyarm_nodes.graph import GraphOptions, NodeSpec, build_graph
from polyarm_nodes.runner import Runner


class Probe:
    """A node that records topics and publishes whatever a test wants."""

    def __init__(self) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = Node("probe", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.seen: dict[str, list[Any]] = {}

    def record(self, kind: Any, topic: str, profile: Any) -> list[Any]:
        """Keep every message of a topic from now on."""
        messages = self.seen.setdefault(topic, [])
        self.node.create_subscription(kind, topic, messages.append, profile)
        return messages

    def wait(self, condition: Callable[[], bool], what: str, deadline: float = 30.0) -> None:
        """Spin until a condition holds; fails the test at the deadline."""
        until = time.monotonic() + deadline
        while not condition():
            if time.monotonic() > until:
                raise AssertionError(f"not within {deadline} s: {what}")
            self.executor.spin_once(timeout_sec=0.05)

    def spin(self, seconds: float) -> None:
        """Spin for a while."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.executor.spin_once(timeout_sec=0.05)

    def call(self, kind: Any, name: str, request: Any, deadline: float = 30.0) -> Any:
        """Call a service and return its response."""
        client = self.node.create_client(kind, name)
        self.wait(client.service_is_ready, f"service {name}", deadline)
        future = client.call_async(request)
        self.wait(future.done, f"answer of {name}", deadline)
        return future.result()

    def close(self) -> None:
        """Leave the graph."""
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@contextmanager
def probe() -> Iterator[Probe]:
    """A probe for the length of a test."""
    made = Probe()
    try:
        yield made
    finally:
        made.close()


def specs(out: Path, leave_out: tuple[str, ...] = (), **options: Any) -> list[NodeSpec]:
    """The graph's processes without some executables; no model, no physics unless a test asks for them."""
    chosen = {"plant": "kinematic", "model": "heuristic", "real_time_factor": 0.0, **options}
    graph = build_graph(GraphOptions(out=str(out), **chosen))
    return [spec for spec in graph if spec.executable not in leave_out]


def with_parameters(graph: list[NodeSpec], executable: str, **parameters: Any) -> list[NodeSpec]:
    """The same graph with other parameters for one executable."""
    return [
        replace(spec, parameters={**spec.parameters, **parameters}) if spec.executable == executable else spec
        for spec in graph
    ]


@contextmanager
def running(graph: list[NodeSpec], out: Path, check_fields: bool = True) -> Iterator[Runner]:
    """The graph, started and ended.

    Args:
        check_fields: rclpy's own check of every field in the processes; off as in a user's, it lets anything through.
    """
    with Runner(graph, out, "info", {"ROS_PYTHON_CHECK_FIELDS": "1" if check_fields else "0"}) as runner:
        yield runner
