"""From a state to joint plans: a best-first search over what arms can do together, then chains with waits.

The search is serial: each of its steps is one *unit*, the least set of actions that is consistent on its own (an
action; all members of a group; an action with those that hold or produce what it requires). Its order is then relaxed
to what is needed: a step waits only for earlier steps with which it shares an object, a placement or a condition, and
the twin settles what is left. So arms work at the same time although the search never lets them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from polyarm_core.chains import terms
from polyarm_core.chains.terms import Chain, Plan, Step, Wait, WaitAgents, WaitEntity
from polyarm_core.constraints import Action, Declaration, Intent
from polyarm_core.declaration import declare
from polyarm_core.domains.arms.world import PAN, AbstractWorld, ArmsState
from polyarm_core.liveness import RelayGraph
from polyarm_core.orchestrator import is_consistent
from polyarm_core.world import all_true, is_progress

Unit = Mapping[str, Action]
FAR_AWAY = 50
"""Hops that count for an object that cannot come to its goal at all."""


def chain_action(action: Action) -> terms.Action:
    """An action of a scenario as it is written in a chain: ``move(mug, coaster_mug)``."""
    return terms.Action(action.verb, tuple(filter(None, (action.entity, action.placement))))


@dataclass(frozen=True)
class Guide:
    """Hops that each object still needs by relays, whatever the others do."""

    world: AbstractWorld

    @cached_property
    def _hops(self) -> dict[str, dict[str, int]]:
        scenario = self.world.scenario
        table: dict[str, dict[str, int]] = {}
        for name, entity in scenario.entities.items():
            if entity.goal is None:
                continue
            hops = {entity.goal: 0}
            frontier = [entity.goal]
            while frontier:
                reached = frontier.pop(0)
                for arm in scenario.arms.values():
                    if reached not in arm.reach:
                        continue
                    for source in arm.reach:
                        if source not in hops and is_progress(scenario, name, source, reached):
                            hops[source] = hops[reached] + 1
                            frontier.append(source)
            table[name] = hops
        return table

    def hops(self, name: str, place: str) -> int:
        """Moves from a place to the goal, 0 for an object without goal."""
        return self._hops[name].get(place, FAR_AWAY) if name in self._hops else 0

    def left(self, state: ArmsState) -> int:
        """Moves that all objects still need, and conditions of success that are not true."""
        scenario = self.world.scenario
        hops = sum(self.hops(name, place) for name, place in zip(self.world.objects, state.places, strict=True))
        hops += sum(1 for holder in state.holders if holder)
        conditions = self.world.view(state).world.conditions
        return hops + sum(1 for literal in scenario.success.conditions if not all_true([literal], conditions))


def units(world: AbstractWorld, state: ArmsState) -> Iterator[Unit]:
    """What can be done now by itself: minimal consistent sets of legal actions, in a fixed order."""
    scenario, view = world.scenario, world.view(state)
    where, conditions = world.where(state), view.world.conditions
    options: dict[str, list[tuple[Action, Declaration]]] = {
        arm: [(a, declare(scenario, arm, a, where)) for a in world.legal(state, arm) if not a.is_stay]
        for arm in world.arms
    }
    for arm in world.arms:
        for action, declaration in options[arm]:
            if declaration.holds and not declaration.produces and not declaration.group:
                continue  # it only helps others
            group = sorted(declaration.group)
            if group and group[0] != arm:
                continue  # the group is found once, by its first member
            parts: list[list[tuple[str, Action]]] = [[(arm, action)]]
            for mate in group[1:]:
                alike = [a for a, d in options[mate] if d.group == declaration.group and a.verb == action.verb]
                parts.append([(mate, a) for a in alike])
            wanted = (declaration.requires_held | declaration.requires_produced) - conditions
            for condition in sorted(wanted):
                helpers = [
                    (name, a)
                    for name in world.arms
                    if name != arm and name not in group
                    for a, d in options[name]
                    if condition in d.holds or (condition in d.produces and condition not in declaration.requires_held)
                ]
                parts.append(helpers)
            for combination in product(*parts):
                unit = dict(combination)
                intents = [
                    Intent(name, scenario.arm_index[name], a, declare(scenario, name, a, where))
                    for name, a in unit.items()
                ]
                if len(unit) == len(parts) and is_consistent(intents, conditions):
                    yield unit


def serial_plan(
    world: AbstractWorld,
    graph: RelayGraph,
    guide: Guide,
    state: ArmsState,
    tie_break: Mapping[str, int],
    budget: int = 3000,
) -> list[Unit] | None:
    """Units one after the other that finish the task; None when none were found within the budget.

    Args:
        world, graph, guide: of the scenario.
        state: now; that arms are stopped is ignored, blocked placements are not used.
        tie_break: arm -> rank; among equally good states, those reached by arms of low rank come first.
        budget: states that are expanded.
    """
    first = state._replace(slot=0, waited=(0,) * len(world.arms), stopped=(0,) * len(world.arms), finished=False)
    if guide.left(first) == 0:
        return []
    count = 0
    queue: list[tuple[float, int, int, ArmsState, tuple[Unit, ...]]] = [(guide.left(first), 0, 0, first, ())]
    seen = {first}
    while queue and budget > 0:
        _, _, _, at, path = heapq.heappop(queue)
        budget -= 1
        for unit in units(world, at):
            after = world.apply(at, unit)
            if after in seen:
                continue
            seen.add(after)
            if after.finished:
                return [*path, unit]
            if graph.reaches_goal(world.where(after)) is False:
                continue
            count += 1
            # Moves cost the same and are hardly ever wasted, so what is left decides; short paths break ties.
            cost = 2.0 * guide.left(after) + len(path)
            heapq.heappush(queue, (cost, min(tie_break[arm] for arm in unit), count, after, (*path, unit)))
    return None


@dataclass
class _Use:
    """What one action of a serial plan touches.

    ``changes``: resources (objects, placements, the pan) and conditions that it changes; ``reads``: condition ->
    value that it needs; ``brings``: object -> placement where it is afterwards; ``takes``: the other way.
    """

    arm: str
    action: Action
    changes: frozenset[str]
    reads: Mapping[str, bool]
    brings: tuple[str, str]
    takes: tuple[str, str]
    made: Mapping[str, bool] = field(default_factory=dict)


def _uses(world: AbstractWorld, before: ArmsState, after: ArmsState, unit: Unit) -> list[_Use]:
    scenario, where = world.scenario, world.where(before)
    was, now = (world.view(s).world.conditions for s in (before, after))
    made = {name: name in now for name in was ^ now}
    supplied = set(was).union(*(declare(scenario, arm, a, where).holds for arm, a in unit.items()))
    found = []
    for arm, action in unit.items():
        operator = scenario.operator(arm, action.verb, action.entity, action.placement)
        literals = list(operator.legal_when if operator is not None else ())
        if action.placement:
            literals += scenario.placements[action.placement].legal_when
        declaration = declare(scenario, arm, action, where)
        literals += sorted((declaration.requires_held | declaration.requires_produced) - supplied)
        reads = {text.removeprefix("not "): not text.startswith("not ") for text in literals}
        things = {action.placement, action.entity}
        takes = brings = ("", "")
        if action.entity in world.index:
            takes = (action.entity, where[action.entity])
            brings = (action.entity, action.placement or where[action.entity])
            things.add(where[action.entity])
        if action.verb in ("sweep", "dump"):
            things.add(PAN)
        if action.verb == "hold":  # to hold changes nothing, and is done when it has served
            things = set()
        found.append(_Use(arm, action, frozenset(things - {""}), reads, brings, takes, made))
    return found


def to_plan(world: AbstractWorld, state: ArmsState, serial: Sequence[Unit]) -> Plan:
    """Chains in which every step waits for what it needs of other arms, and for nothing else."""
    uses: list[list[_Use]] = []
    at = state
    for unit in serial:
        after = world.apply(at, unit)
        uses.append(_uses(world, at, after, unit))
        at = after
    chains: dict[str, list[Step]] = {arm: [] for arm in world.arms}
    steps: dict[tuple[str, int], int] = {}  # number of an arm's step for a unit
    known: list[set[int]] = []  # units that are done for sure once unit u is
    last: dict[str, int] = {}
    for u, parts in enumerate(uses):
        sure: set[int] = set()
        for use in parts:
            done = {last[use.arm]} | known[last[use.arm]] if use.arm in last else set()
            atoms: list[WaitAgents | WaitEntity] = []
            for earlier in range(u - 1, -1, -1):
                if earlier in done:
                    continue
                other = next((o for o in uses[earlier] if _conflict(o, use)), None)
                if other is None:
                    continue
                atoms.append(_atom(other, use, steps[other.arm, earlier]))
                done |= {earlier} | known[earlier]
            for pair in (atoms[i : i + 2] for i in range(0, len(atoms), 2)):
                chains[use.arm].append(Wait(tuple(pair), "&" if len(pair) == 2 else None))
            chains[use.arm].append(chain_action(use.action))
            steps[use.arm, u] = len(chains[use.arm])
            sure |= done
        known.append(sure)
        for use in parts:
            last[use.arm] = u
    return Plan.of({arm: tuple(chain) for arm, chain in chains.items()})


def _conflict(earlier: _Use, later: _Use) -> bool:
    return bool(
        earlier.changes & later.changes
        or earlier.made.keys() & later.reads.keys()
        or earlier.reads.keys() & later.made.keys()
    )


def _atom(earlier: _Use, later: _Use, step: int) -> WaitAgents | WaitEntity:
    """The wait that says most clearly what is needed: an object has come, a condition is met, else a step is done."""
    name, place = later.takes
    if name and earlier.brings == later.takes and earlier.takes != later.takes:
        return WaitEntity(name, "place", "==", place)
    for condition, value in later.reads.items():
        if earlier.made.get(condition) == value:
            return WaitEntity(condition, "met", "==", value)
    return WaitAgents(earlier.arm, "done", step)


def plans(world: AbstractWorld, graph: RelayGraph, guide: Guide, state: ArmsState) -> Iterator[Plan]:
    """Joint plans from here, each once: by several orders of the arms; last those that use what is blocked."""
    seen: set[Plan] = set()
    states = [state] if not state.blocked else [state, state._replace(blocked=())]
    count = len(world.arms)
    orders = [range(count), range(count - 1, -1, -1), [(k + count // 2) % count for k in range(count)]]
    for at in states:
        for order in orders:
            ranks = dict(zip(world.arms, order, strict=True))
            serial = serial_plan(world, graph, guide, at, ranks)
            if serial is None:
                break
            plan = to_plan(world, at, serial)
            if plan not in seen:
                seen.add(plan)
                yield plan


def patched(plan: Plan, agent: str, remaining: Plan) -> Plan:
    """``remaining`` with this agent's chain taken from another plan.

    Waits on steps of the others are renumbered to the same action in their remaining chains, or left out where they
    no longer have it (it is done).
    """

    def renumber(atom: WaitAgents | WaitEntity) -> WaitAgents | WaitEntity | None:
        if isinstance(atom, WaitEntity):
            return atom
        wanted = plan[atom.agent][atom.step - 1]
        for number, step in enumerate(remaining[atom.agent], 1):
            if step == wanted:
                return WaitAgents(atom.agent, atom.milestone, number)
        return None

    chain: list[Step] = []
    for step in plan[agent]:
        if not isinstance(step, Wait):
            chain.append(step)
            continue
        atoms = tuple(atom for atom in map(renumber, step.atoms) if atom is not None)
        if atoms:
            chain.append(Wait(atoms, step.connective if len(atoms) == 2 else None))
    return with_chain(remaining, agent, tuple(chain))


def with_chain(remaining: Plan, agent: str, chain: Chain) -> Plan:
    """``remaining`` with another chain for one agent."""
    return Plan(tuple((name, chain if name == agent else old) for name, old in remaining.chains))
