"""Many kitchens as a game for learners: episodes, rewards, starting states, partners. Numpy only.

An episode has 100 frames and ends at the first delivery, as in the benchmark. The reward of a frame is 1 for both
players at the delivery, plus each player's own shaped reward of the package times ``shaping``, which training lowers to
0. No frame costs anything: discounting alone makes teams fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyarm_core.baselines.network import Floats, PolicyNetwork, sample, softmax
from polyarm_core.domains.overcooked.batch import DELIVERY, KitchenBatch
from polyarm_core.domains.overcooked.kitchen import DISH, FULL, HORIZON, IDLE, NOTHING, ONION, SOUP
from polyarm_core.domains.overcooked.layouts import Layout


class Partners:
    """Frozen networks of one shape, each the partner in an equal share of the kitchens.

    Args:
        networks: at least one.
    """

    def __init__(self, networks: Sequence[PolicyNetwork]) -> None:
        layers = range(len(networks[0].weights))
        self.count = len(networks)
        self._weights = [np.stack([network.weights[layer] for network in networks]) for layer in layers]
        self._biases = [np.stack([network.biases[layer] for network in networks])[:, None] for layer in layers]

    def probabilities(self, observations: Floats) -> Floats:
        """Shape (kitchens, 6), for observations of shape (kitchens, inputs); ``count`` divides the kitchens."""
        values = observations.reshape(self.count, -1, observations.shape[-1])
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            values = np.tanh(values @ weight + bias)
        return softmax(values @ self._weights[-1] + self._biases[-1]).reshape(len(observations), -1)


class TeamGame:
    """Kitchens in which one network learns, in both seats or beside partners.

    In self-play, every player of every kitchen is a learner, ordered (kitchen, player). With partners there is one
    learner per kitchen, in seat 0 of the even kitchens and in seat 1 of the odd ones.

    Args:
        layout: of all kitchens.
        kitchens: how many; with partners, a multiple of twice their number.
        seed: of starting states and partners' controls.
        partners: None = self-play.
        diverse: share of episodes that begin in a random state instead of the standard start.

    Attributes:
        learners: rows of observations and controls.
        inputs: length of an observation.
        shaping: weight of the package's shaped rewards, relative to a delivery of 20.
        finished, succeeded, frames: episodes from the standard start since ``tally``, those with a delivery, and the
            sum of their lengths.
    """

    def __init__(
        self, layout: Layout, kitchens: int, seed: int, partners: Partners | None = None, diverse: float = 0.5
    ) -> None:
        self.batch = KitchenBatch(layout, kitchens)
        self.partners = partners
        self.shaping = 1.0
        self.inputs = self.batch.encoder.size
        self._random = np.random.default_rng(seed)
        self._diverse = diverse
        self._regions = [np.array(layout.region(start)) for start in layout.starts]
        self._kitchen = np.arange(kitchens)
        self._seat = self._partner_seat = self._kitchen  # only with partners
        self.learners = 2 * kitchens
        if partners is not None:
            self.learners = kitchens
            # Kitchens of one partner lie together, half of them with the learner in either seat.
            self._seat = self._kitchen % 2
            self._partner_seat = 1 - self._seat
        self._standard = np.ones(kitchens, np.bool_)
        self.tally()

    def tally(self) -> tuple[int, int, int]:
        """``finished``, ``succeeded`` and ``frames`` of standard starts since the last call, which begin anew."""
        counts = (getattr(self, "finished", 0), getattr(self, "succeeded", 0), getattr(self, "frames", 0))
        self.finished = self.succeeded = self.frames = 0
        return counts

    def reset(self) -> Floats:
        """Begin all episodes anew, at random frames so that they do not end together; the learners' observations."""
        everything = np.ones(self.batch.size, np.bool_)
        self._begin(everything)
        self.batch.frame[:] = self._random.integers(HORIZON, size=self.batch.size)
        self._standard[:] = False  # shortened: not to be counted
        return self._observe()

    def step(self, controls: NDArray[np.intp]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """One frame of every kitchen.

        Args:
            controls: of the learners, shape (learners,).

        Returns:
            The learners' next observations (of the new episode where one ended), rewards, and whether it ended.
        """
        batch = self.batch
        if self.partners is None:
            joint = controls.reshape(-1, 2).T
        else:
            drawn = sample(self.partners.probabilities(self._partner_view), self._random.random(batch.size))
            joint = np.empty((2, batch.size), np.intp)
            joint[self._seat, self._kitchen] = controls
            joint[self._partner_seat, self._kitchen] = drawn
        frame = batch.step(joint)
        gained = frame.delivered.sum(axis=0) + self.shaping / DELIVERY * frame.shaped
        ended = (batch.delivered > 0) | (batch.frame >= HORIZON)
        if self.partners is None:
            rewards, dones = gained.T.reshape(-1), np.repeat(ended, 2)
        else:
            rewards, dones = gained[self._seat, self._kitchen], ended
        if ended.any():
            counted = ended & self._standard
            self.finished += int(counted.sum())
            self.succeeded += int((counted & (batch.delivered > 0)).sum())
            self.frames += int(batch.frame[counted].sum())
            self._begin(ended)
        return self._observe(), rewards.astype(np.float32), dones

    def _observe(self) -> Floats:
        views = self.batch.observe()
        if self.partners is None:
            return views.reshape(self.learners, self.inputs)
        self._partner_view = views[self._kitchen, self._partner_seat]
        own: Floats = views[self._kitchen, self._seat]
        return own

    def _begin(self, rows: NDArray[np.bool_]) -> None:
        """New episodes in some kitchens: the standard start, or a random state (see :meth:`_scatter`)."""
        self.batch.reset(rows)
        diverse = rows & (self._random.random(self.batch.size) < self._diverse)
        self._standard[rows] = ~diverse[rows]
        self._scatter(np.flatnonzero(diverse))

    def _scatter(self, rows: NDArray[np.intp]) -> None:
        """Random players, hands and pots: what an episode may look like in the middle.

        Cells are uniform over each player's own region, hands hold nothing (40 %), an onion (25 %), a dish (25 %) or
        a soup (10 %), a pot has 0 to 3 onions and, if full, is idle, cooking or ready.
        """
        batch, random, count = self.batch, self._random, len(rows)
        cells = [random.choice(region, count) for region in self._regions]
        apart = cells[0] != cells[1]  # the others keep their standard cells
        for player in (0, 1):
            batch.positions[player, rows[apart]] = cells[player][apart]
            batch.facings[player, rows] = random.integers(4, size=count)
            batch.held[player, rows] = random.choice([NOTHING, ONION, DISH, SOUP], count, p=[0.4, 0.25, 0.25, 0.1])
        codes = batch.tables.code_of_pot
        cooking = [codes[(FULL, tick)] for tick in range(batch.kitchen.cook_time + 1)]
        for pot in batch.layout.pots:
            onions = random.integers(FULL + 1, size=count)
            idle = np.array([codes[(number, IDLE)] for number in range(FULL + 1)])[onions]
            lit = (onions == FULL) & (random.random(count) < 0.6)
            batch.content[pot, rows] = np.where(lit, random.choice(cooking, count), idle)
