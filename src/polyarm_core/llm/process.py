"""Starts model servers and ends them: for tests, measurements and programs that have no launch system."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from polyarm_core.llm.client import DEFAULT_TIMEOUT, ServerModel
from polyarm_core.llm.interface import ModelUnavailable


def server_command(
    model: str, port_file: Path | str, backend: str = "transformers", more: Sequence[str] = ()
) -> list[str]:
    """Command line that serves ``model`` on a free port and writes its URL to ``port_file``."""
    return [
        sys.executable,
        "-m",
        "polyarm_core.llm.server",
        *("--model", model, "--backend", backend, "--port-file", str(port_file), "--exit-with-parent"),
        *more,
    ]


class ServerProcess:
    """A model server as a child process; a context manager that ends it.

    Args:
        model: packaged name, folder or hub id; empty with the heuristic backend.
        backend, more: as for :func:`server_command`.
        timeout: of :attr:`client`, seconds.
    """

    def __init__(
        self,
        model: str = "",
        backend: str = "transformers",
        more: Sequence[str] = (),
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="polyarm-model-")
        self.port_file = Path(self._folder.name) / "url"
        self._command = server_command(model, self.port_file, backend, more)
        self.client = ServerModel(port_file=self.port_file, timeout=timeout)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait: float | None = 120.0) -> ServerProcess:
        """Start (again), and wait until the model is loaded; ``wait`` = None returns at once.

        Raises:
            ModelUnavailable: the server ended, or was not ready within ``wait`` seconds.
        """
        self.port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        if wait is not None:
            try:
                self.client.wait_ready(wait)
            except ModelUnavailable as error:
                code = self.process.poll()
                self.stop()
                raise ModelUnavailable(f"{error}; exit code {code}") from error
        return self

    def stop(self, patience: float = 5.0) -> int | None:
        """Ask the server to end, kill it after ``patience`` seconds; returns its exit code."""
        if self.process is None:
            return None
        self.process.terminate()
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()
