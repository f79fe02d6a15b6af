"""The staleness network (SyncPlan equations 4 to 6), trained with torch and evaluated with numpy alone.

``Attn`` of the paper is undefined there. Here it has no parameters and stays within one row: the entries of the row
are the tokens of a dot-product self-attention with ``Q = K = V = row`` and the usual residual,

    Attn(z)_f = z_f + sum_g softmax_g(z_f z_g) z_g .

A zero row stays zero, so the incidence row of an entity that no remaining step refers to stays zero, and with it that
entity's part of ``H_C^T H_X``: the blind spot of ``bilinear`` is exact. ``closed`` gives such a row a learned floor.

The weights are linear in front of the MLP, so the sum over entities can be taken before them:

    H_C^T H_X = W_C^T (sum_i W_N[i] S_i) diag(W_Q) W_X,   S_i = Attn(C_i)^T (Attn(X) * Attn(D))   (L x F)

``S`` (and for ``closed`` the sum ``U`` of the unmarked rows) holds no weights: training takes it once per sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.tensors import Inputs, Relevance, Shape

if TYPE_CHECKING:
    import torch

Detector = Literal["bilinear", "closed"]
Size = Literal["small", "medium", "wide"]

DETECTORS: dict[Detector, Relevance] = {"bilinear": "refers", "closed": "depends"}
SIZES: dict[Size, tuple[int, ...]] = {"small": (64, 32), "medium": (256,), "wide": (512, 384)}
EMBEDDING = 32  # d


class Pooled(NamedTuple):
    """Inputs summed over the entities; a leading batch axis is allowed.

    Attributes:
        marked: ``S``, shape (agents, steps, features).
        unmarked: ``U``, sum of ``Attn(X) * Attn(D)`` over the rows without a mark, shape (features,).
    """

    marked: NDArray[np.float32]
    unmarked: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Weights:
    """One trained network.

    Attributes:
        detector: rule of the incidence and of unmarked rows.
        shape: padded sizes.
        tensors: ``w_n`` (N,), ``w_c`` (L, d), ``w_q`` (F,), ``w_x`` (F, d), for ``closed`` ``floor`` (d,), and for each
            layer of the MLP ``mlp_k`` (inputs, outputs) and ``bias_k`` (outputs,).
    """

    detector: Detector
    shape: Shape
    tensors: Mapping[str, NDArray[np.float32]]

    @property
    def count(self) -> int:
        """Number of parameters."""
        return sum(int(tensor.size) for tensor in self.tensors.values())

    def save(self, path: Path) -> None:
        """Write as ``.npz`` in half precision."""
        shape = np.array([self.shape.agents, self.shape.entities, self.shape.steps, self.shape.features])
        halves: dict[str, Any] = {name: tensor.astype(np.float16) for name, tensor in self.tensors.items()}
        np.savez(path, detector=np.array(self.detector), shape=shape, **halves)

    @staticmethod
    def load(path: Path) -> Weights:
        """Read what ``save`` has written.

        Raises:
            OSError: no such file.
            UnknownName: its detector is none of ours.
        """
        with np.load(path, allow_pickle=False) as file:
            detector = str(file["detector"])
            if detector not in DETECTORS:
                raise UnknownName("detector", detector, DETECTORS)
            shape = Shape(*(int(size) for size in file["shape"]))
            tensors = {name: file[name].astype(np.float32) for name in file.files if name not in ("detector", "shape")}
        return Weights(detector, shape, tensors)


def initial_weights(detector: Detector, size: Size, shape: Shape, seed: int) -> Weights:
    """Untrained weights, the same for the same seed.

    Raises:
        UnknownName: no such detector or size.
    """
    if detector not in DETECTORS:
        raise UnknownName("detector", detector, DETECTORS)
    if size not in SIZES:
        raise UnknownName("size", size, SIZES)
    rng = np.random.default_rng(seed)
    tensors = {
        "w_n": np.ones(shape.agents),
        "w_c": rng.normal(size=(shape.steps, EMBEDDING)),
        "w_q": np.ones(shape.features),
        "w_x": rng.normal(size=(shape.features, EMBEDDING)),
    }
    if detector == "closed":
        tensors["floor"] = rng.normal(size=EMBEDDING)
    widths = (EMBEDDING * EMBEDDING, *SIZES[size], 1)
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        tensors[f"mlp_{layer}"] = rng.normal(size=(inputs, outputs)) * np.sqrt(2.0 / inputs)
        tensors[f"bias_{layer}"] = np.zeros(outputs)
    return Weights(detector, shape, {name: tensor.astype(np.float32) for name, tensor in tensors.items()})


def attention(rows: NDArray[Any]) -> NDArray[np.float32]:
    """``Attn``: self-attention without parameters among the entries of each row (the last axis), with its residual."""
    values = np.asarray(rows, dtype=np.float32)
    scores = np.exp(values[..., :, None] * values[..., None, :])  # entries are within [-1, 1]: no overflow
    return np.asarray(values + (scores * values[..., None, :]).sum(-1) / scores.sum(-1), dtype=np.float32)


def pool(inputs: Inputs) -> Pooled:
    """``S`` and ``U`` of one frame or of a batch of frames."""
    changes = attention(inputs.state) * attention(inputs.difference)  # (..., M, F)
    chains = attention(inputs.incidence)  # (..., N, M, L)
    marked = np.swapaxes(chains, -1, -2) @ changes[..., None, :, :]
    unmarked = 1 - inputs.incidence.max(axis=(-3, -1))  # (..., M)
    return Pooled(marked, (changes * unmarked[..., None]).sum(-2))


def logits(tensors: Mapping[str, Any], marked: Any, unmarked: Any) -> Any:
    """Logit of each sample, shape (batch,). The same lines serve numpy arrays and torch tensors.

    Args:
        tensors: see ``Weights``.
        marked: ``S``, shape (batch, agents, steps, features).
        unmarked: ``U``, shape (batch, features); without a floor it plays no part.
    """
    mixed = (marked * tensors["w_n"][:, None, None]).sum(1)
    interaction = tensors["w_c"].T @ mixed  # (batch, d, F)
    if "floor" in tensors:
        interaction = interaction + tensors["floor"][:, None] * unmarked[:, None, :]
    hidden = ((interaction * tensors["w_q"]) @ tensors["w_x"]).reshape(len(marked), -1)
    layers = sum(name.startswith("mlp_") for name in tensors)
    for layer in range(layers):
        hidden = hidden @ tensors[f"mlp_{layer}"] + tensors[f"bias_{layer}"]
        if layer < layers - 1:
            hidden = hidden * (hidden > 0)
    return hidden[:, 0]


def probability(weights: Weights, inputs: Inputs) -> float:
    """``P_replan`` of one frame.

    Raises:
        InvalidValue: the frame has other sizes than the network.
    """
    expected = (weights.shape.agents, weights.shape.entities, weights.shape.steps)
    if inputs.incidence.shape != expected or inputs.state.shape != (weights.shape.entities, weights.shape.features):
        raise InvalidValue("inputs", (inputs.incidence.shape, inputs.state.shape), f"sizes of {weights.shape}")
    pooled = pool(inputs)
    logit = float(logits(weights.tensors, pooled.marked[None], pooled.unmarked[None])[0])
    return float(1.0 / (1.0 + np.exp(-np.clip(logit, -60.0, 60.0))))


def torch_tensors(weights: Weights) -> dict[str, torch.Tensor]:
    """The weights as torch leaves that collect gradients."""
    import torch

    return {name: torch.tensor(tensor, requires_grad=True) for name, tensor in weights.tensors.items()}
