"""The lean executor runs what rclpy's own runs: every kind of callback, entities that come and go, errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import UInt8
from std_srvs.srv import Trigger

from polyarm_nodes.executor import LeanExecutor, make_executor

pytestmark = pytest.mark.ros


@pytest.fixture(params=[LeanExecutor, SingleThreadedExecutor], ids=lambda kind: kind.__name__)
def spun(request: pytest.FixtureRequest, ros_domain: int) -> Iterator[tuple[Any, Any]]:
    context = rclpy.Context()
    rclpy.init(context=context)
    node = LifecycleNode("spun", context=context)
    executor = request.param(context=context)
    executor.add_node(node)
    yield node, executor
    executor.shutdown()
    node.destroy_node()
    rclpy.shutdown(context=context)


def until(executor: Any, condition: Callable[[], bool], deadline: float = 5.0) -> bool:
    end = time.monotonic() + deadline
    while not condition() and time.monotonic() < end:
        executor.spin_once(timeout_sec=0.05)
    return condition()


def test_messages_timers_guards_services_and_clients(spun: tuple[Any, Any]) -> None:
    node, executor = spun
    seen: list[int] = []
    infos: list[dict[str, Any]] = []
    ticks: list[int] = []
    node.create_subscription(UInt8, "x", lambda message: seen.append(message.data), 10)
    node.create_subscription(UInt8, "x", lambda message, info: infos.append(info), 10)
    node.create_timer(0.02, lambda: ticks.append(1))
    woken: list[int] = []
    guard = node.create_guard_condition(lambda: woken.append(1))

    def answer(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = True
        return response

    node.create_service(Trigger, "ask", answer)
    client = node.create_client(Trigger, "ask")
    publisher = node.create_publisher(UInt8, "x", 10)
    assert until(executor, lambda: publisher.get_subscription_count() == 2 and client.service_is_ready())
    for number in range(5):
        publisher.publish(UInt8(data=number))
    guard.trigger()
    future = client.call_async(Trigger.Request())
    assert until(executor, lambda: len(seen) == 5 and len(infos) == 5 and bool(woken) and future.done())
    assert seen == [0, 1, 2, 3, 4] and future.result().success
    assert until(executor, lambda: len(ticks) > 5)


def test_coroutines_are_continued(spun: tuple[Any, Any]) -> None:
    node, executor = spun
    # The subscription's callback keeps its own group busy while it awaits.
    group = ReentrantCallbackGroup()
    node.create_service(Trigger, "ask", lambda request, response: response, callback_group=group)
    client = node.create_client(Trigger, "ask", callback_group=group)
    done: list[Any] = []

    async def on_message(_: UInt8) -> None:
        done.append(await client.call_async(Trigger.Request()))

    node.create_subscription(UInt8, "x", on_message, 10)
    publisher = node.create_publisher(UInt8, "x", 10)
    assert until(executor, lambda: publisher.get_subscription_count() == 1 and client.service_is_ready())
    publisher.publish(UInt8())
    assert until(executor, lambda: len(done) == 1)


def test_entities_may_come_and_go_while_it_spins(spun: tuple[Any, Any]) -> None:
    node, executor = spun
    publisher = node.create_publisher(UInt8, "x", 10)
    for _ in range(3):
        seen: list[int] = []
        subscription = node.create_subscription(UInt8, "x", lambda message, seen=seen: seen.append(message.data), 10)
        assert until(executor, lambda: publisher.get_subscription_count() == 1)
        publisher.publish(UInt8(data=7))
        assert until(executor, lambda seen=seen: seen == [7])
        node.destroy_subscription(subscription)
        assert until(executor, lambda: publisher.get_subscription_count() == 0)
    fired: list[int] = []
    timer = node.create_timer(0.01, lambda: (fired.append(1), node.destroy_timer(timer)))
    until(executor, lambda: bool(fired))
    until(executor, lambda: False, 0.1)
    assert fired == [1]


def test_errors_reach_the_caller(spun: tuple[Any, Any]) -> None:
    node, executor = spun

    def fail(_: UInt8) -> None:
        raise ValueError("on purpose")

    node.create_subscription(UInt8, "x", fail, 10)
    publisher = node.create_publisher(UInt8, "x", 10)
    assert until(executor, lambda: publisher.get_subscription_count() == 1)
    publisher.publish(UInt8())
    with pytest.raises(ValueError, match="on purpose"):
        until(executor, lambda: False, 2.0)


def test_a_wait_ends_in_time_without_work(spun: tuple[Any, Any]) -> None:
    _, executor = spun
    for _ in range(5):
        executor.spin_once(timeout_sec=0.0)
    began = time.monotonic()
    executor.spin_once(timeout_sec=0.2)
    assert time.monotonic() - began < 5.0


def test_jazzy_gets_the_lean_one(ros_domain: int) -> None:
    context = rclpy.Context()
    rclpy.init(context=context)
    executor = make_executor(context)
    assert isinstance(executor, SingleThreadedExecutor)
    executor.shutdown()
    rclpy.shutdown(context=context)
