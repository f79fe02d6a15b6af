"""Data for SFT by event-driven augmentation (SyncPlan A.7): one question and answer for each update of the chains.

``python -m polyarm_core.training.sft_data OUT.jsonl --samples 900`` plays episodes under disturbances and writes a line
for each boundary: the state, what was left of the chains, the corrections so far (the question), the new chains (the
answer), and how many actions each agent executed until the next boundary (metadata). The prompt is not stored but made
from these when a model is trained, so one file serves every variant.

With ``--learner ADAPTER`` the plans that are executed are those of a model that was tuned before, and the answers are
still the teacher's: the states are then those that its own mistakes lead to (DAgger, Ross et al., AISTATS 2011).

Seeds of episodes start at ``FIRST_SEED``, far from the seeds of evaluation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_core.training.teacher import Teacher

FIRST_SEED = 1_000_000
LAYOUTS = ("coordination_ring", "counter_circuit", "asymmetric_advantages")
EVENT_RATE = 0.06  # events for each frame; the protocol has three in an episode, but every update is a sample
ERRORS = 0.02  # updates without need for each frame, as false alarms bring them
WANDER = 0.3  # share of segments that do not execute the answer but some other plan, for states off the best path
WANDERED = 40  # candidates from which it is drawn
LEARNER_CALLS = 12  # of a learner in an episode at most
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
    max_calls: int | None = None,
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
        max_calls: requests in the episode at most; a learner that is wrong every time asks every few frames.
    """
    rng = np.random.default_rng(seed)
    schedule = EventSchedule.at_rate(seed, rate, events).events if events else ()
    recorder = Recorder(domain, teacher, learner, wander, rng)
    episode = run_episode(domain, recorder, Surprise(domain, errors, rng), schedule, max_calls=max_calls, seed=seed)
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
    domains: Sequence[Domain[Any]],
    first_seed: int = FIRST_SEED,
    repeats: int = REPEATS,
    learner: Callable[[Domain[Any]], Coordinator[Any]] | None = None,
    jobs: int = 1,
    **how: Any,
) -> Iterator[Sample]:
    """Samples without end, the domains in turn; the same question at most so often.

    Args:
        domains: in turn, an episode each.
        first_seed: of the first episode; the next one has the next seed.
        repeats: of a question.
        learner: makes the coordinator that executes its own plans, for one episode.
        jobs: episodes at a time, for a learner that writes several texts at once; their order stays that of the seeds.
            Above 1 the domains are those of :func:`open_domain`.
        how: as in :func:`collect`.
    """
    seen: Counter[tuple[str, str]] = Counter()

    def episode(number: int) -> list[Sample]:
        domain = domains[number % len(domains)]
        if jobs > 1:  # its tables are filled as it is used
            domain = open_domain(domain.name)
        executes = None if learner is None else learner(domain)
        return collect(domain, Teacher(domain), first_seed + number, learner=executes, **how)

    for number, samples in enumerate(_in_order(episode, jobs)):
        domain = domains[number % len(domains)]
        for sample in samples:
            question = (domain.name, "\n".join(compact_state(domain, decode_state(domain, sample.state))))
            seen[question] += 1
            if seen[question] <= repeats:
                yield sample


def _in_order(work: Callable[[int], list[Sample]], jobs: int) -> Iterator[list[Sample]]:
    """Results of 0, 1, 2 and so on, ``jobs`` of them being worked on."""
    if jobs == 1:
        yield from map(work, itertools.count())
        return
    pool = ThreadPoolExecutor(jobs)
    running: deque[Future[list[Sample]]] = deque(pool.submit(work, number) for number in range(jobs))
    try:
        for number in itertools.count(jobs):
            yield running.popleft().result()
            running.append(pool.submit(work, number))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def open_learner(adapter: Path, threads: int = 1) -> Callable[[Domain[Any]], Coordinator[Any]]:
    """Coordinators that ask one tuned model, each for one episode.

    Args:
        adapter: folder of :mod:`polyarm_core.training.sft`.
        threads: of the CPU.

    Raises:
        MissingExtra, ModelUnavailable: libraries or weights are not there.
    """
    from polyarm_core.coordinator.model import ModelCoordinator
    from polyarm_core.llm.batched import BatchedModel
    from polyarm_core.llm.remembering import RememberingModel
    from polyarm_core.llm.transformers_backend import TransformersModel
    from polyarm_core.training.lora import model_folder, trained_variant

    weights = TransformersModel(model_folder(str(adapter)), threads=threads, dtype="bfloat16", packed=True)
    model = RememberingModel(BatchedModel(weights), weights.name)
    variant = trained_variant(adapter)
    return lambda domain: ModelCoordinator(domain, model, variant=variant)


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
    parser.add_argument("--errors", type=float, default=ERRORS, help="updates without need for each frame")
    parser.add_argument("--wander", type=float, default=WANDER, help="share of segments with another plan")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of the same question, e.g. the start")
    parser.add_argument("--learner", type=Path, help="adapter of a tuned model that executes its own plans")
    parser.add_argument("--jobs", type=int, default=1, help="episodes at a time with a learner")
    options = parser.parse_args(arguments)
    try:
        domains = [open_domain(f"overcooked:{layout}") for layout in options.layouts]
        samples = stream(
            domains,
            options.seed,
            options.repeats,
            None if options.learner is None else open_learner(options.learner),
            options.jobs,
            rate=options.rate,
            errors=options.errors,
            wander=options.wander,
            max_calls=None if options.learner is None else LEARNER_CALLS,
        )
        write_samples(options.out, samples, options.samples)
    except PolyarmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
