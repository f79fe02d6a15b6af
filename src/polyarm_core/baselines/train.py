"""Train one of the learnt teams: ``python -m polyarm_core.baselines.train --method ppo --layout Coordination``.

Started again with the same arguments it continues from its checkpoints. Next to the network it keeps a model card.
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from polyarm_core.baselines.card import write_card
from polyarm_core.baselines.episodes import measure
from polyarm_core.baselines.network import FOLDER, METHODS, load_team, network_file, save_network
from polyarm_core.baselines.population import train_fcp, train_pbt
from polyarm_core.baselines.selfplay import train_selfplay
from polyarm_core.domains.overcooked.disturbances import STANDARD
from polyarm_core.domains.overcooked.kitchen import Kitchen
from polyarm_core.domains.overcooked.layouts import load_layout
from polyarm_core.errors import UnknownName

STEPS = {"ppo": 1_600_000, "pbt": 2_000_000, "fcp": 2_400_000}  # transitions of all learners together
EPISODES = 200
_TRAINERS = {"ppo": train_selfplay, "pbt": train_pbt, "fcp": train_fcp}


def train(
    method: str, layout_name: str, seed: int, steps: int, out: Path, work: Path, episodes: int = EPISODES
) -> None:
    """Train, write the network with the facts about it, and renew the model card.

    Args:
        method: one of ``METHODS``.
        layout_name: or an alias.
        seed: of everything random.
        steps: transitions of all learners together.
        out: folder of the network and the card.
        work: folder of the checkpoints; each training has one of its own in it.
        episodes: of each setting that the card tells.

    Raises:
        UnknownName: no such method or layout.
        MissingExtra: stable-baselines3 is not installed.
    """
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    layout = load_layout(layout_name)
    begun = time.monotonic()

    def report(line: str) -> None:
        print(f"[{timedelta(seconds=int(time.monotonic() - begun))}] {method} {layout.name} {line}", flush=True)

    folder = work / f"{method}_{layout.name}_seed{seed}_{steps}"
    network, seconds = _TRAINERS[method](layout, seed, steps, folder, report)
    path = network_file(method, layout, out)
    facts: dict[str, Any] = {"method": method, "layout": layout.name, "seed": seed, "steps": steps}
    facts["seconds"] = round(seconds)
    save_network(path, network, facts)
    team = load_team(method, layout.name, out)  # what is measured is what was written
    for setting, names in (("standard", ()), ("dynamic", STANDARD)):
        outcome = measure(team, Kitchen(layout), range(episodes), names)
        report(f"{setting}: TAR {100 * outcome.success:.1f} %, AED {outcome.frames:.1f}")
        facts[setting] = {"success": outcome.success, "frames": outcome.frames if outcome.success else None}
    save_network(path, network, facts)
    write_card(out, episodes)


def main(
    method: Annotated[str, typer.Option(help="ppo, pbt or fcp")],
    layout: Annotated[str, typer.Option(help="a layout of Overcooked, or the paper's name of it")],
    seed: Annotated[int, typer.Option(min=0, help="of everything random")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="transitions of all learners together")] = None,
    out: Annotated[Path, typer.Option(help="folder of networks and model card")] = FOLDER,
    work: Annotated[Path, typer.Option(help="folder of checkpoints")] = Path("runs/overcooked_rl"),
) -> None:
    """Train a team for Overcooked, or continue to."""
    import torch

    torch.set_num_threads(1)  # the networks are too small for more, and sums would depend on their number
    train(method, layout, seed, steps or STEPS.get(method, 1), out, work)


if __name__ == "__main__":
    typer.run(main)
