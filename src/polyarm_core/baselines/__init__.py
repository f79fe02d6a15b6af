"""Teams without a language model that Overcooked results are compared with: greedy planners and trained networks."""
