"""What every plant's bridge does: check leases, start and stop actions, publish world and results, reset.

All state lives in the plant loop's thread: callbacks of the executor only post functions to it, and what the loop
finds is published from there. A lease that is not renewed stops its arm, whatever else happens.

With ``disturb`` the plant does to the world what the episode's seed has drawn beforehand: between two slots once all
granted actions of the one before have ended, or none was granted, and while arms move. What happened is in the world
before the results of the slot are told, so that no slot opens on a world without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import (
    ActionResult,
    ArmState,
    Disturbance,
    EntityState,
    GrantTable,
    IntentReport,
    SlotVerdict,
    WorldState,
)
from polyarm.srv import ResetWorld, StepSimulation
from std_srvs.srv import SetBool

from polyarm_core.conditions import ConditionTracker
from polyarm_core.control.disturbance import HOME_TIME, Disturber, draw_schedule
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.domains.arms import ArmsDomain
from polyarm_core.errors import InvalidValue, PolyarmError
from polyarm_core.leases import Grant, LeaseGuard
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.plant.simulation import TICK, Simulation, SimulationLoop
from polyarm_core.plant.skills import ActionResult as PlantResult
from polyarm_core.plant.skills import ArmBusy
from polyarm_core.scenario import Scenario, load_scenario
from polyarm_core.slots import ArmStatus
from polyarm_core.world import locate, satisfied, succeeded
from polyarm_nodes import qos, topics
from polyarm_nodes.convert import (
    DECISIONS,
    STATUSES,
    Decision,
    action_from_message,
    action_to_message,
    grant_from_message,
    pose_fields,
    report_from_message,
)
from polyarm_nodes.lifecycle import PolyarmNode
from polyarm_nodes.parameters import declare_parameters
from polyarm_nodes.validation import Malformed, check_message

Plant = Simulation | KinematicPlant

OUTCOMES = {
    "succeeded": ActionResult.OUTCOME_SUCCEEDED,
    "failed": ActionResult.OUTCOME_FAILED,
    "stopped": ActionResult.OUTCOME_STOPPED,
    "refused": ActionResult.OUTCOME_REFUSED,
}
CALL_TIMEOUT = 30.0  # s; a reset waits for a plan that is being made
EPISODES_PER_EPOCH = 1000


class PlantBridge(PolyarmNode):
    """Base of the bridges; a subclass makes the plant and may add interfaces of its own."""

    values: dict[str, Any]
    scenario: Scenario
    loop: SimulationLoop

    def make_plant(self) -> Plant:
        """The plant, after the parameters were read."""
        raise NotImplementedError

    def parameter_table(self) -> Any:
        """The node's parameters."""
        raise NotImplementedError

    def make_loop(self, plant: Plant) -> SimulationLoop:
        """The thread in which the plant lives.

        As fast as it can: time stands still while nobody moves, so that an episode does not depend on how long
        decisions take, and the same seed gives the same episode.
        """
        return SimulationLoop(plant, self.values["real_time_factor"], self._on_period, idle="pause")

    def offer_services(self) -> None:
        """Create the plant's services; an episode monitor resets the world as soon as that service is there."""
        self.create_service(ResetWorld, "~/reset_world", self._on_reset)
        self.create_service(SetBool, "~/set_pause", self._on_pause)
        self.create_service(StepSimulation, "~/step_simulation", self._on_step)

    def on_period(self, plant: Plant) -> None:
        """Called in the loop's thread every period and after every call, once leases and results are dealt with."""

    # -- lifecycle ------------------------------------------------------------------------------------------------

    def configure(self) -> None:
        self.values = declare_parameters(self, self.parameter_table())
        self.scenario = load_scenario(self.values["scenario"])
        self._guard = LeaseGuard()
        self._conditions = ConditionTracker(self.scenario)
        self._lease_of: dict[str, Grant] = {}  # under which an arm moves; token 0 = optimistic, not yet decided
        self._episode = 0
        self._slot = 0
        self._sequence = 0
        self._result_sequence = 0
        self._resets = 0
        self._elapsed = 0.0  # s, simulated, in the episodes before
        self._started_slots: dict[str, int] = {}
        self._going_home: set[str] = set()
        # Arms that follow a command from outside: it replaced their action, and the lease covers it until it expires.
        self.commanded: set[str] = set()
        self._disturb = self.values.get("disturb", "none")
        self._disturber: Disturber | None = None  # of the episode
        self._domain = MirroredArms(ArmsDomain(self.scenario)) if self._disturb != "none" else None
        self._heard = 0  # newest slot of the episode that the twin has decided
        self._between = 0  # newest slot before which events were let happen
        self._stages: Iterator[str] | None = None  # of that, while an arm is brought home
        self._home_by = 0.0  # s, plant time
        self._deferred: list[Grant] = []  # nobody starts while a person is among the arms
        self._told = 0  # events of the episode
        self._disturbance_sequence = 0
        self._optimistic = self.values["execution"] == "optimistic"
        if self._optimistic and self.values["real_time_factor"] == 0.0:
            # As fast as it can, a motion that starts before its verdict would also end before it.
            raise InvalidValue("real_time_factor", 0.0, "a factor above 0 in optimistic execution")
        self.loop = self.make_loop(self.make_plant())
        self._worlds = self.create_publisher(WorldState, topics.WORLD, qos.WORLD)
        self._results = self.create_publisher(ActionResult, topics.ACTION_RESULTS, qos.RESULTS)
        if self._domain is not None:
            self._disturbances = self.create_publisher(Disturbance, topics.DISTURBANCES, qos.DISTURBANCES)
        self.create_subscription(SlotVerdict, topics.VERDICTS, self._on_verdict, qos.VERDICTS)
        self.create_subscription(GrantTable, topics.GRANTS, self._on_grants, qos.GRANTS)
        if self._optimistic:
            self.create_subscription(IntentReport, topics.INTENTS, self._on_intent, qos.REPORTS)
        self.offer_services()
        self.create_steady_timer(self.values["world_period"], self._heartbeat)

    def activate(self) -> None:
        self.loop.start()

    def close(self) -> None:
        if hasattr(self, "loop"):
            self.loop.stop(timeout=2.0)

    # -- callbacks of the executor: validate, then hand over to the loop ------------------------------------------

    def _on_verdict(self, message: SlotVerdict) -> None:
        grants, vetoed = [], []
        try:
            check_message(message)
            for verdict in message.verdicts:
                if verdict.decision == DECISIONS[Decision.ADMIT] and verdict.lease.token:
                    action = action_from_message(verdict.action)
                    grant = Grant(verdict.arm, message.slot, verdict.lease.token, action)
                    grants.append((grant, float(verdict.lease.duration)))
                elif verdict.decision != DECISIONS[Decision.ADMIT]:
                    vetoed.append(verdict.arm)
        except Malformed as why:
            self.refuse("malformed", f"slot verdict: {why}")
            return
        self.loop.post(lambda plant: self._decided(plant, message.episode, message.slot, grants, vetoed))

    def _on_grants(self, message: GrantTable) -> None:
        try:
            check_message(message)
            grants = [(grant_from_message(grant), float(message.duration)) for grant in message.grants]
        except Malformed as why:
            self.refuse("malformed", f"grant table: {why}")
            return
        self.loop.post(lambda plant: self._decided(plant, message.episode, 0, grants, []))

    def _on_intent(self, message: IntentReport) -> None:
        try:
            report = report_from_message(message, self.scenario)
        except Malformed as why:
            self.refuse("malformed", f"intent report: {why}")
            return
        if not report.action.is_stay:
            grant = Grant(report.arm, report.slot, 0, report.action)
            self.loop.post(lambda plant: self._start_unchecked(plant, report.episode, grant))

    def _on_reset(self, request: ResetWorld.Request, response: ResetWorld.Response) -> ResetWorld.Response:
        try:
            self.loop.call(lambda plant: self._reset(plant, request.seed), timeout=CALL_TIMEOUT)
            response.success, response.episode = True, self._episode
        except PolyarmError as error:
            response.message = str(error)[:256]
        except TimeoutError:
            response.message = f"the plant did not answer within {CALL_TIMEOUT} s; ask again"
        return response

    def _on_pause(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.loop.paused = request.data
        response.success = True
        return response

    def _on_step(self, request: StepSimulation.Request, response: StepSimulation.Response) -> StepSimulation.Response:
        response.period = TICK
        if not self.loop.paused:
            response.message = "the simulation is not paused; call set_pause with true first"
        elif not 1 <= request.steps <= 100_000:
            response.message = f"steps = {request.steps} is not valid; expected 1 to 100000"
        else:

            def step(plant: Plant) -> float:
                plant.step(request.steps)
                return plant.time

            response.time = self.loop.call(step, timeout=CALL_TIMEOUT)
            response.success = True
        return response

    def _heartbeat(self) -> None:
        if not self.active:
            return
        if self.loop.error is not None:
            self.report(DiagnosticStatus.ERROR, f"the plant stopped: {self.loop.error!r}")
            raise self.loop.error
        self.loop.post(self._beat)
        self.report(DiagnosticStatus.OK, "active", achieved_factor=f"{self.loop.achieved_factor:.2f}")

    # -- in the loop's thread -------------------------------------------------------------------------------------

    def _beat(self, plant: Plant) -> None:
        if not self._look(plant):
            self._publish_world(plant)

    def _reset(self, plant: Plant, seed: int) -> None:
        self._elapsed += plant.time
        plant.reset(seed)
        for result in self._take_in(plant.results()):
            self._publish_result(plant, result, result.outcome)
        self._guard.end_all(list(self.scenario.arms))
        self._conditions.reset()
        self._lease_of.clear()
        self._started_slots.clear()
        self._going_home.clear()
        self.commanded.clear()
        self._resets += 1
        self._episode = self.epoch // 1_000_000 * EPISODES_PER_EPOCH + self._resets
        self._slot = self._heard = self._between = self._told = 0
        self._stages = None
        self._deferred.clear()
        if self._domain is not None:
            self._disturber = Disturber(plant, self._domain, draw_schedule(self.scenario, self._disturb, seed))
            self._between = 1
            self._disturber.before_slot(1)
        self._publish_world(plant)

    def _decided(
        self, plant: Plant, episode: int, slot: int, grants: list[tuple[Grant, float]], vetoed: list[str]
    ) -> None:
        if episode != self._episode:
            if grants:
                self.refuse("stale", f"grants of episode {episode}, the plant is in {self._episode}")
            return
        now = time.monotonic()
        self._heard = max([self._heard, slot, *(grant.slot for grant, _ in grants)])
        for grant, duration in grants:
            self._take_grant(plant, grant, duration, now)
        for arm in vetoed:  # optimistic: what started before the verdict is stopped and sent home
            running = self._lease_of.get(arm)
            if running is not None and running.token == 0 and running.slot == slot:
                plant.stop(arm, "vetoed")
                self._going_home.add(arm)

    def _take_grant(self, plant: Plant, grant: Grant, duration: float, now: float) -> None:
        if grant.arm not in self.scenario.arms:
            self.refuse("malformed", f"grant for unknown arm {grant.arm!r}; valid: {', '.join(self.scenario.arms)}")
            return
        running = self._lease_of.get(grant.arm)
        answer = self._guard.offer(grant, duration, now)
        if answer == "new":
            if running is not None and running.token == 0 and running.action == grant.action:
                self._lease_of[grant.arm] = grant  # the motion that started early is now covered
            elif self._stages is not None:
                self._deferred.append(grant)
            else:
                self._start(plant, grant)
        elif answer != "renewed" and running != grant:
            # A renewal of a lease whose action has just ended crosses the result on the way: that is no fault.
            if grant.slot < self._slot or answer == "no_lease":
                self.refuse(answer, f"grant {grant.token} of {grant.arm} for slot {grant.slot}")

    def _start_unchecked(self, plant: Plant, episode: int, grant: Grant) -> None:
        if episode != self._episode or grant.slot <= self._started_slots.get(grant.arm, 0):
            return
        if self._stages is not None:
            return  # the verdict starts it, when the way is clear
        self._start(plant, grant)

    def _start(self, plant: Plant, grant: Grant) -> None:
        self._slot = max(self._slot, grant.slot)
        self._started_slots[grant.arm] = grant.slot
        self.commanded.discard(grant.arm)
        if self._going_home:
            self._going_home.discard(grant.arm)
        self._lease_of[grant.arm] = grant
        try:
            plant.start_action(grant.arm, grant.action, tag=grant)
        except ArmBusy as busy:
            self._refused(plant, grant, "busy", str(busy))
        except PolyarmError as error:
            self._refused(plant, grant, "illegal", str(error))

    def _refused(self, plant: Plant, grant: Grant, reason: str, text: str) -> None:
        self._end_lease(grant)
        result = PlantResult(grant.arm, grant.action, "failed", reason, text, plant.time, 0.0, grant)
        self._publish_result(plant, result, "refused")

    def _end_lease(self, grant: Grant) -> None:
        if self._lease_of.get(grant.arm) == grant:
            del self._lease_of[grant.arm]
        self._guard.end(grant.arm, grant.token)

    def _on_period(self, plant: Plant) -> None:
        for grant in self._guard.expired(time.monotonic()):
            if self._lease_of.get(grant.arm) == grant:
                self.report(DiagnosticStatus.ERROR, f"lease {grant.token} of {grant.arm} expired, the arm holds")
                plant.stop(grant.arm, "lease_expired")
                if grant.arm in self.commanded:
                    self.commanded.discard(grant.arm)
                    del self._lease_of[grant.arm]
        self._look(plant)
        for arm in sorted(self._going_home):
            if plant.arm(arm).status == "holding":
                self._going_home.discard(arm)
                plant.go_home(arm, tag=None)
        self.on_period(plant)

    def _look(self, plant: Plant) -> bool:
        """Take in what has ended, let happen what is due, and tell both; whether there was anything to tell."""
        disturber, happened = self._disturber, False
        if disturber is not None and self._lease_of:
            disturber.in_slot(self._slot)
        ended = plant.results()
        results = self._take_in(ended)
        if disturber is not None:
            self._let_happen(plant, disturber)
            happened = self._publish_disturbances(plant, disturber)
        for result in results:
            self._publish_result(plant, result, result.outcome)
        if ended or happened:
            self._publish_world(plant)
        self._start_deferred(plant)
        return bool(ended) or happened

    def _let_happen(self, plant: Plant, disturber: Disturber) -> None:
        """Once for each slot: no action of the one before is under way any more, so what is due comes before it."""
        if self._stages is None:
            if self._heard < self._between or self._lease_of or not plant.idle:
                return
            self._between = self._heard + 1
            self._stages = disturber.stages(self._between)
        while plant.idle or plant.time >= self._home_by:
            # Until the way home is over the world shows an arm that moves, and no slot opens.
            if next(self._stages, None) is None:
                self._stages = None
                return
            self._home_by = plant.time + HOME_TIME

    def _start_deferred(self, plant: Plant) -> None:
        if self._stages is not None:
            return
        deferred, self._deferred = self._deferred, []
        for grant in deferred:
            if self._guard.valid(grant.arm, time.monotonic()) == grant:
                self._start(plant, grant)
            else:
                self._refused(plant, grant, "lease_expired", "the lease expired while an arm was brought home")

    def _publish_disturbances(self, plant: Plant, disturber: Disturber) -> bool:
        news = disturber.happened[self._told :]
        self._told += len(news)
        for event in news:
            self._disturbance_sequence += 1
            message = Disturbance(
                episode=self._episode,
                slot=event.slot,
                epoch=self.epoch,
                sequence=self._disturbance_sequence,
                kind=event.kind,
                what=event.what[:256],
            )
            message.header.stamp = self.stamp(plant)
            self._disturbances.publish(message)
            self.get_logger().info(f"slot {event.slot}: {event.kind}: {event.what}")
        return bool(news)

    def _take_in(self, ended: Sequence[PlantResult]) -> list[PlantResult]:
        """End the leases of granted actions; their results, with the lease under which they ended."""
        results = []
        for result in ended:
            if isinstance(result.tag, Grant):
                # The lease may have been adopted since the motion started (optimistic).
                grant = self._lease_of.get(result.arm, result.tag)
                if result.arm not in self.commanded:
                    self._end_lease(grant)
                if result.outcome == "succeeded":
                    self._conditions.on_success(result.arm, result.action)
                results.append(replace(result, tag=grant))
        return results

    def _publish_result(self, plant: Plant, result: PlantResult, outcome: str) -> None:
        self._result_sequence += 1
        message = ActionResult(
            arm=result.arm,
            episode=self._episode,
            slot=result.tag.slot,
            token=result.tag.token,
            epoch=self.epoch,
            sequence=self._result_sequence,
            action=action_to_message(result.action),
            outcome=OUTCOMES[outcome],
            reason=result.reason[:32],
            text=result.text[:256],
            sim_time=plant.time,
            duration=float(result.duration),
        )
        message.header.stamp = self.stamp(plant)
        self._results.publish(message)
        if outcome != "succeeded":
            self.get_logger().warning(f"{result.arm}: {result.action} {outcome}: {result.reason}: {result.text}")

    def stamp(self, plant: Plant) -> Time:
        """Simulated time as a message; it never goes back, over resets neither, since that would stall ROS timers."""
        nanoseconds = round((self._elapsed + plant.time) * 1e9)
        return Time(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000)

    def _publish_world(self, plant: Plant) -> None:
        bare = plant.world()
        world = replace(bare, conditions=self._conditions.true_now(bare, plant.readings(), plant.held_conditions()))
        where, at_goal = locate(self.scenario, world), satisfied(self.scenario, world)
        self._sequence += 1
        message = WorldState(
            episode=self._episode,
            slot=self._slot,
            seed=plant.seed,
            epoch=self.epoch,
            sequence=self._sequence,
            sim_time=plant.time,
            conditions=sorted(world.conditions),
            blocked=sorted(world.blocked),
            arm_contacts=plant.arm_contacts,
            success=succeeded(self.scenario, world),
        )
        message.header.stamp = self.stamp(plant)
        message.header.frame_id = self.scenario.frame
        for name, (position, quaternion) in plant.poses().items():
            state = EntityState(
                name=name,
                placement=where[name],
                goal=self.scenario.entities[name].goal or "",
                satisfied=name in at_goal,
                held_by=world.held_by.get(name, ""),
            )
            pose_fields(state, position, quaternion)
            message.entities.append(state)
        for name in self.scenario.arms:
            view = plant.arm(name)
            lease = self._lease_of.get(name)
            message.arms.append(
                ArmState(
                    name=name,
                    status=STATUSES[ArmStatus(view.status)],
                    holding=view.holding,
                    opening=float(view.opening),
                    token=lease.token if lease is not None else 0,
                    slot=lease.slot if lease is not None else 0,
                    zones=sorted(plant.zones_entered(name)),
                )
            )
        self._worlds.publish(message)
