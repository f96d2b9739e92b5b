"""Slow and obviously right: what the planner's answers are compared with, and random problems for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import inf

from hypothesis import strategies as st

from unicorn_mgr.planner.deadline import Deadline
from unicorn_mgr.planner.knapsack import Choice, Knapsack, undominated
from unicorn_mgr.planner.problem import Costs, Demand, Form, Node, Plan, Problem, domain_of

PATIENT = Deadline(10.0, lambda: 0.0)
"""Its clock stands still."""


def brute_force(knapsack: Knapsack) -> float:
    """The best value of all sets of choices that fit."""
    sets = product(*(range(len(choices)) for choices in knapsack.jobs))
    return max(knapsack.value(chosen) for chosen in sets if knapsack.fits(chosen))


def dynamic_programme(knapsack: Knapsack) -> float:
    """The paper's recurrence (Unicron, section 5: equation 4), for one row: best[j] of at most j slots."""
    (capacity,) = knapsack.capacities
    best = [0.0] * (capacity + 1)
    for choices in knapsack.jobs:
        # Values may be negative: the maximum starts from nothing known, never from nothing gained.
        best = [
            max((best[slots - c.size] + c.value for c in choices if c.size <= slots), default=-inf)
            for slots in range(capacity + 1)
        ]
    return best[capacity]


values = st.one_of(st.integers(-50, 100).map(float), st.floats(-1e3, 1e3, allow_nan=False).map(lambda v: round(v, 3)))


@st.composite
def knapsacks(draw: st.DrawFn, rows: int = 1, jobs_max: int = 4, size_max: int = 7) -> Knapsack:
    """Small ones in which taking each job's first choice always fits."""
    jobs = []
    for _ in range(draw(st.integers(1, jobs_max))):
        sizes = draw(st.lists(st.integers(0, size_max), max_size=6))
        choices = [Choice(0, draw(values), _some(draw, rows))]
        choices += [Choice(size, draw(values), _some(draw, rows)) for size in sizes]
        jobs.append(undominated(choices))
    capacities = tuple(draw(st.integers(0, 14)) for _ in range(rows))
    return Knapsack(tuple(jobs), capacities)


def _some(draw: st.DrawFn, rows: int) -> tuple[int, ...]:
    if rows == 1:
        return (0,)
    return tuple(sorted(draw(st.sets(st.integers(0, rows - 1), min_size=1))))


@st.composite
def problems(draw: st.DrawFn, *, varied: bool = True) -> Problem:
    """Small clusters with jobs that run, wait, were hit, or want much; `varied`: of odd nodes, and wide replicas."""
    nodes = tuple(
        Node(
            name=f"n{i}",
            slots=tuple(range(draw(st.integers(1, 4)))),
            device=draw(st.sampled_from(("a", "b"))) if varied else "a",
            speed=draw(st.sampled_from((1.0, 1.0, 0.5))) if varied else 1.0,
            domain=draw(st.sampled_from(("", "rack"))),
        )
        for i in range(draw(st.integers(0, 4)))
    )
    free = [(n.name, s) for n in nodes for s in n.slots] + [("gone", s) for s in range(2)]
    demands = []
    for i in range(draw(st.integers(0, 4))):
        replica = draw(st.sampled_from((1, 1, 1, 2))) if varied else 1
        taken = draw(st.integers(0, min(4, len(free)))) if draw(st.booleans()) else 0
        seats = {s: free.pop(draw(st.integers(0, len(free) - 1))) for s in range(taken)}
        demands.append(_demand(draw, f"j{i}", replica, seats))
    return Problem(nodes, tuple(demands), node_mtbf=draw(st.sampled_from((1.0, 3_600.0, 1e6))))


def _demand(draw: st.DrawFn, name: str, replica: int, seats: dict[int, tuple[str, int]]) -> Demand:
    size_min = replica * draw(st.integers(1, 2))
    batches = draw(st.integers(1, 12))
    stairs = _stairs(batches, replica)
    other = 3 - replica
    faster = tuple((size, rate * draw(st.sampled_from((0.9, 1.0, 1.3)))) for size, rate in _stairs(batches, other))
    form = Form("other", other, -(-size_min // other) * other, {"a": faster})
    return Demand(
        job=name,
        size_min=size_min,
        size_max=size_min + replica * draw(st.integers(0, 4)),
        weight=draw(st.sampled_from((0.5, 1.0, 2.0))),
        throughput=dict.fromkeys(draw(st.sampled_from((("a",), ("a", "b")))), stairs),
        priority=draw(st.integers(0, 1)),
        replica=replica,
        within=draw(st.sampled_from(("node", "domain"))),
        domains=draw(st.integers(1, 2)),
        needed=draw(st.sampled_from((0.0, 0.0, 3.0))),
        costs=Costs(1.0, 2.0, 60.0),
        seats=seats,
        members=draw(st.integers(0, len(seats))),
        floor=replica * bool(seats) * draw(st.integers(0, 1)),
        suspendable=draw(st.booleans()),
        hit=draw(st.booleans()),
        barred=frozenset(draw(st.sets(st.integers(5, 6), max_size=1))),
        may_grow=draw(st.integers(0, 3)) > 0,
        shape="first",
        others=(form,) if draw(st.booleans()) else (),
    )


def _stairs(batches: int, replica: int) -> tuple[tuple[int, float], ...]:
    return tuple((size, batches / -(-batches // size)) for size in range(replica, 13, replica))


def check(problem: Problem, plan: Plan) -> None:
    """What must hold of any plan: it can be applied as it stands."""
    nodes = problem.by_name
    taken = [place for seats in plan.seats.values() for place in seats.values()]
    assert len(taken) == len(set(taken)), "no slot has two owners"
    assert all(name in nodes and slot in nodes[name].slots for name, slot in taken), "each slot may be used"
    for wish in problem.demands:
        demand = formed(wish, plan)
        assert demand is wish or wish.suspendable or not wish.floor, "only what can be stored is begun again"
        seats = plan.seats[demand.job]
        size = len(seats)
        least = demand.floor or demand.size_min
        assert size == 0 or least <= size <= demand.size_max - len(demand.barred), demand.job
        assert size % demand.replica == 0, "whole replicas"
        assert not demand.barred & seats.keys()
        assert all(demand.seats.get(s) == place or s not in demand.occupied for s, place in seats.items())
        places = [nodes[name] for name, _ in seats.values()]
        pieces = Counter(n.name if demand.within == "node" else domain_of(n) for n in places)
        assert all(n % demand.replica == 0 for n in pieces.values()), "each replica within one node or domain"
        assert len({n.device for n in places}) <= 1, "one device type a job"
        assert plan.reasons[demand.job]
    assert plan.bound >= plan.value - 1e-9 * max(1.0, abs(plan.value))


def after(problem: Problem, plan: Plan) -> Problem:
    """The same cluster once the plan is carried out."""
    demands = tuple(
        replace(
            formed(d, plan),
            costs=d.costs,
            seats=plan.seats[d.job],
            members=len(plan.seats[d.job]),
            hit=False,
            occupied=frozenset(),
            others=tuple(form for form in (present(d), *d.others) if d.others and form.name != formed(d, plan).shape),
        )
        for d in problem.demands
    )
    return replace(problem, demands=demands)


def formed(demand: Demand, plan: Plan) -> Demand:
    """In the shape that it is to have."""
    names = [demand.shape, *(form.name for form in demand.others)]
    return demand.formed(names.index(plan.shapes.get(demand.job, demand.shape)))


def present(demand: Demand) -> Form:
    """The shape that it has."""
    return Form(demand.shape, demand.replica, demand.size_min, demand.throughput)
