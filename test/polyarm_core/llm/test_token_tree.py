"""Laws of the prefix tree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyarm_core.llm.token_tree import token_tree

sequences = st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=8)


@given(sequences)
def test_each_path_spells_its_sequence_and_equal_beginnings_are_one_node(words) -> None:
    tree = token_tree(words)
    for word, path in zip(words, tree.paths, strict=True):
        assert [tree.tokens[node] for node in path] == word
    assert len(tree.tokens) == len({tuple(word[:k]) for word in words for k in range(1, len(word) + 1)})


@given(sequences)
def test_a_node_attends_to_exactly_its_own_path(words) -> None:
    tree = token_tree(words)
    mask = tree.attention()
    for path in tree.paths:
        for depth, node in enumerate(path):
            assert tree.depths[node] == depth
            assert set(mask[node].nonzero()[0]) == set(path[: depth + 1])


@given(sequences)
def test_parents_come_before_children(words) -> None:
    tree = token_tree(words)
    assert all(parent < node for node, parent in enumerate(tree.parents))
