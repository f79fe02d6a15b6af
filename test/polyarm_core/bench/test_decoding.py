"""Plans with and without the grammar, by a model that knows nothing: the grammar's are valid, the others are not."""

from __future__ import annotations

import json

from tiny_language_model import save_tiny_model

from polyarm_core.bench import decoding
from polyarm_core.bench.overcooked import methods
from polyarm_core.llm.batched import BatchedModel
from polyarm_core.llm.transformers_backend import TransformersModel


def test_what_was_written_counts_and_is_not_written_again(tmp_path, monkeypatch):
    model = BatchedModel(TransformersModel(str(save_tiny_model(tmp_path / "tiny")), dtype="float32"))
    monkeypatch.setattr(methods, "_opened", lambda which: model)
    monkeypatch.setattr(decoding, "TIMED", 1)
    opened = methods.open_model_coordinator
    monkeypatch.setattr(methods, "open_model_coordinator", lambda *names, **how: opened(*names, max_tokens=60, **how))
    log = tmp_path / "plans.jsonl"

    def run(free: int) -> dict[str, float]:
        return dict(decoding.run("base", constrained=4, free=free, layouts=("cramped_room",), log=log).items())

    first = run(2)
    lines = log.read_text("utf-8").splitlines()
    assert len(lines) == 6
    rows = {(kind, i): row for _, kind, i, row in map(json.loads, lines)}
    assert set(rows) == {("constrained", i) for i in range(4)} | {("free", i) for i in range(2)}
    assert all((row["seconds"] is not None) == (i == 0) for (_, i), row in rows.items())
    # The grammar leaves only two ways out: a valid plan, or one that never ends.
    assert all(row["cut_off"] or not row["error"] for (kind, _), row in rows.items() if kind == "constrained")
    assert first["decoding.base.free.invalid_share"] == 1.0
    second = run(3)
    assert log.read_text("utf-8").splitlines()[:6] == lines and len(log.read_text("utf-8").splitlines()) == 7
    assert second["decoding.base.free.outputs"] == 3
