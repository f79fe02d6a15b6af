"""A single-threaded executor that prepares its wait set once instead of before every callback.

rclpy's own collects and locks some forty entities of a lifecycle node before each wait, and each callback makes the
next wait return once for nothing: half a millisecond of one core for every message, in every agent of a team. This one
keeps what it collected until the node's entities change, and calls synchronous callbacks directly. What it does not
know how to call (services, clients, events, coroutines) goes through rclpy's own machinery.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any

from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.subscription import Subscription

InvalidHandle = _rclpy.InvalidHandle
KINDS = ("subscription", "guard_condition", "timer", "client", "service")


def make_executor(context: Any = None) -> SingleThreadedExecutor:
    """The lean executor where rclpy has what it builds on (Jazzy), else rclpy's own."""
    fits = hasattr(_rclpy, "WaitSet") and all(
        hasattr(SingleThreadedExecutor, name)
        for name in ("_make_handler", "_take_timer", "_take_service", "_take_client", "_take_waitable")
    )
    return LeanExecutor(context=context) if fits else SingleThreadedExecutor(context=context)


class LeanExecutor(SingleThreadedExecutor):  # type: ignore[misc]
    """See the module's text. Only ``spin_once`` differs; everything else is rclpy's."""

    def __init__(self, *, context: Any = None) -> None:
        super().__init__(context=context)
        self._signature: tuple[int, ...] = ()
        self._prepared: ExitStack | None = None

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        """End; see rclpy."""
        self._release()
        return bool(super().shutdown(timeout_sec))

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait once, at most ``timeout_sec`` (None = for ever), and run every callback that is ready."""
        self._continue_tasks()
        if self._is_shutdown:
            return
        if not self._context.ok():
            raise ExternalShutdownException
        try:
            self._prepare(list(self.get_nodes()))
        except InvalidHandle:  # an entity was destroyed at this moment; it is gone from the lists the next time
            return
        wait_set, waitables = self._wait_set, self._waitables
        wait_set.clear_entities()
        for add, handle in self._additions:
            add(handle)
        for waitable, _ in waitables:
            waitable.add_to_wait_set(wait_set)
        timeout = -1 if timeout_sec is None else int(timeout_sec * 1e9)
        wait_set.wait(timeout)
        if self._is_shutdown:
            return
        if not self._context.ok():
            raise ExternalShutdownException
        ready = {kind: set(wait_set.get_ready_entities(kind)) for kind in KINDS}
        events = [(waitable, node) for waitable, node in waitables if waitable.is_ready(wait_set)]
        for entity, node, kind, pointer in self._entities:
            if pointer in ready[kind]:
                self._run(entity, node, kind)
        for waitable, node in events:
            self._run_as_task(waitable, node, self._take_waitable)

    # -- preparation ----------------------------------------------------------------------------------------------

    def _prepare(self, nodes: list[Any]) -> None:
        found: list[tuple[Any, Any, str]] = []
        waitables: list[tuple[Any, Any]] = []
        for node in nodes:
            found += [(entity, node, "timer") for entity in node.timers]
            found += [(entity, node, "subscription") for entity in node.subscriptions]
            found += [(entity, node, "guard_condition") for entity in node.guards]
            found += [(entity, node, "client") for entity in node.clients]
            found += [(entity, node, "service") for entity in node.services]
            waitables += [(waitable, node) for waitable in node.waitables]
        signature = (*(id(entity) for entity, _, _ in found), *(id(waitable) for waitable, _ in waitables))
        if self._prepared is not None and signature == self._signature:
            return
        self._release()
        stack = ExitStack()
        try:
            for entity, _, _ in found:
                stack.enter_context(entity.handle)
            for waitable, _ in waitables:
                stack.enter_context(waitable)
            stack.enter_context(self._context.handle)
        except InvalidHandle:
            stack.close()
            raise
        counts = dict.fromkeys(KINDS, 0)
        for _, _, kind in found:
            counts[kind] += 1
        extra = [waitable.get_num_entities() for waitable, _ in waitables]
        self._wait_set = _rclpy.WaitSet(
            counts["subscription"] + sum(e.num_subscriptions for e in extra),
            counts["guard_condition"] + sum(e.num_guard_conditions for e in extra) + 2,
            counts["timer"] + sum(e.num_timers for e in extra),
            counts["client"] + sum(e.num_clients for e in extra),
            counts["service"] + sum(e.num_services for e in extra),
            sum(e.num_events for e in extra),
            self._context.handle,
        )
        add = {
            "subscription": self._wait_set.add_subscription,
            "guard_condition": self._wait_set.add_guard_condition,
            "timer": self._wait_set.add_timer,
            "client": self._wait_set.add_client,
            "service": self._wait_set.add_service,
        }
        self._additions = [(add[kind], entity.handle) for entity, _, kind in found]
        for guard in (self._guard, self._sigint_gc):
            self._additions.append((add["guard_condition"], guard.handle))
        self._entities = [(entity, node, kind, entity.handle.pointer) for entity, node, kind in found]
        self._waitables = waitables
        self._signature, self._prepared = signature, stack

    def _release(self) -> None:
        if self._prepared is not None:
            self._prepared.close()
            self._prepared = None

    # -- running --------------------------------------------------------------------------------------------------

    def _run(self, entity: Any, node: Any, kind: str) -> None:
        callback = getattr(entity, "callback", None)
        if kind == "subscription" and not inspect.iscoroutinefunction(callback):
            try:
                taken = entity.handle.take_message(entity.msg_type, entity.raw)
            except InvalidHandle:
                return
            if taken is not None:
                alone = entity._callback_type is Subscription.CallbackType.MessageOnly
                callback(taken[0]) if alone else callback(*taken)
        elif kind == "guard_condition" and not inspect.iscoroutinefunction(callback):
            callback()
        elif kind == "timer":
            if entity.handle.is_timer_ready():
                self._run_as_task(entity, node, self._take_timer)
        elif kind == "guard_condition":
            self._run_as_task(entity, node, self._take_guard_condition)
        elif kind == "subscription":
            self._run_as_task(entity, node, self._take_subscription)
        elif kind == "client":
            self._run_as_task(entity, node, self._take_client)
        elif kind == "service":
            self._run_as_task(entity, node, self._take_service)

    def _run_as_task(self, entity: Any, node: Any, take: Any) -> None:
        task = self._make_handler(entity, node, take)
        task()
        if task.done():
            self._finish(task)

    def _continue_tasks(self) -> None:
        with self._tasks_lock:
            tasks = [task for task, _, _ in self._tasks]
        for task in tasks:
            if not task.done() and not task.executing():
                task()
            if task.done():
                self._finish(task)

    def _finish(self, task: Any) -> None:
        with self._tasks_lock:
            self._tasks = [entry for entry in self._tasks if entry[0] is not task]
        if task.cancelled():
            return
        if task.exception() is not None:
            raise task.exception()
