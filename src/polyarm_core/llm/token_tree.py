"""Candidates as a prefix tree of tokens: what several sequences share is computed once, in one forward pass.

Tree attention as in speculative decoding (SpecInfer, Miao et al. 2024): the nodes of the tree are laid out as one
sequence in which each node attends to its ancestors only and has its depth as its position. The log-probabilities are
those of separate passes, without padding and without copies of the prompt's keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Prefix tree of token sequences, parents before children.

    Attributes:
        tokens: token of each node.
        parents: index of each node's parent, -1 at the roots.
        depths: number of ancestors of each node.
        paths: for each sequence the nodes it runs through, in order.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    def attention(self) -> NDArray[np.bool_]:
        """Which node (row) attends to which (column), shape (nodes, nodes): each to its ancestors and itself."""
        import numpy as np

        mask = np.zeros((len(self.tokens), len(self.tokens)), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] = mask[parent]
            mask[node, node] = True
        return mask


def token_tree(sequences: Sequence[Sequence[int]]) -> TokenTree:
    """The prefix tree of the sequences; equal beginnings become the same nodes."""
    index: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    paths: list[tuple[int, ...]] = []
    for sequence in sequences:
        parent = -1
        path = []
        for depth, token in enumerate(sequence):
            node = index.setdefault((parent, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(parent)
                depths.append(depth)
            path.append(node)
            parent = node
        paths.append(tuple(path))
    return TokenTree(tuple(tokens), tuple(parents), tuple(depths), tuple(paths))
