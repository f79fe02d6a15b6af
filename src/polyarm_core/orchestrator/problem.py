"""One slot's intents indexed by the elements, groups and conditions that couple them.

Arms are numbered in order of priority, 0 the highest. A *unit* is what can only be admitted as a whole: an arm without
a group, or a complete and unanimous group. A requirement (``"h"`` or ``"p"``, condition) that neither W nor the unit
itself covers is a *need*; the units that hold (or produce or hold) the condition are its suppliers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from polyarm_core.constraints import NOTHING, Declaration, Intent
from polyarm_core.errors import InvalidValue
from polyarm_core.orchestrator.aging import priority_key

NO_NEEDS: tuple[int, ...] = ()


def distinct(intents: Iterable[Intent]) -> dict[str, Intent]:
    """One intent per arm; identical repetitions collapse.

    Raises:
        InvalidValue: two different intents of one arm, or a negative distance or waiting time.
    """
    by_arm: dict[str, Intent] = {}
    for intent in intents:
        first = by_arm.setdefault(intent.arm, intent)
        if first is not intent and first != intent:
            expected = f"one intent, not also {first.action}"
            raise InvalidValue(f"intent of arm {intent.arm!r}", str(intent.action), expected)
        if intent.waited < 0 or intent.distance < 0:
            raise InvalidValue(
                f"waited, distance of arm {intent.arm!r}", (intent.waited, intent.distance), "integers >= 0"
            )
    return by_arm


class Problem:
    """Arms in order of priority, and the units that they form with what couples them.

    Args:
        by_arm: one intent per arm.
        conditions: W, conditions that are true already.
        patience: see ``OrchestratorOptions``.
        first: arms that come before all others (those served by age and what they depend on).

    Attributes:
        intents, declarations: by arm number.
        mates: by arm number: members of the arm's group (numbers), () without group, None if it cannot be complete.
        unit_of: by arm number: unit number, -1 if its group cannot be complete.
        members, elements, users: by unit: arm numbers; exclusive elements; by element: unit numbers.
        needs, supplies: by unit: need numbers that it has, that it covers.
        requirers, suppliers: by need: unit numbers.
    """

    __slots__ = (
        "conditions", "declarations", "elements", "intents", "mates", "members", "names", "needs", "requirers",
        "suppliers", "supplies", "unit_of", "users", "viable",
    )  # fmt: skip

    def __init__(
        self,
        by_arm: dict[str, Intent],
        conditions: frozenset[str],
        patience: int,
        first: Collection[str] = (),
    ) -> None:
        if first:
            intents = sorted(by_arm.values(), key=lambda item: (item.arm not in first, priority_key(item, patience)))
        else:
            intents = sorted(by_arm.values(), key=lambda item: priority_key(item, patience))
        self.conditions = conditions
        self.intents: list[Intent] = intents
        self.declarations: list[Declaration] = [intent.declaration for intent in intents]
        self.names: list[str] = [intent.arm for intent in intents]
        self._index_units(by_arm)
        self._index_needs()

    def _index_units(self, by_arm: dict[str, Intent]) -> None:
        count = len(self.intents)
        self.mates: list[Sequence[int] | None] = [()] * count
        self.unit_of: list[int] = [-1] * count
        self.members: list[tuple[int, ...]] = []
        self.elements: list[frozenset[str]] = []
        self.viable: list[bool] = []
        self.users: dict[str, list[int]] = {}
        numbers: dict[str, int] = {}
        groups: dict[frozenset[str], Sequence[int] | None] = {}
        users = self.users
        for arm, declaration in enumerate(self.declarations):
            group = declaration.group
            viable = True
            if group:
                if not numbers:
                    numbers = {name: number for number, name in enumerate(self.names)}
                if group not in groups:
                    complete = all(name in by_arm and by_arm[name].declaration.group == group for name in group)
                    groups[group] = tuple(sorted(numbers[name] for name in group)) if complete else None
                mates = groups[group]
                if mates is None or arm not in mates:  # incomplete, not unanimous, or without the arm that names it
                    self.mates[arm] = None
                    continue
                self.mates[arm] = mates
                if mates[0] != arm:
                    self.unit_of[arm] = self.unit_of[mates[0]]
                    continue
                members = mates
                exclusive = frozenset().union(*(self.declarations[mate].exclusive for mate in mates))
                viable = len(exclusive) == sum(len(self.declarations[mate].exclusive) for mate in mates)
            else:
                members = (arm,)
                exclusive = declaration.exclusive
            unit = len(self.members)
            self.unit_of[arm] = unit
            self.members.append(tuple(members))
            self.elements.append(exclusive)
            self.viable.append(viable)
            for element in exclusive:
                if element in users:
                    users[element].append(unit)
                else:
                    users[element] = [unit]

    def _index_needs(self) -> None:
        """Number the needs, link them to suppliers, and mark the units whose needs no resolution can cover."""
        count = len(self.members)
        self.needs: list[Sequence[int]] = [NO_NEEDS] * count
        self.supplies: list[Sequence[int]] = [NO_NEEDS] * count
        self.requirers: list[list[int]] = []
        self.suppliers: list[list[int]] = []
        held_number: dict[str, int] = {}
        produced_number: dict[str, int] = {}
        for unit, members in enumerate(self.members):
            held, produced = self._needs_of(members)
            if held or produced:
                mine = []
                for conditions, number_of in ((held, held_number), (produced, produced_number)):
                    for condition in sorted(conditions):
                        number = number_of.setdefault(condition, len(self.requirers))
                        if number == len(self.requirers):
                            self.requirers.append([])
                            self.suppliers.append([])
                        self.requirers[number].append(unit)
                        mine.append(number)
                self.needs[unit] = mine
        if not self.requirers:
            return
        for unit, members in enumerate(self.members):
            covered: set[int] = set()
            for arm in members:
                declaration = self.declarations[arm]
                for condition in declaration.holds:
                    if condition in held_number:
                        covered.add(held_number[condition])
                    if condition in produced_number:
                        covered.add(produced_number[condition])
                for condition in declaration.produces:
                    if condition in produced_number:
                        covered.add(produced_number[condition])
            if covered:
                self.supplies[unit] = sorted(covered)
                for number in self.supplies[unit]:
                    self.suppliers[number].append(unit)
        self._spread_hopelessness()

    def _needs_of(self, members: Sequence[int]) -> tuple[frozenset[str], frozenset[str]]:
        """Conditions that the unit requires to be held and to be produced, and that neither W nor it itself covers."""
        if len(members) == 1:
            declaration = self.declarations[members[0]]
            held, produced = declaration.requires_held, declaration.requires_produced
            if not held and not produced:
                return NOTHING, NOTHING
            holds, makes = declaration.holds, declaration.produces
        else:
            parts = [self.declarations[arm] for arm in members]
            held = NOTHING.union(*(part.requires_held for part in parts))
            produced = NOTHING.union(*(part.requires_produced for part in parts))
            if not held and not produced:
                return NOTHING, NOTHING
            holds = NOTHING.union(*(part.holds for part in parts))
            makes = NOTHING.union(*(part.produces for part in parts))
        return held - holds - self.conditions, produced - holds - makes - self.conditions

    def _spread_hopelessness(self) -> None:
        viable = self.viable
        hopeless = [unit for unit, alive in enumerate(viable) if not alive]
        left = [0] * len(self.requirers)
        for number, suppliers in enumerate(self.suppliers):
            left[number] = len(suppliers)
            if not suppliers:
                for unit in self.requirers[number]:
                    if viable[unit]:
                        viable[unit] = False
                        hopeless.append(unit)
        while hopeless:
            for number in self.supplies[hopeless.pop()]:
                left[number] -= 1
                if not left[number]:
                    for unit in self.requirers[number]:
                        if viable[unit]:
                            viable[unit] = False
                            hopeless.append(unit)
