"""Overcooked: two cooks, one order of onion soup; our own simulators beside the package overcooked-ai."""
