"""Fixtures and hooks for the whole suite: ROS 2 domains, skips with reasons, one thread per process."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Before any test imports numpy or torch. Child processes inherit all of it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ["ROS_PYTHON_CHECK_FIELDS"] = "1"  # without it a value that is too long for its field passes silently

# DDS ports are 7400 + 250 * domain + small offsets: up to 101 they stay below Linux's ephemeral ports (32768).
# 0 is everybody's default, so a test must never have it.
DOMAINS = range(1, 102)
_order = itertools.islice(itertools.cycle(DOMAINS), os.getpid() % len(DOMAINS), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--slow``."""
    parser.addoption("--slow", action="store_true", help="also run the tests that are marked slow or vllm")


def missing_ros() -> str | None:
    """Why ROS 2 nodes cannot run here; None if they can."""
    try:
        import rclpy.node  # noqa: F401
    except ImportError as error:
        return f"no ROS 2 here (make env brings it): {error}"
    try:
        import polyarm.msg  # noqa: F401
    except ImportError as error:
        return f"the messages are not built here (make build does): {error}"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what cannot or should not run here; give every test that needs ROS 2 a domain."""
    ros: str | None = None
    if any(item.get_closest_marker("ros") for item in items):
        ros = missing_ros()
    for item in items:
        if item.get_closest_marker("ros"):
            if ros:
                item.add_marker(pytest.mark.skip(reason=ros))
            elif isinstance(item, pytest.Function) and "ros_domain" not in item.fixturenames:
                item.fixturenames.insert(0, "ros_domain")
        for name in ("slow", "vllm"):
            if item.get_closest_marker(name) and not config.getoption("--slow"):
                item.add_marker(pytest.mark.skip(reason=f"marked {name}; run with --slow"))


@contextmanager
def _claimed_domain() -> Iterator[int]:
    folder = Path(tempfile.gettempdir(), "polyarm-domains")
    folder.mkdir(exist_ok=True)
    for domain in itertools.islice(_order, len(DOMAINS)):
        handle = os.open(folder / str(domain), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another run has it
            os.close(handle)
            continue
        before = os.environ.get("ROS_DOMAIN_ID")
        os.environ["ROS_DOMAIN_ID"] = str(domain)
        try:
            yield domain
        finally:
            if before is None:
                del os.environ["ROS_DOMAIN_ID"]
            else:
                os.environ["ROS_DOMAIN_ID"] = before
            os.close(handle)
        return
    pytest.fail(f"all ROS domains {DOMAINS.start} to {DOMAINS.stop - 1} are taken by other test runs")


@pytest.fixture
def ros_domain() -> Iterator[int]:
    """A ROS domain that no other test on this machine has, set in the environment; held by a lock on a file.

    Tests that are marked ``ros`` get it without asking. What such a test left running cannot be heard by the next one.
    """
    with _claimed_domain() as domain:
        yield domain


@pytest.fixture(scope="module")
def module_domain() -> Iterator[int]:
    """The same for processes that serve all tests of a module."""
    with _claimed_domain() as domain:
        yield domain
