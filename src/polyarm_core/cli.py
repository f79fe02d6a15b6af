"""The command line ``polyarm``. Each command imports the heavy libraries, or ROS, that it needs; ``--help`` none."""

from __future__ import annotations

import enum
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from polyarm_core.errors import InvalidValue, PolyarmError

if TYPE_CHECKING:
    from rich.console import Console

    from polyarm_core.bench.figures import Figures
    from polyarm_core.coordinator.trial import TrialRow
    from polyarm_core.episode import EpisodeSummary
    from polyarm_nodes.domain_graph import DomainOptions

EXIT_FAILED = 1  # it ran, but not every episode succeeded
EXIT_ERROR = 2  # it did not run: wrong arguments, something missing
EXIT_INTERRUPTED = 130

PLAY_START, PLAY_LIMIT = 300.0, 3600.0  # s for the graph of `polyarm play`, and for an episode of it

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Several robot arms, each with a language model of its own, in one space.\n\n"
        "Start with:\n\n"
        "  [bold]polyarm scenarios[/]              what can be run\n\n"
        "  [bold]polyarm run sort[/]               three arms sort cubes in simulation\n\n"
        "  [bold]polyarm bag explain runs/...[/]   who proposed what, and why an arm had to wait"
    ),
)
bench_app = typer.Typer(
    no_args_is_help=True,
    help="Measure one part at a time. Each prints a table and, with --json FILE, writes the figures.",
)
bag_app = typer.Typer(
    no_args_is_help=True,
    help="Look into a recorded run (a rosbag2 directory such as runs/.../bag). Needs no ROS.",
)
app.add_typer(bench_app, name="bench")
app.add_typer(bag_app, name="bag")


class Execution(str, enum.Enum):
    """How verdicts take effect."""

    GRANTED = "granted"
    OPTIMISTIC = "optimistic"


class Strategy(str, enum.Enum):
    """How the orchestrator resolves a slot."""

    OPTIMAL = "optimal"
    MAXIMAL = "maximal"
    FIXED_POINT = "fixed_point"


class Plant(str, enum.Enum):
    """What carries the actions out."""

    MUJOCO = "mujoco"
    KINEMATIC = "kinematic"
    DRIVERS = "drivers"


class Control(str, enum.Enum):
    """Who picks the actions of the arms."""

    REACTIVE = "reactive"
    PLANNED = "planned"
    HYBRID = "hybrid"


class Disturb(str, enum.Enum):
    """How much happens beside what the arms do."""

    NONE = "none"
    STANDARD = "standard"
    SEVERE = "severe"


