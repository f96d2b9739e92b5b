"""A cluster in which only what changes is an event: in between, every job works at a constant rate.

The engine knows what breaks and when it is repaired, which slot belongs to whom, how much work a job would lose, and
what the history has to be told.  What is done about a fault is the policy's: it is told of what hit which job, and
of slots that have become free, and answers by stopping, timing and starting jobs.

Of one moment, repairs come first, then faults, sorted by all that they are, whatever order they are given in, then
what had been timed: a fault at the very moment at which a job would have been ready still hits its start.  A node
that is hit again while it is down is back when the later of its two repairs is done.  A slow node that is lost comes
back as fast as before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import ClassVar

from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.policies.cluster import Cluster, Place
from unicorn_mgr.simulator.policies.shares import best_sizes
from unicorn_mgr.simulator.scenario import Fault, Kind, Scenario, Work

REPAIRS, FAULTS, TIMERS = range(3)
"""In this order, of one moment."""


@dataclass(slots=True)
class Job:
    """As it is at the moment."""

    number: int
    work: Work
    wanted: int
    """Slots that it has when all is well."""
    seats: list[Place | None] = field(default_factory=list)
    """None: its slot was lost."""
    present: int = 0
    """Seats that have a slot."""
    doing: Doing = Doing.WAITING
    size: int = 0
    """Slots that compute, when it trains."""
    flops: float = 0.0
    ends: float = 0.0
    """When what it is waiting for has happened."""
    broken: dict[int, int] = field(default_factory=dict)
    """Replicas that don't take part, with the token of what mends each."""
    starting: bool = False
    """In its transition processes run already, and can break again."""
    blame: list[int] = field(default_factory=list)
    """Faults since it was last whole, in order."""
    stopped_by: int = -1
    stops: int = 0
    """Faults that have stopped it."""
    hit_at: float = math.inf
    """Since when it isn't whole."""
    turn: int = 0
    advanced_at: float = 0.0
    open_flop: float = 0.0
    """Done of the open step."""
    unsaved_flop: float = 0.0
    unsaved_seconds: float = 0.0
    """Trained since the last checkpoint."""


class Fluid(ABC):
    """A policy by its rules.  It keeps nothing from one moment to the next but what is in `Life`."""

    name: str
    efficiency: ClassVar[float] = 1.0
    """Of its training, without any fault: a share of what the same slots do otherwise."""

    def live(self, scenario: Scenario, faults: Sequence[Fault], costs: Costs, seed: int) -> History:
        """What becomes of the cluster."""
        return Life(self, scenario, faults, costs, seed).lived()

    def first(self, scenario: Scenario) -> list[int]:
        """Slots of each job at the beginning: the optimum, if nothing else is said."""
        return best_sizes(scenario.jobs, scenario.capacity)

    @abstractmethod
    def hit(self, life: Life, job: Job, number: int, seats: list[int]) -> None:
        """Of a job that has seats, these are hit; those on a lost node are None already."""

    @abstractmethod
    def offered(self, life: Life) -> None:
        """Slots have become free, or free ones were lost."""


