"""The simplest correct placement: keep what runs, serve in order, grow into what is free."""

from __future__ import annotations

from itertools import count

from unicorn_mgr.planner.problem import Demand, Place, Plan, Problem
from unicorn_mgr.planner.reasons import ALL, NO_MORE, SILENT, slots


class FirstComeFirstServed:
    """Jobs get their minimum in order of submission, then grow one slot at a time, in turn."""

    def solve(self, problem: Problem) -> Plan:
        """A plan that moves nothing which can stay."""
        usable = set(problem.places)
        seats = {d.job: {s: p for s, p in sorted(d.seats.items()) if p in usable} for d in problem.demands}
        taken = {p for mine in seats.values() for p in mine.values()}
        free = [p for p in problem.places if p not in taken]
        for demand in problem.demands:
            mine = seats[demand.job]
            begins = mine or demand.size_min <= len(free)
            while demand.may_grow and begins and free and len(mine) < demand.size_min:
                _give(demand, mine, free)
        growing = [d for d in problem.demands if d.may_grow and len(seats[d.job]) >= d.size_min]
        while free and growing:
            growing = [d for d in growing if len(seats[d.job]) < d.size_max - len(d.barred)]
            for demand in growing:
                if free:
                    _give(demand, seats[demand.job], free)
        return Plan(seats, {d.job: _reason(d, len(seats[d.job]), len(free)) for d in problem.demands})


def _reason(demand: Demand, size: int, free: int) -> str:
    """Why a job has what it has.  Said of the whole plan, so that the same plan has the same reasons."""
    if size >= demand.size_max:
        return ALL
    if not demand.may_grow:
        return SILENT
    if size < demand.size_min:
        return f"waits for {slots(demand.size_min - size)} more, and {free} are free"
    if demand.barred and size >= demand.size_max - len(demand.barred):
        return f"{len(demand.barred)} of its seats are barred"
    return NO_MORE


def _give(demand: Demand, mine: dict[int, Place], free: list[Place]) -> None:
    """One more seat, on the node where the job has fewest: one node's loss then costs it least."""
    crowd: dict[str, int] = {}
    for node, _ in mine.values():
        crowd[node] = crowd.get(node, 0) + 1
    best = min(free, key=lambda p: (crowd.get(p[0], 0), p))
    free.remove(best)
    # A seat whose worker has yet to leave keeps its number until it has.
    taken = demand.barred | demand.occupied | mine.keys()
    mine[next(s for s in count() if s not in taken)] = best
