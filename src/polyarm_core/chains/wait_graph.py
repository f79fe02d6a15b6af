"""The wait-for graph: who waits for whom, and the deadlocks in it, found when they arise (SyncPlan A.4).

A blocked node holds *claims*. A claim is a set of alternatives, and it is met as soon as one of them goes on; the node
goes on when all its claims are met. So ``a & b`` is two claims of one target each, ``a | b`` is one claim of two
targets, a wait for a group is a claim per member, and a veto of the twin is one more claim beside the chain's wait.
With single targets a deadlock is a directed cycle, as in the paper. With alternatives a cycle is not enough: a node is
deadlocked only if some claim of it has *every* alternative deadlocked (a knot). The deadlocked nodes are the largest
set with that property; a node without claims is never in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Deadlock(Generic[Node]):
    """Nodes none of which can go on unless another of them does.

    Attributes:
        cycle: each waits for the next and the last for the first. It begins with the node whose claim was tested,
            unless that node merely hangs on an older deadlock.
        nodes: everybody involved: the tested node and all deadlocked ones on which it depends, in order of discovery.
    """

    cycle: tuple[Node, ...]
    nodes: tuple[Node, ...]


class WaitGraph(Generic[Node]):
    """Claims of blocked nodes. A test costs O(claims that the new one depends on), a removal O(1).

    Every deadlock is closed by the claim that was added last, so testing each new claim finds every deadlock in the
    moment it arises. Removing claims never makes one.
    """

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[Node, dict[Hashable, tuple[Node, ...]]] = {}

    def claims(self, node: Node) -> Mapping[Hashable, tuple[Node, ...]]:
        """Alternatives of each claim of a node, by key; empty for a node that is not blocked."""
        return self._claims.get(node, {})

    def add(self, node: Node, key: Hashable, targets: Iterable[Node]) -> Deadlock[Node] | None:
        """Block a node until one of the targets goes on; a claim of the same key is replaced.

        Args:
            node: who waits.
            key: what kind of wait it is, unique among the node's claims.
            targets: the alternatives, at least one.

        Returns:
            The deadlock that the claim closes. The claim is inserted all the same: it is what happens.
        """
        alternatives = tuple(targets)
        self.discard(node, key)
        found = self.would_close_cycle(node, alternatives)
        self._claims.setdefault(node, {})[key] = alternatives
        return found

    def discard(self, node: Node, key: Hashable) -> None:
        """Remove a claim, if it is there; O(1)."""
        claims = self._claims.get(node)
        if claims is not None and claims.pop(key, None) is not None and not claims:
            del self._claims[node]

    def release(self, node: Node) -> None:
        """Remove all claims of a node; O(1)."""
        self._claims.pop(node, None)

    def clear(self) -> None:
        """Remove everything."""
        self._claims.clear()

    def copy(self) -> WaitGraph[Node]:
        """An independent graph with the same claims."""
        graph: WaitGraph[Node] = WaitGraph()
        if self._claims:
            graph._claims = {node: claims.copy() for node, claims in self._claims.items()}
        return graph

    def would_close_cycle(self, node: Node, targets: Iterable[Node]) -> Deadlock[Node] | None:
        """The deadlock in which the node would be with one more claim; None if it could still go on.

        Claims that the node has already do not matter here: each was tested when it was added.
        """
        claims = self._claims
        alternatives = tuple(targets)
        # The common case, one target each: follow the waits until somebody is free or the node itself is met.
        if len(alternatives) == 1:
            path, at = [node], alternatives[0]
            for _ in range(len(claims) + 1):
                if at == node:
                    return Deadlock(tuple(path), tuple(path))
                held = claims.get(at)
                if held is None:
                    return None
                if len(held) > 1:
                    break
                (only,) = held.values()
                if len(only) > 1:
                    break
                path.append(at)
                at = only[0]
        return self._search(node, alternatives)

    def _search(self, node: Node, targets: tuple[Node, ...]) -> Deadlock[Node] | None:
        """Propagate freedom backwards through everything on which the targets depend; the node counts as stuck."""
        claims = self._claims
        unmet: dict[Node, int] = {}  # claims of a node that are not known to be met
        users: dict[Node, list[tuple[Node, Hashable]]] = {}  # whose claims name the node
        free: list[Node] = []
        stack = list(targets)
        while stack:
            at = stack.pop()
            if at in unmet or at == node:
                continue
            held = claims.get(at)
            if held is None:
                unmet[at] = 0
                free.append(at)
                continue
            count = 0
            for key, alternatives in held.items():
                if any(target not in claims and target != node for target in alternatives):
                    continue  # met: somebody free is among them
                count += 1
                for target in alternatives:
                    users.setdefault(target, []).append((at, key))
                    stack.append(target)
            unmet[at] = count
            if not count:
                free.append(at)
        live = set(free)
        met: set[tuple[Node, Hashable]] = set()
        while free:
            for user in users.get(free.pop(), ()):
                if user not in met:
                    met.add(user)
                    waiting = user[0]
                    unmet[waiting] -= 1
                    if not unmet[waiting]:
                        live.add(waiting)
                        free.append(waiting)
        if any(target in live for target in targets):
            return None
        return self._explain(node, targets, live)

    def _explain(self, node: Node, targets: tuple[Node, ...], live: set[Node]) -> Deadlock[Node]:
        """Shortest cycle through the node; else the first one on which it hangs."""
        stuck: dict[Node, tuple[Node, ...]] = {node: targets}  # node -> the alternatives it can no longer get
        parents: dict[Node, Node] = {}
        order = [node]
        last: Node | None = None  # before the node on its cycle
        for at in order:  # breadth first: grows while it runs
            for target in stuck[at]:
                if target == node and last is None:
                    last = at
                if target not in stuck:
                    stuck[target] = tuple(
                        t
                        for ts in self._claims[target].values()
                        if not any(a in live or (a not in self._claims and a != node) for a in ts)
                        for t in ts
                    )
                    parents[target] = at
                    order.append(target)
        if last is not None:
            cycle = [last]
            while cycle[-1] != node:
                cycle.append(parents[cycle[-1]])
            return Deadlock(tuple(reversed(cycle)), tuple(order))
        walk: dict[Node, int] = {}
        at = node
        while at not in walk:
            walk[at] = len(walk)
            at = stuck[at][0]
        return Deadlock(tuple(walk)[walk[at] :], tuple(order))
