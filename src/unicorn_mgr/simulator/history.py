"""What has become of a cluster under one policy: who ran how fast, when, and what each fault has cost.

A history is written as it is lived: `runs`, `stops` and `repeats` are the only ways in.  Nothing is sampled;
everything is constant between two changes, and all figures are exact integrals.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from unicorn_mgr.simulator.scenario import Fault, Scenario

HOUR = 3_600.0
ROUNDING_SECONDS = 1e-6
"""By so much a moment may come before the fault that it is of."""

Key = TypeVar("Key", bound=Hashable)


class Doing(enum.StrEnum):
    """What a job does with its slots."""

    TRAINING = "training"
    DETECTION = "detection"
    """Something is broken, and nobody has noticed yet."""
    TRANSITION = "transition"
    """What has to be done before it goes on is under way: restart, regrouping, moving of state."""
    WAITING = "waiting"
    """It has too few slots to run."""


@dataclass(frozen=True, slots=True)
class Change:
    """From this moment on a job is in this state."""

    at: float
    job: str
    doing: Doing
    slots: int
    """That it has, whether it can use all of them or not."""
    flops: float
    """FLOP/s that it achieves now; 0 unless it trains."""
    cause: str = ""
    """Of the fault that it does not train because of, or trains more slowly; empty: none."""
    fault: int = -1
    """Which one that is: its number in `History.faults`; -1: none."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Work that was done is lost, and is done once more."""

    at: float
    job: str
    flop: float
    cause: str
    fault: int = -1


