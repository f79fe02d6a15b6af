"""Data for SFT by event-driven augmentation (SyncPlan A.7): one question and answer for each update of the chains.

``python -m polyarm_core.training.sft_data OUT.jsonl --samples 900`` plays episodes under disturbances and writes a line
for each boundary: the state, what was left of the chains, the corrections so far (the question), the new chains (the
answer), and how many actions each agent executed until the next boundary (metadata). The prompt is not stored but made
from these when a model is trained, so one file serves every variant.

Seeds of episodes start at ``FIRST_SEED``, far from the seeds of evaluation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.parser import parse_plan
from polyarm_core.chains.printer import format_plan
from polyarm_core.chains.terms import Action, Plan
from polyarm_core.chains.validation import validate
from polyarm_core.coordinator.episode import run_episode
from polyarm_core.coordinator.interface import Coordinator, PlanAnswer, PlanRequest
from polyarm_core.coordinator.prompts import compact_state
from polyarm_core.domains.encoding import decode_state, encode_state
from polyarm_core.domains.interface import Domain
from polyarm_core.domains.overcooked.disturbances import STANDARD, EventSchedule
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.training.teacher import Teacher

FIRST_SEED = 1_000_000
LAYOUTS = ("coordination_ring", "counter_circuit", "asymmetric_advantages")
EVENT_RATE = 0.06  # events for each frame; the protocol has three in an episode, but every update is a sample
ERRORS = 0.02  # updates without need for each frame, as false alarms bring them
WANDER = 0.3  # share of segments that do not execute the answer but some other plan, for states off the best path
WANDERED = 40  # candidates from which it is drawn
REPEATS = 60  # a question that comes again and again (the start) is kept this often


@dataclass(frozen=True)
class Sample:
    """One line of the data.

    Attributes:
        domain: name, e.g. ``overcooked:coordination_ring``.
        seed: of the episode.
        frame: of the boundary.
        reason: of the update.
        state: as nested lists, see :mod:`polyarm_core.domains.encoding`.
        previous: text of the chains that were left; empty at the start.
        history: corrections so far.
        answer: text of the new chains.
        footprint: actions that each agent executed until the next boundary.
    """

    domain: str
    seed: int
    frame: int
    reason: str
    state: Any
    previous: str
    history: tuple[str, ...]
    answer: str
    footprint: dict[str, int]

    def request(self, domain: Domain[Any]) -> PlanRequest[Any]:
        """The request that this sample answers."""
        previous = parse_plan(self.previous, domain.agents) if self.previous else None
        return PlanRequest(decode_state(domain, self.state), self.reason, previous, tuple(self.history), self.frame)


def open_domain(name: str) -> Domain[Any]:
    """The domain of a sample.

    Raises:
        UnknownName: no domain of this kind, or no such layout.
    """
    kind, _, detail = name.partition(":")
    if kind == "overcooked":
        from polyarm_core.domains.overcooked.domain import OvercookedDomain

        return OvercookedDomain(detail or LAYOUTS[0])
    raise UnknownName("domain", name, [f"overcooked:{layout}" for layout in LAYOUTS])


class Surprise:
    """A perfect staleness detector for data: the plan would have succeeded and now would not; sometimes it errs.

    Implements ``StalenessDetector``. A plan that never had a chance is left to the executor, so that its mistakes are
    followed to their end, as they are with a model.

    Args:
        domain: in which plans are rolled out.
        errors: probability for each frame of an alarm without need.
        rng: for the errors.
    """

    threshold = 0.5

    def __init__(self, domain: Domain[Any], errors: float, rng: np.random.Generator) -> None:
        self.domain = domain
        self.errors = errors
        self.rng = rng
        self.sound = False

    def reset(self, plan: Plan) -> None:
        """Another plan is executed from now on."""
        self.sound = False

    def observe(self, state: Any, remaining: Plan) -> float:
        """1 if an alarm is due in this frame, else 0."""
        frame = int(getattr(state, "frame", 0))
        executor: ChainExecutor[Any] = ChainExecutor(self.domain, remaining, frame=frame)
        sound = roll_out(executor, state, self.domain.horizon, stop=("deadlock", "chain_end")).success
        broken, self.sound = self.sound and not sound, sound
        return float(self.rng.random() < self.errors or broken)


class Recorder:
    """A coordinator that records the teacher's answer to every request, and executes it, or another plan.

    Args:
        domain: gives other plans.
        teacher: gives the answers.
        learner: executes its own plans instead, so that the states are those in which it will need the answers.
        wander: without a learner, share of requests after which some other candidate is executed.
        rng: for the choices.

    Attributes:
        records: request, answer and executed plan, in order.
    """

    def __init__(
        self,
        domain: Domain[Any],
        teacher: Coordinator[Any],
        learner: Coordinator[Any] | None,
        wander: float,
        rng: np.random.Generator,
    ) -> None:
        self.name = teacher.name
        self.domain = domain
        self.teacher = teacher
        self.learner = learner
        self.wander = wander
        self.rng = rng
        self.records: list[tuple[PlanRequest[Any], PlanAnswer, Plan | None]] = []

    def plan(self, request: PlanRequest[Any]) -> PlanAnswer:
        """What is to be executed."""
        answer = self.teacher.plan(request)
        executed = answer if self.learner is None else self.learner.plan(request)
        if self.learner is None and self.rng.random() < self.wander:
            others = list(itertools.islice(self.domain.candidates(request.state), WANDERED))
            if others:
                plan = others[int(self.rng.integers(len(others)))]
                executed = PlanAnswer(plan, format_plan(plan), 0.0)
        self.records.append((request, answer, executed.plan))
        return executed


def collect(
    domain: Domain[Any],
    teacher: Coordinator[Any],
    seed: int,
    *,
    learner: Coordinator[Any] | None = None,
    events: Sequence[str] = STANDARD,
    rate: float = EVENT_RATE,
    errors: float = ERRORS,
    wander: float = WANDER,
) -> list[Sample]:
    """Samples of one episode.

    Args:
        domain: Overcooked, or another whose states are named tuples.
        teacher: gives the answers.
        seed: of events and choices.
        learner: executes its own plans, e.g. a model that is to be corrected.
        events: kinds of disturbances; none with an empty sequence.
        rate: events for each frame.
        errors: updates without need for each frame.
        wander: share of segments that execute another candidate; without a learner.
    """
    rng = np.random.default_rng(seed)
    schedule = EventSchedule.at_rate(seed, rate, events).events if events else ()
    recorder = Recorder(domain, teacher, learner, wander, rng)
    episode = run_episode(domain, recorder, Surprise(domain, errors, rng), schedule, seed=seed)
    samples = []
    total = dict(zip(domain.agents, episode.actions, strict=True))
    counted = dict.fromkeys(domain.agents, 0)
    for place, (request, answer, executed) in enumerate(recorder.records):
        current = request.previous if executed is None else executed  # without a new plan the old one goes on
        if place + 1 == len(recorder.records):
            footprint = {agent: total[agent] - counted[agent] for agent in domain.agents}
        else:
            left = recorder.records[place + 1][0].previous
            footprint = {agent: _actions(current, agent) - _actions(left, agent) for agent in domain.agents}
        for agent, count in footprint.items():
            counted[agent] += count
        if answer.plan is None or validate(answer.plan, domain, request.state):
            continue
        samples.append(
            Sample(
                domain.name,
                seed,
                request.frame,
                request.reason,
                encode_state(request.state),
                "" if request.previous is None else format_plan(request.previous),
                request.history,
                format_plan(answer.plan),
                footprint,
            )
        )
    return samples


def _actions(plan: Plan | None, agent: str) -> int:
    """Steps of a chain that are actions, not waits."""
    return 0 if plan is None else sum(isinstance(step, Action) for step in plan[agent])


def stream(
    domains: Sequence[Domain[Any]], first_seed: int = FIRST_SEED, repeats: int = REPEATS, **how: Any
) -> Iterator[Sample]:
    """Samples without end, the domains in turn, each with a teacher of its own; the same question at most so often."""
    seen: Counter[tuple[str, str]] = Counter()
    teachers = [Teacher(domain) for domain in domains]
    for number in itertools.count():
        domain, teacher = domains[number % len(domains)], teachers[number % len(domains)]
        for sample in collect(domain, teacher, first_seed + number, **how):
            question = (domain.name, "\n".join(compact_state(domain, decode_state(domain, sample.state))))
            seen[question] += 1
            if seen[question] <= repeats:
                yield sample


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file; a last line that was cut off is left out.

    Raises:
        InvalidValue: a line that is no sample.
    """
    lines = path.read_text("utf-8").split("\n")
    samples = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            data = json.loads(line)
            samples.append(Sample(**{**data, "history": tuple(data["history"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidValue(f"{path}:{number}", line[:60], f"a sample ({error})") from None
    return samples


def write_samples(path: Path, samples: Iterator[Sample], count: int) -> int:
    """Write ``count`` samples; goes on where a file of the same stream ends. Returns how many were added.

    The file's first lines are then the same as those of a run in one go.
    """
    done = len(read_samples(path)) if path.exists() else 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():  # a cut line goes
        kept = path.read_text("utf-8").split("\n")[:done]
        path.write_text("".join(f"{line}\n" for line in kept), "utf-8")
    added = 0
    with path.open("a", encoding="utf-8") as file:
        for sample in itertools.islice(samples, done, count):
            file.write(json.dumps(asdict(sample)) + "\n")
            file.flush()
            added += 1
            if added % 50 == 0:
                print(f"{done + added} of {count} samples", file=sys.stderr, flush=True)
    return added


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m polyarm_core.training.sft_data", description=__doc__)
    parser.add_argument("out", type=Path, help="file of samples, one JSON object a line")
    parser.add_argument("--samples", type=int, default=900)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS))
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first episode")
    parser.add_argument("--rate", type=float, default=EVENT_RATE, help="events for each frame")
    parser.add_argument("--wander", type=float, default=WANDER, help="share of segments with another plan")
    options = parser.parse_args(arguments)
    domains = [open_domain(f"overcooked:{layout}") for layout in options.layouts]
    samples = stream(domains, options.seed, rate=options.rate, wander=options.wander)
    write_samples(options.out, samples, options.samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
