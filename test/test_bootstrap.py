"""The set-up: which Python and which ROS 2 it takes, when it does nothing, and the start-up hook of the environment."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def tool(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(f"polyarm_tool_{name}", TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bootstrap = tool("bootstrap")
lock = tool("lock")


def fake_python(path: Path, facts: str = "CPython 3 12", imports_rclpy: bool = False) -> str:
    """A program that answers the bootstrap's questions as some interpreter would."""
    code = 0 if imports_rclpy else 1
    path.write_text(f'#!/bin/sh\ncase "$2" in *rclpy*) exit {code};; *platform*) echo {facts};; *) exit 1;; esac\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


WHEELS = bootstrap.Ros("wheels", "jazzy")
INSTALLED = bootstrap.Ros("installed", "jazzy")


def test_without_a_sourced_ros_the_wheels_are_taken() -> None:
    assert bootstrap.find_ros({}) == WHEELS
    # The environment's own hook sets this variable in every process that it starts; that is no installation.
    assert bootstrap.find_ros({"AMENT_PREFIX_PATH": "/somewhere/.polyarm/install"}) == WHEELS


@pytest.mark.parametrize("distro", ["jazzy", "kilted", "rolling"])
def test_a_sourced_ros_is_taken(distro: str) -> None:
    environment = {"ROS_DISTRO": distro, "AMENT_PREFIX_PATH": f"/opt/ros/{distro}"}
    assert bootstrap.find_ros(environment) == bootstrap.Ros("installed", distro)


@pytest.mark.parametrize("environment", [{"ROS_DISTRO": "humble", "AMENT_PREFIX_PATH": "/x"}, {"ROS_DISTRO": "jazzy"}])
def test_an_old_or_half_sourced_ros_is_refused_with_the_way_out(environment: dict[str, str]) -> None:
    with pytest.raises(bootstrap.BootstrapError, match=r"ROS_DISTRO = .*expected ROS 2 Jazzy or newer"):
        bootstrap.find_ros(environment)


def test_first_supported_interpreter_is_taken(tmp_path: Path) -> None:
    old = fake_python(tmp_path / "old", "CPython 3 9")
    new = fake_python(tmp_path / "new", "CPython 3 14")
    pypy = fake_python(tmp_path / "pypy", "PyPy 3 11")
    good = fake_python(tmp_path / "good", "CPython 3 10")
    later = fake_python(tmp_path / "later", "CPython 3 13")
    found = bootstrap.find_interpreter(WHEELS, [str(tmp_path / "none"), old, new, pypy, good, later])
    assert found == bootstrap.Interpreter(good, (3, 10))
    with pytest.raises(bootstrap.BootstrapError, match=r"3\.10 to 3\.13.*3\.9.*3\.14.*PyPy 3\.11.*Set PYTHON"):
        bootstrap.find_interpreter(WHEELS, [old, new, pypy])


def test_with_a_ros_installation_the_interpreter_must_import_its_rclpy(tmp_path: Path) -> None:
    without = fake_python(tmp_path / "without")
    with_ros = fake_python(tmp_path / "with", imports_rclpy=True)
    assert bootstrap.find_interpreter(INSTALLED, [without, with_ros]).path == with_ros
    assert bootstrap.find_interpreter(WHEELS, [without, with_ros]).path == without
    with pytest.raises(bootstrap.BootstrapError, match="does not import the rclpy of ROS 2 jazzy"):
        bootstrap.find_interpreter(INSTALLED, [without])


def test_a_real_interpreter_imports_the_rclpy_of_a_sourced_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix as /opt/ros has it, PYTHONPATH set as its setup.bash would: the decision is made by a real Python."""
    packages = tmp_path / "lib" / "site-packages"
    (packages / "rclpy").mkdir(parents=True)
    (packages / "rclpy" / "__init__.py").touch()
    (packages / "rclpy" / "node.py").touch()
    for name, value in (("ROS_DISTRO", "jazzy"), ("AMENT_PREFIX_PATH", str(tmp_path)), ("PYTHONPATH", str(packages))):
        monkeypatch.setenv(name, value)
    ros = bootstrap.find_ros(os.environ)
    base = getattr(sys, "_base_executable", sys.executable)
    assert bootstrap.find_interpreter(ros, [base]).version == sys.version_info[:2]
    # The wheels are then neither installed nor part of what the environment depends on.
    assert "ros-jazzy" not in bootstrap.Environment(ros).requirements
    assert "ros-jazzy" in bootstrap.Environment(WHEELS).requirements
    assert bootstrap.Environment(ros).made.key != bootstrap.Environment(WHEELS).made.key


def test_a_step_is_done_once_for_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    source = tmp_path / "A.msg"
    source.write_text("bool a\n")
    stamp = bootstrap.Stamp(tmp_path / "deep" / "stamp", bootstrap.digest("wheels", source))
    assert not stamp.fresh
    stamp.set()
    assert bootstrap.Stamp(stamp.path, bootstrap.digest("wheels", source)).fresh
    assert not bootstrap.Stamp(stamp.path, bootstrap.digest("installed", source)).fresh
    source.write_text("bool b\n")
    assert not bootstrap.Stamp(stamp.path, bootstrap.digest("wheels", source)).fresh
    stamp.clear()
    assert not stamp.fresh
    stamp.clear()


def test_a_failing_command_says_what_failed_and_where_the_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    command = [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]
    with pytest.raises(bootstrap.BootstrapError, match=r"the reason\n(.|\n)*exit code 3(.|\n)*log/x\.log"):
        bootstrap.run(command, tmp_path / "log" / "x.log")
    assert "the reason" in (tmp_path / "log" / "x.log").read_text()


def test_lock_has_markers_only_where_the_versions_differ() -> None:
    resolved = {
        "3.10": {"same": "1", "numpy": "2.2", "tomli": "2"},
        "3.11": {"same": "1", "numpy": "2.4"},
        "3.12": {"same": "1", "numpy": "2.4"},
    }
    assert lock.merge(resolved) == [
        "numpy==2.2; python_version == '3.10'",
        "numpy==2.4; python_version == '3.11' or python_version == '3.12'",
        "same==1",
        "tomli==2; python_version == '3.10'",
    ]


HOOK_REPORT = (
    "import os, sys; print(os.environ.get('AMENT_PREFIX_PATH'), os.environ.get('LD_LIBRARY_PATH'), sys.path[-1])"
)


def hooked(tmp_path: Path, wheels: bool, built: bool, **environment: str) -> list[str]:
    """What an interpreter reports in a new virtual environment with the hook, messages built or not."""
    venv = tmp_path / ".venv"
    if not venv.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next((venv / "lib").glob("python3.*")) / "site-packages"
    (packages / "_polyarm_env.py").write_text((TOOLS / "venv_hook.py").read_text())
    (packages / "polyarm_env.pth").write_text("import _polyarm_env\n")
    if wheels:
        (venv / "share" / "rclpy").mkdir(parents=True)
        (venv / "share" / "rclpy" / "package.xml").touch()
    if built:
        (tmp_path / ".polyarm" / "install" / "lib" / packages.parent.name / "site-packages").mkdir(parents=True)
    clean = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run(
        [venv / "bin" / "python", "-c", HOOK_REPORT], capture_output=True, text=True, env=clean, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_hook_shows_the_messages_to_every_interpreter(tmp_path: Path) -> None:
    install = tmp_path / ".polyarm" / "install"
    prefixes, libraries, last = hooked(tmp_path, wheels=True, built=True)
    assert prefixes.split(":") == [str(install), str(tmp_path / ".venv")]
    assert libraries.split(":") == [str(install / "lib")]
    assert last.startswith(str(install))


def test_hook_restarts_once_and_keeps_a_sourced_ros(tmp_path: Path) -> None:
    """Without wheels nothing else restarts the interpreter, and the linker must know the libraries."""
    install = tmp_path / ".polyarm" / "install"
    environment = {"AMENT_PREFIX_PATH": "/opt/ros/jazzy", "LD_LIBRARY_PATH": "/opt/ros/jazzy/lib"}
    prefixes, libraries, _ = hooked(tmp_path, wheels=False, built=True, **environment)
    assert prefixes.split(":") == [str(install), "/opt/ros/jazzy"]
    assert libraries.split(":") == [str(install / "lib"), "/opt/ros/jazzy/lib"]


def test_hook_does_nothing_before_the_messages_are_built(tmp_path: Path) -> None:
    assert hooked(tmp_path, wheels=True, built=False)[:2] == ["None", "None"]


def test_a_second_set_up_does_nothing() -> None:
    """`make test` has just built; another `make build` neither installs nor builds."""
    environment = bootstrap.Environment(bootstrap.find_ros(os.environ))
    stamps = [environment.made, environment.installed, environment.linked, environment.built]
    if not all(stamp.fresh for stamp in stamps):
        pytest.skip("the checkout was changed after `make build`, or is not in an environment of it")
    times = [stamp.path.stat().st_mtime_ns for stamp in stamps]
    command = [sys.executable, TOOLS / "bootstrap.py", "build"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [stamp.path.stat().st_mtime_ns for stamp in stamps] == times