class LogLevel(str, enum.Enum):
    """ROS log levels."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write command, seeds, machine and all figures as one JSON object."),
]
SeedsOption = Annotated[str, typer.Option("--seeds", metavar="LIST", help="Seeds such as 0-19 or 0,3,5.")]
BagArgument = Annotated[Path, typer.Argument(metavar="BAG", help="The rosbag2 directory.", show_default=False)]


@dataclass(frozen=True)
class RunOptions:
    """Everything that ``polyarm run`` was asked for."""

    scenario: str
    seeds: tuple[int, ...]
    out: Path
    record: bool
    plant: str
    execution: str
    strategy: str
    real_time_factor: float
    model: str
    model_url: str
    log_level: str
    cell: str = ""
    velocity_scaling: float = 1.0
    control: str = "reactive"
    disturb: str = "none"
    coordinator: str = "search"
    detector: str = ""


# -- run ---------------------------------------------------------------------------------------------------------


@app.command()
def run(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="Name from `polyarm scenarios`, or path of a scenario file.")
    ],
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="LIST", help="One episode per seed: 0-19 or 0,3,5.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="One episode with this seed.")] = None,
    headless: Annotated[
        bool,
        typer.Option(
            "--headless/--no-headless",
            help="Simulate as fast as the machine can; --no-headless: in real time, to watch with RViz or PlotJuggler.",
        ),
    ] = True,
    real_time_factor: Annotated[
        float | None,
        typer.Option(
            "--real-time-factor", metavar="F", min=0.0, help="2 = twice as fast as real time, 0 = as fast as it can."
        ),
    ] = None,
    record: Annotated[bool, typer.Option("--record/--no-record", help="Record a rosbag2 of all coordination.")] = True,
    picture: Annotated[
        bool | None,
        typer.Option("--picture/--no-picture", help="Render the scene from the bag; by default for a single episode."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for bag, logs and picture; default runs/SCENARIO-TIME."),
    ] = None,
    plant: Annotated[
        Plant,
        typer.Option(
            help="mujoco: physics; kinematic: every action simply succeeds, to look at coordination alone; "
            "drivers: the real arms of --cell."
        ),
    ] = Plant.MUJOCO,
    cell: Annotated[
        str, typer.Option("--cell", metavar="FILE", help="Cell file (docs/real_cell.md), for --plant drivers.")
    ] = "",
    velocity_scaling: Annotated[
        float, typer.Option(metavar="S", min=0.05, max=1.0, help="Share of the speeds of the cell, for its first runs.")
    ] = 1.0,
    execution: Annotated[
        Execution,
        typer.Option(help="granted: arms move under a lease only; optimistic: they start at once and are stopped."),
    ] = Execution.GRANTED,
    strategy: Annotated[Strategy, typer.Option(help="How the digital twin resolves conflicts.")] = Strategy.OPTIMAL,
    control: Annotated[
        Control,
        typer.Option(
            help="reactive: each arm's model picks every action; planned: the coordinator's chains do; "
            "hybrid: chains where there are any."
        ),
    ] = Control.REACTIVE,
    disturb: Annotated[
        Disturb, typer.Option(help="Seeded events: objects moved or dropped, arms stopped, placements blocked.")
    ] = Disturb.NONE,
    coordinator: Annotated[
        str, typer.Option(metavar="NAME", help="search, or BACKEND:NAME of a language model that plans.")
    ] = "search",
    detector: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Of stale plans: never, closed, bilinear or a path of weights; default closed."
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            metavar="BACKEND:NAME", help="One language model for every arm, e.g. openai:Qwen/Qwen2.5-1.5B-Instruct."
        ),
    ] = "",
    model_url: Annotated[
        str, typer.Option(metavar="URL", help="Server of that model, e.g. http://127.0.0.1:8000")
    ] = "",
    json: JsonOption = None,
    log_level: Annotated[LogLevel, typer.Option(help="Of the nodes; their logs are in DIR/logs.")] = LogLevel.INFO,
) -> None:
    """Run a scenario: start the whole ROS 2 graph, one episode per seed, and sum it up.

    Ends with code 0 when every episode succeeded, 1 when one did not, 2 when nothing could be run.

    Examples:

      polyarm run sort

        one episode, with bag and picture

      polyarm run sort --seeds 0-19 --json sort.json

        the success rate with its 95 % interval

      polyarm run sort --strategy fixed_point

        the paper's orchestrator

      polyarm run my_cell.yaml --no-headless

        a scenario of your own, in real time

      polyarm run cabinet --control hybrid --disturb severe

        a plan, and what becomes of it when the world does not keep to it

      polyarm run sort --model openai:NAME --model-url http://127.0.0.1:8000

        with a vLLM server

      polyarm run sort --plant drivers --cell my_cell.yaml --velocity-scaling 0.1

        real arms, slowly (docs/real_cell.md)
    """
    from polyarm_core.liveness import draw_start
    from polyarm_core.scenario import load_scenario
    from polyarm_core.seeds import parse_seeds

    if seeds is not None and seed is not None:
        raise InvalidValue("--seed", seed, "either --seed or --seeds, not both")
    chosen = tuple(parse_seeds(seeds)) if seeds is not None else (seed or 0,)
    loaded = load_scenario(scenario)
    starts = {tuple(sorted(draw_start(loaded, number).items())) for number in chosen}
    folder = out if out is not None else _new_folder(Path("runs"), loaded.name)
    if (folder / "episodes.jsonl").exists():
        raise InvalidValue("--out", str(folder), "a folder that holds no run yet")
    _check_target(json)
    options = RunOptions(
        scenario=scenario,
        seeds=chosen,
        out=folder,
        record=record,
        plant=plant.value,
        execution=execution.value,
        strategy=strategy.value,
        real_time_factor=(
            real_time_factor
            if real_time_factor is not None
            else _default_factor(headless and plant is not Plant.DRIVERS, execution)
        ),
        model=model,
        model_url=model_url,
        log_level=log_level.value,
        cell=cell,
        velocity_scaling=velocity_scaling,
        control=control.value,
        disturb=disturb.value,
        coordinator=coordinator,
        detector=detector,
    )

    console = _console()
    _end_in_order()
    began = time.monotonic()
    episodes = _run_with_progress(options, loaded.name, console)
    figures = _run_figures(options, loaded.name, episodes, len(starts), time.monotonic() - began)
    _show(figures, console)
    console.print(
        f"plant: {options.plant}   {loaded.assistance}   execution: {options.execution}   strategy: {options.strategy}"
    )
    if options.control != "reactive" or options.disturb != "none":
        console.print(f"control: {options.control}   disturbances: {options.disturb}")
    if json is not None:
        figures.write(json)
        console.print(f"figures  {json}")
    console.print(f"episodes {folder / 'episodes.jsonl'}")
    if record:
        console.print(f"bag      {folder / 'bag'}")
    if picture if picture is not None else (record and len(chosen) == 1 and plant is not Plant.DRIVERS):
        _picture(folder, record, console)
    if not all(episode.success for episode in episodes):
        raise typer.Exit(EXIT_FAILED)


def _run_with_progress(options: RunOptions, scenario: str, console: Console) -> list[EpisodeSummary]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from polyarm_core.bench.tables import format_time

    episodes: list[EpisodeSummary] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{scenario}: starting the nodes", total=len(options.seeds))

        def on_episode(episode: EpisodeSummary) -> None:
            episodes.append(episode)
            end = "[green]success[/]" if episode.success else f"[red]{episode.reason}[/] {episode.text}"
            progress.console.print(
                f"seed {episode.seed}: {end} in {episode.slots} slots, vetoes {episode.vetoes}, "
                f"contacts {episode.arm_contacts}, {_plans_in_words(episode)}"
                f"{format_time(episode.sim_time)} simulated, "
                f"{format_time(episode.wall_time)} on the clock"
            )
            progress.update(task, advance=1)

        def on_state(text: str) -> None:
            progress.update(task, description=f"{scenario}: {text}")

        _run_graph(options, on_episode, on_state)
    return episodes


def _plans_in_words(episode: EpisodeSummary) -> str:
    """What control by plans and disturbances came to, with a comma at the end; empty where there was nothing."""
    figures = {
        "disturbances": episode.disturbances,
        "plan calls": episode.plan_calls,
        "plans mended": episode.plan_repairs,
        "detections": episode.detections,
    }
    return "".join(f"{name} {count}, " for name, count in figures.items() if count)


def _run_graph(
    options: RunOptions, on_episode: Callable[[EpisodeSummary], None], on_state: Callable[[str], None]
) -> None:
    """Start the graph, report each episode as it ends, stop the graph.

    Raises:
        MissingRos: ROS 2 or the messages are not there.
        PolyarmError: a node died, or the run took longer than its episodes may take.
    """
    from polyarm_core.episode import Limits
    from polyarm_core.episode_log import FILE_NAME, Tail

    _need_ros()
    from polyarm_nodes.graph import GraphOptions, build_graph
    from polyarm_nodes.runner import Runner

    specs = build_graph(
        GraphOptions(
            scenario=options.scenario,
            record=options.record,
            plant=options.plant,
            execution=options.execution,
            strategy=options.strategy,
            real_time_factor=options.real_time_factor,
            seeds=options.seeds,
            out=str(options.out),
            model=options.model,
            model_url=options.model_url,
            cell=options.cell,
            velocity_scaling=options.velocity_scaling,
            control=options.control,
            disturb=options.disturb,
            coordinator=options.coordinator,
            detector=options.detector,
        )
    )
    tail = Tail(options.out / FILE_NAME)
    seen = 0

    def done() -> bool:
        nonlocal seen
        if _signals:
            raise KeyboardInterrupt
        for episode in tail.poll():
            seen += 1
            on_episode(episode)
        on_state(f"seed {options.seeds[seen]}" if seen < len(options.seeds) else "ending")
        return False  # the episode monitor ends the run, after its last message was delivered

    limits = Limits()
    deadline = limits.start + len(options.seeds) * (limits.time + limits.settle + limits.reset * limits.resets)
    with Runner(specs, options.out, options.log_level, environment=_own_domain(options.plant)) as runner:
        on_state("starting the nodes")
        ended = runner.wait(done, deadline)
    for episode in tail.poll():  # what was written while the graph ended
        seen += 1
        on_episode(episode)
    if not ended or seen < len(options.seeds):
        raise PolyarmError(
            f"{seen} of {len(options.seeds)} episodes ended within {deadline:.0f} s; "
            f"the nodes' logs are in {options.out / 'logs'}"
        )


def _own_domain(plant: str) -> dict[str, str]:
    """A ROS domain for this run, unless the user has chosen one: two runs on a machine must not hear each other.

    Drivers run already, in the domain of the shell.
    """
    if "ROS_DOMAIN_ID" in os.environ or plant == "drivers":
        return {}
    return {"ROS_DOMAIN_ID": str(1 + os.getpid() % 100), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}


class MissingRos(PolyarmError):
    """ROS 2 or Polyarm's messages cannot be imported."""


