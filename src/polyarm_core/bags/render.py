"""Pictures of a recorded run: world states and joint states become poses of the plant's model, which are then drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyarm_core.bags.reader import Bag, BagError
from polyarm_core.bags.table import WORLD, episode_order
from polyarm_core.errors import InvalidValue

if TYPE_CHECKING:
    from polyarm_core.plant.scene import Scene
    from polyarm_core.scenario import Scenario

JOINT_STATE = "sensor_msgs/msg/JointState"
FORMATS = (".png", ".gif")
FRAMES_PER_SECOND = 12


def render_bag(
    path: Path,
    target: Path,
    episode: int | None = None,
    frames: int = 60,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Draw an episode of a bag: ``.png`` shows its last moment, ``.gif`` its course.

    Args:
        path: the bag.
        target: file to write.
        episode: which one, counted from 1 in the order of the bag; the first by default.
        frames: pictures, evenly over the episode.
        progress: called with the number of pictures drawn and of all.

    Returns:
        Number of pictures drawn.

    Raises:
        InvalidValue: a format that is none of these, or no bag.
        BagError: the bag holds nothing to draw.
        RenderFailed: this machine cannot draw.
    """
    if target.suffix not in FORMATS:
        raise InvalidValue("picture", str(target), "a file that ends in " + " or ".join(FORMATS))
    with Bag(path) as bag:
        from polyarm_core.plant import render
        from polyarm_core.plant.scene import build_scene

        scenario = scenario_of_bag(bag)
        course = poses(bag, build_scene(scenario, visuals=False), episode, frames)
    single = target.suffix == ".png"
    images = render.render_frames(scenario, course[-1:] if single else course, shadows=single, progress=progress)
    target.parent.mkdir(parents=True, exist_ok=True)
    if single:
        render.save_png(target, images[0])
    else:
        render.save_gif(target, images, fps=FRAMES_PER_SECOND)
    return len(images)


def scenario_of_bag(bag: Bag) -> Scenario:
    """The scenario that a bag was recorded with, as its recorder stored it.

    Raises:
        BagError: the bag names none.
        UnknownName, ScenarioError: it names one that does not exist here.
    """
    from polyarm_core.scenario import load_scenario, parse_scenario

    if definition := bag.custom.get("scenario_definition"):
        return parse_scenario(json.loads(definition), origin=str(bag.path))
    if name := bag.custom.get("scenario"):
        return load_scenario(name)
    raise BagError(f"{bag.path} does not say which scenario it was recorded with")


def poses(bag: Bag, scene: Scene, episode: int | None, frames: int) -> list[Any]:
    """Poses of the plant's model (qpos, shape (nq,)) over an episode, oldest first.

    Entities stand where the world state says, arm joints are those of the newest joint state before it. Fingers that
    slide are opened as reported; linkages are drawn open.

    Raises:
        BagError: the bag holds no such episode.
    """
    import mujoco
    import numpy as np

    order = list(episode_order(bag))
    if not 1 <= (episode or 1) <= len(order):
        raise BagError(f"{bag.path} holds no episode {episode or 1}; it holds {len(order)}")
    wanted = order[(episode or 1) - 1]
    types = {topic.name: topic.type_name for topic in bag.topics}
    arm_of = {
        name: name.rsplit("/", 2)[-2]
        for name in bag.of_type(JOINT_STATE)
        if name.count("/") >= 2 and name.rsplit("/", 2)[-2] in scene.arms
    }
    joints: dict[str, dict[str, float]] = {}
    course: list[tuple[Any, dict[str, dict[str, float]]]] = []
    for item in bag.messages([*bag.of_type(WORLD), *arm_of]):
        if types[item.topic] == WORLD:
            if item.message.episode == wanted:
                course.append((item.message, dict(joints)))
        else:
            message = item.message
            joints[arm_of[item.topic]] = dict(zip(message.name, (float(q) for q in message.position), strict=False))

    chosen = np.unique(np.linspace(0, len(course) - 1, min(frames, len(course))).round().astype(int))
    drawn = []
    for number in chosen:
        world, angles = course[number]
        qpos = scene.model.qpos0.copy()
        for name, arm in scene.arms.items():
            known = angles.get(name, {})
            home = arm.robot.home
            for address, joint, rest in zip(arm.qpos, arm.robot.joints, home, strict=True):
                # Drivers may put the arm's name before the joint's.
                qpos[address] = known.get(joint, known.get(f"{name}/{joint}", known.get(f"{name}_{joint}", rest)))
        for state in world.arms:
            fingers = scene.arms[state.name].finger_qpos if state.name in scene.arms else ()
            for address in fingers:
                number_of_joint = int(np.flatnonzero(scene.model.jnt_qposadr == address)[0])
                if scene.model.jnt_type[number_of_joint] == mujoco.mjtJoint.mjJNT_SLIDE:
                    qpos[address] = state.opening / len(fingers)
        for entity in world.entities:
            if entity.name in scene.entities:
                address = scene.entities[entity.name].qpos
                position, turn = entity.pose.position, entity.pose.orientation
                qpos[address : address + 7] = [position.x, position.y, position.z, turn.w, turn.x, turn.y, turn.z]
        drawn.append(qpos)
    return drawn
