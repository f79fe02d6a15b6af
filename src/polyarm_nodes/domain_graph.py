"""The list of processes of a domain that moves in frames: plant, coordinator, detector, one agent each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyarm_core.coordinator.trial import chosen_method, open_trial_detector, open_world, schedule_of, uses_detector
from polyarm_core.errors import InvalidValue
from polyarm_nodes.graph import NodeSpec

KITCHEN_METHOD, OTHER_METHOD = "search+closed+repair", "search+stall+repair"


@dataclass(frozen=True)
class DomainOptions:
    """What a user chooses; the launch arguments."""

    domain: str = "overcooked:coordination_ring"
    method: str = ""  # empty: the default of the domain
    setting: str = "dynamic"
    plant: str = ""  # empty: overcooked_ai in kitchens
    seeds: Sequence[int] = (0,)
    namespace: str = ""
    record: bool = False
    out: str = "runs/latest"


def build_domain_graph(options: DomainOptions) -> list[NodeSpec]:
    """The processes of a domain.

    Raises:
        UnknownName: a domain, layout, plant, method or setting that does not exist.
        InvalidValue: they do not fit together, or no seeds.
        MissingExtra: overcooked_ai is not installed.
    """
    kitchen = options.domain.startswith("overcooked:")
    plant = options.plant or ("package" if kitchen else "own")
    name = options.method or (KITCHEN_METHOD if kitchen else OTHER_METHOD)
    domain = open_world(options.domain, plant)
    method = chosen_method(name)
    if not options.seeds:
        raise InvalidValue("seeds", list(options.seeds), "at least one")
    schedule_of(domain, options.setting, options.seeds[0])
    if uses_detector(method):
        open_trial_detector(method, domain)
    cell = "/" + options.namespace.strip("/")
    out = Path(options.out)
    where = {"domain": options.domain, "listeners": int(options.record)}
    specs = [
        NodeSpec(
            "domain_bridge",
            "plant",
            cell,
            {
                **where,
                "method": name,
                "plant": plant,
                "setting": options.setting,
                "seeds": ",".join(str(seed) for seed in options.seeds),
                "out": str(out),
            },
            ends_run=True,
        ),
        NodeSpec("domain_coordinator", "coordinator", cell, {**where, "method": name}, respawn=True),
    ]
    if options.record:
        specs.append(NodeSpec("domain_recorder", "recorder", cell, {"domain": options.domain, "out": str(out / "bag")}))
    if uses_detector(method):
        specs.append(NodeSpec("domain_psd", "psd", cell, {**where, "method": name}, respawn=True))
    for agent in domain.agents:
        specs.append(
            NodeSpec("domain_agent", "agent", f"{cell.rstrip('/')}/{agent}", {**where, "agent": agent}, respawn=True)
        )
    return specs