def _need_ros() -> None:
    import importlib.util

    # find_spec does not load the library; polyarm.msg is what an unbuilt package lacks.
    for module, remedy in (
        ("rclpy", "source a ROS 2 installation, or run `make env` for the wheels"),
        ("polyarm", "build the messages with `make build` (or colcon build) and source the result"),
        ("polyarm_nodes", "install the package from its own folder: pip install -e ."),
    ):
        if importlib.util.find_spec(module) is None:
            raise MissingRos(f"`polyarm run` needs ROS 2, but {module} cannot be imported: {remedy}")


def _run_figures(
    options: RunOptions, scenario: str, episodes: Sequence[EpisodeSummary], starts: int, seconds: float
) -> Figures:
    from polyarm_core.bench.figures import Figures
    from polyarm_core.episode import add_figures
    from polyarm_core.seeds import format_seeds

    words = ["polyarm run", options.scenario if options.scenario == scenario else Path(options.scenario).name]
    words += ["--seeds", format_seeds(list(options.seeds)), "--plant", options.plant, "--execution", options.execution]
    words += ["--strategy", options.strategy, "--real-time-factor", f"{options.real_time_factor:g}"]
    words += ["--model", options.model] if options.model else []
    if options.control != "reactive":
        words += ["--control", options.control, "--coordinator", options.coordinator]
        words += ["--detector", options.detector] if options.detector else []
    words += ["--disturb", options.disturb] if options.disturb != "none" else []
    figures = Figures(" ".join(words), options.seeds)
    add_figures(figures, scenario, episodes)
    figures.add(f"{scenario}.distinct_starts", starts)
    figures.add(f"{scenario}.run_s", seconds)
    return figures


