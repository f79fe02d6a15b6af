"""``episodes.jsonl``: one line per finished episode, appended by the episode monitor, followed by the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from polyarm_core.episode import EpisodeSummary
from polyarm_core.errors import InvalidValue

FILE_NAME = "episodes.jsonl"


def append(path: Path, summary: EpisodeSummary) -> None:
    """Append one line and flush it to the disk, so that it survives the end of the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(summary.to_json(), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


class Tail:
    """Follows a log that another process writes; a file that does not exist yet is an empty one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def poll(self) -> list[EpisodeSummary]:
        """Episodes whose line was completed since the last call.

        Raises:
            InvalidValue: a complete line is no episode summary.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete, newline, _ = data.rpartition(b"\n")  # the writer may be in the middle of a line
        self._offset += len(complete) + len(newline)
        return [self._parse(line) for line in complete.splitlines() if line.strip()]

    def _parse(self, line: bytes) -> EpisodeSummary:
        try:
            data = json.loads(line)
        except ValueError as error:
            raise InvalidValue(str(self._path.name), line[:80], f"one JSON object per line ({error})") from None
        if not isinstance(data, dict):
            raise InvalidValue(str(self._path.name), line[:80], "one JSON object per line")
        return EpisodeSummary.from_json(data)


def read(path: Path) -> list[EpisodeSummary]:
    """All complete episodes of a log; none for a file that does not exist."""
    return Tail(path).poll()
