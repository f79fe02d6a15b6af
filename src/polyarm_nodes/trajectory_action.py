"""FollowJointTrajectory: server of one simulated arm, client of a real one; GripperCommand: client.

Needs control_msgs, which not every installation has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from control_msgs.action import FollowJointTrajectory, GripperCommand
from rclpy.action import ActionClient, ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from trajectory_msgs.msg import JointTrajectory

from polyarm_core.errors import PolyarmError
from polyarm_nodes.plant_bridge import CALL_TIMEOUT
from polyarm_nodes.validation import Malformed

POLL = 0.02  # s between two looks at the motion
LATE = 60.0  # s of wall time after which a goal is given up; the arm holds


class TrajectoryAction:
    """Takes goals as joint_trajectory_controller does: a new one preempts, cancelling holds."""

    def __init__(self, bridge: Any, arm: str, name: str) -> None:
        self._bridge = bridge
        self._arm = arm
        self._newest = 0
        self._server = ActionServer(
            bridge,
            FollowJointTrajectory,
            name,
            execute_callback=self._execute,
            goal_callback=self._on_goal,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
            callback_group=ReentrantCallbackGroup(),
        )

    def _on_goal(self, goal: FollowJointTrajectory.Goal) -> GoalResponse:
        try:
            self._bridge.read_trajectory(self._arm, goal.trajectory)
        except Malformed as why:
            self._bridge.refuse("malformed", f"trajectory goal of {self._arm}: {why}")
            return GoalResponse.REJECT
        if not self._bridge.may_move(self._arm):
            self._bridge.refuse("no_lease", f"trajectory goal for {self._arm}, which has no valid lease")
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    async def _execute(self, handle: Any) -> FollowJointTrajectory.Result:
        result = FollowJointTrajectory.Result()
        loop, arm = self._bridge.loop, self._arm
        trajectory = self._bridge.read_trajectory(arm, handle.request.trajectory)
        self._newest += 1
        number = self._newest

        def follow(plant: Any) -> None:
            self._bridge.commanded.add(arm)  # the lease of the action that this replaces goes on to cover it
            plant.send_trajectory(arm, trajectory)

        try:
            loop.call(follow, timeout=CALL_TIMEOUT)
        except PolyarmError as error:
            handle.abort()
            result.error_code, result.error_string = FollowJointTrajectory.Result.INVALID_GOAL, str(error)
            return result
        until = time.monotonic() + LATE
        while time.monotonic() < until:
            if number != self._newest:
                handle.abort()
                result.error_code, result.error_string = FollowJointTrajectory.Result.INVALID_GOAL, "preempted"
                return result
            state = loop.call(lambda plant: plant.trajectory_state(arm), timeout=CALL_TIMEOUT)
            if handle.is_cancel_requested or not self._bridge.may_move(arm):
                loop.call(lambda plant: plant.hold(arm), timeout=CALL_TIMEOUT)
                handle.canceled() if handle.is_cancel_requested else handle.abort()
                result.error_code = FollowJointTrajectory.Result.INVALID_GOAL
                result.error_string = "cancelled" if handle.is_cancel_requested else "the lease ended"
                return result
            if state == "done":
                handle.succeed()
                result.error_code = FollowJointTrajectory.Result.SUCCESSFUL
                return result
            if state in ("failed", "idle"):
                handle.abort()
                result.error_code = FollowJointTrajectory.Result.PATH_TOLERANCE_VIOLATED
                result.error_string = f"the motion ended as {state!r}"
                return result
            await self._pause()
        handle.abort()
        result.error_code = FollowJointTrajectory.Result.GOAL_TOLERANCE_VIOLATED
        result.error_string = f"not there within {LATE} s"
        return result

    async def _pause(self) -> None:
        # Give the single-threaded executor back until a steady timer fires.
        from rclpy.task import Future

        done: Any = Future()
        timer = self._bridge.create_timer(POLL, lambda: done.set_result(None), clock=self._bridge.steady_clock)
        await done
        self._bridge.destroy_timer(timer)


class TrajectoryClient:
    """Sends trajectories to a controller as goals; a new one preempts, as on the topic.

    Args:
        node: to whose executor it belongs.
        name: of the action.
        on_aborted: told in words when the controller rejects or aborts the newest goal.
    """

    def __init__(self, node: Any, name: str, on_aborted: Callable[[str], None]) -> None:
        self._client = ActionClient(node, FollowJointTrajectory, name)
        self._name = name
        self._on_aborted = on_aborted
        self._newest = 0

    def send(self, trajectory: JointTrajectory) -> None:
        """Send a goal; never waits. Without a controller it counts as rejected."""
        self._newest += 1
        number = self._newest
        if not self._client.server_is_ready():
            self._on_aborted(f"no controller offers {self._name}")
            return

        def ended(future: Any) -> None:
            result = future.result().result
            if number == self._newest and result.error_code != FollowJointTrajectory.Result.SUCCESSFUL:
                self._on_aborted(result.error_string or f"aborted with code {result.error_code}")

        def answered(future: Any) -> None:
            handle = future.result()
            if handle.accepted:
                handle.get_result_async().add_done_callback(ended)
            elif number == self._newest:
                self._on_aborted("the controller rejected the trajectory")

        # Called in the plant's thread. Should the answer overtake the bookkeeping here, only its words are lost: that
        # an arm does not follow shows in its joint states as well.
        self._client.send_goal_async(FollowJointTrajectory.Goal(trajectory=trajectory)).add_done_callback(answered)


class GripperClient:
    """Sends openings to a gripper as goals of the GripperCommand action; its state tells what comes of them."""

    def __init__(self, node: Any, name: str, max_effort: float) -> None:
        self._client = ActionClient(node, GripperCommand, name)
        self._max_effort = max_effort

    def send(self, position: float) -> None:
        """Send a goal; never waits. An arm whose gripper does not act ends its action as a slip or a time-out."""
        goal = GripperCommand.Goal()
        goal.command.position, goal.command.max_effort = float(position), self._max_effort
        self._client.send_goal_async(goal)