def _default_factor(headless: bool, execution: Execution) -> float:
    # An optimistic motion starts before its verdict and must outlast it, so it takes real time.
    return 0.0 if headless and execution is Execution.GRANTED else 1.0


def _new_folder(root: Path, name: str) -> Path:
    stem = root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidate, number = stem, 1
    while candidate.exists():
        number += 1
        candidate = stem.with_name(f"{stem.name}-{number}")
    return candidate


def _check_target(path: Path | None) -> None:
    """Refuse a file that cannot be written before the run, not after it."""
    if path is None:
        return
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir() or not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InvalidValue("--json", str(path), "a file that can be written")


def _picture(folder: Path, recorded: bool, console: Console) -> None:
    if not recorded:
        raise InvalidValue("--picture", True, "a recorded run: the picture is made from the bag (--record)")
    target = folder / "scene.gif"
    try:
        frames = _render(folder / "bag", target, None, 48, console)
    except PolyarmError as error:
        # The run itself is done and its figures are written: a machine that cannot draw must not take them back.
        console.print(f"picture  none: {error}")
    else:
        console.print(f"picture  {target} ({frames} frames)")


def _render(bag: Path, target: Path, episode: int | None, frames: int, console: Console) -> int:
    from rich.progress import Progress

    from polyarm_core.bags.render import render_bag

    _end_in_order()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("rendering", total=None)
        return render_bag(bag, target, episode, frames, lambda done, of: bar.update(task, completed=done, total=of))


# -- play --------------------------------------------------------------------------------------------------------


