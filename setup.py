"""Build of the Python distribution: the version, which package.xml alone states, and the files beside the modules."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from setuptools import setup

ROOT = Path(__file__).resolve().parent


def shared(folder: str) -> list[tuple[str, list[str]]]:
    """Files of a folder, for the place where a ROS 2 package has them too: share/polyarm/<folder>."""
    by_folder: dict[str, list[str]] = {}
    for path in sorted((ROOT / folder).rglob("*")):
        if path.is_file():
            by_folder.setdefault(str(path.parent.relative_to(ROOT)), []).append(str(path.relative_to(ROOT)))
    return [(f"share/polyarm/{name}", files) for name, files in by_folder.items()]


setup(
    version=ElementTree.parse(ROOT / "package.xml").findtext("version"),
    data_files=[("share/polyarm", ["package.xml"]), *shared("config"), *shared("models")],
)
