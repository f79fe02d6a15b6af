"""What README.md and docs/ tell people to type exists: make targets, commands with their options, nodes, files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from polyarm_core.cli import app
from polyarm_nodes.__main__ import NODES

ROOT = Path(__file__).resolve().parents[1]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
EXECUTABLES = {*NODES, "model_server", "polyarm"}


def commands(text: str) -> list[list[str]]:
    """Words of every command line in the code blocks of a Markdown text that are not another language."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language not in ("", "sh", "bash", "shell", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            except ValueError:  # a line of output, not of input
                continue
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                del words[0]
            if words:
                found.append(words)
    # Commands in the running text too.
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`((?:make|polyarm|ros2) [^`\n]+)`", prose):
        found.append(line.split())
    return found


def fault(words: list[str]) -> str | None:
    """Why a command line would fail, as far as that can be told without running it; None if it would not."""
    name = Path(words[0]).name
    if name == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        wrong = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"make has no {', '.join(wrong)}" if wrong else None
    if name == "ros2" and words[1:3] == ["run", "polyarm"]:
        return None if words[3] in EXECUTABLES else f"no executable {words[3]}"
    if name == "ros2" and words[1:3] == ["launch", "polyarm"]:
        if not (ROOT / "launch" / words[3]).is_file():
            return f"no launch file {words[3]}"
        table = words[3] if words[3] == "overcooked.launch.py" else "cell.launch.py"
        source = (ROOT / "launch" / table).read_text(encoding="utf-8")
        given = [word.partition(":=")[0] for word in words[4:] if ":=" in word]
        wrong = [argument for argument in given if not re.search(rf'\(\s*"{argument}",', source)]
        return f"{words[3]} has no argument {', '.join(wrong)}" if wrong else None
    if name == "polyarm":
        command: click.Command = typer.main.get_command(app)
        rest = words[1:]
        while hasattr(command, "commands"):
            if not rest or rest[0].startswith("-"):
                return None
            if rest[0] in ("…", "...", "COMMAND"):
                return None
            if rest[0] not in command.commands:
                return f"no command {rest[0]}; there are {', '.join(command.commands)}"
            command = command.commands[rest.pop(0)]
        options = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
        wrong = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}]
        return f"{command.name} has no {', '.join(wrong)}" if wrong else None
    return None


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_commands_exist(path: Path) -> None:
    faults = {" ".join(words): why for words in commands(path.read_text(encoding="utf-8")) if (why := fault(words))}
    assert faults == {}


def test_readme_shows_the_two_commands() -> None:
    found = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert ["make", "demo"] in found and ["make", "test"] in found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text)
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (path.parent / link).exists()] == []


@pytest.mark.parametrize(
    "line",
    [
        "make tset",
        "polyarm rnu sort",
        "polyarm run sort --sedes 0",
        "ros2 run polyarm agent",
        "ros2 launch polyarm cell.launch.py scene:=sort",
        "ros2 launch polyarm cel.launch.py",
    ],
)
def test_the_check_sees_faults(line: str) -> None:
    assert fault(line.split()) is not None


@pytest.mark.parametrize(
    "line",
    [
        "make demo PYTHON=python3.12",
        ".venv/bin/polyarm run sort --seeds 0-19 --headless --json out.json",
        "ros2 run polyarm arm_agent",
        "ros2 launch polyarm sort.launch.py record:=true",
        "git clone somewhere",
    ],
)
def test_the_check_lets_good_commands_pass(line: str) -> None:
    assert fault(line.split()) is None