@app.command()
def play(
    domain: Annotated[
        str, typer.Argument(metavar="DOMAIN", help="overcooked:LAYOUT, moba, or arms:SCENARIO (without physics).")
    ],
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="COORDINATOR+TRIGGER[+repair], see docs/overcooked.md; default the domain's own."
        ),
    ] = "",
    setting: Annotated[
        str, typer.Option(metavar="NAME", help="Events: standard (none), dynamic, held_out, the name of one, rateP.")
    ] = "dynamic",
    plant: Annotated[
        str, typer.Option(metavar="NAME", help="package (overcooked_ai) or own; default package in kitchens.")
    ] = "",
    seeds: SeedsOption = "0",
    record: Annotated[bool, typer.Option("--record/--no-record", help="Record a rosbag2 of all coordination.")] = True,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for bag and logs; default runs/DOMAIN-TIME.")
    ] = None,
    json: JsonOption = None,
    log_level: Annotated[LogLevel, typer.Option(help="Of the nodes; their logs are in DIR/logs.")] = LogLevel.INFO,
) -> None:
    """Play a world that moves in frames, a kitchen for example, through ROS: plant, coordinator, detector, agents.

    Frame by frame the same as `polyarm bench overcooked`, which needs no ROS. Ends with code 0 when every episode
    succeeded, 1 when one did not, 2 when nothing could be run.

    Examples:

      polyarm play overcooked:coordination_ring --seeds 0-4

      polyarm play moba --method search+oracle
    """
    from polyarm_core.bench.figures import Figures
    from polyarm_core.coordinator.trial import FILE_NAME, add_figures
    from polyarm_core.seeds import format_seeds, parse_seeds

    chosen = parse_seeds(seeds)
    folder = out if out is not None else _new_folder(Path("runs"), domain.replace(":", "-").replace("/", "-"))
    if (folder / FILE_NAME).exists():
        raise InvalidValue("--out", str(folder), "a folder that holds no run yet")
    _check_target(json)
    _need_ros()
    from polyarm_nodes.domain_graph import DomainOptions

    options = DomainOptions(domain, method, setting, plant, chosen, record=record, out=str(folder))
    console = _console()
    _end_in_order()
    began = time.monotonic()
    rows = _play_graph(options, log_level.value, console)
    words = ["polyarm play", domain, "--seeds", format_seeds(chosen), "--method", rows[0].method]
    figures = Figures(" ".join([*words, "--setting", setting, "--plant", rows[0].plant]), chosen)
    add_figures(figures, rows)
    figures.add(f"{rows[0].domain.lower().replace(':', '.')}.run_s", time.monotonic() - began)
    _show(figures, console)
    console.print(f"method: {rows[0].method}   setting: {setting}   plant: {rows[0].plant}")
    if json is not None:
        figures.write(json)
        console.print(f"figures  {json}")
    console.print(f"episodes {folder / FILE_NAME}")
    if record:
        console.print(f"bag      {folder / 'bag'}")
    if not all(row.success for row in rows):
        raise typer.Exit(EXIT_FAILED)


