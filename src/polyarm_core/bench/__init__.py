"""Measurements: each module has one function ``run(...) -> Figures``."""
