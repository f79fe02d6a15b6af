#!/usr/bin/env python3
"""Make the environment of Polyarm: a virtual environment, pinned packages, ROS 2, and the messages of this package.

    python3 tools/bootstrap.py env      # .venv with everything in it
    python3 tools/bootstrap.py build    # that, and the messages, built with colcon into .polyarm/install

Needs CPython 3.10 to 3.13 with its headers, make and a C++ compiler, and nothing else. Every step has a stamp that
holds the hash of what went into it, so a second call does nothing. ROS 2 is the installation that is sourced
(`ROS_DISTRO`, `AMENT_PREFIX_PATH` set), or else wheels of ROS 2 Jazzy.

Variables: `PYTHON` (interpreter to make the environment with), `TORCH_INDEX` (package index to take torch from, for
example the one with the CPU builds; pip's own settings, `PIP_INDEX_URL` and the like, work as ever).

Only the standard library is imported here: this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
WORK = ROOT / ".polyarm"
MINORS = ("3.12", "3.11", "3.13", "3.10")  # in the order in which they are looked for
OLDEST_DISTRO = "jazzy"  # distributions are named in alphabetical order
PACKAGES = "git make g++ python3 python3-dev python3-venv"  # Debian's and Ubuntu's names
WORKSPACE = (
    "package.xml",
    "CMakeLists.txt",
    "LICENSE",
    "msg",
    "srv",
    "src",
    "launch",
    "config",
    "models",
    "tools",
)  # what colcon is given
DISTROS = "ROS 2 Jazzy or newer, or a shell in which no ROS 2 is sourced (then wheels of ROS 2 Jazzy are installed)"


class BootstrapError(Exception):
    """What stops the set-up, in words that say what to do."""


class Interpreter(NamedTuple):
    """A Python to make the environment with."""

    path: str
    version: tuple[int, int]


class Ros(NamedTuple):
    """Where ROS 2 comes from."""

    kind: str  # "wheels" | "installed"
    distro: str


def find_ros(environment: Mapping[str, str]) -> Ros:
    """Decide where ROS 2 comes from: the installation that is sourced, or wheels.

    Raises:
        BootstrapError: the sourced distribution is older than Jazzy, or only half of it is sourced.
    """
    distro = environment.get("ROS_DISTRO", "")
    prefixes = environment.get("AMENT_PREFIX_PATH", "")
    # This environment's own hook also sets AMENT_PREFIX_PATH, but never ROS_DISTRO.
    if not distro:
        return Ros("wheels", "jazzy")
    if not prefixes:
        raise BootstrapError(f"ROS_DISTRO = {distro!r} is set, but AMENT_PREFIX_PATH is not; expected {DISTROS}")
    if distro < OLDEST_DISTRO:
        raise BootstrapError(f"ROS_DISTRO = {distro!r} is too old; expected {DISTROS}")
    return Ros("installed", distro)


def _probe(path: str, code: str) -> str | None:
    """What an interpreter prints for a line of code; None if it fails."""
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_interpreter(ros: Ros, candidates: Sequence[str]) -> Interpreter:
    """First candidate that is CPython 3.10 to 3.13 and imports the rclpy of the ROS 2 installation, if there is one.

    Raises:
        BootstrapError: no candidate will do; lists why each was refused.
    """
    refused = []
    for path in candidates:
        facts = _probe(path, "import platform,sys; print(platform.python_implementation(), *sys.version_info[:2])")
        if facts is None:
            continue
        implementation, major, minor = facts.split()
        if implementation != "CPython" or f"{major}.{minor}" not in MINORS:
            refused.append(f"{path} is {implementation} {major}.{minor}")
        elif ros.kind == "installed" and _probe(path, "import rclpy.node") is None:
            refused.append(f"{path} does not import the rclpy of ROS 2 {ros.distro}")
        else:
            return Interpreter(path, (int(major), int(minor)))
    raise BootstrapError(
        f"no usable Python, expected CPython 3.10 to 3.13: {'; '.join(refused) or 'none found'}. "
        "Set PYTHON to the path of one."
    )


def candidates() -> list[str]:
    """Interpreters to try: `PYTHON` alone if set, else the one that runs this script, then those that PATH has."""
    if os.environ.get("PYTHON"):
        return [os.environ["PYTHON"]]
    running = getattr(sys, "_base_executable", sys.executable)
    found = [shutil.which(f"python{minor}") for minor in MINORS]
    return list(dict.fromkeys([running, *(path for path in found if path)]))


def digest(*parts: str | Path) -> str:
    """Hash of texts and of the contents and names of files."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else b""
        name = str(part.relative_to(ROOT)) if isinstance(part, Path) else part
        total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


