"""The simplest correct placement: keep what runs, in its shape, serve in order, grow into what is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import count, islice

from unicorn_mgr.planner.problem import Demand, Place, Plan, Problem, domain_of
from unicorn_mgr.planner.reasons import ALL, NO_MORE, SILENT, slots, waits


class FirstComeFirstServed:
    """Jobs get their minimum in order of submission, then grow one slot at a time, in turn."""

    def solve(self, problem: Problem) -> Plan:
        """A plan that moves nothing which can stay."""
        usable = set(problem.places)
        seats = {d.job: _kept(d, usable) for d in problem.demands}
        domains = {n.name: domain_of(n) for n in problem.nodes}
        free = _Free(usable.difference(p for mine in seats.values() for p in mine.values()), domains)
        seatings = [_Seating(d, seats[d.job], free) for d in problem.demands]
        for seating in seatings:
            demand, mine = seating.demand, seating.mine
            begins = mine or demand.size_min <= free.count
            while demand.may_grow and begins and len(mine) < demand.size_min and seating.give():
                pass
        growing = [s for s in seatings if s.demand.may_grow and len(s.mine) >= s.demand.size_min]
        while free.count and growing:
            most = [s.demand.size_max - len(s.demand.barred) for s in growing]
            growing = [s for s, m in zip(growing, most, strict=True) if len(s.mine) + s.demand.replica <= m]
            growing = [s for s in growing if s.give()]
        reasons = {d.job: _reason(d, len(seats[d.job]), free.count, len(usable)) for d in problem.demands}
        return Plan(seats, reasons)


def _kept(demand: Demand, usable: set[Place]) -> dict[int, Place]:
    """Its own seats that are left and may be filled, of a replica of several slots all or none."""
    left = {s: p for s, p in sorted(demand.seats.items()) if p in usable and s not in demand.barred}
    whole = Counter(s // demand.replica for s in left)
    return {s: p for s, p in left.items() if whole[s // demand.replica] == demand.replica}


class _Free:
    """Slots that nobody has, by node."""

    def __init__(self, places: set[Place], domains: Mapping[str, str]) -> None:
        self.count = len(places)
        self._domains = domains
        self._cells: dict[str, list[list[str]]] = {}
        self._searched: Counter[tuple[str, int]] = Counter()
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

    def replica(self, within: str, size: int) -> list[Place]:
        """So many slots within a node or domain; none if there is no such room any more.

        Room only ever becomes less, so each cell is looked at once per size.
        """
        if within not in self._cells:
            cells: dict[str, list[str]] = {}
            for node in self.nodes:
                cells.setdefault(node if within == "node" else self._domains[node], []).append(node)
            self._cells[within] = list(cells.values())
        for nodes in self._cells[within][self._searched[within, size] :]:
            if sum(len(self._slots[n]) for n in nodes) >= size:
                holding = (n for n in nodes for _ in range(len(self._slots[n])))
                return [self.take(n) for n in islice(list(holding), size)]
            self._searched[within, size] += 1
        return []

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
        held, size = demand.barred | demand.occupied, demand.replica
        replicas = (range(first, first + size) for first in count(0, size))
        self._numbers = (r for r in replicas if held.isdisjoint(r) and mine.keys().isdisjoint(r))

    def give(self) -> bool:
        """One more seat, or those of one more replica; False if there is no room."""
        if self.demand.replica > 1:
            places = self._free.replica(self.demand.within, self.demand.replica)
            self.mine.update(zip(next(self._numbers), places, strict=True) if places else ())
            return bool(places)
        if not self._free.count:
            return False
        crowd, node = self._emptiest()
        self.mine[next(self._numbers)[0]] = self._free.take(node)
        heappush(self._crowds, (crowd + 1, node))
        return True

    def _emptiest(self) -> tuple[int, str]:
        while (index := self._free.first(self._index)) < len(self._free.nodes):
            self._index = index + 1
            if self._free.nodes[index] not in self._at:
                return 0, self._free.nodes[index]
        while not self._free.has(self._crowds[0][1]):
            heappop(self._crowds)
        return heappop(self._crowds)


def _reason(demand: Demand, size: int, free: int, all_slots: int) -> str:
    """Why a job has what it has.  Said of the whole plan, so that the same plan has the same reasons."""
    if size >= demand.size_max:
        return ALL
    if not demand.may_grow:
        return SILENT
    if size < demand.size_min:
        return waits(demand.size_min, size, f"{free} of {slots(all_slots)} {'is' if free == 1 else 'are'} free")
    if demand.barred and size >= demand.size_max - len(demand.barred):
        return f"{len(demand.barred)} of its seats are barred"
    return NO_MORE
