"""Shapes in plans: the best of all jobs' shapes and sizes by plain reckoning, and what a change has to gain."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.oracles import after, check, formed

from unicorn_mgr.planner import packing
from unicorn_mgr.planner.choices import sizes_of
from unicorn_mgr.planner.planner import plan
from unicorn_mgr.planner.problem import Costs, Demand, Form, Node, Place, Problem
from unicorn_mgr.planner.sizing import sized

SLOTS = 8
DAY = 86_400.0
COSTS = Costs(shrink=1.0, grow=2.0, start=60.0, store=5.0)

Shaped = tuple[int, tuple[tuple[int, float], ...]]
"""Slots of a replica, and FLOP/s by slots."""


def stairs(replica: int, speed: float = 1.0, most: int = SLOTS) -> tuple[tuple[int, float], ...]:
    return tuple((size, speed * size) for size in range(replica, most + 1, replica))


def job(name: str, shapes: list[Shaped], seats: dict[int, Place] | None = None, **wish: Any) -> Demand:
    """A job whose first shape is the present one, and that has its members on these seats."""
    forms = [Form(f"shard={replica}", replica, replica, {"cpu": rates}) for replica, rates in shapes]
    first, had = forms[0], seats or {}
    wishes = {"suspendable": True, "members": len(had), "floor": first.replica if had else 0, "costs": COSTS, **wish}
    return Demand(
        name,
        first.size_min,
        SLOTS,
        throughput=first.throughput,
        replica=first.replica,
        shape=first.name,
        others=tuple(forms[1:]),
        seats=had,
        **wishes,
    )


def on(*nodes: str, each: int) -> dict[int, Place]:
    return dict(enumerate((node, slot) for node in nodes for slot in range(each)))


# -- all shapes and sizes -------------------------------------------------------------------


@st.composite
def crowds(draw: st.DrawFn) -> Problem:
    """A node with room for all minimums, on which two jobs run, were hit, or wait."""
    free = [("n0", slot) for slot in range(SLOTS)]
    demands = []
    for name in ("one", "other"):
        replicas = draw(st.permutations((1, 2, 4)))[: draw(st.integers(1, 3))]
        shapes = [(r, stairs(r, draw(st.sampled_from((0.8, 1.0, 1.001, 1.2))))) for r in replicas]
        taken = replicas[0] * draw(st.integers(0, 4 // replicas[0]))
        seats = {seat: free.pop(0) for seat in range(taken)}
        wish = {"hit": draw(st.booleans()), "suspendable": draw(st.integers(0, 3)) > 0}
        demands.append(job(name, shapes, seats, weight=draw(st.sampled_from((1.0, 3.0))), **wish))
    mtbf = draw(st.sampled_from((1.0, 3_600.0, DAY)))
    return Problem((Node("n0", tuple(range(SLOTS))),), tuple(demands), node_mtbf=mtbf)


def worths(demand: Demand, problem: Problem) -> list[tuple[int, float]]:
    """(slots, value) of each shape and size, as the rules say it in words."""
    had = len(demand.seats)
    rate_had = dict(demand.throughput["cpu"]).get(had, 0.0)
    untouched = had > 0 and not demand.hit
    reshaping = COSTS.start + (COSTS.store if demand.members else 0.0)
    found = []
    for size, rate in demand.throughput["cpu"]:
        stays = untouched and size == had
        moving = COSTS.start if not had else COSTS.grow if size > had else COSTS.shrink
        charge = 0.0 if not untouched or stays else problem.hysteresis * rate_had * problem.horizon
        found.append((size, rate * (problem.horizon - (0.0 if stays else moving)) - charge))
    for form in demand.others if demand.suspendable or not had else ():
        charge = problem.hysteresis * rate_had * problem.horizon if untouched else 0.0
        found += [(size, rate * (problem.horizon - reshaping) - charge) for size, rate in form.throughput["cpu"]]
    return [(size, demand.weight * value) for size, value in found]


@given(crowds())
@settings(max_examples=120, deadline=None)
def test_no_shapes_and_sizes_are_worth_more(problem: Problem) -> None:
    made = plan(problem, 10.0)
    check(problem, made)
    best = max(
        sum(value for _, value in chosen)
        for chosen in product(*(worths(d, problem) for d in problem.demands))
        if sum(size for size, _ in chosen) <= SLOTS
    )
    assert made.value == pytest.approx(best, rel=1e-9)


@given(crowds())
@settings(max_examples=40, deadline=None)
def test_the_integer_programme_chooses_no_worse(problem: Problem) -> None:
    sizes = sizes_of(problem)
    found = [sized(sizes.knapsack, 10.0, "cbc", sizes.least, by_core=by_core) for by_core in (True, False)]
    assert found[0].value == pytest.approx(found[1].value, rel=1e-6)


@given(crowds())
@settings(max_examples=60, deadline=None)
def test_a_shape_that_was_taken_is_kept(problem: Problem) -> None:
    settled = after(problem, plan(problem, 10.0))
    made = plan(settled, 10.0)
    again = plan(after(settled, made), 10.0)
    assert (again.seats, dict(again.shapes)) == (made.seats, {})


# -- when a change pays ---------------------------------------------------------------------

TWO_NODES = (Node("n0", (0, 1)), Node("n1", (0, 1, 2, 3)))


def returning(gain: float, mtbf: float, **wish: Any) -> str:
    """Which shape a job on two slots takes when the four slots of its faster shape are back."""
    running = job("gpt", [(2, stairs(2, most=4)), (4, stairs(4, gain, most=4))], on("n0", each=2), **wish)
    problem = Problem(TWO_NODES, (replace(running, size_max=4),), node_mtbf=mtbf)
    made = plan(problem, 10.0)
    check(problem, made)
    assert len(made.seats["gpt"]) == 4
    return formed(problem.demands[0], made).shape


def test_it_takes_the_faster_shape_where_that_gains_more_than_it_costs() -> None:
    """Half an hour ahead, 65 s of standstill instead of 2 s are worth some 3.6 % of the speed."""
    assert returning(1.05, 2 * 1_800.0) == "shard=4"
    assert returning(1.03, 2 * 1_800.0) == "shard=2"
    assert returning(1.03, 2 * DAY) == "shard=4"


def test_it_needs_less_of_a_reason_where_it_has_to_begin_again_anyway() -> None:
    assert returning(1.03, 2 * 1_800.0, members=0, floor=0) == "shard=4"


def test_what_can_not_be_stored_or_may_come_back_stays_in_its_shape() -> None:
    assert returning(9.0, 2 * DAY, suspendable=False) == "shard=2"
    silent = job("gpt", [(2, stairs(2)), (4, stairs(4, 9.0))], on("n0", each=2), may_grow=False)
    assert not plan(Problem(TWO_NODES, (silent,)), 10.0).shapes


def test_a_smaller_shape_makes_room_for_a_minimum_as_fewer_replicas_do() -> None:
    """A job's least is what it may have in any shape, if its state can be stored."""
    running = job("wide", [(4, stairs(4)), (2, stairs(2))], on("n1", each=4))
    waiting = job("new", [(2, stairs(2))])
    made = plan(Problem(TWO_NODES[1:], (running, waiting)), 10.0)
    assert ({j: len(s) for j, s in made.seats.items()}, made.shapes) == ({"wide": 2, "new": 2}, {"wide": "shard=2"})
    kept = plan(Problem(TWO_NODES[1:], (replace(running, suspendable=False), waiting)), 10.0)
    assert ({j: len(s) for j, s in kept.seats.items()}, kept.shapes) == ({"wide": 4, "new": 0}, {})


