"""Learners that meet others than themselves: population-based training and fictitious co-play.

PBT (Jaderberg et al., 2017; for Overcooked Carroll et al., 2019): some members train side by side, each with all of
them, itself included, as partners. After every round the worst takes over the best one's network and hyperparameters,
the latter perturbed. The best member at the end is evaluated with itself.

FCP (Strouse et al., 2021): some members train in self-play with seeds of their own. A best response then trains with
each of them at three stages: untrained, half-trained and trained. The SyncPlan paper does not say whom it evaluates;
here it is the best response with itself.
"""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyarm_core.baselines.game import Partners
from polyarm_core.baselines.network import PolicyNetwork, load_network, save_network
from polyarm_core.baselines.selfplay import Learner, Report, Score, Settings, learn
from polyarm_core.domains.overcooked.batch import KitchenBatch
from polyarm_core.domains.overcooked.kitchen import HORIZON
from polyarm_core.domains.overcooked.layouts import Layout


@dataclass(frozen=True, slots=True)
class PopulationSettings:
    """Of both methods.

    Attributes:
        members: of the population.
        updates: of each member in a round of PBT.
        margin: mean frames by which the worst must be slower than the best to be replaced.
        factors: by which learning rate, entropy bonus and clipping range may be perturbed.
        response: share of all steps that FCP's best response gets.
    """

    members: int = 4
    updates: int = 2
    margin: float = 3.0
    factors: tuple[float, ...] = (0.8, 1.25)
    response: float = 0.3


def uniform_network(inputs: int, hidden: tuple[int, ...]) -> PolicyNetwork:
    """A network that gives every control the same probability, whatever it sees."""
    sizes = (inputs, *hidden, 6)
    return PolicyNetwork(
        tuple(np.zeros(pair, np.float32) for pair in itertools.pairwise(sizes)),
        tuple(np.zeros(size, np.float32) for size in sizes[1:]),
    )


