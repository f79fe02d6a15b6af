"""Model outputs of every kind: typed errors or execution of what was validated, nothing else."""

import pytest
from toy_domain import ToyDomain

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.chains.fuzz import episode_states, fuzz
from polyarm_core.chains.terms import Action


@pytest.mark.parametrize("agents", [2, 3])
def test_no_output_breaks_anything(agents):
    domain = ToyDomain(agents)
    states = [domain.start(0), *episode_states(domain, 9, seed=0)]
    report = fuzz(domain, states, ChainExecutor, count=1000, seed=agents)
    assert report.passed, str(report)
    assert sum(report.outcomes.values()) == report.count == 1000
    assert min(report.outcomes[key] for key in ("syntax error", "not valid", "executed")) > 100
    assert report.steps > 500
    assert len(report.problems) > 8


def test_the_same_seed_gives_the_same_outputs():
    domain = ToyDomain()
    one, two, three = (fuzz(domain, [domain.start(0)], ChainExecutor, 100, seed) for seed in (5, 5, 6))
    assert (one.outcomes, one.problems, one.steps) == (two.outcomes, two.problems, two.steps)
    assert (one.outcomes, one.problems, one.steps) != (three.outcomes, three.problems, three.steps)


def test_an_executor_that_makes_up_steps_is_found_out():
    class Inventive(ChainExecutor):
        def intents(self, state):
            super().intents(state)
            return (Action("Go", ("cell_1",)),) * 2

        def advance(self, before, controls, after):
            return ()

    domain = ToyDomain()
    report = fuzz(domain, [domain.start(0)], Inventive, 100, seed=0)
    assert report.unvalidated > 0
    assert not report.passed


def test_an_error_is_kept_with_the_output_that_caused_it():
    class Broken(ToyDomain):
        def impossible(self, state, agent, action):
            raise KeyError(action.name)

    domain = Broken()
    report = fuzz(domain, [domain.start(0)], ChainExecutor, 100, seed=0)
    assert report.failed > 0
    assert not report.passed
    text, error = report.failures[0]
    assert error.startswith("KeyError")
    assert "(" in text
    assert repr(text[:400]) in str(report)
