"""What all Polyarm nodes share: lifecycle with autostart, diagnostics, boot-unique epoch, clean ending."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.executors import ExternalShutdownException
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from polyarm_core.errors import PolyarmError
from polyarm_nodes import qos
from polyarm_nodes.executor import make_executor
from polyarm_nodes.validation import Refusals


class PolyarmNode(LifecycleNode):  # type: ignore[misc]
    """A lifecycle node that configures and activates itself when ``autostart`` is true.

    Subclasses read parameters in ``configure`` and create their interfaces there; they start to act in ``activate``.
    Both raise PolyarmError for what is wrong with a parameter, which ends the process with exit code 2.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.epoch = time.time_ns()
        self.refusals = Refusals()
        self.fault: Exception | None = None
        self.active = False
        self._level = DiagnosticStatus.OK
        self._text = "starting"
        self._values: dict[str, str] = {}
        self.declare_parameter("autostart", True)
        self.declare_parameter("diagnostics_period", 1.0)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self.steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_steady_timer(self.get_parameter("diagnostics_period").value, self.publish_diagnostics)

    # -- for subclasses -------------------------------------------------------------------------------------------

    def configure(self) -> None:
        """Read parameters, create publishers, subscriptions and workers."""

    def activate(self) -> None:
        """Begin to act."""

    def deactivate(self) -> None:
        """Stop acting; what moves is brought to a hold."""

    def close(self) -> None:
        """Release workers and files; called once, in every way that the process can end."""

    def create_steady_timer(self, period: float, callback: Callable[[], None]) -> None:
        """A timer on the steady clock: deadlines must pass also while simulated time stands still."""
        self.create_timer(period, callback, clock=self.steady_clock)

    def report(self, level: bytes, text: str, **values: object) -> None:
        """Set this node's diagnostic status; it is published at once when the level changes, else periodically."""
        changed = level != self._level
        self._level, self._text = level, text
        self._values.update({key: str(value) for key, value in values.items()})
        if changed:
            self.publish_diagnostics()

    def refuse(self, kind: str, why: str) -> None:
        """Refuse an input: count it, say why on /diagnostics and in the log; nothing else changes."""
        self.refusals.add(kind, why)
        self.get_logger().warning(f"refused ({kind}): {why}", throttle_duration_sec=1.0)
        self.report(DiagnosticStatus.WARN, f"refused ({kind}): {why}")

    # -- lifecycle ------------------------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            self.configure()
        except Exception as error:  # rclpy would swallow what is raised here, and say something of transitions
            self.fault = error
            kind = "" if isinstance(error, PolyarmError) else f"{type(error).__name__}: "
            self.get_logger().error(f"{kind}{error}")
            return TransitionCallbackReturn.FAILURE
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        result = super().on_activate(state)
        self.active = True
        self.activate()
        self.report(DiagnosticStatus.OK, "active")
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.active = False
        self.deactivate()
        self.report(DiagnosticStatus.STALE, "inactive")
        return super().on_deactivate(state)

    def autostart(self) -> None:
        """Configure and activate, unless a manager is to do it. Raises the fault of a failed configuration."""
        if not self.get_parameter("autostart").value:
            return
        self.trigger_configure()
        if self.fault is not None:
            raise self.fault
        self.trigger_activate()

    def publish_diagnostics(self) -> None:
        """Publish this node's status on /diagnostics."""
        values = {
            **self._values,
            "refused": str(self.refusals.total),
            **{f"refused_{kind}": str(count) for kind, count in sorted(self.refusals.counts.items())},
            "last_refusal": self.refusals.last,
        }
        message = DiagnosticArray()
        message.header.stamp = self.get_clock().now().to_msg()
        message.status = [
            DiagnosticStatus(
                level=self._level,
                name=f"polyarm: {self.get_fully_qualified_name()}",
                message=self._text,
                hardware_id=self.get_name(),
                values=[KeyValue(key=key, value=value) for key, value in values.items()],
            )
        ]
        self._diagnostics.publish(message)


def run_node(
    make: Callable[[], PolyarmNode], after_spin: Callable[[PolyarmNode], int] | None = None, niceness: int = 0
) -> None:
    """Create a node, spin it until it is told to stop, and end the process with a code.

    0 after a normal end or a signal, 2 for wrong parameters; never a traceback for Ctrl-C, at whatever moment it
    comes. ``after_spin`` may give another exit code. ``niceness`` lets plant and twin go before the nodes that wait for
    them where cores are few.
    """
    os.nice(niceness)
    stop: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        # The context stays valid until the node has closed: its workers may be publishing.
        stop.append(number)

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    node: PolyarmNode | None = None
    code = 0
    try:
        rclpy.init(signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
        executor = make_executor()
        node = make()
        executor.add_node(node)
        node.autostart()
        # What exists now lives as long as the process: the collector need not look through it in the middle of a slot.
        gc.collect()
        gc.freeze()
        while rclpy.ok() and not stop and not getattr(node, "finished", False):
            executor.spin_once(timeout_sec=0.25)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except PolyarmError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except Exception:
        if not stop:  # a shutdown in the middle of a call surfaces as all kinds of errors
            raise
    finally:
        if node is not None:
            try:
                node.close()
                if after_spin is not None and code == 0:
                    code = after_spin(node)
                node.destroy_node()
            except Exception:
                if not stop:
                    raise
        rclpy.try_shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # DDS threads of an interrupted participant may otherwise keep the process for seconds
