"""What each size of each job is worth: the planner's objective.

`paper` is Unicron's G (section 5: equation 3): the weighted FLOP/s at the new size over the horizon,
less, for a job that changes or was hit, what it would have made at its old size during one fixed
transition.  It charges a start from storage nothing and a cheap shrink as much as a restart.

`cost`, the default, charges every change its own standstill, by the nearest source of state, at the
rate it then runs at:

    value(job, k) = weight * T(k) * (horizon - standstill(now -> k))
                    - tenfold what is missing of the throughput it needs
                    - hysteresis, if it need not change

Where a job's replicas may be split in several ways, it has such choices for each.  To take another
shape it stores its state and begins again, so that is a standstill, too, and a job returns to a better
shape only where that gains more than it costs.

Gang minimums are mandatory for every job that is admitted: the bare objective starves jobs, as
throughput is nearly linear (in all of 300 random mixes at least one).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from unicorn_mgr.planner.knapsack import Choice, Choices, Knapsack, take, undominated
from unicorn_mgr.planner.problem import Demand, Node, Problem, Staircase, domain_of
from unicorn_mgr.planner.reasons import SILENT, needing, waits

SHORTFALL = 10.0
"""What a FLOP/s below the needed ones is charged, in FLOP/s."""


@dataclass(frozen=True, slots=True)
class Grade:
    """A kind of slots: a device type, and the least speed that a job there counts on."""

    device: str
    speed: float


@dataclass(frozen=True, slots=True)
class Row:
    """A capacity: slots of a device type and speed that replicas of at least this many slots can use.

    Replicas stay within a node or a failure domain, so a node of 7 slots has room for one of 4, and 3
    slots are lost to it.  Slots faster than a job counts on serve it, so rows of rising speed are
    nested, and sizes that fit all of them fit the nodes (Hall's theorem).
    """

    device: str
    speed: float
    replica: int
    within: str

    def capacity(self, shapes: Counter[Shape]) -> int:
        """Slots of all nodes that count."""
        served = {s: n for s, n in shapes.items() if s.device == self.device and s.speed >= self.speed}
        if self.within == "node":
            pieces = [s.slots for s, n in served.items() for _ in range(n)]
        else:
            domains: Counter[str] = Counter()
            for s, n in served.items():
                domains[s.domain] += s.slots * n
            pieces = list(domains.values())
        return sum(p // self.replica * self.replica for p in pieces)

    def weighs(self, demand: Demand, grade: Grade) -> bool:
        """Whether a job at that grade draws on it."""
        served = grade.device == self.device and grade.speed >= self.speed
        return served and demand.replica >= self.replica and self.within in ("domain", demand.within)

    def covers(self, other: Row) -> bool:
        """Whether all that weigh on the other one weigh on this one, too."""
        wider = self.speed <= other.speed and self.replica <= other.replica
        return self.device == other.device and wider and self.within in ("domain", other.within)


class Shape(NamedTuple):
    """What nodes are counted by."""

    device: str
    speed: float
    domain: str
    slots: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """The knapsack of a problem, and what its numbers mean."""

    knapsack: Knapsack
    grades: tuple[Grade, ...]
    """What a choice's `grade` counts."""
    least: tuple[int, ...]
    """Per job, the choice of its least size: together they fit."""
    refused: dict[str, str]
    """Jobs whose minimum there is no room for, and why."""
    kept: tuple[int, ...]
    """Per job, seats whose slots may still be used."""
    own: tuple[Choices, ...]
    """Per job, its choices of the present shape, also those that one of another shape beats."""


NOTHING = Choice(0, 0.0, ())


def sizes_of(problem: Problem) -> Sizes:
    """The choices of all jobs; those without room for their minimum have none but nothing."""
    grades = tuple(Grade(*kind) for kind in sorted({(n.device, n.speed) for n in problem.nodes}))
    rows, capacities = _rows(problem, grades)
    nodes, horizon = problem.by_name, problem.horizon
    holdings = [Holding.of(nodes, d) for d in problem.demands]
    every = [
        _in_all_forms(problem, d, h, grades, rows, horizon) for d, h in zip(problem.demands, holdings, strict=True)
    ]
    admitted, refused = _admitted(problem, every, capacities)
    jobs = tuple(_from(mine, admitted.get(i)) for i, mine in enumerate(every))
    least = tuple(choices.index(admitted[i]) if i in admitted else 0 for i, choices in enumerate(jobs))
    own = tuple(tuple(c for c in choices if not c.form) for choices in every)
    return Sizes(Knapsack(jobs, capacities), grades, least, refused, tuple(h.kept for h in holdings), own)


def _from(choices: Choices, least: Choice | None) -> Choices:
    """What a job may have that is admitted with so much; without what another choice beats."""
    return undominated(c for c in choices if c.size >= least.size) if least is not None else (NOTHING,)


def _rows(problem: Problem, grades: Sequence[Grade]) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """The capacities that can bind.  One that another implies, no smaller and for fewer, is left out."""
    shapes = Counter(Shape(n.device, n.speed, domain_of(n), len(n.slots)) for n in problem.nodes)
    # One slot at a time fits anywhere: all that a device type has.
    wishes = [(size, d.within) for d in problem.demands for size in (d.replica, *(o.replica for o in d.others))]
    pieces = sorted({(size, within) for size, within in wishes if size > 1} | {(1, "domain")})
    kept: list[tuple[Row, int]] = []
    # From the widest to the narrowest, so that what implies comes before what is implied.
    for grade in grades:
        for replica, within in pieces:
            row = Row(grade.device, grade.speed, replica, within)
            capacity = row.capacity(shapes)
            if not any(wide.covers(row) and slots <= capacity for wide, slots in kept):
                kept.append((row, capacity))
    if not kept:
        return (Row("", 0.0, 1, "domain"),), (0,)
    return tuple(row for row, _ in kept), tuple(capacity for _, capacity in kept)


def _in_all_forms(
    problem: Problem,
    demand: Demand,
    holding: Holding,
    grades: Sequence[Grade],
    rows: Sequence[Row],
    horizon: float,
) -> Choices:
    """Its sizes in each shape that it may have."""
    found = _choices(problem, demand, holding, horizon, grades, rows)
    given_up = replace(holding, grade=None)
    for form in demand.forms[1:]:
        others = _choices(problem, demand.formed(form), given_up, horizon, grades, rows)
        found += tuple(c._replace(form=form) for c in others)
    return found


def _choices(
    problem: Problem,
    demand: Demand,
    holding: Holding,
    horizon: float,
    grades: Sequence[Grade],
    rows: Sequence[Row],
) -> Choices:
    """Its sizes from the floor or the minimum on, at every grade that has its device."""
    size_max = min(demand.size_max - len(demand.barred), holding.kept if not demand.may_grow else demand.size_max)
    found = []
    for index, grade in enumerate(grades):
        drawn = tuple(i for i, row in enumerate(rows) if row.weighs(demand, grade))
        staying = min(demand.members, holding.served_by(grade))
        stairs = demand.stairs(grade.device)
        if holding.keeps(demand.size, grade) and all(size != demand.size for size, _ in stairs):
            # Slots that gain it nothing are its own still: nobody moves unless somebody wants them.
            stairs = tuple(sorted((*stairs, (demand.size, _at(stairs, demand.size)))))
        for size, throughput in stairs:
            if (demand.floor or demand.size_min) <= size <= size_max and size % demand.replica == 0:
                keeps, rate = holding.keeps(size, grade), throughput * grade.speed
                still = 0.0 if keeps else standstill(demand, size, staying)
                worth = _value(problem, demand, holding, horizon, rate, keeps, still)
                found.append(Choice(size, worth, drawn, index, keeps))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a job has, seen by the planner."""

    size: int
    """Seats, also those whose slots are gone."""
    kept: int
    """Seats whose slots may still be used."""
    kinds: tuple[tuple[Grade, int], ...]
    """How many of these are of each kind."""
    grade: Grade | None
    """The best that all these slots serve; None: of several devices, or none."""
    rate: float
    """FLOP/s at the size it had."""
    untouched: bool
    """It has whole replicas and has lost nothing, so that it may go on as if nothing had been."""

    @classmethod
    def of(cls, nodes: Mapping[str, Node], demand: Demand) -> Holding:
        """Looked up once a job, not once a size."""
        held = Counter([n for n, slot in demand.seats.values() if n in nodes and slot in nodes[n].slots])
        mine = [(nodes[n], seats) for n, seats in held.items()]
        devices = sorted({n.device for n, _ in mine})
        grade = Grade(devices[0], min(n.speed for n, _ in mine)) if len(devices) == 1 else None
        rate = _at(demand.stairs(grade.device), demand.size) * grade.speed if grade else 0.0
        kept = sum(held.values())
        pieces: Counter[str] = Counter()
        kinds: Counter[tuple[str, float]] = Counter()
        for node, seats in mine:
            pieces[demand.cell(node)] += seats
            kinds[node.device, node.speed] += seats
        whole = all(n % demand.replica == 0 for n in pieces.values())
        if demand.shape:  # what is left of two is not one: a seat's number says which part of the model it has
            whole = whole and set(Counter(s // demand.replica for s in demand.seats).values()) <= {demand.replica}
        untouched = whole and kept == demand.size > 0 and not demand.hit
        by_grade = tuple((Grade(*kind), seats) for kind, seats in sorted(kinds.items()))
        return cls(demand.size, kept, by_grade, grade, rate, untouched)

    def served_by(self, grade: Grade) -> int:
        """Seats that may stay where they are at that grade."""
        return sum(seats for mine, seats in self.kinds if mine.device == grade.device and mine.speed >= grade.speed)

    def keeps(self, size: int, grade: Grade) -> bool:
        """Whether a choice leaves the job as it is."""
        mine = self.grade
        same = mine is not None and mine.device == grade.device and mine.speed >= grade.speed
        return self.untouched and size == self.size and same


def _at(staircase: Staircase, size: int) -> float:
    """Throughput at a size, or at the next smaller one that is allowed."""
    return max((t for s, t in staircase if s <= size), default=0.0)


def _value(
    problem: Problem, demand: Demand, holding: Holding, horizon: float, rate: float, keeps: bool, still: float
) -> float:
    """Weighted FLOP over the horizon, less what the change costs.  `rate` is in FLOP/s, `still` in seconds."""
    if problem.objective == "paper":
        worth = rate * horizon - (0.0 if keeps else holding.rate * demand.costs.longest)
    else:
        worth = rate * (horizon - still)
        worth -= SHORTFALL * max(0.0, demand.needed - rate) * horizon
        if holding.untouched and not keeps:
            worth -= problem.hysteresis * holding.rate * horizon
    return demand.weight * worth


def standstill(demand: Demand, size: int, staying: int) -> float:
    """Seconds for which a job that changes stands still, by the nearest source of state; so many members stay."""
    if not size:
        return 0.0
    if not demand.members:
        return demand.costs.start
    return demand.costs.grow if size > staying else demand.costs.shrink


def _admitted(
    problem: Problem, every: Sequence[Choices], capacities: Sequence[int]
) -> tuple[dict[int, Choice], dict[str, str]]:
    """Who gets its minimum, with the choice of it: by priority, who runs first, then by submission.

    Before that everybody keeps its floor: who can't be suspended before anybody, the others before all
    of their own priority.  A job that does not fit does not keep smaller ones behind it from what is left.
    """
    left = list(capacities)
    admitted: dict[int, Choice] = {}
    refused: dict[str, str] = {}
    order = sorted(enumerate(problem.demands), key=lambda d: (-d[1].priority, not d[1].members, d[0]))
    for i, demand in order:
        if demand.floor and not demand.suspendable:
            _admit(i, _least(every[i], left), left, admitted)
    for _, level in groupby(order, key=lambda d: d[1].priority):
        equals = list(level)
        for i, demand in equals:
            if demand.floor and demand.suspendable:
                _admit(i, _least(every[i], left), left, admitted)
        for i, demand in equals:
            before = admitted.pop(i, None)
            if before is not None:
                take(left, before, -1)
            whole = _least(_whole(demand, every[i]), left)
            if not _admit(i, whole or before, left, admitted):
                refused[demand.job] = _why_refused(problem, demand, every[i], capacities, left, admitted)
    return admitted, refused


def _whole(demand: Demand, choices: Choices) -> list[Choice]:
    """Those of no less than its minimum."""
    minimum = (demand.size_min, *(form.size_min for form in demand.others))
    return [c for c in choices if c.size >= minimum[c.form]]


def _admit(job: int, choice: Choice | None, left: list[int], admitted: dict[int, Choice]) -> bool:
    if choice is None:
        return False
    admitted[job] = choice
    take(left, choice)
    return True


def _least(choices: Sequence[Choice], left: Sequence[int]) -> Choice | None:
    """The smallest that still fits; of these, who draws on the fewest capacities stands least in others' way."""
    fits = (c for c in choices if all(c.size <= left[row] for row in c.rows))
    return min(fits, key=lambda c: (c.size, len(c.rows), -c.value), default=None)


def _why_refused(
    problem: Problem,
    demand: Demand,
    choices: Choices,
    capacities: Sequence[int],
    left: Sequence[int],
    admitted: Mapping[int, Choice],
) -> str:
    devices = {n.device for n in problem.nodes}
    if not choices and devices and devices.isdisjoint(demand.throughput):
        return f"waits: it runs on {', '.join(sorted(demand.throughput))}, and no such slot may be used"
    widest = max(range(len(capacities)), key=lambda row: capacities[row])
    whole = _whole(demand, choices) or [Choice(demand.size_min, 0.0, (widest,))]
    least = min(whole, key=lambda c: c.size)
    room = min(capacities[row] for row in least.rows)
    if least.size > room:
        return waits(least.size, room, f"the whole cluster has room for {room}")
    tightest = min(least.rows, key=lambda row: left[row])
    free = left[tightest]
    if least.size > free:
        first = {problem.demands[i].job: c.size for i, c in admitted.items() if tightest in c.rows}
        return waits(least.size, free, f"{free} {'is' if free == 1 else 'are'} left: {needing(first)}")
    if not demand.may_grow:
        return f"waits: {SILENT}"
    return f"waits: none of its sizes is within {demand.size_min} to {demand.size_max - len(demand.barred)}"
