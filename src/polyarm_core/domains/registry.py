"""Domains by name: ``overcooked:LAYOUT``, ``moba`` or ``moba:ENEMY``, ``arms:SCENARIO``."""

from __future__ import annotations

from typing import Any

from polyarm_core.domains.interface import Domain
from polyarm_core.errors import UnknownName

KINDS = ("overcooked", "moba", "arms")


def domain_names() -> list[str]:
    """Every name that `make_domain` takes without a path."""
    from polyarm_core.domains.moba.domain import OPPONENTS
    from polyarm_core.domains.overcooked.layouts import LAYOUT_NAMES
    from polyarm_core.scenario import scenario_names

    return [
        *(f"overcooked:{name}" for name in LAYOUT_NAMES),
        "moba",
        *(f"moba:{name}" for name in OPPONENTS),
        *(f"arms:{name}" for name in scenario_names()),
    ]


def make_domain(name: str, **options: Any) -> Domain[Any]:
    """A domain by name.

    Args:
        name: ``KIND:WHICH`` as in `domain_names`; ``arms:`` also takes the path of a scenario file.
        options: of the domain's class, e.g. ``horizon`` of the MOBA.

    Raises:
        UnknownName: no such kind, layout, enemy or scenario; the valid names are listed.
    """
    kind, colon, which = name.partition(":")
    if kind not in KINDS or (kind != "moba" and not which) or (colon and not which):
        raise UnknownName("domain", name, domain_names())
    if kind == "moba":
        from polyarm_core.domains.moba import MobaDomain

        return MobaDomain(which, **options) if which else MobaDomain(**options)
    if kind == "arms":
        from polyarm_core.domains.arms import ArmsDomain

        return ArmsDomain(which, **options)
    from polyarm_core.domains.overcooked.domain import OvercookedDomain

    return OvercookedDomain(which, **options)
