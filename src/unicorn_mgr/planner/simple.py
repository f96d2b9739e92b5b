"""The simplest correct placement: keep what runs, serve in order, grow into what is free."""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from itertools import count

from unicorn_mgr.planner.problem import Demand, Place, Plan, Problem
from unicorn_mgr.planner.reasons import ALL, NO_MORE, SILENT, slots


class FirstComeFirstServed:
    """Jobs get their minimum in order of submission, then grow one slot at a time, in turn."""

    def solve(self, problem: Problem) -> Plan:
        """A plan that moves nothing which can stay."""
        usable = set(problem.places)
        seats = {d.job: {s: p for s, p in sorted(d.seats.items()) if p in usable} for d in problem.demands}
        free = _Free(usable.difference(p for mine in seats.values() for p in mine.values()))
        seatings = [_Seating(d, seats[d.job], free) for d in problem.demands]
        for seating in seatings:
            demand, mine = seating.demand, seating.mine
            begins = mine or demand.size_min <= free.count
            while demand.may_grow and begins and free.count and len(mine) < demand.size_min:
                seating.give()
        growing = [s for s in seatings if s.demand.may_grow and len(s.mine) >= s.demand.size_min]
        while free.count and growing:
            growing = [s for s in growing if len(s.mine) < s.demand.size_max - len(s.demand.barred)]
            for seating in growing:
                if free.count:
                    seating.give()
        return Plan(seats, {d.job: _reason(d, len(seats[d.job]), free.count) for d in problem.demands})


class _Free:
    """Slots that nobody has, by node."""

    def __init__(self, places: set[Place]) -> None:
        self.count = len(places)
        self.nodes = sorted({node for node, _ in places})
        self._slots: dict[str, list[int]] = {node: [] for node in self.nodes}
        for node, slot in sorted(places, reverse=True):
            self._slots[node].append(slot)
        self._skips = list(range(len(self.nodes) + 1))

    def has(self, node: str) -> bool:
        """Whether a slot of it is left."""
        return bool(self._slots.get(node))

    def take(self, node: str) -> Place:
        """Its lowest slot."""
        self.count -= 1
        return node, self._slots[node].pop()

    def first(self, index: int) -> int:
        """The first node from there on that has a slot left; looked up in constant time, all in all."""
        found = index
        while found < len(self.nodes) and not self._slots[self.nodes[found]]:
            found = max(found + 1, self._skips[found])
        while index < found:
            index, self._skips[index] = max(index + 1, self._skips[index]), found
        return found


class _Seating:
    """A job that is given slots, each on the node where it has fewest: one node's loss then costs it least."""

    def __init__(self, demand: Demand, mine: dict[int, Place], free: _Free) -> None:
        self.demand = demand
        self.mine = mine
        self._free = free
        crowds = Counter(node for node, _ in mine.values())
        self._at = set(crowds)
        self._crowds = [(number, node) for node, number in crowds.items()]
        heapify(self._crowds)
        self._index = 0
        # A seat whose worker has yet to leave keeps its number until it has.
        held = demand.barred | demand.occupied
        self._numbers = (s for s in count() if s not in held and s not in mine)

    def give(self) -> None:
        """One more seat."""
        crowd, node = self._emptiest()
        self.mine[next(self._numbers)] = self._free.take(node)
        heappush(self._crowds, (crowd + 1, node))

    def _emptiest(self) -> tuple[int, str]:
        while (index := self._free.first(self._index)) < len(self._free.nodes):
            self._index = index + 1
            if self._free.nodes[index] not in self._at:
                return 0, self._free.nodes[index]
        while not self._free.has(self._crowds[0][1]):
            heappop(self._crowds)
        return heappop(self._crowds)


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
