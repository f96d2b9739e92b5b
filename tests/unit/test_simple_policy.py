"""The simplest correct placement: nothing that can stay is moved, no slot has two owners."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.planner.problem import Demand, Node, Place, Plan, Problem
from unicorn_mgr.planner.simple import FirstComeFirstServed


def solve(places: int | list[Place], *demands: Demand) -> Plan:
    """With so many nodes of one slot, or these places."""
    found = [(f"n{i}", 0) for i in range(places)] if isinstance(places, int) else sorted(places)
    return FirstComeFirstServed().solve(Problem(nodes_of(found), demands))


def nodes_of(places: list[Place]) -> tuple[Node, ...]:
    slots: dict[str, list[int]] = {}
    for name, slot in sorted(places):
        slots.setdefault(name, []).append(slot)
    return tuple(Node(name, tuple(mine)) for name, mine in slots.items())


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    nodes, slots = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    everything = [(f"n{n}", s) for n in range(nodes) for s in range(slots)]
    usable = draw(st.lists(st.sampled_from(everything), unique=True))
    unclaimed = draw(st.permutations(everything))
    demands = []
    for number in range(draw(st.integers(0, 4))):
        size_min = draw(st.integers(1, 4))
        size_max = draw(st.integers(size_min, 6))
        has = draw(st.integers(0, min(size_max, len(unclaimed))))
        seats = draw(st.lists(st.integers(0, 8), unique=True, min_size=has, max_size=has))
        mine, unclaimed = unclaimed[:has], unclaimed[has:]
        occupied = draw(st.frozensets(st.integers(0, 8), max_size=2)) | frozenset(seats)
        barred = draw(st.frozensets(st.sampled_from(seats), max_size=1)) if seats else frozenset()
        demands.append(
            Demand(
                f"job-{number}",
                size_min,
                size_max,
                seats=dict(zip(seats, mine, strict=True)),
                barred=barred,
                occupied=occupied,
                may_grow=draw(st.booleans()),
            )
        )
    return Problem(nodes_of(usable), tuple(demands))


@given(problems())
def test_no_slot_has_two_owners_and_none_is_made_up(problem: Problem) -> None:
    plan = FirstComeFirstServed().solve(problem)
    given_out = [p for seats in plan.seats.values() for p in seats.values()]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(problem.places)
    assert plan.seats.keys() == plan.reasons.keys() == {d.job for d in problem.demands}
    assert all(plan.reasons.values())


@given(problems())
def test_what_runs_stays_where_it_is(problem: Problem) -> None:
    plan = FirstComeFirstServed().solve(problem)
    for d in problem.demands:
        for seat, place in d.seats.items():
            if place in problem.places and seat not in d.barred:
                assert plan.seats[d.job][seat] == place


@given(problems())
def test_a_new_seat_has_a_number_that_nobody_holds(problem: Problem) -> None:
    plan = FirstComeFirstServed().solve(problem)
    for d in problem.demands:
        new = {s for s, p in plan.seats[d.job].items() if d.seats.get(s) != p}
        assert plan.seats[d.job].keys().isdisjoint(d.barred)
        assert new.isdisjoint(d.occupied)


@given(problems())
def test_sizes_are_within_what_was_asked_for(problem: Problem) -> None:
    plan = FirstComeFirstServed().solve(problem)
    for d in problem.demands:
        before = sum(p in problem.places and s not in d.barred for s, p in d.seats.items())
        size = len(plan.seats[d.job])
        assert size <= max(before, d.size_max)
        assert size in (0, before) or size >= min(d.size_min, before + 1)
        if not d.may_grow:
            assert size == before
        if before == 0:
            assert size == 0 or size >= d.size_min, "a job never begins with less than its minimum"


@given(problems())
def test_no_slot_is_left_while_somebody_could_use_it(problem: Problem) -> None:
    plan = FirstComeFirstServed().solve(problem)
    free = len(problem.places) - sum(map(len, plan.seats.values()))
    for d in problem.demands:
        size = len(plan.seats[d.job])
        if free and d.may_grow and size >= d.size_min:
            assert size >= d.size_max - len(d.barred)
        if d.may_grow and size == 0:
            assert free < d.size_min


@given(problems())
def test_the_plan_of_a_plan_is_the_plan(problem: Problem) -> None:
    """Otherwise the coordinator would shuffle slots for ever."""
    plan = FirstComeFirstServed().solve(problem)
    demands = tuple(replace(d, seats=plan.seats[d.job]) for d in problem.demands)
    assert FirstComeFirstServed().solve(Problem(problem.nodes, demands)) == plan


def test_jobs_are_served_in_order_of_submission() -> None:
    plan = solve(3, Demand("first", 2, 2, 1.0), Demand("second", 2, 2, 1.0))
    assert plan.seats == {"first": {0: ("n0", 0), 1: ("n1", 0)}, "second": {}}
    assert plan.reasons["second"] == "waits for 2 slots more: its minimum is 2, and 1 of 3 slots is free"


def test_jobs_grow_in_turn() -> None:
    plan = solve(5, Demand("first", 1, 4, 1.0), Demand("second", 1, 4, 1.0))
    assert {job: len(seats) for job, seats in plan.seats.items()} == {"first": 3, "second": 2}
    assert plan.reasons == {"first": "no more slots are free", "second": "no more slots are free"}


def test_a_job_is_spread_so_that_the_loss_of_a_node_costs_least() -> None:
    plan = solve([("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)], Demand("gpt", 2, 2, 1.0))
    assert {node for node, _ in plan.seats["gpt"].values()} == {"n0", "n1"}


def test_a_lost_seat_is_given_a_new_place_and_a_new_number_while_its_worker_still_leaves() -> None:
    had = {0: ("n0", 0), 1: ("gone", 0)}
    plan = solve(2, Demand("gpt", 1, 2, seats=had, occupied=frozenset({0, 1})))
    assert plan.seats["gpt"] == {0: ("n0", 0), 2: ("n1", 0)}
    plan = solve(2, Demand("gpt", 1, 2, seats=had, occupied=frozenset({0})))
    assert plan.seats["gpt"] == {0: ("n0", 0), 1: ("n1", 0)}


def test_a_running_job_keeps_what_is_left_even_below_its_minimum() -> None:
    """Its survivors go on: to stop them would help nobody."""
    plan = solve(1, Demand("gpt", 3, 4, seats={0: ("n0", 0), 1: ("gone", 0), 2: ("gone", 1)}))
    assert plan.seats["gpt"] == {0: ("n0", 0)}
    assert plan.reasons["gpt"] == "waits for 2 slots more: its minimum is 3, and 0 of 1 slot are free"


def test_the_largest_clusters_are_shared_out_at_once() -> None:
    """Work grows with the slots: with their square this would run into the time limit of the test."""
    nodes = tuple(Node(f"n{i:04d}", tuple(range(8))) for i in range(8192))
    plan = FirstComeFirstServed().solve(Problem(nodes, tuple(Demand(f"job-{i}", 8, 65_536) for i in range(100))))
    sizes = [len(seats) for seats in plan.seats.values()]
    assert sum(sizes) == 65_536
    assert max(sizes) - min(sizes) <= 1
