"""Why each job has what it has, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unicorn_mgr.planner.knapsack import Choice
from unicorn_mgr.planner.problem import NOMINAL_FLOPS, Demand, Problem

PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
ALL = "all it wants"
SILENT = "it does not grow while a node of it is silent"
NO_MORE = "no more slots are free"


def reasons(problem: Problem, chosen: Sequence[Choice], refused: Mapping[str, str]) -> dict[str, str]:
    """A line a job.  Said of the whole plan, so that the same plan has the same reasons."""
    usable = {(n.name, s) for n in problem.nodes for s in n.slots}
    free = len(usable) - sum(c.size for c in chosen)
    changes = list(zip(problem.demands, chosen, strict=True))
    growing = [d.job for d, c in changes if c.size > _kept(d, usable)]
    shrinking = [d.job for d, c in changes if c.size < _kept(d, usable)]
    return {d.job: refused.get(d.job) or _reason(d, c, _kept(d, usable), growing, shrinking, free) for d, c in changes}


def _kept(demand: Demand, usable: set[tuple[str, int]]) -> int:
    return sum(place in usable for place in demand.seats.values())


def _reason(
    demand: Demand, choice: Choice, kept: int, growing: Sequence[str], shrinking: Sequence[str], free: int
) -> str:
    size = choice.size
    if size < kept:
        takers = f" to {', '.join(growing)}" if growing else ""
        return f"gives {slots(kept - size)}{takers}: {_gain(demand, kept, size)}"
    if size > kept:
        givers = f" from {', '.join(shrinking)}" if shrinking else ""
        return f"gets {slots(size - kept)}{givers}: {_gain(demand, kept, size)}; {_limit(demand, size, free)}"
    return _limit(demand, size, free)


def _limit(demand: Demand, size: int, free: int) -> str:
    """Why it has no more."""
    if size >= demand.size_max:
        return ALL
    if not demand.may_grow:
        return SILENT
    if demand.barred and size >= demand.size_max - len(demand.barred):
        return f"{len(demand.barred)} of its seats are barred"
    return NO_MORE if free <= 0 else f"{slots(free)} more would gain it nothing"


def slots(number: int) -> str:
    """1 slot, 2 slots."""
    return f"{number} slot" if number == 1 else f"{number} slots"


def _gain(demand: Demand, before: int, after: int) -> str:
    """What the change does to its weighted throughput."""
    rates = [max((t for s, t in stairs if s <= before), default=0.0) for stairs in demand.throughput.values()]
    later = [max((t for s, t in stairs if s <= after), default=0.0) for stairs in demand.throughput.values()]
    change = demand.weight * (max(later, default=0.0) - max(rates, default=0.0))
    return f"{'+' if change >= 0 else '-'}{worth(abs(change), demand.rated)}"


def worth(rate: float, rated: bool) -> str:
    """Weighted throughput, three digits: in FLOP/s, or in slots where nobody has told the speed of one."""
    if not rated:
        number = f"{rate / NOMINAL_FLOPS:.3g}"
        return f"{number} weighted slot{'' if number == '1' else 's'}"
    for factor, prefix in PREFIXES:
        if rate >= factor:
            return f"{rate / factor:.3g} weighted {prefix}FLOP/s"
    return f"{rate:.3g} weighted FLOP/s"
