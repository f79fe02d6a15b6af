"""FollowJointTrajectory server of one simulated arm; needs control_msgs, which not every installation has."""

from __future__ import annotations

import time
from typing import Any

from control_msgs.action import FollowJointTrajectory
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup

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
        try:
            loop.call(lambda plant: plant.send_trajectory(arm, trajectory), timeout=CALL_TIMEOUT)
        except PolyarmError as error:
            handle.abort()
            result.error_code, result.error_string = FollowJointTrajectory.Result.INVALID_GOAL, str(error)
            return result
        until = time.monotonic() + LATE
        while time.monotonic() < until:
            state = loop.call(lambda plant: plant.trajectory_state(arm), timeout=CALL_TIMEOUT)
            if handle.is_cancel_requested or not self._bridge.may_move(arm):
                loop.call(lambda plant: plant.hold(arm), timeout=CALL_TIMEOUT)
                handle.canceled() if handle.is_cancel_requested else handle.abort()
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
