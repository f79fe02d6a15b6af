"""``polyarm bench llm`` measures the real model and names its figures; how fast it is, is not tested."""

from __future__ import annotations

import json

import pytest
from model_samples import NAME

from polyarm_core.bench.llm import run
from polyarm_core.errors import InvalidValue, UnknownName


@pytest.mark.slow
def test_the_bench_measures_every_way_of_scoring(tmp_path) -> None:
    figures = run(model=f"transformers:{NAME}", decisions=1, threads=(1,), dtypes=("float32",), progress=False)
    for way, count in (("shared", 1), ("first", 1), ("one_by_one", 3), ("unshared", 3), ("slot.together", 3)):
        row = f"llm.float32.threads1.{way}"
        assert figures[f"{row}.decisions"] == count
        assert 0 < figures[f"{row}.p10_s"] <= figures[f"{row}.median_s"] <= figures[f"{row}.p90_s"]
    assert figures["llm.float32.threads1.deviation"] < 2e-4
    assert (figures["llm.prompt_tokens"], figures["llm.candidates"]) == (219, 6)
    figures.write(tmp_path / "llm.json")
    assert json.loads((tmp_path / "llm.json").read_text())["figures"] == dict(figures.items())


def test_what_it_cannot_measure_is_refused() -> None:
    with pytest.raises(InvalidValue, match="openai:m"):
        run(model="openai:m", progress=False)
    with pytest.raises(InvalidValue, match="decisions"):
        run(decisions=0, progress=False)
    with pytest.raises(UnknownName, match=NAME):
        run(model="no-such-model", progress=False)
