"""Execution of a plan: one pointer per agent, waits as predicates, and everything that can go wrong, in words.

A frame is::

    intents = executor.intents(state)
    controls = domain.control(state, intents)
    after = domain.step(state, controls)
    detections = executor.advance(state, controls, after)

The executor knows neither the domain's rules nor a clock but its own count of frames, and draws nothing at random.
Since a chain is executed in order, a pointer says all of an agent's milestones: steps before it are done, and they stay
done whatever happens to the world (milestones are sticky).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal

from polyarm_core.chains.no_progress import RepeatCounter, joint_state
from polyarm_core.chains.terms import Action, Atom, Chain, Plan, Step, Value, Wait, WaitAgents, WaitEntity
from polyarm_core.chains.wait_graph import Deadlock, WaitGraph
from polyarm_core.domains.interface import ActionStatus, Control, Domain, Entity, State
from polyarm_core.errors import InvalidValue, UnknownName

DetectionKind = Literal["deadlock", "stall", "no_progress", "chain_end"]
DETECTION_KINDS: tuple[DetectionKind, ...] = ("deadlock", "stall", "no_progress", "chain_end")

WAIT_DEADLINE = 60  # frames: longer than any soup needs from the first onion
PATIENCE = 24  # frames: longer than any single action of the domains here
RECHECK = 8  # frames after which the domain is asked again whether a wait or an action still has a chance
_NEVER = 1 << 60

COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Detection:
    """Something that keeps the plan from going on.

    Attributes:
        kind: ``deadlock`` agents wait for each other in a circle (or knot); ``stall`` an agent's step cannot be done,
            fails or takes too long; ``no_progress`` agents are busy without getting anywhere; ``chain_end`` all chains
            are done and the task is not.
        agents: who stands still; the first is the one whose step it is.
        reason: in words.
        frame: of the executor's count, in which it was found.
        cycle: of a deadlock: each waits for the next, the last for the first.
    """

    kind: DetectionKind
    agents: tuple[str, ...]
    reason: str
    frame: int
    cycle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActiveWait:
    """A wait at the head of a chain that is not satisfied.

    Attributes:
        agent: who waits.
        step: number of the wait in its chain, from 1.
        wait: what for.
        since: frame in which it became active.
        deadline: frame from which it counts as a stall.
        owners: agents that must do something so that it ends, as far as ``Wait_agents`` names them.
    """

    agent: str
    step: int
    wait: Wait
    since: int
    deadline: int
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RollOut(Generic[State]):
    """How a plan would go on without disturbances.

    Attributes:
        success: the task was done within the limit.
        frames: stepped in the roll-out.
        final_state: where it ended.
        detections: all of them, in order.
    """

    success: bool
    frames: int
    final_state: State
    detections: tuple[Detection, ...]


class ChainExecutor(Generic[State]):
    """Executes a plan frame by frame and says when it cannot go on. Each detection is reported once per plan.

    Args:
        domain: in which the agents act.
        plan: chains by agent; an agent that it does not name has an empty chain.
        wait_deadline: frames after which an unsatisfied wait is a stall.
        patience: frames after which a single action is a stall; the detector of livelocks starts at a quarter of it.
        frame: where the count of frames starts.

    Raises:
        UnknownName: the plan has a chain for an agent that the domain does not control.
        InvalidValue: two chains for one agent, or a limit below 1.
    """

    __slots__ = (
        "_acting",
        "_after",
        "_alarm",
        "_begun",
        "_chains",
        "_conditions",
        "_dirty",
        "_due",
        "_entities",
        "_failing",
        "_found",
        "_graph",
        "_index",
        "_intents",
        "_places",
        "_pointers",
        "_recheck",
        "_repeats",
        "_reported",
        "_seen",
        "_silent",
        "_since",
        "_told",
        "_vain",
        "_waiting",
        "_watch",
        "domain",
        "frame",
        "patience",
        "wait_deadline",
    )

    def __init__(
        self,
        domain: Domain[State],
        plan: Plan,
        *,
        wait_deadline: int = WAIT_DEADLINE,
        patience: int = PATIENCE,
        frame: int = 0,
    ) -> None:
        for key, limit in (("wait_deadline", wait_deadline), ("patience", patience)):
            if limit < 1:
                raise InvalidValue(key, limit, "at least 1 frame")
        self.domain = domain
        self.wait_deadline = wait_deadline
        self.patience = patience
        self.frame = frame
        self._index = {agent: i for i, agent in enumerate(domain.agents)}
        self._silent: frozenset[str] = frozenset()
        self._places: dict[str, int] = {}  # where an entity was last found; only a hint, so copies share it
        self._chains: tuple[Chain, ...] = ()
        self._pointers: list[int] = []
        self._begun: list[bool] = []
        self._load(plan)

    # --- plan ---

    def replace(self, plan: Plan) -> None:
        """Execute another plan from now on: pointers, milestones, waits, deadlines and graph are reset, all at once.

        An action that is being executed and heads the agent's new chain goes on and keeps its start milestone.

        Raises:
            UnknownName: the plan has a chain for an agent that the domain does not control; the old plan stays.
            InvalidValue: two chains for one agent; the old plan stays.
        """
        self._load(plan)

    def _load(self, plan: Plan) -> None:
        chains: list[Chain] = [()] * len(self._index)
        named: set[str] = set()
        for agent, chain in plan.chains:
            if agent not in self._index:
                raise UnknownName("agent", agent, self._index)
            if agent in named:
                raise InvalidValue("plan", agent, "one chain for each agent")
            named.add(agent)
            chains[self._index[agent]] = chain
        running: list[Step | None] = [None] * len(chains)
        for i, old in enumerate(self._chains):
            if self._begun[i] and isinstance(old[self._pointers[i]], Action):
                running[i] = old[self._pointers[i]]
        # Nothing below can fail, so nobody ever sees half of the one plan and half of the other.
        self._chains = tuple(chains)
        self._pointers = [0] * len(chains)
        self._begun = [bool(chain) and chain[0] == action for chain, action in zip(chains, running, strict=True)]
        self._since = [self.frame] * len(chains)  # a kept action gets new patience: it is part of a new plan
        self._due = [_NEVER] * len(chains)
        self._alarm = self._watch = _NEVER
        self._recheck = self.frame
        self._graph: WaitGraph[str] = WaitGraph()
        self._reported: set[tuple[object, ...]] = set()
        self._told: set[tuple[int, int]] = set()  # (agent, step) of which something was reported: limits add nothing
        self._found: list[Detection] = []
        self._failing: set[int] = set()
        self._repeats = RepeatCounter(max(2, self.patience // 6))
        self._waiting: tuple[int, ...] = ()
        self._conditions: tuple[Wait, ...] = ()
        # By agent and step: why conditions of its wait cannot come about, None = they may; as it was last looked at.
        self._vain: dict[tuple[int, int, Atom], str | None] = {}
        self._acting = tuple(i for i, begun in enumerate(self._begun) if begun)
        self._intents: tuple[Action | None, ...] = tuple(
            step if begun else None  # type: ignore[misc]  # only actions are kept
            for step, begun in zip((c[0] if c else None for c in chains), self._begun, strict=True)
        )
        self._dirty = True
        self._after: State | None = None  # the last frame's outcome: another state means that an event changed it
        self._seen: State | None = None  # the state of ``_entities``
        self._entities: tuple[Entity, ...] = ()

    def remaining(self) -> Plan:
        """What is not done yet, heads included, as a plan by itself.

        Step numbers of ``Wait_agents`` count from the new beginnings. A milestone that was reached is no longer waited
        for; a wait of which nothing is left is dropped, and who waited for it waits for the step before it.
        """
        if not any(self._pointers) and not any(self._begun):
            return Plan(tuple(zip(self.domain.agents, self._chains, strict=True)))
        # Dropping a wait may satisfy others (those that wait for it), so look until nothing more is dropped.
        dropped: list[set[int]] = [set() for _ in self._chains]
        while True:
            chains: list[Chain] = []
            changed = False
            for i, chain in enumerate(self._chains):
                steps: list[Step] = []
                for at in range(self._pointers[i], len(chain)):
                    step = chain[at]
                    if at in dropped[i]:
                        continue
                    kept = self._renumbered(step, dropped) if isinstance(step, Wait) else step
                    if kept is None:
                        dropped[i].add(at)
                        changed = True
                    else:
                        steps.append(kept)
                chains.append(tuple(steps))
            if not changed:
                return Plan(tuple(zip(self.domain.agents, chains, strict=True)))

    def _renumbered(self, wait: Wait, dropped: Sequence[Collection[int]]) -> Wait | None:
        """The wait in the numbers of the remaining plan; None when it is satisfied whatever the state."""
        atoms: list[Atom] = []
        for atom in wait.atoms:
            kept: Atom | None = atom
            if isinstance(atom, WaitAgents) and atom.agent in self._index and atom.step >= 1:
                kept = self._renumbered_atom(atom, dropped[self._index[atom.agent]])
            if kept is not None:
                atoms.append(kept)
            elif wait.connective == "|":
                return None
        if not atoms:
            return None
        return Wait(tuple(atoms), wait.connective if len(atoms) == 2 else None)

    def _renumbered_atom(self, atom: WaitAgents, dropped: Collection[int]) -> WaitAgents | None:
        j = self._index[atom.agent]
        pointer, at, milestone = self._pointers[j], atom.step - 1, atom.milestone
        while at in dropped:  # a dropped wait starts and ends with the end of the step before it
            at, milestone = at - 1, "done"
        if at < pointer or (at == pointer and milestone == "start" and self._begun[j]):
            return None
        return WaitAgents(atom.agent, milestone, at + 1 - pointer - sum(d < at for d in dropped))

    def pointers(self) -> tuple[int, ...]:
        """Number of steps done by each agent: index of its head step."""
        return tuple(self._pointers)

    @property
    def finished(self) -> bool:
        """No agent has a step left."""
        return all(p == len(chain) for p, chain in zip(self._pointers, self._chains, strict=True))

    def waiting(self) -> tuple[ActiveWait, ...]:
        """The waits that hold their agents in this frame, with deadline and owners."""
        waits = []
        for i in self._waiting:
            step = self._chains[i][self._pointers[i]]
            assert isinstance(step, Wait)
            owners = dict.fromkeys(a.agent for a in step.atoms if isinstance(a, WaitAgents) and not self._reached(a))
            since = self._since[i]
            waits.append(
                ActiveWait(
                    self.domain.agents[i], self._pointers[i] + 1, step, since, since + self.wait_deadline, tuple(owners)
                )
            )
        return tuple(waits)

    def satisfied(self, atom: Atom, state: State) -> bool:
        """Whether one atom of a wait is satisfied now."""
        return self._holds(atom, state)

    def set_silent(self, agents: Iterable[str]) -> None:
        """Name the agents from which nothing is heard now: a wait for a milestone of theirs is a stall."""
        silent = frozenset(agents)
        if silent != self._silent:
            self._silent = silent
            self._dirty = True

    def skip(self, done: Mapping[str, Sequence[Action]]) -> None:
        """Pass the actions that agents have done by other means; only those that come next in their chains.

        Waits before such an action are passed with it.
        """
        for agent, actions in done.items():
            i = self._index[agent]
            for action in actions:
                at = self._pointers[i]
                while at < len(self._chains[i]) and isinstance(self._chains[i][at], Wait):
                    at += 1
                if at == len(self._chains[i]) or self._chains[i][at] != action:
                    break
                self._pointers[i], self._begun[i] = at + 1, False
        self._dirty = True

    def recheck(self) -> None:
        """Look at every wait and action in the next frame, as after an event: the world may have changed unseen."""
        self._recheck = self.frame

    def copy(self) -> ChainExecutor[State]:
        """An independent executor at the same point, for a roll-out."""
        twin: ChainExecutor[State] = ChainExecutor.__new__(ChainExecutor)
        for name in ChainExecutor.__slots__:  # values that are never changed in place are shared
            setattr(twin, name, getattr(self, name))
        twin._pointers = self._pointers.copy()
        twin._begun = self._begun.copy()
        twin._since = self._since.copy()
        twin._due = self._due.copy()
        twin._graph = self._graph.copy()
        twin._vain = self._vain.copy()
        twin._reported = self._reported.copy()
        twin._told = self._told.copy()
        twin._found = self._found.copy()
        twin._failing = self._failing.copy()
        twin._repeats = self._repeats.copy()
        return twin

    # --- a frame ---

    def intents(self, state: State) -> tuple[Action | None, ...]:
        """What each agent is to do in this frame; None for one that waits or has finished.

        Passes every wait at a head that is satisfied, as many as there are, and marks what starts.
        """
        if self._dirty or self._conditions or self.frame >= self._recheck or state is not self._after:
            self._settle(state)
        return self._intents

    def check(self, state: State) -> tuple[Detection, ...]:
        """Detections that are known before the frame is spent; ``advance`` will not return them again."""
        self.intents(state)
        found, self._found = tuple(self._found), []
        return found

    def advance(self, before: State, controls: Sequence[Control], after: State) -> tuple[Detection, ...]:
        """Take in what the frame did: ends of actions, failures, limits.

        Args:
            before: state in which ``intents`` was asked.
            controls: one per agent, as they were carried out.
            after: the state after the step.

        Returns:
            What was found in this frame, including what ``intents`` found.
        """
        domain, progress = self.domain, self.domain.progress
        intents = self._intents
        for i in self._acting:
            action = intents[i]
            if action is None or not self._begun[i]:  # its end was taken in, and ``intents`` has not been asked since
                continue
            result = progress(before, controls, after, domain.agents[i], action)
            status = result.status
            if status is ActionStatus.RUNNING:
                if self._failing:
                    self._failing.discard(i)
            elif status is ActionStatus.DONE:
                self._failing.discard(i)
                self._pointers[i] += 1
                self._begun[i] = False
                self._dirty = True
            else:
                self._failing.add(i)
                why = result.reason or "the domain gives no reason"
                reason = f"{domain.agents[i]} failed at {self._step_name(i)}: {why}"
                self._report("stall", (domain.agents[i],), reason, i)
        self._after = after
        if self.frame >= self._alarm:
            self._limits(after)
        if self._dirty:
            self._look_for_end(after)
        elif self.frame >= self._watch:
            self._watch_progress(after)
        self.frame += 1
        if not self._found:
            return ()
        found, self._found = tuple(self._found), []
        return found

    # --- waits ---

    def _settle(self, state: State) -> None:
        """Pass what can be passed, start what can start, until nothing changes; then look for what cannot."""
        disturbed = state is not self._after and state != self._after
        due = disturbed or self.frame >= self._recheck
        self._after = state
        if not self._dirty and not due and not any(self._satisfied(wait, state) for wait in self._conditions):
            return
        chains, pointers, begun, since = self._chains, self._pointers, self._begun, self._since
        acting = self._acting
        changed, moved = True, self._dirty
        while changed:
            changed = False
            for i, chain in enumerate(chains):
                at = pointers[i]
                while at < len(chain):
                    if not begun[i]:
                        begun[i] = True
                        since[i] = self.frame
                        changed = True
                    step = chain[at]
                    if isinstance(step, Action) or not self._satisfied(step, state):
                        break
                    at += 1
                    pointers[i] = at
                    begun[i] = False
                    changed = True
            moved = moved or changed
        self._dirty = False
        if moved:
            self._rearrange()
            self._look_for_end(state)
        if due:
            self._recheck = self.frame + RECHECK
        if moved or due:
            self._look_for_actions(state, due)
        if self._waiting:
            # Conditions lose their last chance when somebody stops acting, or by an event: then all are looked at.
            if due or any(i not in self._acting for i in acting):
                self._vain = {}
                self._look_for_waits(state)
            elif moved:
                self._look_for_waits(state)
        elif moved:
            self._vain = {}
            self._graph.clear()

    def _rearrange(self) -> None:
        """After something was done: what each agent does now, and when to look again."""
        acting: list[int] = []
        waiting: list[int] = []
        intents: list[Action | None] = []
        conditions: list[Wait] = []
        watch = _NEVER
        for i, (chain, at) in enumerate(zip(self._chains, self._pointers, strict=True)):
            step = chain[at] if at < len(chain) else None
            if isinstance(step, Action):
                acting.append(i)
                intents.append(step)
                self._due[i] = self._since[i] + self.patience
                watch = min(watch, self._since[i] + self.patience // 4)
            else:
                intents.append(None)
                self._due[i] = _NEVER
                if step is not None:
                    waiting.append(i)
                    self._due[i] = self._since[i] + self.wait_deadline
                    if any(isinstance(atom, WaitEntity) for atom in step.atoms):
                        conditions.append(step)
            if self._failing and step is not self._intents[i]:
                self._failing.discard(i)
        self._acting, self._waiting, self._intents = tuple(acting), tuple(waiting), tuple(intents)
        self._conditions, self._watch, self._alarm = tuple(conditions), watch, min(self._due, default=_NEVER)
        self._repeats.reset()

    def _satisfied(self, wait: Wait, state: State) -> bool:
        atoms = wait.atoms
        if len(atoms) == 1:
            return self._holds(atoms[0], state)
        if wait.connective == "&":
            return self._holds(atoms[0], state) and self._holds(atoms[1], state)
        return self._holds(atoms[0], state) or self._holds(atoms[1], state)

    def _holds(self, atom: Atom, state: State) -> bool:
        if isinstance(atom, WaitAgents):
            return self._reached(atom)
        values = self._values_of(atom.entity, state)
        if values is None or atom.attribute not in values:
            return False
        try:
            return COMPARE[atom.comparison](values[atom.attribute], atom.value)
        except TypeError:  # a word has no order; ``_no_chance`` says so
            return False

    def _values_of(self, name: str, state: State) -> Mapping[str, Value] | None:
        """Attributes of an entity as they are now; None if there is no such entity."""
        if state is not self._seen:
            self._entities = self.domain.entities(state)
            self._seen = state
        place = self._places.get(name, -1)  # entities rarely change places from state to state
        if 0 <= place < len(self._entities) and self._entities[place].name == name:
            return self._entities[place].values
        for place, entity in enumerate(self._entities):
            if entity.name == name:
                self._places[name] = place
                return entity.values
        return None

    def _reached(self, atom: WaitAgents) -> bool:
        j = self._index.get(atom.agent)
        if j is None or not 1 <= atom.step <= len(self._chains[j]):
            return False
        at = self._pointers[j]
        return at >= atom.step or (atom.milestone == "start" and at == atom.step - 1 and self._begun[j])

    def _no_chance(self, atom: WaitAgents) -> str | None:
        """Why this milestone will never be reached, whatever the state; None if it may."""
        j = self._index.get(atom.agent)
        if j is None:
            return f"there is no agent {atom.agent}"
        length = len(self._chains[j])
        if not 1 <= atom.step <= length:
            steps = "no steps" if not length else "1 step" if length == 1 else f"{length} steps"
            return f"there is no step {atom.step}: the chain of {atom.agent} has {steps}"
        if atom.agent in self._silent:
            return f"nothing is heard from {atom.agent}"
        return None

    # --- what cannot go on ---

    def _look_for_end(self, state: State) -> None:
        if self.finished and not self.domain.succeeded(state):
            self._report("chain_end", self.domain.agents, "all chains are done, but the task is not")

    def _look_for_actions(self, state: State, everybody: bool) -> None:
        """Actions that nobody can do: of agents that start now, or of all."""
        for i in self._acting:
            action = self._intents[i]
            if action is not None and (everybody or self._since[i] == self.frame):
                agent = self.domain.agents[i]
                why = self.domain.impossible(state, agent, action)
                if why is not None:
                    self._report("stall", (agent,), f"{agent} can never do {self._step_name(i)}: {why}", i)

    def _look_for_waits(self, state: State) -> None:
        """Waits without a chance, and deadlocks."""
        ahead: list[int] | None = None
        brought = Plan(())
        wanted: dict[str, dict[object, tuple[str, ...]]] = {}
        for i in self._waiting:
            agent = self.domain.agents[i]
            at = self._pointers[i]
            wait = self._chains[i][at]
            assert isinstance(wait, Wait)
            hopeless: list[str] = []
            targets: list[str] = []
            for atom in wait.atoms:
                why: str | None = None
                if isinstance(atom, WaitAgents):
                    if self._reached(atom):
                        continue
                    why = self._no_chance(atom)
                    if why is None:
                        targets.append(atom.agent)
                elif (i, at, atom) in self._vain:
                    why = self._vain[i, at, atom]
                elif not self._holds(atom, state):
                    why = self._wrong(atom, state)
                    if why is None:
                        if ahead is None:
                            ahead = self._reachable(state)
                            brought = self._between(ahead)
                        if ahead[i] == at and not self.domain.can_become(state, atom, brought):
                            why = f"nothing that can still be done brings about {_condition(atom)}"
                    self._vain[i, at, atom] = why
                if why is not None:
                    hopeless.append(why)
            either = wait.connective == "|"
            if hopeless and (not either or len(hopeless) == len(wait.atoms)):
                text = " and ".join(hopeless)
                self._report("stall", (agent,), f"{agent} waits in vain at {self._step_name(i)}: {text}", i)
            if not either:
                wanted[agent] = {(at, n): (target,) for n, target in enumerate(targets)}
            elif targets and len(targets) + len(hopeless) == len(wait.atoms):
                wanted[agent] = {at: tuple(dict.fromkeys(targets))}
            # Else a condition that may still come true is a way out of ``|``: no claim on anybody.
        # First everything that no longer holds, of all agents: a new claim must not meet an old one of somebody else.
        for agent in self.domain.agents:
            new, old = wanted.get(agent, {}), self._graph.claims(agent)
            for key in [key for key, others in old.items() if new.get(key) != others]:
                self._graph.discard(agent, key)
        for agent, new in wanted.items():
            old = self._graph.claims(agent)
            for key, others in new.items():
                if key not in old:
                    deadlock = self._graph.add(agent, key, others)
                    if deadlock is not None:
                        self._report_deadlock(deadlock)

    def _wrong(self, atom: WaitEntity, state: State) -> str | None:
        """What is wrong with the terms of a condition; None if they exist and can be compared."""
        values = self._values_of(atom.entity, state)
        if values is None:
            return f"there is no {atom.entity}"
        if atom.attribute not in values:
            return f"{atom.entity} has no {atom.attribute}"
        value = values[atom.attribute]
        if atom.comparison not in ("==", "!=") and isinstance(value, str) != isinstance(atom.value, str):
            return f"{atom.attribute} of {atom.entity} is {value!r}, which has no order with {atom.value!r}"
        return None

    def _reachable(self, state: State) -> list[int]:
        """Pointers if every action succeeds and every condition comes true that something brings about.

        Relaxed execution: conditions, once true, stay true. Steps that it does not reach cannot be executed at all, so
        they bring about nothing, e.g. what an agent does only after the very wait in question.
        """
        ahead = self._pointers.copy()
        brought: Plan | None = None
        asked: dict[WaitEntity, bool] = {}

        def passes(atom: Atom) -> bool:
            if isinstance(atom, WaitAgents):
                if self._no_chance(atom) is not None and not self._reached(atom):
                    return False
                at = ahead[self._index[atom.agent]]
                return at >= (atom.step if atom.milestone == "done" else atom.step - 1)
            if self._holds(atom, state):
                return True
            if brought is None or self._wrong(atom, state) is not None:
                return False
            if atom not in asked:
                asked[atom] = self.domain.can_become(state, atom, brought)
            return asked[atom]

        while True:
            changed = False
            for i, chain in enumerate(self._chains):
                while ahead[i] < len(chain):
                    step = chain[ahead[i]]
                    if isinstance(step, Wait) and not (any if step.connective == "|" else all)(map(passes, step.atoms)):
                        break
                    ahead[i] += 1
                    changed = True
            if changed:
                brought = None  # first go on without the domain, which is cheap
            elif brought is None:
                if all(at == len(chain) for at, chain in zip(ahead, self._chains, strict=True)):
                    return ahead
                brought = self._between(ahead)
                asked = {}
            else:
                return ahead

    def _between(self, ahead: Sequence[int]) -> Plan:
        """The steps from the pointers up to those, heads included."""
        return Plan(
            tuple(
                (agent, chain[at:to])
                for agent, chain, at, to in zip(self.domain.agents, self._chains, self._pointers, ahead, strict=True)
            )
        )

    def _limits(self, state: State) -> None:
        """Report waits and actions that take too long."""
        for i, due in enumerate(self._due):
            if due > self.frame or not self._begun[i]:
                continue
            self._due[i] = _NEVER
            agent, step = self.domain.agents[i], self._chains[i][self._pointers[i]]
            frames = self.frame - self._since[i]
            if (i, self._pointers[i]) in self._told:
                continue
            if isinstance(step, Action):
                busy = self._busy()
                if len(busy) > 1 and all(self.frame - self._since[k] >= self.patience for k in busy):
                    self._report_no_progress(busy)
                else:
                    reason = f"{agent} has been at {self._step_name(i)} for {frames} frames"
                    self._report("stall", (agent,), reason, i)
                continue
            owners, time = self._owners(i, step, state)
            whom = " and ".join(owners) or ("time" if time else "nobody")
            reason = f"{agent} has waited {frames} frames at {self._step_name(i)}; {whom} should have ended it"
            self._report("stall", (agent, *(owner for owner in owners if owner != agent)), reason, i)
        self._alarm = min(self._due)

    def _owners(self, i: int, wait: Wait, state: State) -> tuple[tuple[str, ...], bool]:
        """Agents that can end a wait: those it names, and those whose remaining steps bring a condition about.

        Returns:
            The agents, and whether time alone would do for some condition.
        """
        owners: dict[str, None] = {}
        time = False
        nothing = self._pointers
        for atom in wait.atoms:
            if isinstance(atom, WaitAgents):
                if not self._reached(atom):
                    owners[atom.agent] = None
            elif self._holds(atom, state):
                continue
            elif self.domain.can_become(state, atom, self._between(nothing)):
                time = True
            else:
                for j, agent in enumerate(self.domain.agents):
                    alone = [len(c) if k == j else nothing[k] for k, c in enumerate(self._chains)]
                    if j != i and self.domain.can_become(state, atom, self._between(alone)):
                        owners[agent] = None
        return tuple(owners), time

    def _busy(self) -> list[int]:
        """Agents with an action that has not failed."""
        return [i for i in self._acting if i not in self._failing]

    def _watch_progress(self, state: State) -> None:
        """Report agents that have intents while their joint state comes back again and again."""
        busy = self._busy()
        if busy:
            intents = [action if i in busy else None for i, action in enumerate(self._intents)]
            if self._repeats.observe(joint_state(self.domain, state, intents)):
                self._report_no_progress(busy)

    def _report_no_progress(self, busy: Sequence[int]) -> None:
        if all((i, self._pointers[i]) in self._told for i in busy):
            return
        names = tuple(self.domain.agents[i] for i in busy)
        what = " and ".join(f"{self.domain.agents[i]} at {self._step_name(i)}" for i in busy)
        self._report("no_progress", names, f"busy without getting anywhere: {what}")
        self._told.update((i, self._pointers[i]) for i in busy)

    def _report_deadlock(self, deadlock: Deadlock[str]) -> None:
        cycle = deadlock.cycle
        clauses = [
            f"{agent} waits for {other} (step {self._pointers[i] + 1}, {self._chains[i][self._pointers[i]]})"
            for agent, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True)
            for i in (self._index[agent],)
        ]
        reason = f"{', '.join(clauses)}: none of them can go on"
        others = tuple(agent for agent in deadlock.nodes if agent not in cycle)
        if others:
            reason += f"; {', '.join(others)} cannot go on either"
        steps = frozenset((agent, self._pointers[self._index[agent]]) for agent in cycle)
        self._report("deadlock", cycle + others, reason, steps, cycle=cycle)
        self._told.update((i, self._pointers[i]) for i in map(self._index.__getitem__, deadlock.nodes))

    def _report(
        self,
        kind: DetectionKind,
        agents: tuple[str, ...],
        reason: str,
        where: object = None,
        cycle: tuple[str, ...] = (),
    ) -> None:
        """Add a detection, unless this plan has had the same.

        Args:
            kind: of the detection.
            agents: who stands still.
            reason: in words.
            where: index of the agent whose head step it is, or anything else that tells one detection from another.
            cycle: of a deadlock.
        """
        if isinstance(where, int):
            key: tuple[object, ...] = (kind, where, self._pointers[where], reason)
            self._told.add((where, self._pointers[where]))
        elif kind == "deadlock":
            key = (kind, where)
        else:
            key = (kind, agents, tuple(self._pointers))
        if key not in self._reported:
            self._reported.add(key)
            self._found.append(Detection(kind, agents, reason, self.frame, cycle))

    def _step_name(self, i: int) -> str:
        return f"step {self._pointers[i] + 1}, {self._chains[i][self._pointers[i]]}"


def _condition(atom: WaitEntity) -> str:
    value = str(atom.value).lower() if isinstance(atom.value, bool) else atom.value
    return f"{atom.entity} {atom.attribute} {atom.comparison} {value}"


def roll_out(
    executor: ChainExecutor[State],
    state: State,
    limit_frame: int,
    stop: Collection[DetectionKind] = DETECTION_KINDS,
) -> RollOut[State]:
    """Play the rest of a plan in values, without disturbances; executor and state are left as they are.

    Args:
        executor: at the frame that comes next.
        state: of that frame.
        limit_frame: of the executor's count: no frame is played from here on.
        stop: kinds of detection after which it is pointless to go on. What is found before a frame costs no frame.
    """
    executor = executor.copy()
    domain = executor.domain
    detections: list[Detection] = []
    first = executor.frame
    success = domain.succeeded(state)
    while not success and executor.frame < limit_frame:
        intents = executor.intents(state)
        found = executor.check(state)
        if not any(detection.kind in stop for detection in found):
            controls = domain.control(state, intents)
            after = domain.step(state, controls)
            found += executor.advance(state, controls, after)
            state = after
            success = domain.succeeded(state)
        if found:
            detections += found
            if any(detection.kind in stop for detection in found):
                break
    return RollOut(success, executor.frame - first, state, tuple(detections))