def _play_graph(options: DomainOptions, log_level: str, console: Console) -> list[TrialRow]:
    """Start the graph of a domain, report each episode as it ends, stop the graph.

    Raises:
        PolyarmError: a node died, or the run took longer than its episodes may take.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from polyarm_core.coordinator.trial import FILE_NAME, read_rows
    from polyarm_nodes.domain_graph import build_domain_graph
    from polyarm_nodes.runner import Runner

    specs = build_domain_graph(options)
    out, total = Path(options.out), len(options.seeds)
    rows: list[TrialRow] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(options.domain, total=total)

        def done() -> bool:
            if _signals:
                raise KeyboardInterrupt
            for row in read_rows(out / FILE_NAME)[len(rows) :]:
                rows.append(row)
                events = ", ".join(f"{name} in frame {frame}" for frame, name in row.events) or "none"
                progress.console.print(
                    f"seed {row.seed}: {'[green]success[/]' if row.success else '[red]no success[/]'} in {row.frames} "
                    f"frames of {row.frame_p50 * 1e3:.1f} ms, plan calls {row.calls}, plans mended {row.repairs}, "
                    f"events: {events}"
                )
                progress.update(task, completed=len(rows))
            return False  # the plant ends the run, after its last message was delivered

        deadline = PLAY_START + total * PLAY_LIMIT
        with Runner(specs, out, log_level, environment=_own_domain(options.plant)) as runner:
            ended = runner.wait(done, deadline)
        done()  # what was written while the graph ended
    if not ended or len(rows) < total:
        raise PolyarmError(
            f"{len(rows)} of {total} episodes ended within {deadline:.0f} s; the nodes' logs are in {out / 'logs'}"
        )
    return rows


# -- lists -------------------------------------------------------------------------------------------------------


@app.command()
def scenarios() -> None:
    """List the scenarios that come with the package."""
    from rich.table import Table

    from polyarm_core.scenario import load_scenario, scenario_names

    table = Table("scenario", "what is to be done", "arms", "entities", box=None, pad_edge=False, header_style="bold")
    for name in scenario_names():
        loaded = load_scenario(name)
        arms = "\n".join(f"{arm} ({item.robot}, {item.model})" for arm, item in loaded.arms.items())
        entities = "\n".join(
            f"{entity} -> {item.goal}" if item.goal else entity for entity, item in loaded.entities.items()
        )
        table.add_row(name, loaded.description, arms, entities)
    _console().print(table)


@app.command()
def version() -> None:
    """Print the version."""
    from polyarm_core.bench.figures import version as installed

    typer.echo(f"polyarm {installed()}")


# -- bench -------------------------------------------------------------------------------------------------------


@bench_app.command("orchestrator")
def bench_orchestrator(
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Numbers of arms.")] = "8,64,512,4096",
    densities: Annotated[str, typer.Option(metavar="LIST", help="sparse, medium, dense.")] = "sparse,medium,dense",
    seeds: SeedsOption = "0-99",
    json: JsonOption = None,
) -> None:
    """Time per slot of the three strategies and a library's optimiser, and the share of the optimum that each reaches.

    Example:

      polyarm bench orchestrator --sizes 8,64 --json orchestrator.json
    """
    from polyarm_core.seeds import parse_seeds

    _bench(
        "orchestrator",
        json,
        sizes=_numbers("--sizes", sizes),
        densities=tuple(part.strip() for part in densities.split(",")),
        seeds=parse_seeds(seeds),
    )


@bench_app.command("slot")
def bench_slot(
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Numbers of agent processes.")] = "1,3,8,16,32",
    slots: Annotated[int, typer.Option(min=1, help="Slots that are measured for each number.")] = 200,
    json: JsonOption = None,
) -> None:
    """Slot open to verdict received by all, over real agent processes on ROS 2 (model time excluded and shown).

    Example:

      polyarm bench slot --sizes 3,8 --json slot.json
    """
    _need_ros()
    _bench("slot", json, sizes=_numbers("--sizes", sizes), slots=slots)


@bench_app.command("ablation")
def bench_ablation(
    tasks: Annotated[str, typer.Option(metavar="LIST", help="Scenarios, or `all`.")] = "sort",
    seeds: SeedsOption = "0-19",
    jobs: Annotated[int, typer.Option(min=1, help="Episodes that are run at the same time.")] = 1,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps the episodes; a second call goes on from there.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """What the digital twin is worth: the same seeds without it, and with each strategy (physics, in one process).

    Example:

      polyarm bench ablation --tasks sort --seeds 0-4
    """
    from polyarm_core.scenario import load_scenario, scenario_names
    from polyarm_core.seeds import parse_seeds

    chosen = scenario_names() if tasks == "all" else _names(tasks)
    assistance = [f"{task}: {load_scenario(task).assistance}" for task in chosen]
    _bench("ablation", json, tasks=chosen, seeds=parse_seeds(seeds), jobs=jobs, log=log)
    _console().print(*assistance, sep="\n")


@bench_app.command("control")
def bench_control(
    tasks: Annotated[str, typer.Option(metavar="LIST", help="Scenarios, or `all`.")] = "sort,cabinet,rope,grocery",
    controls: Annotated[
        str, typer.Option(metavar="LIST", help="reactive, planned, hybrid.")
    ] = "reactive,planned,hybrid",
    disturbances: Annotated[str, typer.Option(metavar="LIST", help="none, standard, severe.")] = "none,standard,severe",
    seeds: SeedsOption = "0-19",
    plant: Annotated[str, typer.Option(metavar="NAME", help="mujoco, or kinematic (no physics).")] = "kinematic",
    jobs: Annotated[int, typer.Option(min=1, help="Episodes that are run at the same time.")] = 1,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps the episodes; a second call goes on from there.")
    ] = None,
    detector: Annotated[
        str, typer.Option(metavar="NAME", help="Of staleness: oracle, never, closed, bilinear, or PATH.npz.")
    ] = "oracle",
    page: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a page with tables and a plot.")] = None,
    json: JsonOption = None,
) -> None:
    """Three ways to drive a team of arms, on the same starts and disturbances (in one process).

    Example:

      polyarm bench control --tasks sort --seeds 0-4
    """
    from polyarm_core.scenario import scenario_names
    from polyarm_core.seeds import parse_seeds

    figures = _bench(
        "control",
        json,
        tasks=scenario_names() if tasks == "all" else _names(tasks),
        controls=_names(controls),
        disturbances=_names(disturbances),
        seeds=parse_seeds(seeds),
        plant=plant,
        jobs=jobs,
        log=log,
        detector=detector,
    )
    if page is not None:
        from polyarm_core.bench.control_page import write_page

        write_page(figures, page, plant, detector)


@bench_app.command("waits")
def bench_waits(
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Numbers of arms.")] = "8,16,64,256",
    seeds: SeedsOption = "0-4",
    json: JsonOption = None,
) -> None:
    """Check of the wait-for graph, against a full search of the same graph.

    Example:

      polyarm bench waits --sizes 64
    """
    from polyarm_core.seeds import parse_seeds

    _bench("waits", json, sizes=_numbers("--sizes", sizes), seeds=parse_seeds(seeds))


@bench_app.command("overcooked")
def bench_overcooked(
    methods: Annotated[
        str, typer.Option(metavar="LIST", help="Methods, e.g. greedy,search+closed+repair (docs/overcooked.md).")
    ] = "greedy,greedy_aware,search+closed+repair",
    layouts: Annotated[
        str, typer.Option(metavar="LIST", help="Layouts or the paper's names.")
    ] = "Coordination,Ring,Symmetric",
    settings: Annotated[
        str, typer.Option(metavar="LIST", help="standard, dynamic, held_out, O1 to O5, rateP.")
    ] = "standard,dynamic",
    seeds: SeedsOption = "0-199",
    plant: Annotated[
        str, typer.Option(metavar="NAME", help="What carries steps out: package (overcooked_ai) or own.")
    ] = "package",
    jobs: Annotated[int, typer.Option(min=1, help="Trials that are played at the same time.")] = 1,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps the trials; a second call goes on from there.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a page with tables and plots of all trials in the log.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="BACKEND:NAME", help="The language model of model+TRIGGER, and of proagent.")
    ] = "",
    model_url: Annotated[str, typer.Option(metavar="URL", help="Its server, e.g. vLLM's.")] = "",
    variant: Annotated[
        str, typer.Option(metavar="NAME", help="Its prompt: base, or sft or compact if it was tuned on that.")
    ] = "base",
    json: JsonOption = None,
) -> None:
    """SyncPlan and others in the kitchen: success, frames, steps, run time, on the same events for every method.

    Examples:

      polyarm bench overcooked --seeds 0-19

      polyarm bench overcooked --methods search+never,search+oracle --layouts Ring --settings dynamic --seeds 0-49

      polyarm bench overcooked --methods model+stall,proagent --model openai:Qwen/Qwen2.5-7B-Instruct
      --model-url http://127.0.0.1:8000 --jobs 16
    """
    from polyarm_core.bench.overcooked.methods import AskedModel
    from polyarm_core.seeds import parse_seeds

    _bench(
        "overcooked",
        json,
        methods=_names(methods),
        layouts=_names(layouts),
        settings=_names(settings),
        seeds=parse_seeds(seeds),
        plant=plant,
        jobs=jobs,
        log=log,
        page=page,
        model=AskedModel(model, model_url, variant) if model else None,
    )


@bench_app.command("decoding")
def bench_decoding(
    model: Annotated[str, typer.Option(metavar="NAME", help="base, sft or grpo.")] = "sft",
    constrained: Annotated[int, typer.Option(min=1, help="Plans with the grammar of the live state.")] = 1000,
    free: Annotated[int, typer.Option(min=1, help="Plans without.")] = 200,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the states.")] = 0,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps the plans; a second call goes on from there.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Invalid plans of a model in the kitchen, and its time, with and without a grammar of the live state."""
    _bench("decoding", json, model=model, constrained=constrained, free=free, seed=seed, log=log)


