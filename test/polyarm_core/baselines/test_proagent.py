"""ProAgent-style prompting: one call per skill and agent, the verifier, retries, waiting."""

from __future__ import annotations

import re

import pytest

from polyarm_core.baselines.episodes import play
from polyarm_core.baselines.proagent import RETRIES, WAIT, ProAgent, Skill, read_skill
from polyarm_core.domains.overcooked.disturbances import EventSchedule
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.domains.overcooked.kitchen import DISH, NOTHING, ONION, SOUP, STAY
from polyarm_core.llm.interface import Generation, ModelUnavailable

DOMAIN = OvercookedDomain("cramped_room")
START = DOMAIN.start(0)


class Writer:
    """A language model that answers by a rule of the prompt."""

    def __init__(self, rule) -> None:
        self.rule = rule
        self.prompts: list[str] = []

    def generate(self, prompt, grammar=None, max_tokens=256):
        self.prompts.append(prompt.dynamic)
        return Generation(self.rule(prompt.dynamic), prompt_tokens=9, tokens=4, seconds=0.1, finished=True)


def cook(prompt: str) -> str:
    """A sensible cook, as far as the prompt tells: agent_2 brings the dish, agent_1 everything else."""
    holding = re.search(r"You hold (\w+)", prompt)[1]
    pot = re.search(r"pot_1 (\w+)", prompt)[1]
    skill = {"onion": "put_onion_in_pot()", "soup": "deliver_soup()"}.get(holding)
    if holding == "dish":
        skill = "fill_dish_with_soup()" if pot in ("cooking", "ready") else "wait(2)"
    if holding == "nothing":
        if "You are agent_2" in prompt:
            skill = "pickup(dish)" if pot != "empty" else "wait(3)"
        else:
            skill = {"full": "start_cooking()", "cooking": "wait(5)", "ready": "wait(5)"}.get(pot, "pickup(onion)")
    return f"Intention: the partner cooks.\nSkill: {skill}"


def test_a_sensible_planner_delivers():
    model = Writer(cook)
    team = ProAgent(DOMAIN, model)
    end = play(team, DOMAIN.kitchen, 0, EventSchedule())
    assert end is not None and end < 60
    assert team.use.invalid_share == 0.0 and team.use.waits == 0
    assert len(model.prompts) == team.use.calls < 2 * end / 3  # once per skill, not per frame
    assert play(team, DOMAIN.kitchen, 0, EventSchedule()) == end  # nothing is left of the last episode


def test_it_recovers_from_disturbances():
    ends = [
        play(ProAgent(DOMAIN, Writer(cook)), DOMAIN.kitchen, seed, EventSchedule.once_each(seed)) for seed in range(5)
    ]
    assert sum(end is not None for end in ends) >= 4


def test_the_verifier_explains_and_then_the_agent_waits():
    model = Writer(lambda prompt: "Skill: deliver_soup()")
    team = ProAgent(DOMAIN, model)
    team.reset(0)
    assert team.act(START) == (STAY, STAY)
    assert len(model.prompts) == 2 * (1 + RETRIES)
    assert "you do not hold a soup" not in model.prompts[0]
    assert model.prompts[RETRIES].count("you do not hold a soup") == RETRIES
    assert (team.use.rejected, team.use.waits) == (2 * (1 + RETRIES), 2)
    state = START
    for _ in range(WAIT - 1):
        state = DOMAIN.kitchen.step(state, (STAY, STAY))
        team.act(state)
    assert len(model.prompts) == 2 * (1 + RETRIES)  # it waits, it does not ask
    team.act(DOMAIN.kitchen.step(state, (STAY, STAY)))
    assert len(model.prompts) == 4 * (1 + RETRIES)


def test_a_text_without_a_skill_is_told_so():
    model = Writer(lambda prompt: "pickup(onion)" if "No skill was named" in prompt else "I would take an onion.")
    team = ProAgent(DOMAIN, model)
    team.reset(0)
    team.act(START)
    assert team.use.unreadable == 2 and team.use.waits == 0
    assert team.use.invalid_share == 0.5


def test_agents_wait_while_the_model_is_down():
    class Down:
        def generate(self, prompt, grammar=None, max_tokens=256):
            raise ModelUnavailable("the server is down")

    team = ProAgent(DOMAIN, Down())
    team.reset(0)
    assert team.act(START) == (STAY, STAY)
    assert "the server is down" in team.reasons["agent_1"]
    assert team.use.calls == 0 and team.use.waits == 2


def test_a_skill_ends_when_its_action_fails_or_takes_too_long():
    model = Writer(lambda prompt: "pickup(onion)")
    team = ProAgent(DOMAIN, model)
    team.reset(0)
    team.act(START)
    assert len(model.prompts) == 2
    stuck = START
    for _ in range(25):  # nobody moves: the controls are ignored
        stuck = DOMAIN.kitchen.step(stuck, (STAY, STAY))
        team.act(stuck)
    assert len(model.prompts) == 4
    assert "given up" in model.prompts[2]


@pytest.mark.parametrize(
    ("held", "pot", "skill", "target", "problem"),
    [
        (NOTHING, (0, -1), "pickup(onion)", "onion_dispenser", ""),
        (NOTHING, (0, -1), "pickup(dish)", "dish_dispenser", ""),
        (NOTHING, (0, -1), "pickup(soup)", "", "no soup is within reach"),
        (NOTHING, (0, -1), "pickup(fish)", "", "there is no item 'fish'"),
        (ONION, (0, -1), "pickup(onion)", "", "you hold onion"),
        (ONION, (2, -1), "put_onion_in_pot()", "pot_1", ""),
        (ONION, (3, -1), "put_onion_in_pot()", "", "every pot is full"),
        (DISH, (2, -1), "put_onion_in_pot()", "", "you do not hold an onion"),
        (NOTHING, (3, -1), "start_cooking()", "pot_1", ""),
        (NOTHING, (2, -1), "start_cooking()", "", "three onions"),
        (ONION, (3, -1), "start_cooking()", "", "empty hands"),
        (DISH, (3, 4), "fill_dish_with_soup()", "pot_1", ""),
        (DISH, (3, -1), "fill_dish_with_soup()", "", "no soup is cooking"),
        (NOTHING, (3, 4), "fill_dish_with_soup()", "", "you do not hold a dish"),
        (SOUP, (0, -1), "deliver_soup()", "serving_1", ""),
        (DISH, (0, -1), "place_obj_on_counter()", "counter", ""),
        (NOTHING, (0, -1), "place_obj_on_counter()", "", "you hold nothing"),
        (NOTHING, (0, -1), "wait(5)", "", ""),
        (NOTHING, (0, -1), "wait()", "", "wait for 1 to"),
        (NOTHING, (0, -1), "dance()", "", "no such skill"),
    ],
)
def test_verifier(held, pot, skill, target, problem):
    name, argument = re.fullmatch(r"(\w+)\((\w*)\)", skill).groups()
    state = START._replace(held=(held, NOTHING), pots=(pot, *START.pots[1:]))
    action, found = ProAgent(DOMAIN, Writer(cook)).verify(state, "agent_1", Skill(name, argument))
    assert (problem in found) if problem else not found
    assert (action is not None and action.arguments[0].startswith(target)) if target else action is None


def test_skills_are_read_leniently():
    assert read_skill("Intention: he will pickup(dish).\nSkill: Put_onion_in_pot( )") == Skill("put_onion_in_pot")
    assert read_skill("wait( 4 )") == Skill("wait", "4")
    assert read_skill("I pick up an onion (quickly)") is None
