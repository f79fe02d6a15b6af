"""One system: chains, twin and staleness detector drive the arms together.

Each part is a pure state machine that a node merely feeds:

* `modes`: three ways to drive a team, and what a plan says of an arm in a slot.
* `mirror`: the arms' domain whose slots end as the twin and the plant have ended them.
* `follower`: executes a plan slot by slot from what everybody hears: worlds, verdicts, results.
* `chain_agent`: one arm's decision in a slot, by its chain or by its own model.
* `planner`: holds the plan; when to mend it, when to ask the coordinator, what to do with its answer.
* `waits`: one wait-for graph of chain waits, groups that are not complete and vetoes of the twin.
* `executive`: follower, planner and wait-for graph as one machine, the one executor of a cell.
* `disturbance`: what happens beside what the arms do, drawn beforehand.
* `team`, `episode`: all of it in one process.
"""
