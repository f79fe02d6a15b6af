"""The wait-for graph: cycles as networkx finds them, knots as a full search finds them, and words for both."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.chains.wait_graph import WaitGraph

Claims = dict[tuple[int, int], tuple[int, ...]]
NODES = st.integers(0, 7)
SINGLE = st.tuples(st.just("add"), NODES, st.integers(0, 1), st.tuples(NODES))
ANY = st.tuples(st.just("add"), NODES, st.integers(0, 2), st.lists(NODES, min_size=1, max_size=3).map(tuple))
REMOVAL = st.tuples(st.just("discard"), NODES, st.integers(0, 2), st.just(()))


def deadlocked(claims: Claims) -> set[int]:
    """Oracle, a full search: free whoever has no claim, then whoever has a free alternative in each; the rest."""
    nodes = {node for node, _ in claims} | {target for targets in claims.values() for target in targets}
    free: set[int] = set()
    while True:
        more = {
            node
            for node in nodes - free
            if all(free & set(targets) for (holder, _), targets in claims.items() if holder == node)
        }
        if not more:
            return nodes - free
        free |= more


def build(claims: Claims) -> WaitGraph[int]:
    graph: WaitGraph[int] = WaitGraph()
    for (node, key), targets in claims.items():
        graph.add(node, key, targets)
    return graph


@given(st.lists(st.one_of(SINGLE, REMOVAL), max_size=40))
def test_single_targets_agree_with_networkx(operations: list[tuple[str, int, int, tuple[int, ...]]]) -> None:
    graph: WaitGraph[int] = WaitGraph()
    claims: Claims = {}
    for what, node, key, targets in operations:
        if what == "discard":
            graph.discard(node, key)
            claims.pop((node, key), None)
            continue
        before = {k: t for k, t in claims.items() if k != (node, key)}
        edges = networkx.MultiDiGraph([(n, t) for (n, _), ts in before.items() for t in ts])
        edges.add_nodes_from(range(8))
        closes = networkx.has_path(edges, targets[0], node)
        hangs = any(
            len(part) > 1 or edges.has_edge(*part * 2) if (part := tuple(c)) and len(part) == 1 else True
            for c in networkx.strongly_connected_components(edges)
            if networkx.has_path(edges, targets[0], next(iter(c)))
        )
        found = graph.add(node, key, targets)
        claims[node, key] = targets
        if closes:
            assert found is not None and found.cycle[0] == node
        assert (found is not None) == (closes or hangs)


@settings(max_examples=150)
@given(st.lists(st.one_of(ANY, ANY, REMOVAL), max_size=30))
def test_knots_agree_with_a_full_search(operations: list[tuple[str, int, int, tuple[int, ...]]]) -> None:
    graph: WaitGraph[int] = WaitGraph()
    claims: Claims = {}
    for what, node, key, targets in operations:
        if what == "discard":
            graph.discard(node, key)
            claims.pop((node, key), None)
            continue
        graph.discard(node, key)
        claims.pop((node, key), None)
        asked = graph.would_close_cycle(node, targets)
        assert graph.add(node, key, targets) == asked
        before = deadlocked(claims)
        claims[node, key] = targets
        after = deadlocked(claims)
        if asked is None:
            assert after == before  # nothing new that was not reported
            continue
        assert node in after
        assert set(asked.nodes) <= after and set(asked.cycle) <= set(asked.nodes) and asked.nodes[0] == node
        # The cycle goes along claims none of whose alternatives can move any more.
        for at, to in zip(asked.cycle, (*asked.cycle[1:], asked.cycle[0]), strict=True):
            assert any(n == at and to in ts and set(ts) <= after for (n, _), ts in claims.items())
        assert len(set(asked.cycle)) == len(asked.cycle)


@given(st.lists(st.one_of(ANY, REMOVAL), max_size=20), st.lists(st.one_of(ANY, REMOVAL), max_size=20))
def test_a_copy_is_independent(first: list, second: list) -> None:
    def apply(graph: WaitGraph[int], operations: list) -> None:
        for what, node, key, targets in operations:
            graph.add(node, key, targets) if what == "add" else graph.discard(node, key)

    graph: WaitGraph[int] = WaitGraph()
    apply(graph, first)
    kept = {node: dict(graph.claims(node)) for node in range(8)}
    apply(graph.copy(), second)
    assert {node: dict(graph.claims(node)) for node in range(8)} == kept


def test_the_cycle_is_in_order() -> None:
    graph: WaitGraph[str] = WaitGraph()
    assert graph.add("a", "wait", ["b"]) is None
    assert graph.add("b", "wait", ["c"]) is None
    found = graph.add("c", "veto", ["a"])
    assert found is not None and found.cycle == ("c", "a", "b") == found.nodes
    graph.discard("b", "wait")
    assert graph.would_close_cycle("c", ["a"]) is None


def test_who_waits_for_itself_is_deadlocked() -> None:
    found = WaitGraph[str]().add("a", 1, ["a"])
    assert found is not None and found.cycle == ("a",)


@pytest.mark.parametrize("way_out", [True, False])
def test_an_alternative_is_a_way_out_only_while_it_can_move(way_out: bool) -> None:
    graph: WaitGraph[str] = WaitGraph()
    graph.add("b", 1, ["a"])
    if not way_out:
        graph.add("c", 1, ["a"])
    found = graph.add("a", 1, ["b", "c"])
    if way_out:
        assert found is None
        found = graph.add("c", 1, ["b"])
    assert found is not None and set(found.nodes) == {"a", "b", "c"}


def test_both_of_two_claims_are_needed() -> None:
    graph: WaitGraph[str] = WaitGraph()
    graph.add("b", 1, ["a"])
    assert graph.add("a", (1, 0), ["free"]) is None
    assert graph.add("a", (1, 1), ["b"]) is not None


def test_who_hangs_on_a_deadlock_is_told_of_it() -> None:
    graph: WaitGraph[str] = WaitGraph()
    graph.add("a", 1, ["b"])
    graph.add("b", 1, ["a"])
    found = graph.add("c", 1, ["a"])
    assert found is not None and found.nodes[0] == "c" and set(found.cycle) == {"a", "b"}


def test_clearing_and_releasing() -> None:
    graph = build({(0, 0): (1,), (0, 1): (2,), (1, 0): (2,)})
    graph.release(0)
    assert not graph.claims(0) and graph.claims(1)
    graph.clear()
    assert not graph.claims(1)
