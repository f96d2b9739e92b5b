"""Which slots: the sizes of jobs brought onto nodes, moving as little as possible.

Jobs that stay as they are keep their slots.  A job that changes keeps the most that it can of its own,
and takes what else it needs where it is cheapest: on nodes that hold its program or state already,
then in failure domains where it is, then elsewhere.  Replicas stay whole within a node, and a job is
spread over as many failure domains as it wants, where that can be had.

Greedy first; the integer programme over classes of equal nodes follows where greedy finds no room or
may have moved more than it must.  `Unplaceable` names the job that sizes alone could not foresee:
room that is there in sum, but in pieces too small for its replicas.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, count, islice
from operator import itemgetter

from unicorn_mgr.planner.choices import Grade
from unicorn_mgr.planner.problem import Demand, Node, Place, Problem, domain_of

WARM, NEAR, FAR = 1, 2, 3
"""What a new replica costs on a node that knows the job, in a domain where it is, elsewhere."""

Seats = dict[int, Place]
Kind = tuple[tuple[tuple[str, float, int], int], ...]
"""Of a failure domain: how many nodes it has of each device, speed and number of slots."""


class Unplaceable(Exception):
    """A job of this size finds no room; it may do so in so many slots."""

    def __init__(self, job: int, found: int = 0) -> None:
        super().__init__(job, found)
        self.job = job
        self.found = found


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job is to have."""

    demand: Demand
    size: int
    grade: Grade | None
    """None: nothing."""
    frozen: bool
    """It stays exactly where it is."""

    @property
    def replicas(self) -> int:
        """Whole copies of the state."""
        return self.size // self.demand.replica

    def served_by(self, node: Node) -> bool:
        """Whether it may run there."""
        return self.grade is not None and node.device == self.grade.device and node.speed >= self.grade.speed

    def own(self, nodes: Mapping[str, Node]) -> dict[str, int]:
        """Slots that it has now and may keep, by node."""
        mine = self.demand.seats.values()
        return Counter(n for n, slot in mine if n in nodes and slot in nodes[n].slots and self.served_by(nodes[n]))

    def room_in(self, domain: Sequence[Node]) -> int:
        """Slots that whole replicas can have in a domain nobody is in."""
        served = [len(n.slots) for n in domain if self.served_by(n)]
        pieces = served if self.demand.within == "node" else [sum(served)]
        return sum(slots // self.demand.replica * self.demand.replica for slots in pieces)

    def cost(self, node: Node, domains: Set[str]) -> int:
        """Of a new replica there, if the job is in these domains."""
        if node.name in self.demand.warm:
            return WARM
        return NEAR if domain_of(node) in domains else FAR


def own_replicas(wish: Wish, nodes: Mapping[str, Node]) -> dict[str, list[list[int]]]:
    """The seats of each whole replica that it may keep, by the cell it is in, the lowest first."""
    size = wish.demand.replica
    replicas: dict[int, list[tuple[int, str]]] = {}
    for seat, (name, slot) in sorted(wish.demand.seats.items()):
        node = nodes.get(name)
        if node is not None and slot in node.slots and wish.served_by(node):
            replicas.setdefault(seat // size, []).append((seat, wish.demand.cell(node)))
    found: dict[str, list[list[int]]] = {}
    for members in replicas.values():
        cell = members[0][1]
        if len(members) == size and all(c == cell for _, c in members):
            found.setdefault(cell, []).append([seat for seat, _ in members])
    return found


def kept_seats(wish: Wish, nodes: Mapping[str, Node]) -> Seats:
    """Of its own, the most it may keep: whole replicas, where it has many, the lowest seats there."""
    mine = own_replicas(wish, nodes)
    left, kept = wish.replicas, []
    for cell in sorted(mine, key=lambda c: (-len(mine[c]), mine[c][0])):
        most = min(len(mine[cell]), left)
        kept += [seat for replica in mine[cell][:most] for seat in replica]
        left -= most
    return {seat: wish.demand.seats[seat] for seat in sorted(kept)}


@dataclass(slots=True)
class Room:
    """Slots that are still free, while jobs are being placed."""

    nodes: Mapping[str, Node]
    free: dict[str, list[int]] = field(default_factory=dict)
    domains: dict[str, list[Node]] = field(default_factory=dict)
    opened: dict[str, None] = field(default_factory=dict)
    """Domains in which somebody has something, in order."""
    untouched: dict[Kind, dict[str, None]] = field(default_factory=dict)
    """All others, by what they have: those of one kind are as good as each other."""

    @classmethod
    def of(cls, problem: Problem, kept: Sequence[Seats]) -> Room:
        """What is left beside those seats."""
        held: Counter[str] = Counter()
        for seats in kept:
            held.update(map(itemgetter(0), seats.values()))
        room = cls(problem.by_name)
        for n in problem.nodes:
            # Most nodes are full or empty: only of the others is looked at what they have.
            room.free[n.name] = list(n.slots) if held[n.name] < len(n.slots) else []
            room.domains.setdefault(domain_of(n), []).append(n)
        partly = {name for name, number in held.items() if room.free[name]}
        for seats in kept if partly else ():
            for name, slot in seats.values():
                if name in partly:
                    room.free[name].remove(slot)
        for domain, nodes in room.domains.items():
            if any(n.name in held for n in nodes):
                room.opened[domain] = None
            else:
                room.untouched.setdefault(_kind(nodes), {})[domain] = None
        return room

    def offers(self, wish: Wish, slots: int) -> dict[str, int]:
        """Free slots by node: of all domains in use, and of as many others of each kind as these slots may need."""
        looked_at = dict(self.opened)
        looked_at.update((domain_of(self.nodes[n]), None) for n in sorted(wish.demand.warm) if n in self.nodes)
        for alike in self.untouched.values():
            lacking, spread = slots, wish.demand.domains
            for domain in alike:
                if lacking <= 0 and spread <= 0:
                    break
                looked_at[domain] = None
                lacking -= wish.room_in(self.domains[domain])
                spread -= 1
        there = (n for domain in looked_at for n in self.domains[domain] if self.free[n.name])
        return {n.name: len(self.free[n.name]) for n in there if wish.served_by(n)}

    def fill(self, wish: Wish, seats: Seats, slots: Mapping[str, int]) -> None:
        """New seats, until it has so many slots on each of these nodes; those of a replica are numbered on."""
        taken = wish.demand.barred | wish.demand.occupied | seats.keys()
        size = wish.demand.replica
        replicas = (range(first, first + size) for first in count(0, size))
        numbers = chain.from_iterable(r for r in replicas if taken.isdisjoint(r))
        has = Counter(name for name, _ in seats.values())
        cells: dict[str, list[str]] = {}
        for name in slots:
            cells.setdefault(wish.demand.cell(self.nodes[name]), []).append(name)
        for name in chain.from_iterable(cells.values()):
            for number in islice(numbers, slots[name] - has[name]):
                seats[number] = (name, self.free[name].pop(0))
            self._open(domain_of(self.nodes[name]))

    def exchange(self, before: Seats, after: Seats) -> None:
        """Another set of its own seats is kept."""
        for name, slot in before.values():
            insort(self.free[name], slot)
        for name, slot in after.values():
            self.free[name].remove(slot)

    def _open(self, domain: str) -> None:
        if domain not in self.opened:
            self.opened[domain] = None
            del self.untouched[_kind(self.domains[domain])][domain]


def _kind(domain: Sequence[Node]) -> Kind:
    return tuple(sorted(Counter((n.device, n.speed, len(n.slots)) for n in domain).items()))


def placed(problem: Problem, wishes: Sequence[Wish], lesser: Callable[[int, int], Wish] | None = None) -> list[Seats]:
    """Seats for all, job by job: the ones with the largest replicas first, as these find room least easily.

    `lesser` says what a job shall have instead that found only so many slots; without it that raises Unplaceable.
    """
    nodes = problem.by_name
    seats = [dict(w.demand.seats) if w.frozen else kept_seats(w, nodes) for w in wishes]
    lacking = [i for i, w in enumerate(wishes) if len(seats[i]) < w.size]
    if not lacking:
        return seats
    room = Room.of(problem, seats)
    for i in sorted(lacking, key=lambda i: (-wishes[i].demand.replica, -wishes[i].demand.priority, i)):
        wish = wishes[i]
        while len(seats[i]) < wish.size:
            try:
                room.fill(wish, seats[i], _grown(room, wish, seats[i], i))
            except Unplaceable as lack:
                if lesser is None:
                    raise
                wish = lesser(i, lack.found)
                kept = kept_seats(wish, nodes)
                room.exchange(seats[i], kept)
                seats[i] = kept
    return seats


def _grown(room: Room, wish: Wish, seats: Seats, job: int) -> dict[str, int]:
    """Slots by node when it has what it lacks: a replica in each domain it still wants, then where they are cheapest.

    Of equally cheap places those it is at, then the fullest: what fails as one then hits few jobs.
    """
    slots = Counter(map(itemgetter(0), seats.values()))
    free = room.offers(wish, wish.size - len(seats))
    cells: dict[str, list[Node]] = {}
    for name in free:
        cells.setdefault(wish.demand.cell(room.nodes[name]), []).append(room.nodes[name])
    domains = {domain_of(room.nodes[name]) for name in slots}

    def ranked() -> list[tuple[int, bool, int, str]]:
        ranks = []
        for cell, there in cells.items():
            cost = min([wish.cost(n, domains) for n in there])
            # Only where it has something can it be at any of these.
            own = bool(slots) and any(slots.get(n.name) for n in there)
            ranks.append((cost, not own, sum([free[n.name] for n in there]), cell))
        return sorted(ranks)

    def give(cell: str, replicas: int) -> int:
        """As many as it holds, at most `replicas`; from its fullest nodes first."""
        there = sorted(cells[cell], key=lambda n: (not slots.get(n.name), free[n.name], n.name))
        fits = min(replicas, sum([free[n.name] for n in there]) // wish.demand.replica)
        left = fits * wish.demand.replica
        for node in there:
            if not left:
                break
            taken = min(left, free[node.name])
            slots[node.name] += taken
            free[node.name] -= taken
            left -= taken
        return fits

    lacking = wish.replicas - len(seats) // wish.demand.replica
    spread = min(wish.demand.domains, wish.replicas)
    for *_, cell in ranked() if len(domains) < spread else ():
        domain = domain_of(cells[cell][0])
        if lacking and domain not in domains and len(domains) < spread:
            got = give(cell, 1)
            lacking -= got
            domains |= {domain} if got else set()
    for *_, cell in ranked():
        if not lacking:
            return slots
        lacking -= give(cell, lacking)
    if lacking:
        raise Unplaceable(job, wish.size - lacking * wish.demand.replica)
    return slots
