#!/usr/bin/env python3
"""Write requirements/lock.txt: the exact version of every package, direct or pulled in, for each CPython we support.

    python3 tools/lock.py                    # resolves with every CPython 3.10 to 3.13 that PATH has
    python3 tools/lock.py PYTHON [PYTHON...] # with these interpreters

Each interpreter resolves the requirement files on its own (`pip install --dry-run`, nothing is installed). Versions on
which all agree get a plain pin; the others get one pin a version with an environment marker. All four minor versions
must be given, or the lock would silently cover fewer.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ("core", "build", "ros-jazzy", "test")
MINORS = ("3.10", "3.11", "3.12", "3.13")
CUDA = re.compile(r"(nvidia|cuda|triton)\b")  # some builds of torch pull these in and pin them themselves
HEADER = "# Written by tools/lock.py from the other files in this folder, as constraints for pip: do not edit.\n"


def resolve(python: str) -> tuple[str, dict[str, str]]:
    """Minor version of an interpreter, and the version of every package that the requirement files resolve to on it."""
    minor = subprocess.check_output(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True
    ).strip()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/env"], check=True)
        pip = [f"{folder}/env/bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)  # old resolvers do not come to an end
        command = [*pip, "--dry-run", "--report", f"{folder}/report.json"]
        for name in FILES:
            command += ["--requirement", str(ROOT / "requirements" / f"{name}.txt")]
        subprocess.run(command, check=True)
        report = json.loads(Path(folder, "report.json").read_text())
    versions = {}
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if not CUDA.match(name):
            versions[name] = item["metadata"]["version"].partition("+")[0]  # "2.13.0+cpu" and "2.13.0" are one pin
    return minor, versions


def merge(resolved: dict[str, dict[str, str]]) -> list[str]:
    """Lines of the lock: plain where all interpreters agree, with markers where they do not."""
    lines = []
    for name in sorted({name for versions in resolved.values() for name in versions}):
        minors: dict[str, list[str]] = defaultdict(list)
        for minor in sorted(resolved, key=lambda text: int(text.split(".")[1])):
            if name in resolved[minor]:
                minors[resolved[minor][name]].append(minor)
        for version, where in minors.items():
            marker = " or ".join(f"python_version == '{minor}'" for minor in where)
            lines.append(f"{name}=={version}" + ("" if len(where) == len(resolved) else f"; {marker}"))
    return lines


def main() -> None:
    """Resolve with each interpreter and write the lock."""
    pythons = sys.argv[1:] or [path for minor in MINORS if (path := shutil.which(f"python{minor}"))]
    resolved: dict[str, dict[str, str]] = {}
    for python in pythons:
        minor, versions = resolve(python)
        resolved[minor] = versions
        print(f"CPython {minor}: {len(versions)} packages", flush=True)
    missing = [minor for minor in MINORS if minor not in resolved]
    if missing:
        sys.exit(f"lock.py: no interpreter for CPython {', '.join(missing)}; give their paths as arguments")
    (ROOT / "requirements" / "lock.txt").write_text(HEADER + "\n".join(merge(resolved)) + "\n")


if __name__ == "__main__":
    main()
