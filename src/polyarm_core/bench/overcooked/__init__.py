"""``polyarm bench overcooked``: the paper's protocol in the kitchen, for our methods, ablations and baselines."""

from polyarm_core.bench.overcooked.sweep import run

__all__ = ["run"]
