"""Domains: worlds in which agents execute chains (Overcooked, arms, a small MOBA)."""
