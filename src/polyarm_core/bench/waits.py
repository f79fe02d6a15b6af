"""``polyarm bench waits``: time of the wait-for graph's check, against a full search of the same graph.

Figures, for each number of arms N (``waits.nN...``)::

    .check.median_s, .check.p99_s     a claim is added and tested (`chains.wait_graph`), the others stay as they are
    .slot.median_s, .slot.p99_s       a slot of the joint graph: all claims of all arms are new (`control.waits`)
    .full.median_s, .full.p99_s       the largest set of arms that cannot go on, from scratch, after the same claim
    .full_ratio                       median of the full search over that of the check
    .agree                            checks that find a deadlock if and only if the full search does
    .deadlocks                        share of the checks that find one

Claims are random: a share of the arms is blocked, most of them by one claim on one other arm, some by two claims or by
one with two alternatives. A claim that would close a deadlock is tested and then withdrawn, as happens in a team that
resolves it, so the graph stays as full as it is without one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from polyarm_core.bench.figures import Figures
from polyarm_core.chains.wait_graph import WaitGraph
from polyarm_core.control.waits import Claim, TeamWaits
from polyarm_core.errors import InvalidValue
from polyarm_core.seeds import format_seeds

SIZES = (8, 16, 64, 256)
BLOCKED = 0.7  # of the arms
CHECKS = 200  # for each seed


def deadlocked(claims: Mapping[str, Sequence[Sequence[str]]]) -> set[str]:
    """The largest set of nodes each of which has a claim with every alternative in the set: the full search."""
    left = {node for node, held in claims.items() if held}
    while True:
        kept = {node for node in left if any(all(other in left for other in claim) for claim in claims[node])}
        if kept == left:
            return left
        left = kept


def random_claim(draw: random.Random, names: Sequence[str], node: str) -> tuple[str, ...]:
    """One other arm, or two alternatives."""
    others = [name for name in draw.sample(names, 3) if name != node]
    return tuple(others[: 2 if draw.random() < 0.2 else 1])


def run(sizes: Sequence[int] = SIZES, seeds: Sequence[int] = tuple(range(5))) -> Figures:
    """Measure.

    Args:
        sizes: numbers of arms, 4 or more.
        seeds: of the claims; ``CHECKS`` checks for each.

    Raises:
        InvalidValue: fewer than 4 arms.
    """
    for size in sizes:
        if size < 4:
            raise InvalidValue("sizes", size, "4 arms or more")
    command = f"polyarm bench waits --sizes {','.join(map(str, sizes))} --seeds {format_seeds(list(seeds))}"
    figures = Figures(command, seeds)
    for size in sizes:
        checks, slots, full = [], [], []
        agree = deadlocks = 0
        for seed in seeds:
            draw = random.Random(f"{size} {seed}")
            names = [f"arm{k}" for k in range(size)]
            graph: WaitGraph[str] = WaitGraph()
            held: dict[str, list[tuple[str, ...]]] = {name: [] for name in names}
            for number in range(CHECKS + size):
                node = draw.choice(names)
                for key in range(len(held[node])):
                    graph.discard(node, key)
                held[node] = []
                if draw.random() > BLOCKED:
                    continue
                found = False
                for key in range(2 if draw.random() < 0.2 else 1):
                    claim = random_claim(draw, names, node)
                    begin = time.perf_counter()
                    deadlock = graph.add(node, key, claim)
                    middle = time.perf_counter()
                    held[node].append(claim)
                    stuck = node in deadlocked(held)
                    end = time.perf_counter()
                    if number >= size:  # the graph has filled up
                        checks.append(middle - begin)
                        full.append(end - middle)
                        agree += (deadlock is not None) == stuck
                        deadlocks += deadlock is not None
                    found = found or deadlock is not None
                    if found:
                        break
                if found:
                    graph.release(node)
                    held[node] = []
            for number in range(CHECKS // 10):
                waits = TeamWaits(names)
                claims = {
                    name: (Claim(random_claim(draw, names, name), f"slot {number}"),)
                    for name in names
                    if draw.random() < BLOCKED
                }
                begin = time.perf_counter()
                waits.update(claims, number)
                slots.append(time.perf_counter() - begin)
        prefix = f"waits.n{size}"
        for name, samples in (("check", checks), ("slot", slots), ("full", full)):
            figures.distribution(f"{prefix}.{name}", samples, ("median", "p10", "p90", "p99"))
        figures.add(f"{prefix}.full_ratio", figures[f"{prefix}.full.median_s"] / figures[f"{prefix}.check.median_s"])
        figures.rate(f"{prefix}.agree", agree, len(checks))
        figures.add(f"{prefix}.deadlocks", deadlocks / len(checks))
    return figures
