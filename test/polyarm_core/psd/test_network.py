import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.network import (
    SIZES,
    Weights,
    attention,
    initial_weights,
    logits,
    pool,
    probability,
    torch_tensors,
)
from polyarm_core.psd.tensors import Inputs, Shape

SHAPE = Shape(agents=2, entities=5, steps=4, features=6)
DETECTORS = ("bilinear", "closed")
seeds = st.integers(0, 2**32 - 1)
laws = settings(deadline=None, max_examples=25)


def random_inputs(seed, shape=SHAPE):
    rng = np.random.default_rng(seed)
    return Inputs(
        (rng.random((shape.agents, shape.entities, shape.steps)) < 0.3).astype(np.uint8),
        rng.random((shape.entities, shape.features)).astype(np.float32),
        rng.uniform(-1, 1, (shape.entities, shape.features)).astype(np.float32),
    )


def score(weights, inputs):
    pooled = pool(inputs)
    return float(logits(weights.tensors, pooled.marked[None], pooled.unmarked[None])[0])


def as_written(weights, inputs):
    """Equations 4 to 6 step by step, entity by entity."""
    w, (c, x, d) = weights.tensors, inputs

    def attend(row):
        scores = np.exp(np.outer(row, row))
        return row + (scores / scores.sum(1, keepdims=True)) @ row

    interaction = 0
    for j in range(weights.shape.entities):
        h_c = sum(w["w_n"][i] * attend(c[i, j].astype(float)) @ w["w_c"] for i in range(weights.shape.agents))
        if "floor" in w and not c[:, j].any():
            h_c = w["floor"]
        h_x = (attend(x[j].astype(float)) * attend(d[j].astype(float)) * w["w_q"]) @ w["w_x"]
        interaction = interaction + np.outer(h_c, h_x)
    hidden = interaction.reshape(-1)
    layers = [name for name in w if name.startswith("mlp_")]
    for k in range(len(layers)):
        hidden = hidden @ w[f"mlp_{k}"] + w[f"bias_{k}"]
        hidden = np.maximum(hidden, 0) if k < len(layers) - 1 else hidden
    return float(hidden[0])


@laws
@given(seeds, st.sampled_from(DETECTORS), st.sampled_from(list(SIZES)))
def test_pooling_before_the_weights_computes_the_equations_of_the_paper(seed, detector, size):
    weights, inputs = initial_weights(detector, size, SHAPE, seed), random_inputs(seed)
    expected = as_written(weights, inputs)
    assert score(weights, inputs) == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert probability(weights, inputs) == pytest.approx(1 / (1 + np.exp(-np.clip(expected, -60, 60))), abs=1e-3)


@pytest.mark.parametrize(("size", "count"), [("small", 68_755), ("medium", 263_699), ("wide", 723_219)])
def test_parameter_counts(size, count):
    assert initial_weights("bilinear", size, Shape(), 0).count == count
    assert initial_weights("closed", size, Shape(), 0).count == count + 32  # the floor


@laws
@given(seeds, st.integers(0, SHAPE.entities - 1))
def test_bilinear_is_blind_to_an_unmarked_row(seed, row):
    weights, inputs = initial_weights("bilinear", "small", SHAPE, seed), random_inputs(seed)
    inputs.incidence[:, row] = 0
    before = score(weights, inputs)
    other = random_inputs(seed + 1)
    inputs.state[row], inputs.difference[row] = other.state[row], other.difference[row]
    assert score(weights, inputs) == before


@laws
@given(seeds, st.integers(0, SHAPE.entities - 1), st.booleans())
def test_closed_sees_every_row(seed, row, marked):
    weights, inputs = initial_weights("closed", "small", SHAPE, seed), random_inputs(seed)
    inputs.incidence[:, row] = marked
    before = score(weights, inputs)
    other = random_inputs(seed + 1)
    inputs.state[row], inputs.difference[row] = other.state[row], other.difference[row]
    assert score(weights, inputs) != before


@laws
@given(seeds, st.sampled_from(DETECTORS))
def test_the_order_of_rows_changes_nothing_and_padded_rows_add_nothing(seed, detector):
    weights, inputs = initial_weights(detector, "small", SHAPE, seed), random_inputs(seed)
    order = np.random.default_rng(seed).permutation(SHAPE.entities)
    turned = Inputs(inputs.incidence[:, order], inputs.state[order], inputs.difference[order])
    assert score(weights, turned) == pytest.approx(score(weights, inputs), rel=1e-3, abs=1e-3)
    padded = Inputs(
        np.concatenate([inputs.incidence, np.zeros((2, 3, SHAPE.steps), dtype=np.uint8)], axis=1),
        np.concatenate([inputs.state, np.zeros((3, SHAPE.features), dtype=np.float32)]),
        np.concatenate([inputs.difference, np.zeros((3, SHAPE.features), dtype=np.float32)]),
    )
    assert score(weights, padded) == pytest.approx(score(weights, inputs), rel=1e-3, abs=1e-3)


@laws
@given(seeds)
def test_attention_stays_within_its_row_and_keeps_zero(seed):
    rows = np.random.default_rng(seed).uniform(-1, 1, (3, 4, 6)).astype(np.float32)
    rows[1, 2] = 0
    attended = attention(rows)
    assert not attended[1, 2].any()
    assert np.allclose(attended[0, 3], attention(rows[0, 3]))
    mixed = attended - rows  # without the residual: averages of the row's entries
    assert (mixed.max(-1) <= rows.max(-1) + 1e-6).all() and (mixed.min(-1) >= rows.min(-1) - 1e-6).all()


def test_numpy_and_torch_agree_on_a_batch():
    import torch

    weights = initial_weights("closed", "wide", SHAPE, 3)
    frames = [random_inputs(seed) for seed in range(5)]
    batch = pool(Inputs(*(np.stack(arrays) for arrays in zip(*frames, strict=True))))
    tensors = torch_tensors(weights)
    result = logits(tensors, torch.from_numpy(batch.marked), torch.from_numpy(batch.unmarked))
    assert result.detach().numpy() == pytest.approx(np.array([score(weights, frame) for frame in frames]), rel=1e-3)
    result.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.abs().sum() > 0 for tensor in tensors.values())


def test_weights_survive_storage_in_half_precision(tmp_path):
    weights = initial_weights("closed", "medium", SHAPE, 5)
    weights.save(tmp_path / "closed.npz")
    loaded = Weights.load(tmp_path / "closed.npz")
    assert (loaded.detector, loaded.shape, loaded.count) == ("closed", SHAPE, weights.count)
    for name, tensor in weights.tensors.items():
        assert np.array_equal(loaded.tensors[name], tensor.astype(np.float16).astype(np.float32))
        assert loaded.tensors[name].dtype == np.float32


def test_unknown_names_and_sizes_are_named(tmp_path):
    with pytest.raises(UnknownName, match="bilinear, closed"):
        initial_weights("linear", "small", SHAPE, 0)
    with pytest.raises(UnknownName, match="medium, small, wide"):
        initial_weights("closed", "huge", SHAPE, 0)
    with pytest.raises(InvalidValue, match="sizes of Shape"):
        probability(initial_weights("closed", "small", SHAPE, 0), random_inputs(0, Shape(2, 6, 4, 6)))
    np.savez(tmp_path / "other.npz", detector=np.array("linear"), shape=np.array([1, 1, 1, 1]))
    with pytest.raises(UnknownName, match="linear"):
        Weights.load(tmp_path / "other.npz")