@dataclass(slots=True)
class Costs:
    """What was not done: in weighted FLOP, or in GPU-hours."""

    detection: float = 0.0
    transition: float = 0.0
    sub_healthy: float = 0.0
    """The job ran, slower than without faults; or waited for slots.  Below zero: it had more than without faults."""
    repeated: float = 0.0
    """Done twice."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.detection + self.transition + self.sub_healthy + self.repeated


@dataclass(frozen=True, slots=True)
class Incident:
    """What one fault has cost all jobs, in weighted FLOP."""

    fault: Fault
    costs: Costs


@dataclass(slots=True)
class History:
    """Of one policy, one scenario, one seed."""

    policy: str
    scenario: Scenario
    seed: int
    full: dict[str, float]
    """By job, FLOP/s without any fault under this policy's own first allocation."""
    faults: tuple[Fault, ...] = ()
    """In the order of time."""
    changes: list[Change] = field(default_factory=list)
    """In the order of time; a job's first one is at the beginning."""
    repeats: list[Repeat] = field(default_factory=list)
    moves: int = 0
    """Slots that changed from one job to another, or from idle to a job, after the beginning."""
    idle: list[tuple[float, int]] = field(default_factory=list)
    """From when on how many healthy slots belong to nobody."""
    notes: dict[str, float] = field(default_factory=dict)
    """Figures of the run itself: events, wall seconds, plans."""
    _of_job: dict[str, list[Change]] = field(default_factory=dict, repr=False)
    _of_cause: dict[str, tuple[list[float], list[int]]] = field(default_factory=dict, repr=False)
    """Faults' moments and numbers."""

    def __post_init__(self) -> None:
        for change in self.changes:
            self._of_job.setdefault(change.job, []).append(change)
        for number, fault in enumerate(self.faults):
            moments, numbers = self._of_cause.setdefault(fault.cause, ([], []))
            moments.append(fault.at)
            numbers.append(number)

    # -- written -------------------------------------------------------------------------

    def becomes(
        self, at: float, job: str, doing: Doing, slots: int, flops: float, cause: str = "", fault: int = -1
    ) -> None:
        """A job changes; the same again says nothing.  Which fault it is may be left to `_number`."""
        if fault < 0 and cause:
            fault = self._number(at, job, doing, cause)
        change = Change(at, job, doing, slots, flops if doing is Doing.TRAINING else 0.0, cause, fault)
        before = self._of_job.setdefault(job, [])
        if before and _same(before[-1], change):
            return
        before.append(change)
        self.changes.append(change)

    def repeat(self, at: float, job: str, flop: float, cause: str, fault: int = -1) -> None:
        """A job has lost work."""
        if fault < 0 and cause:
            fault = self._number(at, job, Doing.DETECTION, cause)
        if flop > 0:
            self.repeats.append(Repeat(at, job, flop, cause, fault))

    def leaves_idle(self, at: float, slots: int) -> None:
        """So many healthy slots belong to nobody from now on."""
        if not self.idle or self.idle[-1][1] != slots:
            self.idle.append((at, slots))

    def _number(self, at: float, job: str, doing: Doing, cause: str) -> int:
        """The newest fault of that cause; as long as nothing new is detected, the one that was told of before."""
        before = self._of_job.get(job)
        if before and before[-1].cause == cause and doing is not Doing.DETECTION:
            return before[-1].fault
        moments, numbers = self._of_cause.get(cause, ([], []))
        known = bisect_right(moments, at + ROUNDING_SECONDS)
        return numbers[known - 1] if known else -1

    # -- read: totals --------------------------------------------------------------------

    def spans(self, job: str) -> Iterator[tuple[float, float, Change]]:
        """From, until, and what holds in between; to the scenario's end."""
        end = self.scenario.seconds
        mine = self._of_job.get(job, [])
        for change, following in zip(mine, [*mine[1:], None], strict=False):
            until = min(end, following.at) if following is not None else end
            if until > change.at:
                yield change.at, until, change

    def _repeats_of(self, job: str) -> list[Repeat]:
        """In the order of time, to the scenario's end."""
        return sorted((r for r in self.repeats if r.job == job and r.at <= self.scenario.seconds), key=lambda r: r.at)

    def flop(self, job: str) -> float:
        """Done and kept."""
        done = sum((until - since) * change.flops for since, until, change in self.spans(job))
        return done - sum(r.flop for r in self._repeats_of(job))

    @property
    def waf(self) -> float:
        """Weighted achieved aggregate FLOP/s, the mean over the scenario."""
        return sum(work.weight * self.flop(work.name) for work in self.scenario.jobs) / self.scenario.seconds

    @property
    def goodput(self) -> float:
        """Weighted work done and kept, as a share of what the first allocation would have done without faults."""
        most = sum(work.weight * self.full[work.name] for work in self.scenario.jobs)
        return self.waf / most if most else 0.0

    @property
    def idle_slots(self) -> float:
        """Healthy slots that belonged to nobody; the mean over time."""
        ends = [*(at for at, _ in self.idle[1:]), self.scenario.seconds]
        idle = sum(max(0.0, until - at) * slots for (at, slots), until in zip(self.idle, ends, strict=False))
        return idle / self.scenario.seconds

    def ettr(self, jobs: Iterable[str] | None = None) -> float:
        """Productive time over wall-clock time, steps done twice not counted; the mean over jobs."""
        names = self._trained(jobs)
        return sum(map(self._ettr_of, names)) / len(names) if names else 0.0

    def _trained(self, jobs: Iterable[str] | None) -> list[str]:
        names = jobs if jobs is not None else (work.name for work in self.scenario.jobs)
        return [name for name in names if self.full[name] > 0]

    def _ettr_of(self, job: str) -> float:
        spans, debt = self._productive(job)
        productive = sum(until - since for since, until in spans) - debt / self.full[job]
        return max(0.0, productive) / self.scenario.seconds

    def _productive(self, job: str) -> tuple[list[tuple[float, float]], float]:
        """When it did what it had not done before; and the FLOP that it still had to repeat at the end.

        What is lost is done again as soon as the job trains again, at the speed that it has then.
        """
        lost = self._repeats_of(job)
        spans: list[tuple[float, float]] = []
        debt, number = 0.0, 0
        for since, until, change in self.spans(job):
            at = since
            while at < until:
                while number < len(lost) and lost[number].at <= at:
                    debt += lost[number].flop
                    number += 1
                piece = min(until, lost[number].at) if number < len(lost) else until
                if change.flops > 0:
                    redone = min(piece - at, debt / change.flops)
                    debt = 0.0 if redone < piece - at else debt - redone * change.flops
                    if at + redone < piece:
                        spans.append((at + redone, piece))
                at = piece
        return spans, debt + sum(r.flop for r in lost[number:])

    # -- read: costs ---------------------------------------------------------------------

    def costs(self) -> dict[str, Costs]:
        """By cause, what was not done and would have been without any fault; weighted FLOP."""
        found = self._lost(lambda change: change.cause or "other", self._weights())
        return {cause: found[cause] for cause in sorted(found) if _any(found[cause])}

    def lost_gpu_hours(self) -> dict[str, Costs]:
        """By cause, the same in hours of GPUs of the first allocation."""
        hours = {}
        for work in self.scenario.jobs:
            first = next(iter(self._of_job.get(work.name, [])), None)
            gpus = first.slots * self.scenario.gpus_per_slot if first is not None else 0
            hours[work.name] = gpus / self.full[work.name] / HOUR if self.full[work.name] else 0.0
        found = self._lost(lambda change: change.cause or "other", hours)
        return {cause: found[cause] for cause in sorted(found) if _any(found[cause])}

    def incidents(self) -> list[Incident]:
        """What each fault has cost, in their order: as far as changes tell which fault they are of."""
        found = self._lost(lambda change: change.fault, self._weights())
        return [Incident(fault, found.get(number, Costs())) for number, fault in enumerate(self.faults)]

    def _weights(self) -> dict[str, float]:
        return {work.name: work.weight for work in self.scenario.jobs}

    def _lost(self, key: Callable[[Change | Repeat], Key], worth: dict[str, float]) -> dict[Key, Costs]:
        """What is missing to the first allocation's speed, by a key of changes; a FLOP of a job counts `worth`."""
        found: dict[Key, Costs] = defaultdict(Costs)
        for work in self.scenario.jobs:
            full = self.full[work.name]
            for since, until, change in self.spans(work.name):
                lost = (until - since) * (full - change.flops) * worth[work.name]
                if not lost:
                    continue
                cost = found[key(change)]
                if change.doing is Doing.DETECTION:
                    cost.detection += lost
                elif change.doing is Doing.TRANSITION:
                    cost.transition += lost
                else:
                    cost.sub_healthy += lost
        for repeat in self.repeats:
            if repeat.at <= self.scenario.seconds:
                found[key(repeat)].repeated += repeat.flop * worth[repeat.job]
        return found

    # -- read: over time -----------------------------------------------------------------

    def waf_over_time(self) -> list[tuple[float, float]]:
        """From when on how many weighted FLOP/s; what is done twice is counted twice here."""
        weights = self._weights()
        return [
            (at, sum(weight * state[job].flops for job, weight in weights.items() if job in state))
            for at, state in self._states()
        ]

    def allocation_over_time(self) -> list[tuple[float, tuple[int, ...]]]:
        """From when on how many slots each job has, in the scenario's order."""
        names = [work.name for work in self.scenario.jobs]
        found: list[tuple[float, tuple[int, ...]]] = []
        for at, state in self._states():
            slots = tuple(state[name].slots if name in state else 0 for name in names)
            if not found or found[-1][1] != slots:
                found.append((at, slots))
        return found

    def _states(self) -> Iterator[tuple[float, dict[str, Change]]]:
        """All jobs' last changes, after each moment at which something changes."""
        state: dict[str, Change] = {}
        for change, following in zip(self.changes, [*self.changes[1:], None], strict=True):
            if change.at >= self.scenario.seconds:
                return
            state[change.job] = change
            if following is None or following.at != change.at:
                yield change.at, state

    def ettr_over_time(
        self, window: float | None = None, jobs: Iterable[str] | None = None
    ) -> list[tuple[float, float]]:
        """ETTR of the time before each moment: of the last `window` seconds, or of all since the beginning.

        Exact at the moments that are told, which are all at which the slope changes; of a window it is linear in
        between.  A scenario that is shorter than the window is one whole window.
        """
        end = self.scenario.seconds
        names = self._trained(jobs)
        done = _Accumulated([span for name in names for span in self._productive(name)[0]], end)
        share = 1 / len(names) if names else 0.0
        if window is None:
            return [(at, done.until(at) / at * share) for at in done.edges if at > 0]
        window = min(window, end)
        moments = {at for edge in done.edges for at in (edge, edge + window) if window <= at <= end}
        return [(at, (done.until(at) - done.until(at - window)) / window * share) for at in sorted(moments)]

    def ettr_worst(self, window: float = HOUR, jobs: Iterable[str] | None = None) -> float:
        """The least ETTR of any window."""
        return min((ettr for _, ettr in self.ettr_over_time(window, jobs)), default=0.0)


def _same(before: Change, after: Change) -> bool:
    """Whether nothing but the time differs."""
    return (before.doing, before.slots, before.flops, before.cause, before.fault) == (
        after.doing,
        after.slots,
        after.flops,
        after.cause,
        after.fault,
    )


def _any(costs: Costs) -> bool:
    return any((costs.detection, costs.transition, costs.sub_healthy, costs.repeated))


class _Accumulated:
    """Productive time of several jobs together up to a moment."""

    def __init__(self, spans: Sequence[tuple[float, float]], end: float) -> None:
        running: dict[float, int] = defaultdict(int, {0.0: 0, end: 0})
        for since, until in spans:
            running[since] += 1
            running[until] -= 1
        self.edges = sorted(running)
        self._slopes: list[int] = []
        self._sums = [0.0]
        slope = 0
        for edge, following in pairwise([*self.edges, end]):
            slope += running[edge]
            self._slopes.append(slope)
            self._sums.append(self._sums[-1] + (following - edge) * slope)

    def until(self, at: float) -> float:
        number = max(0, bisect_right(self.edges, at) - 1)
        return self._sums[number] + (at - self.edges[number]) * self._slopes[number]