class Life:
    """One scenario under one policy."""

    def __init__(self, policy: Fluid, scenario: Scenario, faults: Sequence[Fault], costs: Costs, seed: int) -> None:
        self.policy = policy
        self.scenario = scenario
        self.faults = tuple(sorted(faults, key=_order))
        self.costs = costs
        self.now = 0.0
        self.cluster = Cluster(scenario.nodes, scenario.slots)
        first = policy.first(scenario)
        self.jobs = [Job(i, work, wanted) for i, (work, wanted) in enumerate(zip(scenario.jobs, first, strict=True))]
        full = {job.work.name: job.work.rate(job.wanted) * policy.efficiency for job in self.jobs}
        self.history = History(policy.name, scenario, seed, full, self.faults)
        self.open: dict[int, int] = {}
        """Faults that are not repaired, oldest first, with nodes that are down by them."""
        self.slow: dict[int, list[tuple[float, int]]] = {}
        """By node, how slow by which faults."""
        self._repaired = -1
        self._back: dict[int, tuple[float, int]] = {}
        """When a lost node is back, and by which fault it went."""
        self._queue: list[tuple[float, int, int, Callable[[], None]]] = [
            (fault.at, FAULTS, number, partial(self._breaks, number)) for number, fault in enumerate(self.faults)
        ]
        heapify(self._queue)
        self._sequence = len(self.faults)

    def lived(self) -> History:
        """The whole history."""
        self.begins()
        while self.goes_on():
            self.history.notes["events"] += 1
        return self.history

    def goes_on(self) -> bool:
        """To the next event; False: the scenario is over."""
        if not self._queue or self._queue[0][0] >= self.scenario.seconds:
            return False
        self.now, _, _, happens = heappop(self._queue)
        happens()
        self.history.leaves_idle(self.now, self.cluster.free)
        return True

    def begins(self) -> None:
        """Jobs on whole nodes first, large ones before small ones: few nodes are shared."""
        slots = self.scenario.slots
        for job in sorted(self.jobs, key=lambda j: (j.wanted % slots != 0, -j.wanted, j.number)):
            self.takes(job, job.wanted)
        self.history.moves = 0
        for job in self.jobs:
            self.trains(job, job.wanted)
        self.history.leaves_idle(0.0, self.cluster.free)
        self.history.notes["events"] = 0.0

    # -- what breaks ---------------------------------------------------------------------

    def _breaks(self, number: int) -> None:
        fault = self.faults[number]
        hit: dict[int, list[int]] = {}
        if fault.kind is Kind.NODE:
            for node in fault.nodes:
                self.isolate(node, number, fault.repair_seconds, hit)
        elif fault.kind is Kind.SLOW:
            for node in filter(self.cluster.is_up, fault.nodes):
                self._slows(node, number, fault)
                for owning, seat in self.cluster.owners(node):
                    hit.setdefault(owning, []).append(seat)
        elif self.cluster.is_up(fault.nodes[0]):
            owner = self.cluster.owner((fault.nodes[0], fault.slot))
            if owner is not None:
                hit[owner[0]] = [owner[1]]
        for job_number in sorted(hit):
            job = self.jobs[job_number]
            if fault.kind is not Kind.SLOW:
                job.blame.append(number)
                job.hit_at = min(job.hit_at, self.now)
            self.policy.hit(self, job, number, hit[job_number])
        if fault.kind is Kind.NODE and not hit:
            self.policy.offered(self)

    def isolate(self, node: int, number: int, seconds: float, hit: dict[int, list[int]]) -> None:
        """A node is out for so long; `hit` is told of the seats of each job that are lost."""
        until, by = self._back.get(node, (-1.0, number))
        self._back[node] = (max(until, self.now + seconds), by)
        if until < self.now + seconds < math.inf:
            self.schedule(seconds, lambda: self._returns(node), REPAIRS)
        if not self.cluster.is_up(node):
            return
        self.open[number] = self.open.get(number, 0) + 1
        self.slow.pop(node, None)
        for job, seat in self.cluster.fail(node):
            self.jobs[job].seats[seat] = None
            self.jobs[job].present -= 1
            hit.setdefault(job, []).append(seat)

    def _returns(self, node: int) -> None:
        until, number = self._back.get(node, (math.inf, -1))
        if until > self.now:
            return
        del self._back[node]
        self.open[number] -= 1
        if not self.open[number]:
            del self.open[number]
            self._repaired = number
        self.cluster.heal(node)
        self.policy.offered(self)

    def _slows(self, node: int, number: int, fault: Fault) -> None:
        mark = (fault.slowness, number)
        self.slow.setdefault(node, []).append(mark)
        if fault.repair_seconds < math.inf:
            self.schedule(fault.repair_seconds, lambda: self._speeds_up(node, mark), REPAIRS)
        self._retime(node)

    def _speeds_up(self, node: int, mark: tuple[float, int]) -> None:
        marks = self.slow.get(node, [])
        if mark in marks:
            marks.remove(mark)
            if not marks:
                del self.slow[node]
            self._retime(node)

    def _retime(self, node: int) -> None:
        for number in sorted({job for job, _ in self.cluster.owners(node)}):
            job = self.jobs[number]
            if job.doing is Doing.TRAINING:
                self.trains(job, job.size)

    # -- time ----------------------------------------------------------------------------

    def schedule(self, seconds: float, happens: Callable[[], None], rank: int = TIMERS) -> None:
        """Later, whatever becomes of anybody until then."""
        heappush(self._queue, (self.now + seconds, rank, self.token(), happens))

    def token(self) -> int:
        """A number that nothing else has."""
        self._sequence += 1
        return self._sequence

    def later(self, job: Job, seconds: float, happens: Callable[[], None]) -> None:
        """What a job waits for next: it waits for nothing else any more."""
        job.turn += 1
        job.ends = self.now + seconds
        turn = job.turn
        self.schedule(seconds, lambda: happens() if job.turn == turn else None)

    # -- slots ---------------------------------------------------------------------------

    def takes(self, job: Job, number: int) -> None:
        """Free slots for new seats at the end."""
        seats = [(job.number, len(job.seats) + i) for i in range(number)]
        job.seats += self.cluster.take(seats)
        job.present += number
        self.history.moves += number

    def fills(self, job: Job, seats: Iterable[int]) -> None:
        """Free slots for seats whose slots were lost."""
        lost = [(job.number, seat) for seat in seats if job.seats[seat] is None]
        for (_, seat), place in zip(lost, self.cluster.take(lost), strict=True):
            job.seats[seat] = place
        job.present += len(lost)
        self.history.moves += len(lost)

    def keeps(self, job: Job, seats: Iterable[int]) -> None:
        """Of its seats these, in this order; the others' slots become free."""
        kept = list(seats)
        if kept == list(range(len(job.seats))):
            return
        staying = set(kept)
        for seat, place in enumerate(job.seats):
            if place is not None and seat not in staying:
                self.cluster.give(place)
        job.seats = [job.seats[seat] for seat in kept]
        job.present = 0
        for seat, place in enumerate(job.seats):
            if place is not None:
                job.present += 1
                self.cluster.renumber(place, (job.number, seat))

    # -- what jobs do --------------------------------------------------------------------

    def trains(self, job: Job, size: int) -> None:
        """On so many of its slots."""
        slowest, by = self._slowest(job)
        flops = job.work.rate(size) * self.policy.efficiency
        job.size = size
        if size >= job.wanted:
            job.blame.clear()
            job.hit_at = math.inf
        doing = Doing.TRAINING if flops > 0 else Doing.WAITING
        if flops != self.history.full[job.work.name]:
            by = self.blamed(job)
        self._becomes(job, doing, flops / slowest, by)

    def stops(self, job: Job, doing: Doing, number: int) -> None:
        """It trains no more, because of that fault."""
        job.stopped_by = number
        self._becomes(job, doing, 0.0, number)

    def tells(self, job: Job) -> None:
        """It goes on as it does, with other slots or for another reason."""
        if job.doing is Doing.TRAINING:
            self.trains(job, job.size)
        else:
            self._becomes(job, job.doing, 0.0, self.blamed(job) if job.doing is Doing.WAITING else job.stopped_by)

    def waits(self, job: Job) -> None:
        """For slots."""
        job.turn += 1
        self._becomes(job, Doing.WAITING, 0.0, self.blamed(job))

    def _becomes(self, job: Job, doing: Doing, flops: float, number: int) -> None:
        self._advance(job)
        job.doing, job.flops = doing, flops
        cause = self.faults[number].cause if number >= 0 else ""
        self.history.becomes(self.now, job.work.name, doing, job.present, flops, cause, number)

    def _slowest(self, job: Job) -> tuple[float, int]:
        """How many times longer a step takes, and by which fault."""
        found = (1.0, -1)
        for node in self.slow:
            taking_part = (
                owner == job.number and seat // job.work.replica not in job.broken
                for owner, seat in self.cluster.owners(node)
            )
            if any(taking_part):
                found = max(found, max(self.slow[node]))
        return found

    def blamed(self, job: Job) -> int:
        """The first fault that is not repaired, of those that hit it, or else of all; or the last one that was."""
        unrepaired = (number for number in job.blame if number in self.open)
        return next(unrepaired, job.blame[0] if job.blame else next(iter(self.open), self._repaired))

    # -- work ----------------------------------------------------------------------------

    def _advance(self, job: Job) -> None:
        seconds = self.now - job.advanced_at
        job.advanced_at = self.now
        if not job.flops or not seconds:
            return
        done = seconds * job.flops
        job.open_flop = (job.open_flop + done) % job.work.step_flops
        job.unsaved_seconds += seconds
        job.unsaved_flop += done
        if job.unsaved_seconds >= job.work.checkpoint_seconds:
            job.unsaved_seconds %= job.work.checkpoint_seconds
            job.unsaved_flop = job.unsaved_seconds * job.flops

    def saves(self, job: Job) -> None:
        """Nothing of it could be lost now."""
        self._advance(job)
        job.open_flop = job.unsaved_flop = job.unsaved_seconds = 0.0

    def loses_unsaved(self, job: Job, number: int) -> None:
        """What was done since the last checkpoint is done again."""
        self._advance(job)
        self._loses(job, job.unsaved_flop, number)
        self.saves(job)

    def loses_open(self, job: Job, number: int, share: float = 1.0) -> None:
        """So much of the open step is done again."""
        self._advance(job)
        lost = job.open_flop * share
        self._loses(job, lost, number)
        job.open_flop -= lost
        job.unsaved_flop = max(0.0, job.unsaved_flop - lost)

    def from_storage(self, job: Job) -> float:
        """Seconds in which each of its replicas reads a checkpoint."""
        rate = self.costs.storage_bytes_per_second * self.scenario.gpus_per_slot * job.work.replica
        return job.work.state_bytes / rate

    def _loses(self, job: Job, flop: float, number: int) -> None:
        self.history.repeat(self.now, job.work.name, flop, self.faults[number].cause, number)


def _order(fault: Fault) -> tuple[float, str, tuple[int, ...], int, str, float, float]:
    return fault.at, fault.kind, fault.nodes, fault.slot, fault.cause, fault.repair_seconds, fault.slowness
