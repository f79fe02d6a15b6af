"""Dead ends: states from which no sequence of legal actions reaches the goal, and start states that avoid them.

One-cube-wide shared placements make dead ends possible: two entities that must pass each other over the last two
shared placements block each other for good, although every single action was legal and the admitted set consistent.
The relay graph looks ahead over the legal actions of eq. 5. Every legal action brings an entity strictly closer to
its goal, so the graph has no cycles and the search ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyarm_core.constraints import MOVE_VERB, Action
from polyarm_core.errors import PolyarmError
from polyarm_core.scenario import Scenario
from polyarm_core.world import distance_to_goal, is_progress


class NoStart(PolyarmError):
    """No start could be drawn from which the goal can be reached."""


@dataclass(frozen=True, slots=True)
class _Move:
    entity: int
    destination: str


class RelayGraph:
    """Look-ahead over the placements of all entities of a scenario.

    Args:
        scenario: names, reach and goals.
        budget: states that one question may visit; past that the answer is "unknown".
    """

    def __init__(self, scenario: Scenario, budget: int = 200_000) -> None:
        self._scenario = scenario
        self._entities = tuple(sorted(scenario.entities))
        self._budget = budget
        self._known: dict[tuple[str, ...], bool] = {}

    def covers(self, where: Mapping[str, str]) -> bool:
        """Whether the placement of every entity is known, without which nothing can be said."""
        return all(name in where for name in self._entities)

    def reaches_goal(self, where: Mapping[str, str]) -> bool | None:
        """Whether some sequence of legal actions, one at a time, brings every entity to its goal.

        Args:
            where: entity -> placement, for every entity of the scenario.

        Returns:
            True or False, or None when the budget was spent before the answer was found.
        """
        return self._search(tuple(where[name] for name in self._entities), [self._budget])

    def dead_end_after(self, where: Mapping[str, str], actions: Sequence[Action]) -> bool:
        """Whether carrying out any part of ``actions`` (some may fail) can leave a state with no way to the goal.

        Unknown counts as "no": a guard that cannot decide must not stop the team. Only moves change placements.
        """
        moves = [action for action in actions if action.verb == MOVE_VERB]
        if len(moves) > 10:  # all subsets would be too many: check the state after each prefix
            subsets: Iterator[list[Action]] = (moves[: k + 1] for k in range(len(moves)))
        else:
            subsets = (
                [move for bit, move in enumerate(moves) if mask >> bit & 1] for mask in range(1, 1 << len(moves))
            )
        for subset in subsets:
            after = dict(where)
            after.update({move.entity: move.placement for move in subset})
            if self.reaches_goal(after) is False:
                return True
        return False

    def _moves(self, state: tuple[str, ...]) -> Iterator[_Move]:
        scenario = self._scenario
        for index, entity in enumerate(self._entities):
            source = state[index]
            if source == scenario.entities[entity].goal:
                continue
            for arm in scenario.arms.values():
                if source not in arm.reach:
                    continue
                for destination in arm.reach:
                    if destination not in state and is_progress(scenario, entity, source, destination):
                        yield _Move(index, destination)

    def _done(self, state: tuple[str, ...]) -> bool:
        return all(
            self._scenario.entities[entity].goal in (None, placement)
            for entity, placement in zip(self._entities, state, strict=True)
        )

    def _search(self, state: tuple[str, ...], budget: list[int]) -> bool | None:
        if state in self._known:
            return self._known[state]
        if budget[0] <= 0:
            return None
        budget[0] -= 1
        if self._done(state):
            self._known[state] = True
            return True
        unknown = False
        for move in self._moves(state):
            after = self._search((*state[: move.entity], move.destination, *state[move.entity + 1 :]), budget)
            if after:
                self._known[state] = True
                return True
            unknown |= after is None
        if unknown:
            return None
        self._known[state] = False
        return False


def _draw(scenario: Scenario, reachable: list[str], rng: np.random.Generator) -> dict[str, str]:
    among = scenario.start.among
    if not among:
        drawn = rng.choice(len(reachable), size=len(scenario.entities), replace=False)
        return {entity: reachable[i] for entity, i in zip(sorted(scenario.entities), drawn, strict=True)}
    taken: set[str] = set()
    start: dict[str, str] = {}
    for entity in rng.permutation(sorted(scenario.entities)):  # in random order, or the last would have no choice
        free = [place for place in among.get(str(entity), reachable) if place not in taken]
        start[str(entity)] = free[int(rng.integers(len(free)))] if free else next(iter(taken))
        taken.add(start[str(entity)])
    return start


def draw_start(scenario: Scenario, seed: int, attempts: int = 1000) -> dict[str, str]:
    """The start placements that a seed draws: entity -> placement.

    Uniform over all assignments of the entities to different placements in some reach band, none on its own goal
    and from which the goal can be reached. A scenario with ``start.at`` always starts there.

    Raises:
        NoStart: when none was found in ``attempts`` draws.
    """
    if scenario.start.at is not None:
        return dict(scenario.start.at)
    graph = RelayGraph(scenario)
    reachable = sorted({name for arm in scenario.arms.values() for name in arm.reach})
    rng = np.random.default_rng(np.random.SeedSequence([seed & (2**63 - 1), 0x57A27]))
    for _ in range(attempts):
        if len(reachable) < len(scenario.entities):
            break
        start = _draw(scenario, reachable, rng)
        if len(set(start.values())) < len(start):
            continue
        if any(distance_to_goal(scenario, e, p) == 0 and scenario.entities[e].goal for e, p in start.items()):
            continue
        if graph.reaches_goal(start) is not False:
            return start
    raise NoStart(
        f"scenario {scenario.name!r}: no start from which the goal can be reached, in {attempts} draws "
        f"of {len(scenario.entities)} entities over {len(reachable)} placements"
    )