def train_pbt(
    layout: Layout,
    seed: int,
    steps: int,
    work: Path,
    report: Report,
    settings: Settings | None = None,
    population: PopulationSettings | None = None,
) -> tuple[PolicyNetwork, float]:
    """Population-based training; arguments and result as of ``train_selfplay``. ``steps`` are all members' together."""
    settings, population = settings or Settings(), population or PopulationSettings()
    members = _members(layout, seed, settings, population)
    note = work / "population.json"
    done, seconds, scores = 0, 0.0, [float(HORIZON)] * len(members)
    if note.exists():
        kept = json.loads(note.read_text(encoding="utf-8"))
        done, seconds, scores = kept["rounds"], kept["seconds"], kept["scores"]
        for index, member in enumerate(members):
            member.restore(work / f"member{index}")
    begun = time.monotonic()
    rounds = max(1, round(steps / (len(members) * population.updates * settings.rollout * members[0].game.learners)))
    every = max(1, rounds // 20)
    for number in range(done, rounds):
        progress = number / rounds
        partners = Partners([member.network() for member in members])
        for member in members:
            member.game.partners = partners
            for _ in range(population.updates):
                member.update(progress)
        scores = [_smooth(old, member.score()) for old, member in zip(scores, members, strict=True)]
        # A stream of its own for each round, so that it does not matter where training was interrupted.
        _exploit(members, scores, population, np.random.default_rng([seed, number]))
        if (number + 1) % every == 0 or number + 1 == rounds:
            spent = seconds + time.monotonic() - begun
            for index, member in enumerate(members):
                member.save(work / f"member{index}", {})
            kept = {"rounds": number + 1, "seconds": spent, "scores": scores}
            note.write_text(json.dumps(kept), encoding="utf-8")
            shown = ", ".join(f"{score:.1f}" for score in scores)
            report(f"round {number + 1}/{rounds}, frames of each member {shown}, {spent:.0f} s")
    return members[int(np.argmin(scores))].network(), seconds + time.monotonic() - begun


def _members(layout: Layout, seed: int, settings: Settings, population: PopulationSettings) -> list[Learner]:
    """New members, with hyperparameters around those of the settings."""
    random = np.random.default_rng([seed, population.members])
    stand_in = uniform_network(KitchenBatch(layout, 1).encoder.size, settings.hidden)
    members = []
    for index in range(population.members):
        member = Learner(layout, settings, _member_seed(seed, index), Partners([stand_in] * population.members))
        member.learning_rate *= float(random.uniform(0.5, 1.0))
        member.entropy *= float(random.uniform(0.5, 1.0))
        members.append(member)
    return members


def _member_seed(seed: int, index: int) -> int:
    """Members of runs with neighbouring seeds share none."""
    return seed * 1000 + index


def _smooth(old: float, score: Score) -> float:
    """Moving average of a member's mean frames, over about five rounds."""
    return old if score.episodes == 0 else 0.8 * old + 0.2 * score.frames


def _exploit(
    members: list[Learner], scores: list[float], population: PopulationSettings, random: np.random.Generator
) -> None:
    """Replace the worst by the best, perturbed, when it is slower by more than the margin. Changes both lists."""
    best, worst = int(np.argmin(scores)), int(np.argmax(scores))
    if scores[worst] - scores[best] <= population.margin:
        return
    source, target = members[best], members[worst]
    target.copy_from(source)
    target.learning_rate = source.learning_rate * float(random.choice(population.factors))
    target.entropy = source.entropy * float(random.choice(population.factors))
    target.clip = min(0.4, source.clip * float(random.choice(population.factors)))
    scores[worst] = scores[best]


def train_fcp(
    layout: Layout,
    seed: int,
    steps: int,
    work: Path,
    report: Report,
    settings: Settings | None = None,
    population: PopulationSettings | None = None,
) -> tuple[PolicyNetwork, float]:
    """Fictitious co-play; arguments and result as of ``train_selfplay``. ``steps`` are all learners' together."""
    settings, population = settings or Settings(), population or PopulationSettings()
    share = round(steps * (1.0 - population.response) / population.members)
    seconds, partners = 0.0, []
    for index in range(population.members):
        stages, spent = _stages(layout, _member_seed(seed, index), share, work / f"partner{index}", report, settings)
        partners += stages
        seconds += spent
    response = Learner(layout, settings, _member_seed(seed, population.members), Partners(partners))
    seconds += learn(response, round(steps * population.response), work / "response", report)
    return response.network(), seconds


def _stages(
    layout: Layout, seed: int, steps: int, path: Path, report: Report, settings: Settings
) -> tuple[list[PolicyNetwork], float]:
    """One partner in self-play: its network untrained, as soon as it was half as successful as at the end, and trained.

    Also the seconds that this took.
    """
    files = [path.with_name(f"{path.name}_{stage}.npz") for stage in ("untrained", "half", "trained")]
    if files[-1].exists():
        kept = [load_network(file) for file in files]
        return [network for network, _ in kept], float(kept[-1][1]["seconds"])
    learner = Learner(layout, settings, seed)
    untrained = learner.network()

    def remember(learner: Learner, score: Score) -> None:
        facts = {"steps": learner.steps, "success": score.success}
        save_network(path.with_name(f"{path.name}_at_{learner.steps}.npz"), learner.network(), facts)

    seconds = learn(learner, steps, path, report, remember)
    history = [load_network(file) for file in path.parent.glob(f"{path.name}_at_*.npz")]
    history.sort(key=lambda kept: int(kept[1]["steps"]))
    enough = max(facts["success"] for _, facts in history) / 2
    half = next(network for network, facts in history if facts["success"] >= enough)
    stages = [untrained, half, learner.network()]
    for file, network in zip(files, stages, strict=True):
        save_network(file, network, {"seconds": seconds})
    # In the precision in which they are kept, so that an interrupted training has the same partners.
    return [load_network(file)[0] for file in files], seconds
