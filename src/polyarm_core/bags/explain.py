"""A recorded run in words: per slot who proposed what, what the twin answered, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyarm_core.bags.reader import Bag, Recorded, constant_name
from polyarm_core.bags.table import EPISODE, OPENING, REPORT, RESULT, VERDICT, episode_order
from polyarm_core.bench.tables import format_time
from polyarm_core.constraints import Action

#: Why an arm was vetoed, by rule; ``{rival}`` is "another arm" where the twin named none.
REASONS = {
    "exclusion": "{element} is taken by {rival}",
    "synchronisation": "its group is not complete and unanimous (missing: {rival})",
    "produced": "condition {element} is neither true nor produced in this slot{offer}",
    "held": "condition {element} is neither true nor held in this slot{offer}",
    "occupied": "{element} is physically occupied{by}",
    "dead_end": "after it the goal could no longer be reached{beside}",
    "illegal": "it is not legal in the world that the twin sees ({element})",
    "silent": "no report came before the deadline",
}
DECIDED_BY = {
    "model": "by its model",
    "only_choice": "the only legal action",
    "heuristic": "by heuristic",
    "fallback": "the model failed or was late",
}


def reason_in_words(rule: str, element: str, rival: str) -> str:
    """Why an arm was vetoed: rule, element and rival in one clause; a rule without words here by its name."""
    words = REASONS.get(rule)
    if words is None:
        return ", ".join(filter(None, (rule, element, rival)))
    return words.format(
        element=element or "an element",
        rival=rival or "another arm",
        offer=f" ({rival} offered it, but is not admitted)" if rival else "",
        by=f" by {rival}" if rival else "",
        beside=f" beside the action of {rival}" if rival else "",
    )


def explain_bag(path: Path, episode: int | None = None, slot: int | None = None) -> Iterator[str]:
    """Lines of text about each slot of a bag: opening, proposals by arm, verdict, results.

    Args:
        path: the bag.
        episode: only this one, counted from 1 in the order of the bag.
        slot: only this one (of every episode, or of ``episode``).

    Raises:
        BagError, InvalidValue: there is no readable bag.
    """
    openings: dict[tuple[int, int], Recorded] = {}
    verdicts: dict[tuple[int, int], list[Recorded]] = {}
    proposals: dict[tuple[int, int], list[Any]] = {}
    results: dict[tuple[int, int], list[Any]] = {}
    ends: dict[int, Any] = {}
    with Bag(path) as bag:
        order = episode_order(bag)
        types = {topic.name: topic.type_name for topic in bag.topics}
        # Topics are separate channels, so the order of reception is not the order of events: sorted by slot instead.
        for item in bag.messages(bag.of_type(OPENING, REPORT, VERDICT, RESULT, EPISODE)):
            kind, message = types[item.topic], item.message
            if kind == EPISODE:
                ends[message.episode] = message
                continue
            place = (message.episode, message.slot)
            if kind == OPENING:
                openings.setdefault(place, item)
            elif kind == VERDICT:
                verdicts.setdefault(place, []).append(item)
            else:
                (proposals if kind == REPORT else results).setdefault(place, []).append(message)

    shown = False
    for number, (key, seed) in enumerate(order.items(), start=1):
        if episode is not None and episode != number:
            continue
        slots = sorted(
            {place[1] for table in (openings, proposals, verdicts, results) for place in table if place[0] == key}
        )
        for current in slots:
            if slot is not None and slot != current:
                continue
            shown, place = True, (key, current)
            yield f"episode {number} (seed {seed}), slot {current}"
            opening = openings.get(place)
            if opening is not None:
                yield f"  the twin asks {', '.join(opening.message.expected) or 'nobody'}"
            for message in sorted(proposals.get(place, []), key=lambda m: (m.arm, m.epoch, m.sequence)):
                yield _proposal(message)
            for item in verdicts.get(place, []):
                yield from _verdict(item.message, None if opening is None else item.at - opening.at)
            for message in results.get(place, []):
                yield _result(message)
        if slot is None and key in ends:
            shown = True
            yield _episode_end(number, ends[key])
    if not shown:
        of_episode = f" of episode {episode}" if episode is not None else ""
        yield f"nothing was recorded{of_episode}" + (f" in slot {slot}" if slot is not None else "")


def _action(message: Any) -> str:
    return str(Action(message.verb, message.entity, message.placement))


def _proposal(message: Any) -> str:
    how = constant_name(message, "DECIDED_BY_", message.decided_by)
    details = [DECIDED_BY.get(how, how)]
    if how == "model":
        details += [f"score {message.score:.2f}", format_time(message.model_time)]
    needs = [
        *(f"group {name}" for name in message.declaration.group),
        *(f"needs {name}" for name in message.declaration.requires_produced),
        *(f"needs {name} held" for name in message.declaration.requires_held),
        *(f"produces {name}" for name in message.declaration.produces),
        *(f"holds {name}" for name in message.declaration.holds),
    ]
    declared = ", ".join([*message.declaration.exclusive, *needs])
    return f"  {message.arm} proposes {_action(message.action)} ({', '.join(details)})" + (
        f"; declares {declared}" if declared else ""
    )


def _verdict(message: Any, waited: int | None) -> Iterator[str]:
    after = "" if waited is None else f" after {format_time(max(0, waited) / 1e9)}"
    bound = "proven optimal" if message.proven else f"at most {message.upper_bound} possible"
    yield f"  verdict{after}: {message.admitted} admitted by {message.strategy} ({bound})"
    for answer in message.verdicts:
        decision = constant_name(answer, "DECISION_", answer.decision)
        rule = constant_name(answer, "RULE_", answer.rule)
        action = _action(answer.action)
        if decision == "admit":
            lease = f" under token {answer.lease.token}" if answer.lease.token else ""
            yield f"    {answer.arm}: {action} is admitted{lease}"
            continue
        what = "must drop it and choose again" if decision == "yield" else "waits and keeps the intention"
        subject = f"{answer.arm}: {action}" if rule != "silent" else f"{answer.arm}"
        yield f"    {subject} {what}: {reason_in_words(rule, answer.element, answer.rival)} ({rule.replace('_', ' ')})"


def _result(message: Any) -> str:
    outcome = constant_name(message, "OUTCOME_", message.outcome)
    why = ": " + ", ".join(filter(None, (message.reason, message.text))) if message.reason or message.text else ""
    return f"  {message.arm}: {_action(message.action)} {outcome} after {message.duration:.1f} s of simulation{why}"


def _episode_end(number: int, message: Any) -> str:
    end = "success" if message.success else message.reason
    return (
        f"episode {number} (seed {message.seed}): {end} after {message.slots} slots and "
        f"{message.sim_time:.1f} s of simulation, {message.arm_contacts} contacts between arms"
    )