def test_where_four_slots_are_in_pieces_it_stays_in_the_shape_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many free slots as it would need, but somebody is on each node, and nobody can say who moves."""
    monkeypatch.setattr(packing, "VARIABLES_MAX", 0)
    halves = tuple(Node(f"n{i}", (0, 1, 2, 3)) for i in range(2))
    pinned = [
        replace(job(f"on {n}", [(1, stairs(1, most=1))], {0: (n, 0)}, weight=9.0), size_max=1) for n in ("n0", "n1")
    ]
    two = job("gpt", [(2, stairs(2)), (4, stairs(4, 2.0))], {0: ("n0", 1), 1: ("n0", 2)})
    problem = Problem(halves, (*pinned, replace(two, size_max=4)))
    made = plan(problem, 10.0)
    check(problem, made)
    assert not made.shapes
    assert (made.seats["gpt"][0], len(made.seats["gpt"])) == (("n0", 1), 4)
    assert made.note == "the room that is left is in pieces too small for whole replicas"


def test_in_words() -> None:
    running = job("gpt", [(2, stairs(2, 1e12)), (4, stairs(4, 1.2e12))], on("n0", each=2), rated=False)
    made = plan(Problem(TWO_NODES, (replace(running, size_max=4),)), 10.0)
    assert made.reasons["gpt"] == (
        "is split as shard=4 instead of shard=2, on 4 slots: +2.8 weighted slots after a standstill of some 65 s; "
        "all it wants"
    )
    begins = plan(Problem(TWO_NODES[:1], (job("gpt", [(4, stairs(4)), (2, stairs(2, 1e12))], rated=False),)), 10.0)
    assert begins.reasons["gpt"] == "gets 2 slots split as shard=2: +2 weighted slots; no more slots are free"
