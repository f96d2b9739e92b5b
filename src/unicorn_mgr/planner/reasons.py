"""Why each job has what it has, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unicorn_mgr.planner.knapsack import Choice
from unicorn_mgr.planner.problem import NOMINAL_FLOPS, Demand, Place, Problem, slowest

PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
ALL = "all it wants"
ROUNDING = 1e-9
"""Relative: less than this is nothing missing."""

SILENT = "it does not grow while a node of it is silent"
NO_MORE = "no more slots are free"

JOBS_NAMED = 3
"""Of those that come before a job that waits."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What a plan does to a job."""

    demand: Demand
    kept: int
    """Slots that it had and that may still be used."""
    size: int
    speeds: tuple[float, float]
    """Of its slowest slot, before and after."""
    form: int = 0
    """Which of its shapes it then has."""

    @property
    def gain(self) -> str:
        """In weighted throughput."""
        before, after = self._rates
        change = self.demand.weight * (after - before)
        return f"{'+' if change >= 0 else '-'}{worth(abs(change), self.demand.rated)}"

    @property
    def short(self) -> str:
        """Whether it comes to have less than it needs."""
        needs_more = self.demand.needed > self._rates[1] * (1 + ROUNDING)
        return "; that is less than it needs" if needs_more else ""

    @property
    def _rates(self) -> tuple[float, float]:
        """FLOP/s before and after."""
        before, after = rate_of(self.demand, self.kept), rate_of(self.demand.formed(self.form), self.size)
        return before * self.speeds[0], after * self.speeds[1]


def rate_of(demand: Demand, size: int) -> float:
    """FLOP/s on so many slots, as far as they do anything for it, if none of them is slow."""
    return max((t for stairs in demand.throughput.values() for s, t in stairs if s <= size), default=0.0)


def reasons(
    problem: Problem,
    kept: Sequence[int],
    chosen: Sequence[Choice],
    seats: Sequence[Mapping[int, Place]],
    refused: Mapping[str, str],
) -> dict[str, str]:
    """A line a job, with what each has `kept` of its seats.

    Said of the whole plan, so that the same plan has the same reasons.
    """
    nodes = problem.by_name
    changes = []
    for demand, had, choice, mine in zip(problem.demands, kept, chosen, seats, strict=True):
        speeds = 1.0, 1.0
        if choice.size != had or choice.form:
            usable = (
                place for place in demand.seats.values() if place[0] in nodes and place[1] in nodes[place[0]].slots
            )
            speeds = slowest(nodes, usable), slowest(nodes, mine.values())
        changes.append(_Change(demand, had, choice.size, speeds, choice.form))
    free = sum(len(n.slots) for n in problem.nodes) - sum(c.size for c in chosen)
    growing = [c.demand.job for c in changes if c.size > c.kept]
    shrinking = [c.demand.job for c in changes if c.size < c.kept]
    return {c.demand.job: refused.get(c.demand.job) or _reason(c, growing, shrinking, free) for c in changes}


def _reason(change: _Change, growing: Sequence[str], shrinking: Sequence[str], free: int) -> str:
    limit = f"{_limit(change.demand, change.size, free)}{change.short}"
    if change.form:
        return f"{_reshaped(change)}; {limit}"
    if change.size < change.kept:
        takers = f" to {', '.join(growing)}" if growing else ""
        slow = ", without the slowest" if change.speeds[0] < change.speeds[1] else ""
        return f"gives {slots(change.kept - change.size)}{takers}: {change.gain}{slow}{change.short}"
    if change.size > change.kept:
        givers = f" from {', '.join(shrinking)}" if shrinking else ""
        return f"gets {slots(change.size - change.kept)}{givers}: {change.gain}; {limit}"
    return limit


def _reshaped(change: _Change) -> str:
    """Into what, for what, at what cost."""
    before, after = change.demand, change.demand.formed(change.form)
    if not before.members:
        return f"gets {slots(change.size)} split as {after.shape}: {change.gain}"
    cost = f"after a standstill of some {before.reshaping:.2g} s"
    return f"is split as {after.shape} instead of {before.shape}, on {slots(change.size)}: {change.gain} {cost}"


def _limit(demand: Demand, size: int, free: int) -> str:
    """Why it has no more."""
    if size >= demand.size_max:
        return ALL
    if not demand.may_grow:
        return SILENT
    if demand.barred and size >= demand.size_max - len(demand.barred):
        return f"{len(demand.barred)} of its seats are barred"
    return NO_MORE if free <= 0 else f"{slots(free)} more would gain it nothing"


def waits(minimum: int, room: int, why: str) -> str:
    """Of a job that has not even its minimum."""
    return f"waits for {slots(minimum - room)} more: its minimum is {minimum}, and {why}"


def needing(jobs: Mapping[str, int]) -> str:
    """Who needs how many slots; the largest by name."""
    order = sorted(jobs.items(), key=lambda of: (-of[1], of[0]))
    told = [f"{job} {'' if i else 'needs '}{number}" for i, (job, number) in enumerate(order[:JOBS_NAMED])]
    rest = [number for _, number in order[JOBS_NAMED:]]
    told += [f"{len(rest)} other{'s' * (len(rest) > 1)} {sum(rest)}"] if rest else []
    return ", ".join(told)


def slots(number: int) -> str:
    """1 slot, 2 slots."""
    return f"{number} slot" if number == 1 else f"{number} slots"


def worth(rate: float, rated: bool) -> str:
    """Weighted throughput, three digits: in FLOP/s, or in slots where nobody has told the speed of one."""
    if not rated:
        number = f"{rate / NOMINAL_FLOPS:.3g}"
        return f"{number} weighted slot{'' if number == '1' else 's'}"
    for factor, prefix in PREFIXES:
        if rate >= factor:
            return f"{rate / factor:.3g} weighted {prefix}FLOP/s"
    return f"{rate:.3g} weighted FLOP/s"
