"""Several policies in one scenario, over several seeds: what each was worth, and what its faults have cost.

All policies of one seed live through the same faults, so whatever compares two of them is taken seed by seed: what
the faults of a seed do to both cancels out.  A history is reduced to its figures as soon as it is lived, and is
forgotten then, but for those of the first seed if they are to be plotted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from unicorn_mgr.simulator.costs import Costs as Prices
from unicorn_mgr.simulator.history import HOUR, Costs, History
from unicorn_mgr.simulator.policies import Policy
from unicorn_mgr.simulator.scenario import Fault, Scenario

CLAIRVOYANT = "clairvoyant"
"""Of the policy that no other can be better than."""

FIRST_ALLOCATION = "first allocation"
"""As a cause: what a policy does less than another even without a fault, e.g. because it keeps spares."""

NO_DIFFERENCE = 1e-9
"""Shares less than this are of the sums of floats."""

Draw = Callable[[int], Sequence[Fault]]
"""A scenario's faults from a seed."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What all policies live in."""

    scenario: Scenario
    draw: Draw
    prices: Prices


# -- one run --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    """What is kept of one history."""

    policy: str
    seed: int
    faults: int
    waf: float
    """Weighted FLOP/s."""
    full_waf: float
    """The same without any fault, under its own first allocation."""
    goodput: float
    ettr: float
    ettr_worst_hour: float
    lost: dict[str, Costs]
    """By cause, in GPU-hours."""
    moves: int
    idle_slots: float
    """The mean over time."""


def reduced(history: History) -> Figures:
    """The figures of a history."""
    return Figures(
        policy=history.policy,
        seed=history.seed,
        faults=len(history.faults),
        waf=history.waf,
        full_waf=sum(work.weight * history.full[work.name] for work in history.scenario.jobs),
        goodput=history.goodput,
        ettr=history.ettr(),
        ettr_worst_hour=history.ettr_worst(),
        lost=history.lost_gpu_hours(),
        moves=history.moves,
        idle_slots=history.idle_slots,
    )


# -- all runs -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the seeds."""

    mean: float
    std: float
    p5: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        mean = sum(values) / len(values)
        variance = sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1)
        return cls(mean, variance**0.5, percentile(values, 0.05), percentile(values, 0.95))


def percentile(values: Sequence[float], share: float) -> float:
    """Between its neighbours where it is none of the values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy over all seeds."""

    policy: str
    waf: Spread
    goodput: Spread
    ettr: Spread
    ettr_worst_hour: Spread
    ratio: Spread | None
    """Its WAF over the baseline's in the same seed; None without a baseline."""
    gap: Spread | None
    """What its WAF lacks of the clairvoyant one's in the same seed, as a share; None where that was not asked."""
    lost: dict[str, Costs]
    """By cause, in GPU-hours; the mean."""
    moves: float
    idle_slots: float


@dataclass(frozen=True, slots=True)
class Study:
    """What has come out."""

    scenario: Scenario
    seeds: tuple[int, ...]
    baseline: str
    """Empty: none."""
    faults: float
    """The mean over the seeds."""
    outcomes: tuple[Outcome, ...]
    """In the order in which the policies were named."""
    runs: tuple[Figures, ...]
    plotted: tuple[History, ...] = ()
    """Of the first seed."""


@dataclass(slots=True)
class Compared:
    """Runs as they come, and in the end what they say together."""

    situation: Situation
    baseline: str = ""
    keeps_first: bool = False
    runs: list[Figures] = field(default_factory=list)
    kept: list[History] = field(default_factory=list)

    def add(self, history: History) -> None:
        """One more history."""
        if self.keeps_first and (not self.runs or history.seed == self.runs[0].seed):
            self.kept.append(history)
        self.runs.append(reduced(history))

    def study(self) -> Study:
        """Of all of them."""
        by_policy: dict[str, list[Figures]] = defaultdict(list)
        for run in self.runs:
            by_policy[run.policy].append(run)
        seeds = tuple(dict.fromkeys(run.seed for run in self.runs))
        faults = {seed: max(run.faults for run in self.runs if run.seed == seed) for seed in seeds}
        most = max((run.full_waf for run in self.runs), default=0.0)
        outcomes = tuple(self._outcome(runs, by_policy, most) for runs in by_policy.values())
        mean = sum(faults.values()) / max(1, len(faults))
        baseline = self.baseline if self.baseline in by_policy else ""
        return Study(self.situation.scenario, seeds, baseline, mean, outcomes, tuple(self.runs), tuple(self.kept))

    def _outcome(self, runs: Sequence[Figures], by_policy: dict[str, list[Figures]], most: float) -> Outcome:
        return Outcome(
            policy=runs[0].policy,
            waf=Spread.of([run.waf for run in runs]),
            goodput=Spread.of([run.goodput for run in runs]),
            ettr=Spread.of([run.ettr for run in runs]),
            ettr_worst_hour=Spread.of([run.ettr_worst_hour for run in runs]),
            ratio=_paired(runs, by_policy.get(self.baseline, ()), lambda own, other: own / other),
            gap=_paired(runs, by_policy.get(CLAIRVOYANT, ()), lambda own, best: 1 - own / best),
            lost=_mean_lost(runs, self.situation.scenario, most),
            moves=sum(run.moves for run in runs) / len(runs),
            idle_slots=sum(run.idle_slots for run in runs) / len(runs),
        )


def _paired(
    runs: Sequence[Figures], others: Sequence[Figures], compare: Callable[[float, float], float]
) -> Spread | None:
    theirs = {run.seed: run.waf for run in others}
    found = [compare(run.waf, theirs[run.seed]) for run in runs if theirs.get(run.seed)]
    return Spread.of(found) if found else None


def _mean_lost(runs: Sequence[Figures], scenario: Scenario, most: float) -> dict[str, Costs]:
    """By cause; what costs most comes first.

    A smaller first allocation than the best one costs its share of all GPU-hours: hours that spares stand by, or
    that a slower system wastes, are lost as well.
    """
    lost: dict[str, Costs] = defaultdict(Costs)
    for run in runs:
        for cause, costs in run.lost.items():
            sums = lost[cause]
            sums.detection += costs.detection / len(runs)
            sums.transition += costs.transition / len(runs)
            sums.sub_healthy += costs.sub_healthy / len(runs)
            sums.repeated += costs.repeated / len(runs)
    withheld = sum(1 - run.full_waf / most for run in runs) / len(runs) if most else 0.0
    if withheld > NO_DIFFERENCE:
        lost[FIRST_ALLOCATION].sub_healthy += (
            withheld * scenario.capacity * scenario.gpus_per_slot * scenario.seconds / HOUR
        )
    return {cause: lost[cause] for cause in sorted(lost, key=lambda c: (-lost[c].total, c))}


def compare(
    situation: Situation,
    policies: Sequence[Policy],
    seeds: Iterable[int],
    baseline: str = "",
    keeps_first: bool = False,
    lived: Callable[[History], None] = lambda _: None,
) -> Study:
    """Have every policy live through every seed's faults; `lived` is given each history, once."""
    compared = Compared(situation, baseline, keeps_first)
    for seed in seeds:
        faults = tuple(situation.draw(seed))
        for policy in policies:
            history = policy.live(situation.scenario, faults, situation.prices, seed)
            compared.add(history)
            lived(history)
    return compared.study()
