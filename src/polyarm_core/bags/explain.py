"""A recorded run in words: per slot what the plan said, who proposed what, what the twin answered, and why.

In a world that moves in frames there is no twin; there a paragraph is about a frame in which something happened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyarm_core.bags.reader import Bag, Recorded, constant_name
from polyarm_core.bags.table import EPISODE, OPENING, REPORT, RESULT, VERDICT, WORLD
from polyarm_core.bench.tables import format_time
from polyarm_core.constraints import Action

FRAME = "polyarm/msg/FrameState"
PLAN, PLAN_CALL, PLAN_STATE, STALENESS, REQUEST, DETECTION, DISTURBANCE = (
    f"polyarm/msg/{name}"
    for name in ("Plan", "PlanCall", "PlanState", "Staleness", "ReplanRequest", "Detection", "Disturbance")
)
TYPES = (
    WORLD, FRAME, OPENING, REPORT, VERDICT, RESULT, EPISODE,
    PLAN, PLAN_CALL, PLAN_STATE, STALENESS, REQUEST, DETECTION, DISTURBANCE,
)  # fmt: skip
WHILE_MOVING = ("dropped", "slipped")
"""Kinds of disturbances that come while arms move; every other comes before the slot."""

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
    "fallback": "the model or the plan failed or was late",
    "chain": "by its chain",
}
SOURCES = {"coordinator": "the coordinator", "repair": "mending the plan"}


@dataclass
class _Slot:
    """What was recorded of one slot, by type of the message."""

    said: dict[str, list[Recorded]] = field(default_factory=lambda: defaultdict(list))

    def of(self, kind: str) -> list[Recorded]:
        """Messages of a type by sender and sequence, none twice: a latched one may have been heard again."""
        items = {
            (getattr(m := i.message, "arm", ""), m.epoch, m.sequence): i for i in reversed(self.said.get(kind, []))
        }
        return [items[key] for key in sorted(items)]

    @property
    def worth_telling(self) -> bool:
        """Whether more is known than where the plan stands and that it is good."""
        if any(item.message.stale for item in self.said.get(STALENESS, [])):
            return True
        return bool(self.said.keys() - {PLAN_STATE, STALENESS})


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
    """Lines of text about each slot of a bag: plan, opening, proposals by arm, verdict, results, what happened.

    Args:
        path: the bag.
        episode: only this one, counted from 1 in the order of the bag.
        slot: only this one (of every episode, or of ``episode``).

    Raises:
        BagError, InvalidValue: there is no readable bag.
    """
    slots: dict[tuple[int, int], _Slot] = defaultdict(_Slot)
    seeds: dict[int, int] = {}  # of every episode, in the order of the bag
    framed: set[int] = set()
    ends: dict[int, Any] = {}
    plans: dict[int, dict[int, Any]] = defaultdict(dict)  # episode -> number -> Plan
    with Bag(path) as bag:
        types = {topic.name: topic.type_name for topic in bag.topics}
        # Topics are separate channels, so the order of reception is not the order of events: sorted by slot instead.
        for item in bag.messages(bag.of_type(*TYPES)):
            kind, message = types[item.topic], item.message
            if kind in (WORLD, FRAME):
                if message.episode > 0:
                    seeds.setdefault(message.episode, message.seed)
                    framed |= {message.episode} if kind == FRAME else set()
            elif kind == EPISODE:
                ends[message.episode] = message
            else:
                slots[message.episode, message.slot].said[kind].append(item)
                if kind == PLAN:
                    plans[message.episode][message.number] = message

    shown = False
    for number, (key, seed) in enumerate(seeds.items(), start=1):
        if episode is not None and episode != number:
            continue
        for current in sorted(place[1] for place, said in slots.items() if place[0] == key and said.worth_telling):
            if slot is None or slot == current:
                shown = True
                yield f"episode {number} (seed {seed}), {'frame' if key in framed else 'slot'} {current}"
                yield from _slot(slots[key, current], sorted(plans[key]))
        if slot is None and key in ends:
            shown = True
            yield _episode_end(number, ends[key], "frames" if key in framed else "slots")
    if not shown:
        of_episode = f" of episode {episode}" if episode is not None else ""
        yield f"nothing was recorded{of_episode}" + (f" in slot {slot}" if slot is not None else "")


def _slot(slot: _Slot, numbers: Sequence[int]) -> Iterator[str]:
    """The lines of one slot. ``numbers``: of all plans of the episode, ascending."""
    opening, verdicts = next(iter(slot.of(OPENING)), None), slot.of(VERDICT)
    answered = verdicts[0].at if verdicts else None
    events = [item.message for item in slot.of(DISTURBANCE)]
    yield from (_disturbance(m, "before it, ") for m in events if m.kind not in WHILE_MOVING)
    yield from _staleness([item.message for item in slot.of(STALENESS)])
    yield from (_request(item.message) for item in slot.of(REQUEST))
    detections = slot.of(DETECTION)
    # What waits and vetoes together amount to, the coordinator knows when the twin has answered.
    late = [item for item in detections if answered is not None and item.at > answered]
    yield from (_detection(item.message) for item in detections if item not in late)
    yield from _plans(slot, numbers)
    for item in slot.of(PLAN_STATE)[-1:]:
        yield _standings(item.message)
    if opening is not None:
        yield f"  the twin asks {', '.join(opening.message.expected) or 'nobody'}"
    yield from (_proposal(item.message) for item in slot.of(REPORT))
    for item in verdicts:
        yield from _verdict(item.message, None if opening is None else item.at - opening.at)
    yield from (_disturbance(m, "meanwhile, ") for m in events if m.kind in WHILE_MOVING)
    yield from (_result(m) for m in sorted((i.message for i in slot.of(RESULT)), key=lambda m: (m.epoch, m.sequence)))
    yield from (_detection(item.message) for item in late)


def _disturbance(message: Any, when: str) -> str:
    return f"  {when}{message.what or 'something happened'} ({message.kind})"


def _staleness(messages: Sequence[Any]) -> Iterator[str]:
    """One line for each plan that counted as stale: the states of a slot are many, and much alike."""
    for plan in sorted({message.plan for message in messages if message.stale}):
        values = [m for m in messages if m.plan == plan and m.stale]
        top = max(values, key=lambda m: float(m.probability))
        states = f" (in {len(values)} states of the world)" if len(values) > 1 else ""
        yield f"  plan {plan} looks stale: probability {top.probability:.2f}, threshold {top.threshold:.2f}{states}"


def _request(message: Any) -> str:
    details = [message.cause or message.reason]
    details += [f"probability {message.probability:.2f}"] if message.probability else []
    details += [f"about {', '.join(message.agents)}"] if message.agents else []
    return f"  another plan is asked for instead of plan {message.plan}: {message.reason} ({'; '.join(details)})"


def _detection(message: Any) -> str:
    kind = constant_name(message, "KIND_", message.kind).replace("_", " ")
    cycle = list(message.cycle)
    pairs = [f"{one} waits for {other}" for one, other in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True)]
    circle = f", {' and '.join(pairs)}" if pairs else f" of {', '.join(message.agents)}" if message.agents else ""
    return f"  {kind} in plan {message.plan}{circle}: {message.reason}"


def _plans(slot: _Slot, numbers: Sequence[int]) -> Iterator[str]:
    """What was asked for and why, what came of it, and what it replaces."""
    new = {item.message.number: item.message for item in slot.of(PLAN)}
    for item in slot.of(PLAN_CALL):
        call = item.message
        source = constant_name(call, "SOURCE_", call.source)
        how = [SOURCES.get(source, source)]
        how += [format_time(call.seconds)] if call.seconds else []
        how += [f"{call.prompt_tokens} tokens read, {call.tokens} written"] if call.prompt_tokens or call.tokens else []
        why = call.reason if call.cause in ("", call.reason) else f"{call.reason}: {call.cause}"
        if call.number in new:
            yield from _plan(new.pop(call.number), numbers, f"{why} ({', '.join(how)})")
        elif call.number:
            yield f"  plan {call.number} is made for {why} ({', '.join(how)}), but never told"
        else:
            yield f"  no plan for {why} ({', '.join(how)})" + (f": {call.error}" if call.error else "")
    for plan in new.values():
        yield from _plan(plan, numbers, plan.reason)


def _plan(plan: Any, numbers: Sequence[int], why: str) -> Iterator[str]:
    before = [number for number in numbers if number < plan.number]
    yield f"  plan {plan.number}" + (f" replaces plan {before[-1]}" if before else "") + f", {why}"
    for chain in plan.chains:
        yield f"    {chain.agent}: {'; '.join(chain.steps) or 'nothing to do'}"


def _standings(message: Any) -> str:
    if not message.plan:
        return "  there is no plan yet"
    if not message.sound:
        return f"  plan {message.plan} is not followed any more, the next one is being made"
    words = []
    for head in message.heads:
        standing = constant_name(head, "STANDING_", head.standing)
        if standing == "act":
            words.append(f"{head.agent} is to {_action(head.action)}" if head.action.verb else f"{head.agent} acts")
        elif standing == "wait":
            words.append(f"{head.agent} waits" + (f" ({head.why})" if head.why else ""))
        else:
            words.append(f"{head.agent} has {'done its part' if standing == 'ended' else 'no step'}")
    return f"  by plan {message.plan} {'; '.join(words) or 'nobody acts'}"


def _action(message: Any) -> str:
    return str(Action(message.verb, message.entity, message.placement))


def _proposal(message: Any) -> str:
    how = constant_name(message, "DECIDED_BY_", message.decided_by)
    details = [DECIDED_BY.get(how, how)]
    if plan := getattr(message, "plan", 0):  # a bag of an older version has none
        details.append(f"plan {plan}")
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


def _episode_end(number: int, message: Any, unit: str) -> str:
    end = "success" if message.success else message.reason
    text = (
        f"episode {number} (seed {message.seed}): {end} after {message.slots} {unit} and "
        f"{message.sim_time:.1f} s of simulation, {message.arm_contacts} contacts between arms"
    )
    if getattr(message, "plan_calls", 0):
        text += (
            f"; {message.plan_calls} calls of the coordinator, {message.plan_repairs} plans mended, "
            f"{message.detections} detections, {message.disturbances} disturbances"
        )
    return text
