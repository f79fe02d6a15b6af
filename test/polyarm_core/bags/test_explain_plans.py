"""A bag of a team that follows plans, in words: who waits, what was vetoed, which plan was replaced and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed")

from polyarm_core.bags.explain import explain_bag

TOPICS = {
    "/cell/world": "WorldState",
    "/cell/slot_opening": "SlotOpening",
    "/cell/intents": "IntentReport",
    "/cell/verdicts": "SlotVerdict",
    "/cell/action_results": "ActionResult",
    "/cell/episode_result": "EpisodeResult",
    "/cell/plan": "Plan",
    "/cell/plan_state": "PlanState",
    "/cell/plan_calls": "PlanCall",
    "/cell/staleness": "Staleness",
    "/cell/replan_requests": "ReplanRequest",
    "/cell/detections": "Detection",
    "/cell/disturbances": "Disturbance",
    "/cell/frame_state": "FrameState",
}
ACT, WAIT, ENDED, UNPLANNED = 1, 2, 3, 4
COORDINATOR, REPAIR = 1, 2
DEADLOCK, CHAIN_END = 1, 4

STORY = """\
episode 1 (seed 7), slot 1
  plan 1, start (the coordinator, 1.2 s, 350 tokens read, 80 written)
    alice: hold(left_door)
    bob: Wait_agents(alice, active, 1); move(mug, coaster)
    chad: nothing to do
  by plan 1 alice is to hold left_door; bob waits (step 1, Wait_agents(alice, active, 1)); chad has done its part
  the twin asks alice, bob, chad
  alice proposes hold left_door (by its chain, plan 1)
  bob proposes stay (by its chain, plan 1)
  verdict after 500 ms: 1 admitted by optimal (proven optimal)
    alice: hold left_door is admitted under token 41
  meanwhile, left_door slipped from alice and fell shut (slipped)
  alice: hold left_door failed after 1.5 s of simulation: slip
episode 1 (seed 7), slot 2
  before it, mug moved from shelf to tray (moved)
  plan 1 looks stale: probability 0.93, threshold 0.50 (in 2 states of the world)
  another plan is asked for instead of plan 1: stale (the world has changed; probability 0.93; about alice, bob)
  no plan for stale: the world has changed (mending the plan): no patch of alice helps
  plan 1 is not followed any more, the next one is being made
  the twin asks alice, bob, chad
  alice proposes move mug to tray (the model or the plan failed or was late)
  verdict after 500 ms: 0 admitted by optimal (proven optimal)
    alice: move mug to tray must drop it and choose again: placement:tray is taken by bob (exclusion)
  deadlock in plan 1, alice waits for bob and bob waits for alice: alice waits for bob (the twin on move mug to tray: \
exclusion), bob waits for alice: none of them can go on
episode 1 (seed 7), slot 3
  plan 2 replaces plan 1, deadlock: alice waits for bob (mending the plan)
    alice: move(mug, coaster)
  by plan 2 alice is to move mug to coaster
  the twin asks alice, bob, chad
  verdict after 500 ms: 0 admitted by optimal (proven optimal)
  chain end in plan 2 of alice, bob: all chains are done and the task is not
