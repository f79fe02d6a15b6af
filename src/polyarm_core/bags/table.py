"""A bag as tables: what it holds, and its episodes counted anew from the recorded messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyarm_core.bags.reader import Bag, BagError, Recorded, constant_name
from polyarm_core.bench.figures import Figures
from polyarm_core.constraints import STAY_VERB
from polyarm_core.episode import (
    ABORTED,
    SUCCESS,
    Answer,
    Detection,
    Disturbance,
    EpisodeSummary,
    EpisodeTally,
    Event,
    Limits,
    Opening,
    PlanCall,
    Plant,
    PlanTraffic,
    Report,
    Result,
    Verdict,
    add_figures,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

WORLD = "polyarm/msg/WorldState"
OPENING = "polyarm/msg/SlotOpening"
REPORT = "polyarm/msg/IntentReport"
VERDICT = "polyarm/msg/SlotVerdict"
RESULT = "polyarm/msg/ActionResult"
EPISODE = "polyarm/msg/EpisodeResult"
PLAN_CALL = "polyarm/msg/PlanCall"
DETECTION = "polyarm/msg/Detection"
DISTURBANCE = "polyarm/msg/Disturbance"
TRAFFIC = ("polyarm/msg/Plan", "polyarm/msg/PlanState", "polyarm/msg/ReplanRequest")
TYPES = (WORLD, OPENING, REPORT, VERDICT, RESULT, EPISODE, PLAN_CALL, DETECTION, DISTURBANCE, *TRAFFIC)


def info_table(path: Path) -> list[RenderableType]:
    """What ``polyarm bag info`` prints: one line about the bag and one row per topic."""
    from rich.table import Table

    with Bag(path) as bag:
        table = Table("topic", "type", "messages", "QoS", box=None, pad_edge=False, header_style="bold")
        table.columns[2].justify = "right"
        for topic in bag.topics:
            policy = ", ".join(filter(None, (topic.reliability, topic.durability))).replace("_", " ")
            table.add_row(topic.name, topic.type_name, f"{topic.count:,}", policy)
        notes = ", ".join(f"{key} {value}" for key, value in bag.custom.items() if len(value) <= 64)
        head = f"{path}: {bag.count:,} messages in {bag.duration:.1f} s" + (f" ({notes})" if notes else "")
    return [head, table]


def episode_order(bag: Bag) -> dict[int, int]:
    """Number that the plant gave an episode -> its seed, in the order of the bag; users count from 1 in this order."""
    seeds: dict[int, int] = {}
    for item in bag.messages(bag.of_type(WORLD)):
        if item.message.episode > 0:
            seeds.setdefault(item.message.episode, item.message.seed)
    return seeds


def episodes_of_bag(path: Path) -> list[EpisodeSummary]:
    """Every episode in a bag, counted from openings, reports, verdicts, results and world states.

    Times are those of the recorder. Whether an episode succeeded and why it ended is taken from its recorded result
    where there is one; an episode without is judged by what was recorded of it.

    Raises:
        BagError: the bag holds no episode, or more than one cell.
    """
    with Bag(path) as bag:
        types = {topic.name: topic.type_name for topic in bag.topics if topic.type_name in TYPES}
        for type_name in TYPES:
            if len(found := [name for name, kind in types.items() if kind == type_name]) > 1:
                raise BagError(f"{path} holds several cells ({', '.join(found)}); only one can be tabulated")
        name = bag.custom.get("scenario", "")
        tallies: dict[int, EpisodeTally] = {}
        results: dict[int, tuple[float, Any]] = {}
        last: dict[int, float] = {}
        for item in bag.messages(list(types)):
            message, at, kind = item.message, item.at / 1e9, types[item.topic]
            episode = message.episode
            if kind == EPISODE:
                results[episode] = (at, message)
            elif episode > 0 and episode not in results:
                if episode not in tallies:
                    # Limits are the monitor's affair; the recorded result says which of them was reached.
                    tallies[episode] = EpisodeTally(name, episode, 0, Limits(slots=2**32, stuck=2**32, time=1e12), at)
                if kind == WORLD:
                    tallies[episode].seed = message.seed
                last[episode] = at
                tallies[episode].add(event_of(kind, item))
    if not tallies:
        raise BagError(f"{path} holds no episode")
    return [_summary(tally, results.get(number), last[number]) for number, tally in sorted(tallies.items())]


def _summary(tally: EpisodeTally, result: tuple[float, Any] | None, last: float) -> EpisodeSummary:
    if result is None:
        return tally.summary(last, tally.stop_reason(last) or ABORTED)
    at, message = result
    summary = tally.summary(at, SUCCESS if message.success else message.reason or ABORTED)
    # A bag of an older version does not say them.
    control, disturb = getattr(message, "control", ""), getattr(message, "disturb", "")
    return replace(
        summary,
        scenario=message.scenario,
        seed=message.seed,
        control=control or summary.control,
        disturb=disturb or summary.disturb,
    )


def event_of(type_name: str, item: Recorded) -> Event:
    """A recorded message as the event that the tally counts; ``at`` is the receive time in seconds."""
    message, at = item.message, item.at / 1e9
    if type_name == OPENING:
        return Opening(message.slot, at)
    if type_name == REPORT:
        return Report(
            arm=message.arm,
            epoch=message.epoch,
            sequence=message.sequence,
            slot=message.slot,
            at=at,
            size=item.size,
            decided_by=constant_name(message, "DECIDED_BY_", message.decided_by),
            decision_time=message.decision_time,
            model_time=message.model_time,
            prompt_tokens=message.prompt_tokens,
        )
    if type_name == VERDICT:
        return Verdict(message.epoch, message.slot, at, tuple(_answer(answer) for answer in message.verdicts))
    if type_name == RESULT:
        failed = constant_name(message, "OUTCOME_", message.outcome) == "failed"
        return Result(message.epoch, message.sequence, failed, message.sim_time)
    if type_name == PLAN_CALL:
        repair = constant_name(message, "SOURCE_", message.source) == "repair"
        tokens = message.prompt_tokens + message.tokens
        return PlanCall(message.epoch, message.sequence, repair, message.number > 0, tokens)
    if type_name == DETECTION:
        return Detection(message.epoch, message.sequence)
    if type_name == DISTURBANCE:
        return Disturbance(message.epoch, message.sequence)
    if type_name in TRAFFIC:
        return PlanTraffic(type_name, message.epoch, message.sequence, item.size)
    busy = any(constant_name(arm, "STATUS_", arm.status) == "moving" for arm in message.arms)
    return Plant(message.epoch, message.seed, at, message.sim_time, message.success, busy, message.arm_contacts)


def _answer(message: Any) -> Answer:
    rule = constant_name(message, "RULE_", message.rule)
    return Answer(
        message.arm,
        constant_name(message, "DECISION_", message.decision),
        "" if rule == "unset" else rule,
        message.action.verb != STAY_VERB,
    )


def bag_figures(episodes: Sequence[EpisodeSummary]) -> Figures:
    """The figures of a bag's episodes, named as those of the run that was recorded."""
    figures = Figures("polyarm bag table", [episode.seed for episode in episodes])
    scenario = episodes[0].scenario or "bag"
    add_figures(figures, scenario, episodes)
    return figures
