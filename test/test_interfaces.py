"""Messages and services: bounded, with units, with 0 = unset; what the wire's rules say of every file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*(ROOT / "msg").glob("*.msg"), *(ROOT / "srv").glob("*.srv")])
FIELD = re.compile(
    r"^(?P<type>[\w/]+(?:<=\d+)?(?:\[(?P<bound>[^\]]*)\])?)\s+(?P<name>[a-z]\w*)\s*(?:#\s*(?P<comment>.*))?$"
)
CONSTANT = re.compile(r"^(?P<type>\w+)\s+(?P<name>[A-Z]\w*)\s*=\s*(?P<value>\S+)\s*(?:#.*)?$")


def fields(path: Path) -> list[re.Match[str]]:
    """Fields of an interface file in order; every line must be a field, a constant, a comment, a separator or empty."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#") or line == "---" or CONSTANT.match(line):
            continue
        field = FIELD.match(line)
        assert field, f"{path.name}:{number} is not a field: {line}"
        found.append(field)
    return found


def faults(path: Path) -> list[str]:
    """What breaks the rules in one file."""
    found = []
    for field in fields(path):
        name, kind, comment = field["name"], field["type"], field["comment"] or ""
        if kind.startswith(("string", "wstring")) and not re.match(r"string<=\d+", kind):
            found.append(f"{name}: string without a bound")
        if field["bound"] is not None and not re.fullmatch(r"<=\d+|\d+", field["bound"]):
            found.append(f"{name}: array without a bound")
        if kind.startswith("float") and not comment:
            found.append(f"{name}: number without a unit or meaning")
    names = [field["name"] for field in fields(path)]
    if "header" in names and names[0] != "header":
        found.append("header is not first")
    lines = path.read_text(encoding="utf-8").splitlines()
    constants = [match for line in lines if (match := CONSTANT.match(line))]
    for name in names:
        group = [match for match in constants if match["name"].startswith(f"{name.upper()}_")]
        if group and [match["name"] for match in group if match["value"] == "0"] != [f"{name.upper()}_UNSET"]:
            found.append(f"{name}: the constant of value 0 is not {name.upper()}_UNSET")
        values = [match["value"] for match in group]
        if len(set(values)) != len(values):
            found.append(f"{name}: two constants of one value")
    prefixes = tuple(f"{name.upper()}_" for name in names)
    found += [f"{m['name']}: a constant of no field" for m in constants if not m["name"].startswith(prefixes)]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_interface_keeps_the_rules(path: Path) -> None:
    assert faults(path) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("string name", "string without a bound"),
        ("uint8[] data", "array without a bound"),
        ("string<=8[] names", "array without a bound"),
        ("float32 age", "number without a unit"),
        ("uint8 x\nstd_msgs/Header header", "header is not first"),
        ("uint8 KIND_A=0\nuint8 kind", "KIND_UNSET"),
        ("uint8 OTHER_UNSET=0\nuint8 kind", "constant of no field"),
    ],
)
def test_the_check_sees_faults(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "Broken.msg"
    path.write_text(text)
    assert any(fault in found for found in faults(path))


@pytest.mark.parametrize(
    "name", ["IntentReport", "SlotOpening", "SlotVerdict", "WorldState", "GrantTable", "ActionResult"]
)
def test_what_is_arbitrated_names_its_sender_and_place(name: str) -> None:
    names = {field["name"] for field in fields(ROOT / "msg" / f"{name}.msg")}
    assert {"header", "episode", "epoch", "sequence"} <= names


@pytest.mark.ros
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_built_is_what_is_written(path: Path) -> None:
    """The built module has the fields of the file: a message that was changed and not built again is found here."""
    import importlib

    built = getattr(importlib.import_module(f"polyarm.{path.suffix[1:]}"), path.stem)
    parts = [built] if path.suffix == ".msg" else [built.Request, built.Response]
    assert [name for part in parts for name in part.get_fields_and_field_types()] == [f["name"] for f in fields(path)]
