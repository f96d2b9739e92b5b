"""A real cluster's journal as a scenario: what broke there and when, so that other policies can live through it.

The journal is replayed with the very functions a coordinator recovers with, and watched: which nodes were away and
until when, which processes ended, hung or lost each other, who trained on how much.  Jobs of a scenario are there all
the time; of a journal, where they come and go, the longest stretch is taken in which the same ones were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.record import record
from unicorn_mgr.coordinator.state import ClusterState, Job, Node, NodePhase
from unicorn_mgr.coordinator.store import Entry
from unicorn_mgr.coordinator.throughput import rated, rising, work_of_step
from unicorn_mgr.coordinator.triage import LOST_CONNECTION, STOPPED, TASK_HANG
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Severity
from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.scenario import BadScenario, Fault, Kind, Scenario, Work

LIVED = "lived"
"""As a policy: what really happened."""

STATE_BYTES = 1e9
"""Of a job that has not told how large a copy of its state is."""

AWAY = (NodePhase.LOST, NodePhase.ISOLATED, NodePhase.QUARANTINED, NodePhase.DRAINING, NodePhase.DRAINED)


_OF_NODES = (
    *(e.NodeAttached, e.NodeHeard, e.NodeDrained, e.NodeUndrained, e.NodeDegraded),
    *(e.NodeLost, e.NodeIsolated, e.NodeQuarantined, e.NodeTrusted, e.NodeEmptied),
)
"""Entries after which a node may be away, or back."""


@dataclass(frozen=True, slots=True)
class Retold:
    """A journal as a scenario, its faults, and what really became of it."""

    scenario: Scenario
    faults: tuple[Fault, ...]
    lived: History
    notes: tuple[str, ...]
    """What the scenario leaves out, or assumes."""


@dataclass(frozen=True, slots=True)
class Lived:
    """What really happened, among policies that did not happen."""

    history: History
    name: str = LIVED

    def live(self, scenario: Scenario, faults: Sequence[Fault], costs: Costs, seed: int) -> History:
        """It has been lived already: at its own costs, whatever those of the others are."""
        del scenario, faults, costs, seed
        return self.history


def retell(state: ClusterState, entries: Sequence[Entry], name: str) -> Retold:
    """The longest stretch with the same jobs, of entries that follow this state.  Raises `BadScenario`."""
    first, last, jobs = _stretch(state, entries, name)
    for entry in entries[:first]:
        record(state, entry.event, entry.at)
    watch = _Watch(state, _at(entries, first), jobs)
    for entry in entries[first:last]:
        watch.follow(entry)
    return watch.told(_at(entries, last), name)


def _at(entries: Sequence[Entry], number: int) -> float:
    """When so many of them had happened."""
    return entries[max(0, number - 1)].at


def _stretch(state: ClusterState, entries: Sequence[Entry], name: str) -> tuple[int, int, tuple[str, ...]]:
    """After how many entries the same jobs are in training for the longest time, until how many; and which."""
    if not entries:
        raise BadScenario(f"journal: {name}: nothing has happened in it; give one of a cluster that has run jobs")
    training = [job.name for job in state.jobs.values() if job.started_at and not job.over]
    found: tuple[int, int, tuple[str, ...]] = (0, 0, ())
    longest, since = 0.0, 0
    for number, now_training in (*_trainings(training, entries), (len(entries), [])):
        seconds = _at(entries, number) - _at(entries, since)
        if training and seconds > longest:
            longest, found = seconds, (since, number, tuple(training))
        since, training = number, now_training
    if not found[2]:
        raise BadScenario(f"journal: {name}: no job has trained in it; give one of a cluster that has run jobs")
    return found


def _trainings(begun: Sequence[str], entries: Sequence[Entry]) -> Iterator[tuple[int, list[str]]]:
    """After how many entries which jobs are in training, from each change to the next."""
    training = list(begun)
    for number, entry in enumerate(entries, 1):
        match entry.event:
            case e.TransitionEnded(job) if job not in training:
                training = [*training, job]
                yield number, training
            case e.JobEnded(job) if job in training:
                training = [name for name in training if name != job]
                yield number, training


# -- what happened --------------------------------------------------------------------------


@dataclass(slots=True)
class _Absence:
    """A node is away, or slow."""

    node: str
    since: float
    cause: str
    slowness: float = 1.0
    until: float = math.inf


@dataclass(slots=True)
class _Trail:
    """What one job has done."""

    doing: list[tuple[float, Doing, int, str]] = field(default_factory=list)
    """From when on what, on how many slots, because of what."""
    redone: list[tuple[float, int, str]] = field(default_factory=list)
    steps_redone: int = 0
    most: int = 0
    """Slots on which it has trained so far."""
    cause: str = ""
    """Of the newest fault that it has not got over."""

    def becomes(self, at: float, doing: Doing, slots: int, cause: str) -> None:
        """From then on; what was told of later is not so."""
        while self.doing and self.doing[-1][0] >= at:
            self.doing.pop()
        if not self.doing or self.doing[-1][1:] != (doing, slots, cause):
            self.doing.append((at, doing, slots, cause))


class _Watch:
    """Follows the entries of the stretch."""

    def __init__(self, state: ClusterState, begins: float, jobs: Sequence[str]) -> None:
        self._state, self._begins = state, begins
        self._trails = {job: _Trail(steps_redone=state.jobs[job].steps_redone) for job in jobs}
        self._incidents: dict[str, tuple[Incident, str, int]] = {}
        """With the node and the slot of its worker."""
        self._away: dict[str, _Absence] = {}
        self._slow: dict[str, _Absence] = {}
        self._gone: list[_Absence] = []
        self._known = set(state.nodes)
        self._idle: list[tuple[float, int]] = []
        self._moves = 0
        for node in state.nodes.values():
            self._look_at(node, begins)
        self._count_idle(begins)
        self._look(begins)

    def follow(self, entry: Entry) -> None:
        """One more entry."""
        event, at = entry.event, entry.at
        places = self._places(event.job) if isinstance(event, e.SlotsAssigned) else set()
        record(self._state, event, at)
        if isinstance(event, e.SlotsAssigned):
            self._moves += len(self._places(event.job) - places)
        if isinstance(event, e.IncidentOpened | e.IncidentExplained):
            self._named(self._state.incidents[event.incident])
        if isinstance(event, e.IncidentOpened):
            self._opened(self._state.incidents[event.incident], at)
        if isinstance(event, _OF_NODES):
            self._look_at(self._state.nodes[event.node], at)
        if isinstance(event, (*_OF_NODES, e.SlotsAssigned, e.JobEnded)):
            self._count_idle(at)
        self._look(at)

    def _places(self, job: str) -> set[tuple[str, int]]:
        found = self._state.jobs.get(job)
        return set(found.seats.values()) if found is not None else set()

    def _named(self, incident: Incident) -> None:
        """Its culprit, who may turn out to be another than the one who showed the first sign."""
        worker = self._state.worker(incident.worker)
        node, slot = (worker.node, worker.slot) if worker is not None else (incident.node, 0)
        self._incidents[incident.id] = (incident, node, slot)

    def _opened(self, incident: Incident, at: float) -> None:
        trail = self._trails.get(incident.job)
        if trail is None or self._state.jobs[incident.job].down_since is None:
            return
        trail.cause = incident.cause
        since = max(self._begins, min(at, incident.occurred_at))
        before = next((was for was in reversed(trail.doing) if was[0] < since), None)
        if before is not None and before[1] is Doing.TRAINING:
            trail.becomes(since, Doing.DETECTION, before[2], incident.cause)

    def _look(self, at: float) -> None:
        """What has changed, and since when."""
        for name, trail in self._trails.items():
            job = self._state.jobs[name]
            doing, slots = _doing(job)
            causes = [self._state.incidents[i].cause for i in job.incidents]
            whole = doing is Doing.TRAINING and slots >= trail.most
            trail.most = max(trail.most, slots if doing is Doing.TRAINING else 0)
            trail.cause = causes[0] if causes else "" if whole else trail.cause
            trail.becomes(at, doing, slots, trail.cause)
            if job.steps_redone > trail.steps_redone:
                trail.redone.append((at, job.steps_redone - trail.steps_redone, trail.cause))
                trail.steps_redone = job.steps_redone

    def _look_at(self, node: Node, at: float) -> None:
        if node.name not in self._known:
            self._known.add(node.name)
            self._gone.append(_Absence(node.name, self._begins, "not there yet", until=at))
        if node.phase in AWAY and node.name not in self._away:
            since = node.silent_at if node.phase is NodePhase.LOST else at
            self._away[node.name] = _Absence(node.name, max(self._begins, since), node.phase)
        elif node.phase is NodePhase.UP and node.name in self._away:
            self._gone.append(_ended(self._away.pop(node.name), at))
        slow = self._slow.get(node.name)
        if slow is not None and slow.slowness != 1 / node.speed:
            self._gone.append(_ended(self._slow.pop(node.name), at))
        if node.speed < 1 and node.name not in self._slow:
            self._slow[node.name] = _Absence(node.name, at, "degraded", 1 / node.speed)

    def _count_idle(self, at: float) -> None:
        state = self._state
        offered = sum(len(node.offered) for node in state.nodes.values() if node.phase is NodePhase.UP)
        taken = sum(state.nodes[n].phase is NodePhase.UP for job in state.jobs.values() for n, _ in job.seats.values())
        self._idle.append((at, max(0, offered - taken)))

    # -- told as a scenario --------------------------------------------------------------

    def told(self, ends: float, name: str) -> Retold:
        """All of it, in seconds since the beginning of the stretch."""
        nodes = _Numbers([node for node in self._state.nodes.values() if node.slots])
        scenario = Scenario(
            name=name,
            about="what a coordinator's journal tells",
            nodes=nodes.count,
            slots=nodes.slots,
            gpus_per_slot=1,
            seconds=ends - self._begins,
            jobs=tuple(
                _work(self._state.jobs[job], nodes.count * nodes.slots, ends - self._begins) for job in self._trails
            ),
            source="its journal",
        )
        faults = tuple(sorted(self._faults(nodes), key=lambda f: (f.at, f.nodes, f.cause)))
        return Retold(scenario, faults, self._history(scenario, faults), tuple(self._notes(scenario)))

    def _faults(self, nodes: _Numbers) -> Iterator[Fault]:
        absences = [*self._gone, *self._away.values(), *self._slow.values()]
        explained = set()
        for absence in absences:
            cause, since = absence.cause, absence.since
            for incident, _, _ in self._incidents.values():
                if _explains(incident, absence):
                    explained.add(incident.id)
                    cause, since = incident.cause, max(self._begins, min(since, incident.occurred_at))
            yield Fault(
                at=since - self._begins,
                cause=cause,
                kind=Kind.SLOW if absence.slowness > 1 else Kind.NODE,
                nodes=nodes.of(absence.node),
                repair_seconds=absence.until - since,
                slowness=absence.slowness,
            )
        for incident, node, slot in self._incidents.values():
            if incident.id not in explained and incident.job in self._trails and node:
                number, index = nodes.place(node, slot)
                at = max(0.0, incident.occurred_at - self._begins)
                yield Fault(at, incident.cause, _kind(incident), (number,), slot=index)

    def _history(self, scenario: Scenario, faults: tuple[Fault, ...]) -> History:
        history = History(LIVED, scenario, 0, {}, faults, moves=self._moves)
        changes: list[tuple[float, Work, Doing, int, str]] = []
        for work in scenario.jobs:
            trail = self._trails[work.name]
            first = next((slots for _, doing, slots, _ in trail.doing if doing is Doing.TRAINING), work.size_min)
            history.full[work.name] = work.rate(first)
            changes += [(at - self._begins, work, doing, slots, cause) for at, doing, slots, cause in trail.doing]
            for at, steps, cause in trail.redone:
                history.repeat(at - self._begins, work.name, steps * work.step_flops, cause)
        for at, work, doing, slots, cause in sorted(changes, key=lambda change: change[0]):
            history.becomes(at, work.name, doing, slots, work.rate(slots), cause)
        for at, slots in self._idle:
            history.leaves_idle(at - self._begins, slots)
        return history

    def _notes(self, scenario: Scenario) -> Iterator[str]:
        others = sorted({job.name for job in self._state.jobs.values() if not job.over} - set(self._trails))
        if others:
            yield f"left out, as they were not there all the time: {', '.join(others)}"
        unrated = [work.name for work in scenario.jobs if not rated(self._state.jobs[work.name].spec)]
        if unrated:
            yield f"nobody has told the speed of {', '.join(unrated)}: a slot counts as 1 TFLOP/s"
        unsaved = [work.name for work in scenario.jobs if work.checkpoint_seconds >= scenario.seconds]
        if unsaved:
            yield f"without a checkpoint in all that time, so who restarts begins anew: {', '.join(unsaved)}"


def _ended(absence: _Absence, at: float) -> _Absence:
    absence.until = at
    return absence


def _explains(incident: Incident, absence: _Absence) -> bool:
    """The node is away because of it: it could not be reached, or was taken out of use."""
    closed = incident.closed_at if incident.closed_at is not None else math.inf
    of_node = incident.isolated or incident.cause == LOST_CONNECTION.cause
    return of_node and incident.node == absence.node and incident.occurred_at <= absence.since <= closed


def _doing(job: Job) -> tuple[Doing, int]:
    if job.over or not job.seats or not job.members:
        return (Doing.TRANSITION if job.seats and not job.over else Doing.WAITING), len(job.seats)
    if job.transition is not None or job.down_since is not None or job.standing:
        return Doing.TRANSITION, len(job.members)
    return Doing.TRAINING, len(job.members)


def _kind(incident: Incident) -> Kind:
    if incident.cause in (TASK_HANG.cause, STOPPED.cause):
        return Kind.HANG
    if incident.severity == Severity.SEV3 or incident.cause == LOST_CONNECTION.cause:
        return Kind.LINK
    return Kind.PROCESS


def _work(job: Job, slots: int, seconds: float) -> Work:
    spec = job.spec
    stairs = tuple(stair for stair in rising(job, slots) if spec.size_min <= stair[0] <= spec.size_max)
    pace = job.step_seconds or next(iter(job.paces.values()), 0.0)
    every = spec.checkpoint_every_steps * pace if spec.checkpoint_url else 0.0
    return Work(
        name=job.name,
        throughput=stairs,
        size_min=spec.size_min,
        size_max=spec.size_max,
        weight=spec.weight,
        replica=spec.replica_size or 1,
        step_flops=work_of_step(job) or stairs[-1][1] * (pace or 1.0),
        micro_batches=max(1, job.micro_batches),
        state_bytes=job.copy_bytes or STATE_BYTES,
        checkpoint_seconds=min(every or math.inf, seconds),
    )


class _Numbers:
    """Nodes of a scenario are all alike: one with more slots than another becomes several that fail as one."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.slots = math.gcd(*(len(node.slots) for node in nodes))
        self._first: dict[str, int] = {}
        self._indices = {node.name: sorted(slot.index for slot in node.slots) for node in nodes}
        self.count = 0
        for node in nodes:
            self._first[node.name] = self.count
            self.count += len(node.slots) // self.slots

    def of(self, node: str) -> tuple[int, ...]:
        """The numbers of a node."""
        first = self._first[node]
        return tuple(range(first, first + len(self._indices[node]) // self.slots))

    def place(self, node: str, slot: int) -> tuple[int, int]:
        """Of a slot."""
        at = self._indices[node].index(slot)
        return self._first[node] + at // self.slots, at % self.slots
