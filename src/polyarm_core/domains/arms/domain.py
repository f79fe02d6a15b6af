"""The arms of a scenario as a domain of the chain language, see the package."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from polyarm_core.chains import terms
from polyarm_core.chains.terms import Plan, Step, WaitAgents, WaitEntity
from polyarm_core.constraints import MOVE_VERB, STAY, Action
from polyarm_core.domains.arms import search
from polyarm_core.domains.arms.events import DISTURBANCES, SLIP, Events
from polyarm_core.domains.arms.slot import SlotOutcome, arbitrate_slot
from polyarm_core.domains.arms.world import PAN, AbstractWorld, ArmsState, free_placements
from polyarm_core.domains.interface import (
    ActionStatus,
    ActionTemplate,
    Attribute,
    Domain,
    Entity,
    Progress,
)
from polyarm_core.errors import InvalidValue
from polyarm_core.liveness import RelayGraph, draw_start
from polyarm_core.scenario import Occupied, Operator, Scenario, load_scenario
from polyarm_core.world import is_progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTHING, NOBODY = "nothing", "nobody"
FEATURES = (
    "x", "y",  # over the scene
    "empty", "holding", "stopped",  # of an arm
    "astray", "at_goal", "free", "held", "hops", "near",  # of an object; hops to its goal over the number of arms
    "clear", "occupied", "blocked",  # of a placement
    "unmet", "met",  # of a condition
)  # fmt: skip
"""What the staleness detector sees of an entity."""
OUTCOMES = 4096
"""Slots whose outcome is remembered between ``step`` and ``progress``, and over roll-outs that start alike."""

DESCRIPTIONS = {
    MOVE_VERB: "Take an object within reach and put it on a placement within reach.",
    "hold": "Keep a door open while another arm works behind it; done when that has happened.",
    "lift": "Lift one end of the rope together with the other arm.",
    "carry": "Carry the lifted rope over its groove together with the other arm.",
    "lower": "Lower the rope into its groove together with the other arm.",
    "set_down": "Set down the end of a rope that the other arm has lost.",
    "sweep": "Sweep what lies at a mark into the pan: one arm holds the pan, the other pushes.",
    "dump": "Empty the pan into the bin.",
}


class ArmsDomain(Domain[ArmsState]):
    """A scenario as the coordinator sees it: one frame is one slot, and the twin arbitrates what the team proposes.

    Args:
        scenario: the task, or the name or path of its file.

    Raises:
        InvalidValue: two things of the scenario have one name, or a verb is used with different arguments.
        ScenarioError, UnknownName: see `load_scenario`.
    """

    feature_count = len(FEATURES)

    def __init__(self, scenario: Scenario | str) -> None:
        self.scenario = scenario = load_scenario(scenario) if isinstance(scenario, str) else scenario
        self.world = AbstractWorld(scenario)
        self.name = f"arms:{scenario.name}"
        self.agents = tuple(scenario.arms)
        self.horizon = scenario.slots.limit
        slips = any(operator.holds for operator in scenario.operators)
        self.disturbances = tuple(item for item in DISTURBANCES if slips or item.name != SLIP)
        self._graph = RelayGraph(scenario)
        self._guide = search.Guide(self.world)
        self._events = Events(self.world, self._graph)
        self._places = (*scenario.placements, *((PAN, *self.world.bins) if self.world.sweepers else ()))
        self.entity_rows = (*self.agents, *scenario.entities, *scenario.placements, *scenario.conditions)
        doubled = sorted({name for name in self.entity_rows if self.entity_rows.count(name) > 1})
        if doubled:
            raise InvalidValue("names", doubled, "different names for arms, entities, placements and conditions")
        self._row = {name: row for row, name in enumerate(self.entity_rows)}
        spots = [p.xyz[:2] for p in scenario.placements.values()] + [a.base.xyz[:2] for a in scenario.arms.values()]
        corner = np.array(spots).min(axis=0)
        self._floor = corner, np.maximum(np.array(spots).max(axis=0) - corner, 1e-9)  # for features
        self._operators: dict[str, dict[str, list[Operator]]] = {}  # verb -> arm -> operators
        for operator in scenario.operators:
            for arm in operator.arms:
                self._operators.setdefault(operator.verb, {}).setdefault(arm, []).append(operator)
        self.vocabulary = self._vocabulary()
        self._moves = {arm: self._moves_of(arm) for arm in self.agents}
        self._put_downs = {arm: self._put_downs_of(arm) for arm in self.agents}
        table = {action for moves in (self._moves, self._put_downs) for arm in self.agents for action in moves[arm]}
        table |= {_action(operator) for operator in scenario.operators}
        self._controls: tuple[Action, ...] = (STAY, *sorted(table))
        self.control_count = len(self._controls)
        self._control_of = {search.chain_action(a): k for k, a in enumerate(self._controls) if not a.is_stay}
        self._outcomes: OrderedDict[tuple[ArmsState, tuple[int, ...]], SlotOutcome] = OrderedDict()
        self.attributes = self._attributes()
        self.background = (
            f"a team of robot arms, {', '.join(self.agents)}. {scenario.description} Each arm acts once in a slot; "
            "a digital twin lets those actions pass that do not disturb each other"
        )
        goals = [f"{name} to {e.goal}" for name, e in scenario.entities.items() if e.goal is not None]
        wanted = list(scenario.success.conditions)
        self.target = "to reach: " + ", ".join(goals + [f"{name} met" for name in wanted])

    def _vocabulary(self) -> tuple[ActionTemplate, ...]:
        templates = []
        movable = [(name, e.goal) for name, e in self.scenario.entities.items() if e.goal is not None]
        if movable:
            usage = f"{MOVE_VERB}({movable[0][0]}, {movable[0][1]})"
            templates.append(ActionTemplate(MOVE_VERB, ("object", "placement"), DESCRIPTIONS[MOVE_VERB], usage))
        for verb, by_arm in self._operators.items():
            operators = [operator for some in by_arm.values() for operator in some]
            shapes = {tuple(bool(v) for v in (o.entity, o.placement)) for o in operators}
            if len(shapes) > 1:
                raise InvalidValue(f"operators of verb {verb!r}", len(shapes), "the same arguments for each of them")
            parameters = tuple(n for n, v in zip(("object", "placement"), next(iter(shapes)), strict=True) if v)
            text = DESCRIPTIONS.get(verb, f"The action {verb} of the task.")
            templates.append(ActionTemplate(verb, parameters, text, str(search.chain_action(_action(operators[0])))))
        return tuple(templates)

    def _moves_of(self, arm: str) -> tuple[Action, ...]:
        """Every move that may become legal for an arm."""
        band = self.scenario.arm(arm).reach
        return tuple(
            Action(MOVE_VERB, name, destination)
            for name, entity in self.scenario.entities.items()
            if entity.goal is not None
            for destination in band
            if any(is_progress(self.scenario, name, source, destination) for source in band)
        )

    def _put_downs_of(self, arm: str) -> tuple[Action, ...]:
        """Moves that are no progress, but by which an arm that still holds an object may put it down where it is."""
        return tuple(
            action
            for name, entity in self.scenario.entities.items()
            if entity.goal is not None
            for destination in self.scenario.arm(arm).reach
            if (action := Action(MOVE_VERB, name, destination)) not in self._moves[arm]
        )

    def _attributes(self) -> dict[str, tuple[Attribute, ...]]:
        objects = tuple(self.scenario.entities)
        return {
            "arm": (
                Attribute("holding", "choice", choices=(NOTHING, *objects), description="what is in its gripper"),
                Attribute("stopped", "bool", description="it stands still for now"),
            ),
            "object": (
                Attribute("place", "choice", choices=self._places, description="where it is"),
                Attribute("holder", "choice", choices=(NOBODY, *self.agents), description="arm that holds it"),
                Attribute("at_goal", "bool", description="it is where it belongs"),
            ),
            "placement": (
                Attribute("occupied", "bool", description="an object stands on it"),
                Attribute("blocked", "bool", description="out of use for now"),
            ),
            "condition": (Attribute("met", "bool", description="it is true"),),
        }

    # --- episode ---

    def start(self, seed: int) -> ArmsState:
        """The start that the seed draws for the scenario, as in the plant."""
        return self.world.state(draw_start(self.scenario, seed))

    def step(self, state: ArmsState, controls: Sequence[int]) -> ArmsState:
        """One slot: the admitted actions take effect, and what is stopped or blocked comes nearer to its end."""
        outcome = self.outcome(state, controls)
        after = self.world.apply(state, outcome.admitted)
        wanted = [control != 0 for control in controls]
        return after._replace(
            slot=state.slot + 1,
            waited=tuple(
                state.waited[k] + 1 if wanted[k] and arm not in outcome.admitted else 0
                for k, arm in enumerate(self.agents)
            ),
            stopped=tuple(max(0, left - 1) for left in state.stopped),
            blocked=tuple((name, left - 1) for name, left in state.blocked if left > 1),
        )

    def outcome(self, state: ArmsState, controls: Sequence[int]) -> SlotOutcome:
        """What the twin answers to the proposals of a slot."""
        key = (state, tuple(controls))
        outcome = self._outcomes.get(key)
        if outcome is None:
            actions = {arm: self.action_of(control) for arm, control in zip(self.agents, controls, strict=True)}
            outcome = self._outcomes[key] = arbitrate_slot(self.world, self._graph, state, actions)
            if len(self._outcomes) > OUTCOMES:
                self._outcomes.popitem(last=False)
        return outcome

    def succeeded(self, state: ArmsState) -> bool:
        """Every object was at its goal and every condition of success true, at some time."""
        return state.finished

    # --- what a plan can say ---

    def entities(self, state: ArmsState) -> tuple[Entity, ...]:
        """Arms, objects, placements and conditions."""
        view = self.world.view(state)
        held = {arm: name for name, arm in zip(self.world.objects, state.holders, strict=True) if arm}
        blocked = {name for name, _ in state.blocked}
        standing = {place for place, arm in zip(state.places, state.holders, strict=True) if not arm}
        found = [
            Entity(arm, "arm", {"holding": held.get(arm, NOTHING), "stopped": state.stopped[k] > 0})
            for k, arm in enumerate(self.agents)
        ]
        found += [
            Entity(name, "object", {"place": place, "holder": arm or NOBODY, "at_goal": name in view.satisfied})
            for name, place, arm in zip(self.world.objects, state.places, state.holders, strict=True)
        ]
        found += [
            Entity(name, "placement", {"occupied": name in standing, "blocked": name in blocked})
            for name in self.scenario.placements
        ]
        found += [
            Entity(name, "condition", {"met": name in view.world.conditions}) for name in self.scenario.conditions
        ]
        return tuple(found)

    def arguments(self, state: ArmsState, agent: str, template: ActionTemplate) -> tuple[tuple[str, ...], ...]:
        """Moves that the object can still need, and the operators of the arm, whether legal now or later.

        An arm that holds an object after a failure may also put it down where it is.
        """
        if template.name == MOVE_VERB:
            return tuple(
                (action.entity, action.placement)
                for action in (*self._moves[agent], *self._put_downs[agent])
                if self._unmovable(state, agent, action) is None
            )
        operators = self._operators.get(template.name, {}).get(agent, [])
        return tuple(search.chain_action(_action(operator)).arguments for operator in operators)

    def describe(self, state: ArmsState) -> str:
        """Slot, arms, objects, placements and conditions; a line for each kind."""
        view = self.world.view(state)
        arms = []
        for k, arm in enumerate(self.agents):
            reach = " ".join(self.scenario.arms[arm].reach)
            stopped = f", stopped for {state.stopped[k]} slots" if state.stopped[k] else ""
            arms.append(f"{arm} reaches {reach}{stopped}")
        objects = []
        for name, place, arm in zip(self.world.objects, state.places, state.holders, strict=True):
            goal = self.scenario.entities[name].goal
            wants = "" if goal is None else " (its goal)" if name in view.satisfied else f" (goal {goal})"
            objects.append(f"{name} {f'held by {arm} near' if arm else 'on'} {place}{wants}")
        lines = [
            f"Slot {state.slot} of {self.horizon}.",
            f"Arms: {'; '.join(arms)}.",
            f"Objects: {'; '.join(objects)}.",
        ]
        free = free_placements(self.world, state, tuple(self.scenario.placements))
        lines.append(f"Free placements: {', '.join(free) or 'none'}.")
        if state.blocked:
            lines.append("Blocked: " + ", ".join(f"{name} for {left} slots" for name, left in state.blocked) + ".")
        if state.refused:
            failed = (f"{arm} {search.chain_action(Action(*action))}" for arm, *action in state.refused)
            lines.append(f"Could not be done while everything lies as it does: {', '.join(failed)}.")
        if self.scenario.conditions:
            lines.append(f"Conditions that are met: {', '.join(sorted(view.world.conditions)) or 'none'}.")
        return "\n".join(lines)

    # --- execution ---

    def control(self, state: ArmsState, intents: Sequence[terms.Action | None]) -> tuple[int, ...]:
        """Each arm proposes its action, legal now or not: the twin answers. 0 = stay."""
        return tuple(0 if intent is None else self._control_of.get(intent, 0) for intent in intents)

    def action_of(self, control: int) -> Action:
        """What a control proposes."""
        return self._controls[control]

    def control_of(self, action: Action) -> int:
        """The control that proposes an action; 0 for one that the task does not have."""
        return self._control_of.get(search.chain_action(action), 0)

    def progress(
        self, before: ArmsState, controls: Sequence[int], after: ArmsState, agent: str, action: terms.Action
    ) -> Progress:
        """A move is done when its object is there, whoever brought it; any other action when it was carried out.

        An action that only holds something is done when an admitted action has needed it.
        """
        if action.name == MOVE_VERB:
            k = self.world.index[action.arguments[0]]
            if after.places[k] == action.arguments[1] and not after.holders[k]:
                return Progress(ActionStatus.DONE)
        outcome = self.outcome(before, controls)
        mine = outcome.admitted.get(agent)
        if mine is not None and search.chain_action(mine) == action:
            operator = self.scenario.operator(agent, mine.verb, mine.entity, mine.placement)
            only_holds = operator is not None and operator.holds and not operator.produces
            if operator is None or not only_holds or outcome.needed & set(operator.holds):
                return Progress(ActionStatus.DONE)
        return Progress(ActionStatus.RUNNING, outcome.vetoes.get(agent, ""))

    def impossible(self, state: ArmsState, agent: str, action: terms.Action) -> str | None:
        """Out of reach, no such operator of this arm, no progress for the object, or it never comes within reach."""
        scenario, band = self.scenario, self.scenario.arm(agent).reach
        if action.name == MOVE_VERB and len(action.arguments) == 2:
            meant = Action(MOVE_VERB, *action.arguments)
            if meant.entity in scenario.entities and meant.placement in scenario.placements:
                if meant.placement not in band:
                    return f"{meant.placement} is out of {agent}'s reach; it reaches {', '.join(band)}"
                if meant not in self._moves[agent] and not self._puts_down(state, agent, meant):
                    return f"{meant.placement} is no progress for {meant.entity} in {agent}'s reach"
                return self._unmovable(state, agent, meant)
        if action not in self._control_of:
            return f"{action} is no action of this task"
        meant = self.action_of(self._control_of[action])
        able = scenario.operator(agent, meant.verb, meant.entity, meant.placement)
        return None if able is not None else f"{agent} cannot do {action}"

    def _unmovable(self, state: ArmsState, agent: str, action: Action) -> str | None:
        """Why the object of a move cannot come to where this arm could carry it on from."""
        band = self.scenario.arm(agent).reach
        k = self.world.index[action.entity]
        place = state.places[k]
        if self._puts_down(state, agent, action):
            return None
        if action in self._put_downs[agent]:
            return f"{action.placement} is no progress for {action.entity}, which {agent} does not hold there"
        if place == action.placement:
            return None if self._goal(action.entity) == place else f"{action.entity} is on {place} already"
        if any(
            source in band and is_progress(self.scenario, action.entity, source, action.placement)
            for source in self._way(action.entity, place)
        ):
            return None
        return f"{action.entity} on {place} cannot come within {agent}'s reach on its way to {action.placement}"

    def _puts_down(self, state: ArmsState, agent: str, action: Action) -> bool:
        """Whether the arm holds the object above the placement; what has no goal may not be put down."""
        k = self.world.index[action.entity]
        held_here = state.holders[k] == agent and state.places[k] == action.placement
        return held_here and self._goal(action.entity) is not None

    def _goal(self, name: str) -> str | None:
        return self.scenario.entities[name].goal

    def _way(self, name: str, place: str) -> tuple[str, ...]:
        """Where an object can come to by moves, from where it is, whatever stands in the way; itself first."""
        found = [place]
        for source in found:
            if source == self._goal(name):
                continue
            for arm in self.scenario.arms.values():
                if source in arm.reach:
                    found += [p for p in arm.reach if p not in found and is_progress(self.scenario, name, source, p)]
        return tuple(found)

    def can_become(self, state: ArmsState, wait: WaitEntity, remaining: Plan) -> bool:
        """False only for an object's place to which no remaining action brings it, and a placement that stays full."""
        values = next((e.values for e in self.entities(state) if e.name == wait.entity), None)
        if values is None or wait.comparison != "==" or values.get(wait.attribute) == wait.value:
            return values is not None
        actions = [step for chain in remaining.values() for step in chain if isinstance(step, terms.Action)]
        if wait.attribute == "place" and wait.value in self.scenario.placements:
            return any(action.arguments == (wait.entity, wait.value) for action in actions)
        if wait.attribute == "at_goal" and wait.value is True:
            return any(action.arguments == (wait.entity, self._goal(wait.entity)) for action in actions)
        if wait.attribute == "occupied":
            there = {name for name, place in self.world.where(state).items() if place == wait.entity}
            if wait.value is False:
                return any(set(action.arguments) & (there | {wait.entity}) for action in actions)
            return any(wait.entity in action.arguments or action.name not in (MOVE_VERB, "hold") for action in actions)
        return True

    # --- staleness ---

    def features(self, state: ArmsState) -> NDArray[np.float32]:
        """``FEATURES`` as columns, in [0, 1]; 0 where an entity has no such attribute.

        What is true or false has two columns, so that the difference shows beside a 1 whichever way it went.
        """
        scenario, world = self.scenario, self.world
        view = world.view(state)
        low, span = self._floor
        rows = np.zeros((len(self.entity_rows), self.feature_count), np.float32)
        count = len(scenario.entities)
        for k, arm in enumerate(self.agents):
            rows[k, :2] = (np.array(scenario.arms[arm].base.xyz[:2]) - low) / span
            rows[k, 2 + (arm in state.holders)] = 1.0
            rows[k, 4] = state.stopped[k] > 0
        for k, name in enumerate(world.objects):
            row = len(self.agents) + k
            rows[row, :2] = np.clip((np.array(view.world.positions[name][:2]) - low) / span, 0.0, 1.0)
            rows[row, 5 + (name in view.satisfied)] = 1.0
            rows[row, 7 + bool(state.holders[k])] = 1.0
            hops = min(1.0, self._guide.hops(name, state.places[k]) / max(1, len(self.agents)))
            rows[row, 9:11] = (hops, 1.0 - hops)
        blocked = {name for name, _ in state.blocked}
        standing = {place for place, arm in zip(state.places, state.holders, strict=True) if not arm}
        for k, (name, placement) in enumerate(scenario.placements.items()):
            row = len(self.agents) + count + k
            rows[row, :2] = (np.array(placement.xyz[:2]) - low) / span
            rows[row, 11 + (name in standing)] = 1.0
            rows[row, 13] = name in blocked
        for name in scenario.conditions:
            rows[self._row[name], 14 + (name in view.world.conditions)] = 1.0
        return rows

    def refers(self, state: ArmsState, agent: str, step: Step) -> frozenset[str]:
        """What the step names: object and placement, or the entities and agents of a wait."""
        if isinstance(step, terms.Action):
            return frozenset(step.arguments) & self._row.keys()
        names = {atom.agent if isinstance(atom, WaitAgents) else atom.entity for atom in step.atoms}
        return frozenset(names) & self._row.keys()

    def depends(self, state: ArmsState, agent: str, step: Step) -> frozenset[str]:
        """``refers`` closed over the scenario's rules.

        An action depends on its arm and group, on the conditions that it needs and the arms that can hold them, and
        on the placements from which the arm could take the object, which is that on which it stands only if the arm can
        take it from there; a condition on the placements that decide it; an object on who holds it; a placement on what
        stands there.
        """
        names = set(self.refers(state, agent, step)) | {agent}
        if isinstance(step, terms.Action) and step in self._control_of:
            names |= self._needs(agent, self.action_of(self._control_of[step]), state)
        where, frontier = self.world.where(state), list(names)
        while frontier:
            name = frontier.pop()
            more: set[str] = set()
            if name in where:
                more = {state.holders[self.world.index[name]]}
            elif name in self.scenario.placements:
                more = {thing for thing, place in where.items() if place == name}
            elif isinstance(condition := self.scenario.conditions.get(name), Occupied):
                more = set(condition.places) | ({condition.entity} if condition.entity else set())
            more = (more & self._row.keys()) - names
            names |= more
            frontier += more
        return frozenset(names)

    def _needs(self, agent: str, action: Action, state: ArmsState) -> set[str]:
        scenario = self.scenario
        literals: list[str] = []
        names: set[str] = set()
        operator = scenario.operator(agent, action.verb, action.entity, action.placement)
        if operator is not None:
            names |= set(operator.group)
            literals += [*operator.legal_when, *operator.requires_held, *operator.requires_produced]
            literals += [*operator.produces, *operator.holds, *operator.undoes]
        else:
            band = scenario.arm(agent).reach
            way = self._way(action.entity, state.places[self.world.index[action.entity]])
            sources = [p for p in way if p in band and is_progress(scenario, action.entity, p, action.placement)]
            names |= set(sources)
            for place in (*sources, action.placement):
                literals += scenario.placements[place].requires_held
            literals += scenario.placements[action.placement].legal_when
        conditions = {text.removeprefix("not ") for text in literals}
        for helper in scenario.operators:
            if conditions & {*helper.holds, *helper.produces}:
                names |= set(helper.arms)
        return names | conditions

    # --- disturbances ---

    def disturb(self, state: ArmsState, name: str, draw: float) -> ArmsState | None:
        """See ``disturbances`` and `Events`."""
        return self._events.disturb(state, name, draw)

    # --- search ---

    def candidates(self, state: ArmsState) -> Iterator[Plan]:
        """Plans of a best-first search over what the arms can do together, see `search`."""
        return search.plans(self.world, self._graph, self._guide, state)

    def bounded_candidates(self, state: ArmsState) -> Iterator[tuple[int, Plan]]:
        """Candidates with the slots that any plan needs: moves of one object follow each other, each by one arm."""
        hops = [self._guide.hops(name, place) for name, place in self.world.where(state).items()]
        bound = max(max(hops, default=0), -(-sum(hops) // len(self.agents)))
        for plan in self.candidates(state):
            yield bound, plan

    def situation(self, state: ArmsState) -> ArmsState:
        """The state without the slots that have passed: the same plans are good whenever it comes up."""
        return state._replace(slot=0)

    def patches(self, state: ArmsState, agent: str, remaining: Plan) -> Iterator[Plan]:
        """The agent's chain of a fresh plan; the same without its head; without waits; nothing."""
        chain = remaining[agent]
        tried = {chain}
        for plan in self.candidates(state):
            patch = search.patched(plan, agent, remaining)
            if patch[agent] not in tried:
                tried.add(patch[agent])
                yield patch
        bare = tuple(step for step in chain if isinstance(step, terms.Action))
        for other in (chain[1:], bare, ()):
            if other not in tried:
                tried.add(other)
                yield search.with_chain(remaining, agent, other)


def _action(operator: Operator) -> Action:
    return Action(operator.verb, operator.entity or "", operator.placement or "")
