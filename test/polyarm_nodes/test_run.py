"""``polyarm run`` from end to end: real processes, real DDS, a bag; without physics and without a model for speed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")
pytest.importorskip("polyarm.msg", reason="the messages are not built")
pytest.importorskip("rosbags", reason="rosbags is not installed")

from polyarm_core import episode_log
from polyarm_core.bags.explain import explain_bag
from polyarm_core.bags.table import episodes_of_bag

pytestmark = pytest.mark.ros

COUNTS = (
    "seed",
    "success",
    "slots",
    "reports",
    "uplink_bytes",
    "admitted",
    "vetoes",
    "silent",
    "failed_actions",
    "prompt_tokens",
    "decided_by",
    "control",
    "plan_calls",
    "plan_repairs",
    "plan_bytes",
    "detections",
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Folder of the run; whatever the run has left behind is ended, and fails the test."""
    yield tmp_path / "run"
    left = processes_that_mention(tmp_path / "run")
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left running"


def processes_that_mention(path: Path) -> list[int]:
    """Process ids whose command line names the path."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(path).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "polyarm_core", "run", "sort", "--model", "heuristic", "--plant", "kinematic"]
    command += ["--no-picture", "--out", str(folder), *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def test_a_run_sorts_and_its_bag_tells_the_same_story(folder: Path, tmp_path: Path) -> None:
    process = start(folder, "--seeds", "0-1", "--control", "hybrid", "--json", str(tmp_path / "run.json"))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    figures = json.loads((tmp_path / "run.json").read_text())["figures"]
    assert figures["sort.episodes"] == 2 and figures["sort.success_rate"] == 1.0

    monitored = episode_log.read(folder / episode_log.FILE_NAME)
    recorded = episodes_of_bag(folder / "bag")
    for name in COUNTS:
        assert [getattr(e, name) for e in recorded] == [getattr(e, name) for e in monitored], name
    assert figures["sort.plan_calls"] >= 2 and figures["sort.decided_by.chain"] > 0
    assert figures["sort.reports"] == sum(episode.reports for episode in recorded)
    text = "\n".join(explain_bag(folder / "bag"))
    assert "episode 2 (seed 1): success" in text and "is admitted under token" in text


@pytest.mark.parametrize("after", ["at once", "when the first episode runs"])
def test_ctrl_c_ends_everything(folder: Path, after: str) -> None:
    process = start(folder, "--seeds", "0-99", "--real-time-factor", "1")
    until = time.monotonic() + 60
    log = folder / episode_log.FILE_NAME
    while after != "at once" and not log.exists():
        assert time.monotonic() < until and process.poll() is None, "no episode was finished"
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT), output  # the latter while Python itself still starts
    assert "Traceback" not in output
    if after != "at once":
        assert (folder / "bag" / "metadata.yaml").exists(), "the bag was not finalised"
        assert episodes_of_bag(folder / "bag")