@bench_app.command("film")
def bench_film(
    layout: Annotated[str, typer.Option(metavar="NAME", help="Layout or the paper's name.")] = "Coordination",
    method: Annotated[str, typer.Option(metavar="NAME", help="A method with chains.")] = "search+closed+repair",
    setting: Annotated[str, typer.Option(metavar="NAME", help="As of `polyarm bench overcooked`.")] = "dynamic",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the trial.")] = 0,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The film, a .gif.")] = Path("overcooked.gif"),
) -> None:
    """A film of one trial in the kitchen, with chains, waits, events and corrections drawn beside it."""
    from polyarm_core.bench.overcooked.film import write_film

    frames = write_film(method, layout, setting, seed, out)
    _console().print(f"film     {out} ({frames} frames)")


@bench_app.command("llm")
def bench_llm(
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Packaged name, folder or hub id.")
    ] = "smollm2-135m-instruct",
    decisions: Annotated[int, typer.Option(min=1, help="Decisions that are measured of each kind.")] = 20,
    threads: Annotated[str, typer.Option(metavar="LIST", help="Numbers of CPU threads.")] = "1,2",
    dtypes: Annotated[str, typer.Option(metavar="LIST", help="bfloat16, float32.")] = "bfloat16,float32",
    json: JsonOption = None,
) -> None:
    """Time per decision of a language model: prefix shared and in one batch, against neither.

    Example:

      polyarm bench llm --decisions 5 --threads 1 --dtypes bfloat16
    """
    _bench(
        "llm",
        json,
        model=model,
        decisions=decisions,
        threads=_numbers("--threads", threads),
        dtypes=tuple(part.strip() for part in dtypes.split(",")),
    )


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _bench(name: str, json: Path | None, **options: object) -> Figures:
    import importlib

    _check_target(json)
    module = importlib.import_module(f"polyarm_core.bench.{name}")
    console = _console()
    _end_in_order()
    figures: Figures = module.run(**options)
    _show(figures, console)
    if json is not None:
        figures.write(json)
        console.print(f"figures  {json}")
    return figures


