"""Starts the processes of a graph without ``ros2 launch``, keeps them alive, and ends them all within five seconds.

Every process gets a session of its own, so a Ctrl-C at the terminal reaches the runner alone and it decides the order;
Linux's parent-death signal takes them along should the runner itself be killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from polyarm_core.errors import PolyarmError
from polyarm_nodes.graph import ENVIRONMENT, NodeSpec

RESPAWN_DELAY = 1.0  # s before a dead process is started again
RESPAWN_LIMIT = 20  # times; a process that dies more often has a fault that no restart mends
GRACE = 3.0  # s between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1


class ProcessDied(PolyarmError):
    """A process of the graph ended on its own and must not be, or cannot be, started again."""


@dataclass
class _Process:
    spec: NodeSpec
    popen: subprocess.Popen[bytes]
    log: Path
    restarts: int = 0
    died_at: float | None = None


@dataclass
class Runner:
    """Supervises the processes of a graph.

    Args:
        specs: what to start, in this order.
        out: folder for one log file a process.
        log_level: of every node (debug, info, warn, error, fatal).
        environment: variables to set for every process.
    """

    specs: Sequence[NodeSpec]
    out: Path
    log_level: str = "info"
    environment: dict[str, str] = field(default_factory=dict)
    _processes: list[_Process] = field(init=False, default_factory=list)

    def __enter__(self) -> Runner:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every process."""
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        for spec in self.specs:
            name = f"{spec.namespace.strip('/').replace('/', '_')}_{spec.name}".strip("_")
            log = self.out / "logs" / f"{name}.log"
            self._processes.append(_Process(spec, self._spawn(spec, log), log))

    def wait(
        self, done: Callable[[], bool] = lambda: False, deadline: float | None = None, period: float = 0.1
    ) -> bool:
        """Supervise until the run ends.

        Args:
            done: asked every ``period`` seconds; True ends the wait.
            deadline: s after which the wait is given up.

        Returns:
            True when a process that ends the run ended regularly or ``done`` said so, False at the deadline.

        Raises:
            ProcessDied: a process died that is not respawned, or too often; the end of its log is in the text.
        """
        until = None if deadline is None else time.monotonic() + deadline
        while not done():
            if self._supervise():
                return True
            if until is not None and time.monotonic() > until:
                return False
            time.sleep(period)
        return True

    def stop(self) -> None:
        """End every process: SIGTERM to all at once, SIGKILL to what is left after the grace."""
        alive = [process.popen for process in self._processes if process.popen.poll() is None]
        for popen in alive:
            self._signal(popen, signal.SIGTERM)
        until = time.monotonic() + GRACE
        for popen in alive:
            try:
                popen.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._signal(popen, signal.SIGKILL)
                popen.wait()

    def pid(self, name: str, namespace: str = "/") -> int:
        """Process id of a node, for tests that kill it."""
        for process in self._processes:
            if process.spec.name == name and process.spec.namespace == namespace:
                return process.popen.pid
        known = [f"{p.spec.namespace.rstrip('/')}/{p.spec.name}" for p in self._processes]
        raise KeyError(f"no process {namespace.rstrip('/')}/{name}; running: {', '.join(known)}")

    def _supervise(self) -> bool:
        for process in self._processes:
            code = process.popen.poll()
            if code is None:
                continue
            spec = process.spec
            if spec.ends_run and code == 0:
                return True
            # 2 is a wrong parameter: it would only be wrong again.
            if not spec.respawn or code == 2 or process.restarts >= RESPAWN_LIMIT:
                raise ProcessDied(
                    f"{spec.name} ended with code {code} after {process.restarts} restarts; "
                    f"the end of {process.log}:\n{_tail(process.log)}"
                )
            if process.died_at is None:
                process.died_at = time.monotonic()
            elif time.monotonic() - process.died_at >= RESPAWN_DELAY:
                process.died_at = None
                process.restarts += 1
                process.popen = self._spawn(spec, process.log)
        return False

    def _spawn(self, spec: NodeSpec, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as stream:
            return subprocess.Popen(
                self.command(spec),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def command(self, spec: NodeSpec) -> list[str]:
        """The command line that starts a process."""
        if not spec.is_ros_node:
            return [sys.executable, "-m", f"polyarm_core.llm.{spec.executable.removeprefix('model_')}", *spec.arguments]
        command = [sys.executable, "-m", "polyarm_nodes", spec.executable, "--ros-args"]
        command += ["-r", f"__node:={spec.name}", "-r", f"__ns:={spec.namespace}", "--log-level", self.log_level]
        for source, target in spec.remappings:
            command += ["-r", f"{source}:={target}"]
        for name, value in spec.parameters.items():
            command += ["-p", f"{name}:={_parameter_text(value)}"]
        return command

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": "1", **self.environment}

    @staticmethod
    def _signal(popen: subprocess.Popen[bytes], number: int) -> None:
        try:
            os.killpg(popen.pid, number)
        except ProcessLookupError:
            pass


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _parameter_text(value: object) -> str:
    """A parameter value as YAML on the command line; strings are quoted so that "1" stays a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_parameter_text(item) for item in value) + "]"
    return repr(value)


def _tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"(no log: {error})"
