"""Which assumption moves a result most: one at a time to the low and to the high end of its range.

All else stays as it is, the faults of each seed too, so that a difference is that of the one assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import History
from unicorn_mgr.simulator.policies import Policy
from unicorn_mgr.simulator.scenario import Fault, Scenario
from unicorn_mgr.simulator.study import Situation, compare

DETECTION = (
    *("exit_seen_seconds", "hang_seconds"),
    *("timeout_seconds", "node_loss_seen_seconds", "fast_detection_seconds"),
)
"""Costs until somebody knows; all others are of what is done then."""

FACTOR = 2.0
"""By which repairs and intervals between checkpoints are made shorter and longer."""

BURST = 5
"""Faults that come at once where they come in bursts."""

SITUATIONS = 11
"""In which each policy lives through each seed: as it is, and with each of five assumptions at both ends."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The same situation with one assumption at each end of its range."""

    name: str
    low_means: str
    high_means: str
    low: Situation
    high: Situation


def varied(situation: Situation, low: Costs, high: Costs) -> tuple[Ends, ...]:
    """Every assumption; costs between the ends of their ranges."""
    scenario, draw = situation.scenario, situation.draw
    seen, done = DETECTION, tuple(name for name in Costs.__dataclass_fields__ if name not in DETECTION)

    def costs(names: Sequence[str]) -> tuple[Situation, Situation]:
        return _with(situation, low, names), _with(situation, high, names)

    def faults(change: Callable[[Sequence[Fault]], list[Fault]]) -> Situation:
        return replace(situation, draw=lambda seed: change(draw(seed)))

    def checkpoints(factor: float) -> Situation:
        jobs = (replace(work, checkpoint_seconds=work.checkpoint_seconds * factor) for work in scenario.jobs)
        return replace(situation, scenario=replace(scenario, jobs=tuple(jobs)))

    range_ends = ("low ends", "high ends")
    halved = (f"1/{FACTOR:g}", f"x {FACTOR:g}")
    return (
        Ends("detection time", *range_ends, *costs(seen)),
        Ends("transition time", *range_ends, *costs(done)),
        Ends("repair time", *halved, faults(lambda f: repaired(f, 1 / FACTOR)), faults(lambda f: repaired(f, FACTOR))),
        Ends(
            "burstiness",
            "evenly spread",
            f"{BURST} at once",
            faults(lambda f: spread_evenly(f, scenario)),
            faults(in_bursts),
        ),
        Ends("checkpoint interval", *halved, checkpoints(1 / FACTOR), checkpoints(FACTOR)),
    )


def _with(situation: Situation, end: Costs, names: Sequence[str]) -> Situation:
    return replace(situation, prices=replace(situation.prices, **{name: getattr(end, name) for name in names}))


def repaired(faults: Sequence[Fault], factor: float) -> list[Fault]:
    """Repairs take so many times as long."""
    return [replace(fault, repair_seconds=fault.repair_seconds * factor) for fault in faults]


def spread_evenly(faults: Sequence[Fault], scenario: Scenario) -> list[Fault]:
    """The same faults, each as long after the one before it."""
    every = scenario.seconds / max(1, len(faults))
    return [replace(fault, at=(i + 0.5) * every) for i, fault in enumerate(faults)]


def in_bursts(faults: Sequence[Fault]) -> list[Fault]:
    """The same faults, so many of them at the moment of the first."""
    return [replace(fault, at=faults[i - i % BURST].at) for i, fault in enumerate(faults)]


@dataclass(frozen=True, slots=True)
class Swing:
    """What an assumption does to each policy's goodput; the mean over the seeds."""

    name: str
    low_means: str
    high_means: str
    goodput: Mapping[str, tuple[float, float, float]]
    """By policy: at the low end, as it is, and at the high end."""

    @property
    def largest(self) -> float:
        """Of all policies, between its ends."""
        return max(max(found) - min(found) for found in self.goodput.values())


def sensitivity(
    situation: Situation,
    low: Costs,
    high: Costs,
    policies: Sequence[Policy],
    seeds: Sequence[int],
    lived: Callable[[History], None] = lambda _: None,
) -> tuple[Swing, ...]:
    """What moves the result most comes first; `lived` is given each history, once."""

    def goodput(where: Situation) -> dict[str, float]:
        found = compare(where, policies, seeds, lived=lived)
        return {outcome.policy: outcome.goodput.mean for outcome in found.outcomes}

    as_it_is = goodput(situation)
    swings = []
    for ends in varied(situation, low, high):
        at_low, at_high = goodput(ends.low), goodput(ends.high)
        moved = {name: (at_low[name], as_it_is[name], at_high[name]) for name in as_it_is}
        swings.append(Swing(ends.name, ends.low_means, ends.high_means, moved))
    return tuple(sorted(swings, key=lambda swing: -swing.largest))
