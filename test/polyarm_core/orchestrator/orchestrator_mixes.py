"""Random slots for the orchestrator's laws, and the brute force that they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from polyarm_core.constraints import STAY, Action, Declaration, Intent
from polyarm_core.orchestrator import is_consistent
from polyarm_core.orchestrator.aging import priority_key
from polyarm_core.orchestrator.maximal import served_by_age
from polyarm_core.orchestrator.problem import Problem, distinct

PATIENCE = 8
ELEMENTS = ["entity:a", "entity:b", "placement:c", "placement:d", "zone:e", "zone:f"]
CONDITIONS = ["door", "rope", "lid"]


def intent(
    arm: str,
    index: int = 0,
    exclusive: Sequence[str] = (),
    group: Sequence[str] = (),
    *,
    produced: Sequence[str] = (),
    held: Sequence[str] = (),
    produces: Sequence[str] = (),
    holds: Sequence[str] = (),
    terminal: bool = False,
    distance: int = 0,
    waited: int = 0,
) -> Intent:
    """An intent in one line."""
    declaration = Declaration(*map(frozenset, (exclusive, group, produced, held, produces, holds)))
    return Intent(arm, index, Action("move", f"of_{arm}", "p"), declaration, terminal, distance, waited)


@st.composite
def mixes(draw: st.DrawFn, most: int = 8, overdue: bool = True) -> tuple[list[Intent], frozenset[str]]:
    """Up to ``most`` arms with exclusions, groups (also broken ones), dependencies (also cyclic ones) and waits."""
    count = draw(st.integers(0, most))
    names = [f"arm{number}" for number in range(count)]
    pool = ELEMENTS[: draw(st.integers(2, len(ELEMENTS)))]
    group_of: dict[str, frozenset[str]] = {}
    for _ in range(draw(st.integers(0, 2)) if count else 0):
        group = frozenset(draw(st.lists(st.sampled_from([*names, "absent"]), min_size=1, max_size=3, unique=True)))
        unanimous = draw(st.integers(0, 4))
        for name in group - {"absent"} if unanimous else [draw(st.sampled_from(names))]:
            group_of[name] = group
    some = st.lists(st.sampled_from(CONDITIONS), max_size=1)
    intents = []
    for index, name in enumerate(names):
        plain = draw(st.booleans())
        intents.append(
            intent(
                name,
                index,
                draw(st.lists(st.sampled_from(pool), max_size=3, unique=True)),
                tuple(group_of.get(name, ())),
                produced=() if plain else draw(some),
                held=() if plain else draw(some),
                produces=() if plain else draw(some),
                holds=() if plain else draw(some),
                terminal=draw(st.booleans()),
                distance=draw(st.integers(0, 2)),
                waited=draw(st.integers(0, PATIENCE + 4 if overdue else PATIENCE)),
            )
        )
    return intents, frozenset(draw(st.lists(st.sampled_from(CONDITIONS), max_size=1)))


def consistent_sets(intents: Sequence[Intent], conditions: frozenset[str]) -> Iterator[list[Intent]]:
    """Every consistent set, by enumeration of all subsets and the definition."""
    for mask in range(1 << len(intents)):
        members = [item for number, item in enumerate(intents) if mask >> number & 1]
        if is_consistent(members, conditions):
            yield members


def served_arms(intents: Sequence[Intent], conditions: frozenset[str]) -> tuple[set[str], set[str]]:
    """The overdue arms that are served by age, and all that come first because of them."""
    return served_by_age(Problem(distinct(intents), conditions, PATIENCE), PATIENCE)


def best_set(intents: Sequence[Intent], conditions: frozenset[str]) -> list[str]:
    """The optimum of the documented objective by brute force: worth, then lexicographic by priority."""
    served, first = served_arms(intents, conditions)
    order = sorted(intents, key=lambda item: (item.arm not in first, priority_key(item, PATIENCE)))

    def worth(members: list[Intent]) -> tuple[int, list[bool]]:
        names = {item.arm for item in members}
        return len(members) + len(intents) * len(names & served), [item.arm in names for item in order]

    return sorted(item.arm for item in max(consistent_sets(intents, conditions), key=worth))


def stay(arm: str, index: int = 0) -> Intent:
    """A stay action with an empty declaration."""
    return Intent(arm, index, STAY)
