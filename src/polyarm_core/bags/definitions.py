"""Message definitions as a bag stores them: the text of a type with everything it contains, and its type hash.

Both come from the ``share`` folders of the installed packages (``<prefix>/share/<package>/msg``), so what is written is
what the running nodes were built from.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyarm_core.errors import InvalidValue, PolyarmError

SEPARATOR = "=" * 80
PRIMITIVES = frozenset(
    "bool byte char float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 string wstring".split()
)
FIELD = re.compile(r"^\s*([A-Za-z][\w/]*)(?:<=\d+)?(?:\[[^\]]*\])?\s+[a-z]\w*\s*(?:[^\s=].*|$)")
TYPE_NAME = re.compile(r"([a-z]\w*)/msg/([A-Z]\w*)")


class NoDefinition(PolyarmError):
    """The definition of a message type is not installed."""


@dataclass(frozen=True)
class Definition:
    """A message type as a bag stores it: ``text`` in the concatenated ``.msg`` form, ``type_hash`` by REP-2016."""

    type_name: str
    text: str
    type_hash: str


def ament_prefixes() -> list[Path]:
    """Installation prefixes of the ROS environment, in its order of precedence; empty without one."""
    return [Path(item) for item in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if item]


def load_definition(type_name: str, prefixes: Sequence[Path]) -> Definition:
    """Read a message type from the installed packages.

    Args:
        type_name: e.g. ``"polyarm/msg/WorldState"``.
        prefixes: installation prefixes; the first that has the package counts.

    Raises:
        InvalidValue: the name has another form.
        NoDefinition: the type, one that it contains, or its hash is not installed.
    """
    _folder(type_name, prefixes)
    texts: dict[str, str] = {}
    todo = [type_name]
    while todo:
        name = todo.pop(0)
        if name not in texts:
            texts[name] = _read(name, ".msg", prefixes)
            todo += contained_types(name, texts[name])
    main, *others = texts
    parts = [texts[main]] + [f"{SEPARATOR}\nMSG: {name.replace('/msg/', '/')}\n{texts[name]}" for name in others]
    hashes = {
        item["type_name"]: item["hash_string"]
        for item in json.loads(_read(type_name, ".json", prefixes)).get("type_hashes", [])
    }
    if type_name not in hashes:
        raise NoDefinition(f"the installed description of {type_name} has no type hash")
    return Definition(type_name, "\n".join(part.rstrip("\n") + "\n" for part in parts), hashes[type_name])


def contained_types(type_name: str, text: str) -> list[str]:
    """Full names of the message types that the fields of a ``.msg`` text name, in order of appearance."""
    package = type_name.split("/")[0]
    found: list[str] = []
    for line in text.splitlines():
        match = FIELD.match(line.split("#")[0].rstrip())
        if match is None or match.group(1) in PRIMITIVES:
            continue
        parts = match.group(1).split("/")
        if parts == ["Header"]:
            parts = ["std_msgs", "Header"]
        found.append(f"{parts[0] if len(parts) > 1 else package}/msg/{parts[-1]}")
    return found


def _folder(type_name: str, prefixes: Sequence[Path]) -> tuple[Path, str]:
    match = TYPE_NAME.fullmatch(type_name)
    if match is None:
        raise InvalidValue("message type", type_name, "package/msg/Name")
    package, name = match.groups()
    for prefix in prefixes:
        folder = prefix / "share" / package / "msg"
        if folder.is_dir():
            return folder, name
    looked = ", ".join(str(prefix) for prefix in prefixes) or "nothing: AMENT_PREFIX_PATH is not set"
    raise NoDefinition(f"package {package!r} of message type {type_name} is not installed; looked in {looked}")


def _read(type_name: str, suffix: str, prefixes: Sequence[Path]) -> str:
    folder, name = _folder(type_name, prefixes)
    try:
        return (folder / f"{name}{suffix}").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NoDefinition(f"message type {type_name} is not installed in {folder}") from None