def _numbers(key: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidValue(key, text, "numbers above 0 such as 8,64")
    return tuple(int(part) for part in parts)


# -- bag ---------------------------------------------------------------------------------------------------------


@bag_app.command("info")
def bag_info(bag: BagArgument) -> None:
    """Topics, counts, types, QoS and duration."""
    from polyarm_core.bags.table import info_table

    _console().print(*info_table(bag), sep="\n")


@bag_app.command("table")
def bag_table(bag: BagArgument, json: JsonOption = None) -> None:
    """The table of episodes, counted anew from the recorded messages."""
    from polyarm_core.bags.reader import Bag
    from polyarm_core.bags.table import bag_figures, episodes_of_bag
    from polyarm_core.bench.tables import episode_table

    episodes = episodes_of_bag(bag)
    console = _console()
    console.print(episode_table(episodes))
    with Bag(bag) as opened:
        console.print(opened.custom.get("assistance", "assistance: not recorded"))
    if json is not None:
        bag_figures(episodes).write(json)
        console.print(f"figures  {json}")


@bag_app.command("explain")
def bag_explain(
    bag: BagArgument,
    episode: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only this episode.")] = None,
    slot: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only this slot.")] = None,
) -> None:
    """Slot by slot in words: who proposed what, what the twin answered, by which rule, element and rival."""
    from polyarm_core.bags.explain import explain_bag

    console = _console()
    for line in explain_bag(bag, episode=episode, slot=slot):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@bag_app.command("render")
def bag_render(
    bag: BagArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help=".png (last moment) or .gif (its course); default BAG/scene.gif."),
    ] = None,
    episode: Annotated[int | None, typer.Option(metavar="N", min=1, help="Which episode; default the first.")] = None,
    frames: Annotated[int, typer.Option(min=1, max=1000, help="Pictures, evenly over the episode.")] = 60,
) -> None:
    """A picture or a short video of the scene, drawn from the recorded world and joint states."""
    target = out if out is not None else bag / "scene.gif"
    console = _console()
    drawn = _render(bag, target, episode, frames, console)
    console.print(f"picture  {target} ({drawn} frames)")


@bag_app.command("recover")
def bag_recover(
    bag: BagArgument,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="New bag; default BAG_recovered.")] = None,
) -> None:
    """Make a bag whole whose recorder was killed: a copy with index and metadata.yaml."""
    from polyarm_core.bags.recover import recover

    target = out if out is not None else bag.with_name(f"{bag.name}_recovered")
    count = recover(bag, target)
    _console().print(f"{count} messages in {target}")


# -- entry -------------------------------------------------------------------------------------------------------


def _console() -> Console:
    from rich.console import Console

    # Tables that are piped into a file must not be cut at 80 columns.
    return Console() if sys.stdout.isatty() else Console(width=160)


def _show(figures: Figures, console: Console) -> None:
    from polyarm_core.bench.tables import figure_tables

    for table in figure_tables(figures):
        console.print()
        console.print(table)
    console.print()


_signals: list[int] = []  # what asked for an end


def _on_signal(number: int, _frame: object) -> NoReturn:
    _signals.append(number)
    raise KeyboardInterrupt


def _end_in_order() -> None:
    """From here on Ctrl-C and SIGTERM raise KeyboardInterrupt; until then they end the process at once.

    Python swallows an exception that a signal raises inside some callbacks (an import's, a destructor's), so what waits
    for long also looks into ``_signals``.
    """
    signal.signal(signal.SIGINT, _on_signal)
    signal.signal(signal.SIGTERM, _on_signal)


def main() -> None:
    """Run the command line: errors in one line with code 2, Ctrl-C with code 130, no traceback for either."""
    try:
        app(prog_name="polyarm")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except PolyarmError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(EXIT_ERROR)


if __name__ == "__main__":
    main()
