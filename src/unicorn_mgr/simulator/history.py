"""What has become of a cluster under one policy: who ran how fast, when, and what each fault has cost.

A history is written as it is lived: `runs`, `stops` and `repeats` are the only ways in.  Nothing is sampled;
everything is constant between two changes, and all figures are exact integrals.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from unicorn_mgr.simulator.scenario import Fault, Scenario

HOUR = 3_600.0


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
    flops: float
    """FLOP/s that it achieves now; 0 unless it trains."""
    cause: str = ""
    """Of the fault that it does not train because of, or trains more slowly; empty: none."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Work that was done is lost, and is done once more."""

    at: float
    job: str
    flop: float
    cause: str


@dataclass(slots=True)
class Costs:
    """Weighted FLOP that were not done."""

    detection: float = 0.0
    transition: float = 0.0
    sub_healthy: float = 0.0
    """The job ran, slower than without faults; or waited for slots."""
    repeated: float = 0.0
    """Done twice."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.detection + self.transition + self.sub_healthy + self.repeated


@dataclass(slots=True)
class History:
    """Of one policy, one scenario, one seed."""

    policy: str
    scenario: Scenario
    seed: int
    full: dict[str, float]
    """By job, FLOP/s without any fault under this policy's own first allocation."""
    faults: tuple[Fault, ...] = ()
    changes: list[Change] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    moves: int = 0
    """Slots that changed from one job to another, or from idle to a job, after the beginning."""
    idle: list[tuple[float, int]] = field(default_factory=list)
    """From when on how many healthy slots belong to nobody."""
    notes: dict[str, float] = field(default_factory=dict)
    """Figures of the run itself: events, wall seconds, plans."""

    # -- written -------------------------------------------------------------------------

    def becomes(self, at: float, job: str, doing: Doing, slots: int, flops: float, cause: str = "") -> None:
        """A job changes; the same again says nothing."""
        self.changes.append(Change(at, job, doing, slots, flops if doing is Doing.TRAINING else 0.0, cause))

    def repeat(self, at: float, job: str, flop: float, cause: str) -> None:
        """A job has lost work."""
        if flop > 0:
            self.repeats.append(Repeat(at, job, flop, cause))

    # -- read ----------------------------------------------------------------------------

    def spans(self, job: str) -> Iterator[tuple[float, float, Change]]:
        """From, until, and what holds in between; to the scenario's end."""
        mine = [c for c in self.changes if c.job == job and c.at <= self.scenario.seconds]
        for change, following in zip(mine, [*mine[1:], None], strict=True):
            until = following.at if following is not None else self.scenario.seconds
            if until > change.at:
                yield change.at, until, change

    def flop(self, job: str) -> float:
        """Done and kept."""
        done = sum((until - since) * change.flops for since, until, change in self.spans(job))
        return done - sum(r.flop for r in self.repeats if r.job == job and r.at <= self.scenario.seconds)

    @property
    def waf(self) -> float:
        """Weighted achieved aggregate FLOP/s, the mean over the scenario."""
        return sum(work.weight * self.flop(work.name) for work in self.scenario.jobs) / self.scenario.seconds

    @property
    def goodput(self) -> float:
        """Weighted work done and kept, as a share of what the first allocation would have done without faults."""
        most = sum(work.weight * self.full[work.name] for work in self.scenario.jobs)
        return self.waf / most if most else 0.0

    def ettr(self, jobs: Iterable[str] | None = None) -> float:
        """Productive time over wall-clock time, steps done twice not counted; the mean over jobs."""
        names = list(jobs) if jobs is not None else [w.name for w in self.scenario.jobs if self.full[w.name] > 0]
        return sum(map(self._ettr_of, names)) / len(names) if names else 0.0

    def _ettr_of(self, job: str) -> float:
        productive = sum(until - since for since, until, c in self.spans(job) if c.doing is Doing.TRAINING)
        twice = sum(r.flop for r in self.repeats if r.job == job and r.at <= self.scenario.seconds) / self.full[job]
        return max(0.0, productive - twice) / self.scenario.seconds

    def costs(self) -> dict[str, Costs]:
        """By cause, what was not done and would have been without any fault; weighted FLOP."""
        found: dict[str, Costs] = defaultdict(Costs)
        for work in self.scenario.jobs:
            full = self.full[work.name]
            for since, until, change in self.spans(work.name):
                lost = (until - since) * (full - change.flops) * work.weight
                cost = found[change.cause or "other"]
                if change.doing is Doing.DETECTION:
                    cost.detection += lost
                elif change.doing is Doing.TRANSITION:
                    cost.transition += lost
                elif abs(lost) > 0:
                    cost.sub_healthy += lost
        for repeat in self.repeats:
            weight = next(w.weight for w in self.scenario.jobs if w.name == repeat.job)
            found[repeat.cause or "other"].repeated += repeat.flop * weight
        return {cause: cost for cause, cost in sorted(found.items()) if cost.total}
