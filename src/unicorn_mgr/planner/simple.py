"""The simplest correct placement: keep what runs, serve in order, grow into what is free."""

from __future__ import annotations

from itertools import count

from unicorn_mgr.planner.problem import Demand, Place, Plan, Problem


class FirstComeFirstServed:
    """Jobs get their minimum in order of submission, then grow one slot at a time, in turn."""

    def solve(self, problem: Problem) -> Plan:
        """A plan that moves nothing which can stay."""
        usable = set(problem.places)
        seats = {d.job: {s: p for s, p in sorted(d.seats.items()) if p in usable} for d in problem.demands}
        taken = {p for mine in seats.values() for p in mine.values()}
        free = [p for p in problem.places if p not in taken]
        reasons: dict[str, str] = {}
        for demand in problem.demands:
            mine = seats[demand.job]
            lacking = demand.size_min - len(mine)
            if lacking > len(free):
                reasons[demand.job] = f"waits for {lacking} more slots, {len(free)} are free"
                if not mine:
                    continue
            while len(mine) < demand.size_min and free and demand.may_grow:
                _give(demand, mine, free)
        growing = [d for d in problem.demands if d.may_grow and len(seats[d.job]) >= d.size_min]
        while free and growing:
            growing = [d for d in growing if len(seats[d.job]) < d.size_max - len(d.barred)]
            for demand in growing:
                if free:
                    _give(demand, seats[demand.job], free)
        for demand in problem.demands:
            size = len(seats[demand.job])
            if demand.job not in reasons:
                full = size >= demand.size_max
                reasons[demand.job] = f"{size} slots: " + ("all it wants" if full else "no more are free")
        return Plan(seats, reasons)


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