class Stamp:
    """A file that holds the hash of what a finished step was made from."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key

    @property
    def fresh(self) -> bool:
        """The step was finished with the same inputs."""
        return self.path.is_file() and self.path.read_text() == self.key

    def clear(self) -> None:
        """The step begins: from here on it counts as not done."""
        self.path.unlink(missing_ok=True)

    def set(self) -> None:
        """The step is finished."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.key)


def run(
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str] | None = None,
    show: Callable[[str], str] = str,
) -> None:
    """Run a command with its output in a log file and one changing line of it on a terminal.

    Args:
        show: what of a line of output is worth showing; "" for nothing.

    Raises:
        BootstrapError: it failed; with the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**(environment or os.environ), "PYTHONUNBUFFERED": "1"}
    live = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 8
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        tail: list[str] = []
        for line in process.stdout:
            file.write(line)
            tail = [*tail[-29:], line.rstrip()]
            if live and (text := show(line.strip())):
                print(f"\r\033[K      {text[:width]}", end="", flush=True)
        if live:
            print("\r\033[K", end="", flush=True)
    if process.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise BootstrapError(
            "\n".join(
                [
                    *tail,
                    f"failed with exit code {process.returncode}: {words}",
                    f"whole output: {log.relative_to(ROOT)}",
                ]
            )
        )


def show_pip(line: str) -> str:
    """The lines of pip that tell a person something."""
    return line if line.startswith(("Collecting", "Downloading", "Installing collected")) else ""


def show_make(line: str) -> str:
    """The lines of make that carry a share."""
    return line if line.startswith("[") else ""


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    """Announce a step and tell how long it took."""
    print(f"[{number}/4] {title}", flush=True)
    start = time.monotonic()
    yield
    print(f"      done in {time.monotonic() - start:.0f} s", flush=True)


def check_tools(interpreter: Interpreter) -> None:
    """Fail early, with the names of the packages to install, where the compiler, the headers or venv are missing.

    Raises:
        BootstrapError: something is missing.
    """
    missing = []
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++", os.environ.get("CXX", "c++"))):
        missing.append("a C++ compiler")
    if not shutil.which("make"):
        missing.append("make")
    include = _probe(interpreter.path, "import sysconfig; print(sysconfig.get_path('include'))")
    if not include or not Path(include, "Python.h").is_file():
        missing.append(f"the headers of {interpreter.path} (Python.h)")
    if _probe(interpreter.path, "import venv, ensurepip") is None:
        missing.append(f"the venv module of {interpreter.path}")
    if missing:
        raise BootstrapError(f"missing: {', '.join(missing)}. On Debian and Ubuntu: apt install {PACKAGES}")
    if platform.machine() not in ("x86_64", "AMD64"):
        print(f"warning: made for x86_64; there may be no wheels for {platform.machine()}", file=sys.stderr)


class Environment:
    """The virtual environment and what is built with it."""

    def __init__(self, ros: Ros) -> None:
        self.ros = ros
        self.python = VENV / "bin" / "python"
        self.requirements = ["core", "build", "test"] + (["ros-jazzy"] if ros.kind == "wheels" else [])
        files = [ROOT / "requirements" / f"{name}.txt" for name in (*self.requirements, "models", "lock")]
        origin = f"{ros.kind} {ros.distro}"
        self.made = Stamp(VENV / "polyarm-made.stamp", digest(origin))
        self.installed = Stamp(VENV / "polyarm-installed.stamp", digest(origin, *files))
        package = [ROOT / name for name in ("setup.py", "pyproject.toml", "package.xml", "tools/venv_hook.py")]
        self.linked = Stamp(VENV / "polyarm-linked.stamp", digest(origin, *package))
        interfaces = sorted([*(ROOT / "msg").glob("*.msg"), *(ROOT / "srv").glob("*.srv")])
        build = [*(ROOT / name for name in ("package.xml", "CMakeLists.txt", "tools/executable.in")), *interfaces]
        # The contents of the other files need no build (they are linked), their names do.
        names = sorted(
            str(path.relative_to(ROOT))
            for folder in ("src", "launch", "config")
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".yaml")
        )
        self.built = Stamp(WORK / "built.stamp", digest(self.installed.key, *build, *names))

    def make(self) -> None:
        """Steps 1 to 3: the interpreter, the packages, this package."""
        if not (self.made.fresh and self.python.exists()):
            interpreter = find_interpreter(self.ros, candidates())
            check_tools(interpreter)
            same = (VENV / "lib" / f"python{interpreter.version[0]}.{interpreter.version[1]}").is_dir()
            if VENV.exists() and (self.made.path.exists() or not same):
                shutil.rmtree(VENV)  # of another Python, or with another ROS 2: neither mixes
            origin = f"ROS 2 {self.ros.distro}, " + (
                "which is sourced here" if self.ros.kind == "installed" else "from wheels"
            )
            with step(1, f"Python environment: CPython {'.'.join(map(str, interpreter.version))} in .venv, {origin}"):
                site = ["--system-site-packages"] if self.ros.kind == "installed" else []
                run([interpreter.path, "-m", "venv", *site, VENV], WORK / "log" / "venv.log")
                self.made.set()
        if not self.installed.fresh:
            self.installed.clear()
            with step(2, "Packages, pinned in requirements/ (some minutes; 2 to 6 GB, by the build of torch)"):
                self.install()
                self.installed.set()
        if not self.linked.fresh:
            self.linked.clear()
            with step(3, "Polyarm itself, editable"):
                packages = next((VENV / "lib").glob("python3.*")) / "site-packages"
                shutil.copyfile(ROOT / "tools" / "venv_hook.py", packages / "_polyarm_env.py")
                (packages / "polyarm_env.pth").write_text("import _polyarm_env\n")
                self.pip("--no-deps", "--no-build-isolation", "--editable", ".")
                self.linked.set()

    def pip(self, *arguments: str | Path) -> None:
        """Install with the environment's pip; output to a log."""
        command = [
            self.python,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--progress-bar",
            "off",
            *arguments,
        ]
        run(command, WORK / "log" / "pip.log", show=show_pip)

    def install(self) -> None:
        """Install the pinned packages."""
        folder = ROOT / "requirements"
        lock = folder / "lock.txt"
        if index := os.environ.get("TORCH_INDEX"):
            torch = next(line for line in (folder / "core.txt").read_text().splitlines() if line.startswith("torch=="))
            self.pip("--index-url", index, torch)
        files: list[str | Path] = []
        for name in self.requirements:
            files += ["--requirement", folder / f"{name}.txt"]
        self.pip("--constraint", lock, *files)
        self.pip("--no-deps", "--requirement", folder / "models.txt")

    def point_to_headers(self) -> None:
        """Put this interpreter's include paths into the wheels' CMake files, where the build machine stands."""
        headers, numpy = subprocess.check_output(
            [
                self.python,
                "-c",
                "import sysconfig, numpy; print(sysconfig.get_path('include'), numpy.get_include(), sep='\\n')",
            ],
            text=True,
        ).splitlines()
        for path in (VENV / "share").glob("*/cmake/*.cmake"):
            text = path.read_text()
            if "/opt/python/" in text:
                text = re.sub(r'/opt/python/[^;"]*/numpy/_core/include', numpy, text)
                path.write_text(re.sub(r'/opt/python/[^;"]*/include/python3\.\d+', headers, text))

    def build(self) -> None:
        """Step 4: messages, nodes and launch files, with colcon."""
        if self.built.fresh:
            return
        self.built.clear()
        with step(4, "Messages and nodes, with colcon (about a minute)"):
            # CMake refuses include paths inside its source folder, and .venv lies in ours: it gets a folder of links.
            workspace = WORK / "ws" / "polyarm"
            shutil.rmtree(workspace, ignore_errors=True)
            workspace.mkdir(parents=True)
            for name in WORKSPACE:
                if (ROOT / name).exists():
                    (workspace / name).symlink_to(os.path.relpath(ROOT / name, workspace))
            environment = dict(
                os.environ, VIRTUAL_ENV=str(VENV), PATH=f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
            )
            if self.ros.kind == "wheels":
                self.point_to_headers()
                environment.update(AMENT_PREFIX_PATH=str(VENV), CMAKE_PREFIX_PATH=str(VENV))
            colcon = [self.python, "-m", "colcon", "--log-base", WORK / "log", "build", "--base-paths", WORK / "ws"]
            colcon += [
                "--build-base",
                WORK / "build",
                "--install-base",
                WORK / "install",
                "--merge-install",
                "--symlink-install",
            ]
            colcon += [
                "--event-handlers",
                "console_direct+",
                "--cmake-args",
                "-DBUILD_TESTING=OFF",
                "-DCMAKE_BUILD_TYPE=Release",
            ]
            colcon += [f"-DPython3_EXECUTABLE={self.python}"]
            run(colcon, WORK / "log" / "colcon.log", environment, show_make)
            self.built.set()


def main() -> int:
    """Make what the command line asks for; 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(description="Make the environment of Polyarm.")
    parser.add_argument(
        "target", choices=("env", "build"), help="env: virtual environment and packages; build: that and the messages"
    )
    target = parser.parse_args().target
    WORK.mkdir(exist_ok=True)
    try:
        with (WORK / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once would install over each other
            environment = Environment(find_ros(os.environ))
            environment.make()
            if target == "build":
                environment.build()
    except BootstrapError as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
