"""The package as ROS 2, pip and make see it: one version, true dependencies, all that is declared exists."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from polyarm_core.llm import server
from polyarm_nodes.__main__ import NODES
from polyarm_nodes.graph import PLANTS, GraphOptions, build_graph

ROOT = Path(__file__).resolve().parents[1]
XML = ElementTree.parse(ROOT / "package.xml").getroot()
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
(SCRIPT,) = re.findall(r'^polyarm = "(\S+)"$', PROJECT, re.MULTILINE)
CMAKE = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")


def names(text: str) -> set[str]:
    """Normalised names of the requirements in a requirements file or a list of requirements."""
    lines = [line.strip() for line in text.splitlines()]
    return {
        re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", line)[0]).lower() for line in lines if line and line[0] != "#"
    }


def requirements(name: str) -> str:
    """Text of a requirements file."""
    return (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")


def test_package_xml_is_valid() -> None:
    package = pytest.importorskip("catkin_pkg.package", reason="catkin_pkg is not installed")
    warnings: list[str] = []
    parsed = package.parse_package(str(ROOT / "package.xml"), warnings=warnings)
    parsed.validate(warnings=warnings)
    assert warnings == []
    assert (parsed.package_format, parsed.name, parsed.licenses) == (3, "polyarm", ["Apache-2.0"])
    assert parsed.get_build_type() == "ament_cmake"
    assert [group.name for group in parsed.member_of_groups] == ["rosidl_interface_packages"]


def test_license_is_the_one_declared() -> None:
    license_tag = XML.find("license")
    assert license_tag is not None
    text = (ROOT / license_tag.attrib["file"]).read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text


def test_there_is_one_version() -> None:
    version = XML.findtext("version")
    assert version == importlib.metadata.version("polyarm")
    headings = re.findall(r"^(\S+) \(\S+\)\n-+$", (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == version  # the form that catkin_pkg and bloom read
    for path in [*(ROOT / "src").rglob("*.py"), ROOT / "pyproject.toml", ROOT / "setup.py", ROOT / "CMakeLists.txt"]:
        assert f'"{version}"' not in path.read_text(encoding="utf-8"), f"{path} states the version again"


def test_package_xml_names_every_ros_package_that_is_imported() -> None:
    declared = {tag.text for tag in XML if tag.tag.endswith("depend")}
    optional = {"control_msgs"}  # used where it is installed
    pattern = re.compile(r"^\s*(?:from|import) ([a-z]\w*)", re.MULTILINE)
    ros = re.compile(r"rclpy|launch(_ros)?|ament_index_python|\w+_(msgs|srvs|interfaces)")
    used = {
        name
        for folder in ("src", "launch")
        for path in (ROOT / folder).rglob("*.py")
        for name in pattern.findall(path.read_text(encoding="utf-8"))
        if ros.fullmatch(name)
    }
    assert used - optional <= declared
    found_by_cmake = set(re.findall(r"find_package\((\w+) REQUIRED\)", CMAKE))
    assert found_by_cmake <= declared


def test_every_executable_exists() -> None:
    loop = re.search(r"foreach\(node ([\w ]+)\)", CMAKE)
    assert loop is not None
    nodes = set(loop[1].split())
    others = dict(re.findall(r"polyarm_executable\((\w+) ([\w.]+) ", CMAKE))
    assert nodes == set(NODES)
    assert others == {"model_server": server.__name__, "polyarm": SCRIPT.partition(":")[0]}
    for node in nodes:
        assert (ROOT / "src" / "polyarm_nodes" / f"{node}.py").is_file()
    started = {spec.executable for spec in build_graph(GraphOptions(record=True))}
    assert started | set(PLANTS.values()) <= nodes | set(others)


@pytest.mark.ros
def test_executables_are_installed_and_run() -> None:
    installed = ROOT / ".polyarm" / "install" / "lib" / "polyarm"
    if not installed.is_dir():
        pytest.skip("this is not an environment of `make build`")
    for name in [*NODES, "model_server", "polyarm"]:
        assert os.access(installed / name, os.X_OK), f"ros2 run polyarm {name} would not find it"
    done = subprocess.run([installed / "polyarm", "--help"], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "polyarm" in done.stdout


def test_requirements_bring_what_the_package_depends_on() -> None:
    block = re.search(r"^dependencies = \[\n(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert names(re.sub(r'[",]', "", block[1])) == names(requirements("core"))


def test_every_extra_that_an_error_names_exists() -> None:
    block = re.search(r"^\[project.optional-dependencies\]\n(.*?)^\[", PROJECT, re.MULTILINE | re.DOTALL)
    assert block is not None
    extras = set(re.findall(r"^(\w+) = \[", block[1], re.MULTILINE))
    named = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r'MissingExtra\([^)]*"(\w+)"\)', path.read_text(encoding="utf-8"))
    }
    assert named and named <= extras


def test_every_requirement_is_pinned() -> None:
    lock = [line for line in requirements("lock").splitlines() if line and not line.startswith("#")]
    assert [
        line for line in lock if not re.fullmatch(r"[\w.-]+==[\w.!]+(; python_version == '3\.\d+'( or .*)?)?", line)
    ] == []
    for name in ("core", "build", "ros-jazzy", "test"):
        assert names(requirements(name)) <= names("\n".join(lock)), f"make lock: requirements/{name}.txt was changed"
    assert all("==" in line for line in requirements("models").splitlines() if not line.startswith("#"))


def test_a_wheel_carries_the_scenarios(tmp_path: Path) -> None:
    source = tmp_path / "source"  # setuptools leaves a build folder where it works
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "package.xml", "MANIFEST.in", "LICENSE", "CHANGELOG.rst", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for name in ("src", "config"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        tmp_path,
        source,
    ]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("polyarm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        (entry_points,) = [name for name in inside if name.endswith("entry_points.txt")]
        assert f"polyarm = {SCRIPT}" in archive.read(entry_points).decode()
        archive.extractall(tmp_path / "unpacked")
    assert "polyarm_core/cli.py" in inside and "polyarm_nodes/graph.py" in inside
    data = f"{wheel.name.rpartition('-py3')[0]}.data/data/share/polyarm/"
    for path in (ROOT / "config").rglob("*.yaml"):
        assert data + str(path.relative_to(ROOT)) in inside
    assert not [name for name in inside if name.startswith(("test", "tools", "polyarm/"))]
    # Where pip puts these files: modules beside share/ under one prefix. The scenario is found without the checkout.
    prefix = tmp_path / "prefix"
    packages = prefix / "lib" / "python3" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "unpacked" / "polyarm_core").rename(packages / "polyarm_core")
    (tmp_path / "unpacked" / data / "..").resolve().rename(prefix / "share")
    code = "from polyarm_core import scenario; print(scenario.__file__, scenario.load_scenario('sort').name)"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(packages), *sys.path]),
        "AMENT_PREFIX_PATH": str(prefix),
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(packages / "polyarm_core" / "scenario.py"), "sort"]


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^  make (\w+)", done.stdout, re.MULTILINE) == phony[1].split()


def test_ci_calls_the_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == ["exec make test"]
