"""Trained policies as numpy: inference needs neither torch nor the library that trained them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm_core.domains.overcooked.batch import KitchenBatch
from polyarm_core.domains.overcooked.kitchen import KitchenState
from polyarm_core.domains.overcooked.layouts import Layout, load_layout
from polyarm_core.errors import InvalidValue, UnknownName

Floats = NDArray[np.float32]

FOLDER = Path("models/overcooked_rl")
METHODS = ("ppo", "pbt", "fcp")


@dataclass(frozen=True, eq=False)
class PolicyNetwork:
    """A multi-layer perceptron with tanh between its layers and a softmax over the controls behind the last.

    Attributes:
        weights: matrix of each layer, shape (inputs, outputs).
        biases: of each layer, shape (outputs,).
    """

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    def probabilities(self, observations: Floats) -> Floats:
        """Probability of each control, shape (..., 6), for observations of shape (..., inputs)."""
        values = observations
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values = np.tanh(values @ weight + bias)
        return softmax(values @ self.weights[-1] + self.biases[-1])


def softmax(logits: Floats) -> Floats:
    """Softmax over the last axis."""
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Floats = exponents / exponents.sum(axis=-1, keepdims=True)
    return result


def sample(probabilities: Floats, draws: NDArray[np.float64]) -> NDArray[np.intp]:
    """Inverse transform sampling over the last axis; one draw of [0, 1) for each distribution."""
    below = probabilities.cumsum(axis=-1)
    # Rounding may leave the sum a little below a draw.
    chosen: NDArray[np.intp] = np.minimum((below <= draws[..., None]).sum(axis=-1), probabilities.shape[-1] - 1)
    return chosen


def save_network(path: Path, network: PolicyNetwork, facts: Mapping[str, Any]) -> None:
    """Write a network in half precision with the facts about its training (a JSON object)."""
    arrays: dict[str, NDArray[Any]] = {"facts": np.array(json.dumps(dict(facts), sort_keys=True))}
    for index, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        arrays[f"weight{index}"] = weight.astype(np.float16)
        arrays[f"bias{index}"] = bias.astype(np.float16)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the first name for a flag
    partial.replace(path)


def load_network(path: Path) -> tuple[PolicyNetwork, dict[str, Any]]:
    """A network and the facts about its training.

    Raises:
        InvalidValue: there is no such file, or it holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            layers = range(sum(name.startswith("weight") for name in arrays.files))
            network = PolicyNetwork(
                tuple(arrays[f"weight{index}"].astype(np.float32) for index in layers),
                tuple(arrays[f"bias{index}"].astype(np.float32) for index in layers),
            )
            facts: dict[str, Any] = json.loads(str(arrays["facts"]))
            return network, facts
    except (OSError, KeyError, ValueError) as error:
        raise InvalidValue("network", str(path), "a file that save_network wrote") from error


class NetworkTeam:
    """A network per player; both draw their controls from what it gives (the most likely one alone gets stuck).

    Args:
        layout: on which the networks were trained.
        networks: one for each player; a team in self-play has the same twice.
        name: as in tables.

    Raises:
        InvalidValue: a network that does not fit the layout.
    """

    def __init__(self, layout: Layout, networks: Sequence[PolicyNetwork], name: str) -> None:
        self.name = name
        self.layout = layout
        self._networks = tuple(networks)
        self._batch = KitchenBatch(layout, 1)
        inputs = self._batch.encoder.size
        for network in self._networks:
            if network.weights[0].shape[0] != inputs:
                raise InvalidValue("inputs of the network", network.weights[0].shape[0], f"{inputs} on {layout.name}")
        self.reset(0)

    def reset(self, seed: int) -> None:
        """See :class:`~polyarm_core.baselines.interface.Policy`."""
        self._random = np.random.default_rng(seed)

    def act(self, state: KitchenState) -> tuple[int, int]:
        """See :class:`~polyarm_core.baselines.interface.Policy`."""
        self._batch.put(0, state)
        observations = self._batch.observe()[0]
        both = [network.probabilities(own) for network, own in zip(self._networks, observations, strict=True)]
        first, second = sample(np.stack(both), self._random.random(2)).tolist()
        return first, second


def network_file(method: str, layout: Layout, folder: Path = FOLDER) -> Path:
    """Where the trained network of a method is kept.

    Raises:
        UnknownName: no such method.
    """
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    return folder / f"{method}_{layout.name}.npz"


def load_team(method: str, layout: str, folder: Path = FOLDER) -> NetworkTeam:
    """The trained team of a method on a layout: both players have the same network.

    Raises:
        UnknownName: no such method or layout.
        InvalidValue: no network was trained for it.
    """
    plan = load_layout(layout)
    network, _ = load_network(network_file(method, plan, folder))
    return NetworkTeam(plan, (network, network), method)