episode 1 (seed 7): success after 3 slots and 9.0 s of simulation, 0 contacts between arms; 1 calls of the coordinator\
, 1 plans mended, 2 detections, 2 disturbances"""


def story(maker: Any) -> list[tuple[float, str, Any]]:
    """Three slots: a plan, its end, and the one that replaces it; what is latched is heard twice."""
    make = maker.make
    said: list[tuple[float, str, Any]] = []
    counts: dict[str, int] = {}

    def say(at: float, topic: str, name: str, **fields: Any) -> None:
        counts[name] = counts.get(name, 0) + 1
        said.append((at, f"/cell/{topic}", make(name, episode=1, epoch=5, sequence=counts[name], **fields)))

    def action(verb: str, entity: str = "", placement: str = "") -> Any:
        return make("Action", verb=verb, entity=entity, placement=placement)

    def head(agent: str, standing: int, **fields: Any) -> Any:
        return make("ArmHead", agent=agent, standing=standing, **fields)

    def chain(agent: str, *steps: str) -> Any:
        return make("ActionChain", agent=agent, steps=list(steps))

    def verdict(at: float, slot: int, *answers: Any) -> None:
        admitted = sum(answer.decision == 1 for answer in answers)
        say(at, "verdicts", "SlotVerdict", slot=slot, strategy="optimal", admitted=admitted, proven=True,
            verdicts=list(answers))  # fmt: skip

    def opening(at: float, slot: int) -> None:
        say(at, "slot_opening", "SlotOpening", slot=slot, expected=["alice", "bob", "chad"])

    hold, move = action("hold", "left_door"), action("move", "mug", "tray")
    said.append((0.0, "/cell/world", make("WorldState", episode=1, seed=7, epoch=5, sequence=1)))
    opening(1.0, 1)
    say(2.2, "plan_calls", "PlanCall", slot=1, source=COORDINATOR, reason="start", number=1, seconds=1.2,
        prompt_tokens=350, tokens=80)  # fmt: skip
    chains = [chain("alice", "hold(left_door)"), chain("bob", "Wait_agents(alice, active, 1)", "move(mug, coaster)")]
    say(2.2, "plan", "Plan", slot=1, number=1, reason="start", chains=[*chains, chain("chad")])
    said.append((2.25, "/cell/plan", said[-1][2]))
    why = "step 1, Wait_agents(alice, active, 1)"
    say(1.1, "plan_state", "PlanState", slot=1)
    heads = [head("alice", ACT, action=hold), head("bob", WAIT, why=why), head("chad", ENDED)]
    say(2.3, "plan_state", "PlanState", slot=1, plan=1, sound=True, heads=heads)
    say(1.2, "intents", "IntentReport", slot=1, arm="alice", action=hold, decided_by=5, plan=1)
    say(1.2, "intents", "IntentReport", slot=1, arm="bob", action=action("stay"), decided_by=5, plan=1)
    say(2.4, "staleness", "Staleness", slot=1, plan=1, probability=0.1, threshold=0.5)
    verdict(1.5, 1, make("ArmVerdict", arm="alice", action=hold, decision=1, lease=make("Lease", token=41)))
    say(3.0, "disturbances", "Disturbance", slot=1, kind="slipped", what="left_door slipped from alice and fell shut")
    say(3.0, "action_results", "ActionResult", slot=1, arm="alice", action=hold, outcome=2, reason="slip", duration=1.5)

    opening(4.0, 2)
    say(3.9, "disturbances", "Disturbance", slot=2, kind="moved", what="mug moved from shelf to tray")
    for at, probability in ((4.1, 0.8), (4.2, 0.93)):
        say(at, "staleness", "Staleness", slot=2, plan=1, probability=probability, threshold=0.5, stale=True)
    say(4.2, "replan_requests", "ReplanRequest", slot=2, plan=1, reason="stale", cause="the world has changed",
        agents=["alice", "bob"], probability=0.93)  # fmt: skip
    say(4.3, "plan_calls", "PlanCall", slot=2, source=REPAIR, reason="stale", cause="the world has changed",
        error="no patch of alice helps")  # fmt: skip
    say(4.3, "plan_state", "PlanState", slot=2, plan=1, heads=[head("alice", UNPLANNED)])
    say(4.4, "intents", "IntentReport", slot=2, arm="alice", action=move, decided_by=4)
    verdict(4.5, 2, make("ArmVerdict", arm="alice", action=move, decision=2, rule=1, element="placement:tray",
                         rival="bob"))  # fmt: skip
    reason = (
        "alice waits for bob (the twin on move mug to tray: exclusion), bob waits for alice: none of them can go on"
    )
    say(4.6, "detections", "Detection", slot=2, plan=1, kind=DEADLOCK, agents=["alice", "bob"], cycle=["alice", "bob"],
        reason=reason)  # fmt: skip

    opening(5.0, 3)
    say(5.1, "plan_calls", "PlanCall", slot=3, source=REPAIR, reason="deadlock", cause="alice waits for bob", number=2)
    say(5.1, "plan", "Plan", slot=3, number=2, reason="deadlock", chains=[chain("alice", "move(mug, coaster)")])
    standing = head("alice", ACT, action=action("move", "mug", "coaster"))
    say(5.2, "plan_state", "PlanState", slot=3, plan=2, sound=True, heads=[standing])
    verdict(5.5, 3)
    say(6.0, "detections", "Detection", slot=3, plan=2, kind=CHAIN_END, agents=["alice", "bob"],
        reason="all chains are done and the task is not")  # fmt: skip
    end = make("EpisodeResult", episode=1, seed=7, success=True, slots=3, sim_time=9.0, plan_calls=1, plan_repairs=1,
               detections=2, disturbances=2)  # fmt: skip
    return [*said, (7.0, "/cell/episode_result", end)]


def test_a_story_of_waits_vetoes_and_replaced_plans(maker: Any, tmp_path: Path) -> None:
    messages = sorted(story(maker), key=lambda entry: entry[0])
    maker.write(tmp_path / "bag", messages, {"scenario": "cabinet"}, TOPICS)
    assert "\n".join(explain_bag(tmp_path / "bag")) == STORY
    lines = STORY.splitlines()
    second, third = (lines.index(f"episode 1 (seed 7), slot {slot}") for slot in (2, 3))
    assert list(explain_bag(tmp_path / "bag", slot=2)) == lines[second:third]


def test_in_a_world_of_frames_only_those_with_news_are_told(maker: Any, tmp_path: Path) -> None:
    make = maker.make
    messages: list[tuple[float, str, Any]] = []
    for frame in range(5):
        at = float(frame)
        state = make("FrameState", episode=3, frame=frame, seed=4, epoch=5, sequence=frame + 1)
        messages.append((at, "/cell/frame_state", state))
        standing = make("PlanState", episode=3, slot=frame, plan=1, sound=True, epoch=6, sequence=frame + 1,
                        heads=[make("ArmHead", agent="chef", standing=ACT)])  # fmt: skip
        messages.append((at, "/cell/plan_state", standing))
        fresh = make("Staleness", episode=3, slot=frame, plan=1, epoch=7, sequence=frame + 1, probability=0.2)
        messages.append((at, "/cell/staleness", fresh))
    what = make("Disturbance", episode=3, slot=2, epoch=5, sequence=1, kind="O1", what="an onion is gone")
    messages.append((2.5, "/cell/disturbances", what))
    maker.write(tmp_path / "bag", sorted(messages, key=lambda entry: entry[0]), {}, TOPICS)
    assert list(explain_bag(tmp_path / "bag")) == [
        "episode 1 (seed 4), frame 2",
        "  before it, an onion is gone (O1)",
        "  by plan 1 chef acts",
    ]
