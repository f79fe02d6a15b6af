"""The real default model, once in this process and once behind a server, both in float32 so that numbers can agree."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # model_samples.py, which the tests of this folder share

from model_samples import NAME


@pytest.fixture(scope="session")
def model():
    """The default model in this process."""
    from polyarm_core.llm.transformers_backend import TransformersModel

    return TransformersModel(NAME, dtype="float32")


@pytest.fixture(scope="session")
def server() -> Iterator:
    """The default model behind a server; tests that hurt it must leave it as it was."""
    from polyarm_core.llm.process import ServerProcess

    with ServerProcess(NAME, more=["--dtype", "float32"], timeout=60.0) as process:
        yield process
