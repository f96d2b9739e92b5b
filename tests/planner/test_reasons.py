"""A plan's words say who gave, who got and what it was worth, in units that are true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unicorn_mgr.cli.plan import certificate, change_of_waf, nodes_of
from unicorn_mgr.messages import JobView, PlannedJob, PlanView, WorkerView
from unicorn_mgr.planner.planner import plan
from unicorn_mgr.planner.problem import NOMINAL_FLOPS, Demand, Node, Place, Problem
from unicorn_mgr.planner.reasons import worth

NODES = tuple(Node(f"n{i}", (0,)) for i in range(5))


def seats(*numbers: int) -> dict[int, Place]:
    return {seat: (f"n{number}", 0) for seat, number in enumerate(numbers)}


def demand(job: str, weight: float, most: int, on: dict[int, Place], rated: bool = False) -> Demand:
    stairs = tuple((size, size * NOMINAL_FLOPS) for size in range(1, most + 1))
    return Demand(job, 1, most, weight, {"cpu": stairs}, seats=on, members=len(on), floor=min(1, len(on)), rated=rated)


def test_who_gave_who_got_and_what_it_was_worth() -> None:
    """A node is lost: the lighter job gives a slot to the heavier one.  It comes back, and so does the slot."""
    heavy, light = demand("heavy", 2.0, 3, seats(0, 1, 2)), demand("light", 1.0, 2, seats(3, 4))
    lost = plan(Problem(NODES[1:], (heavy, light)))
    assert lost.reasons == {
        "heavy": "gets 1 slot from light: +2 weighted slots; all it wants",
        "light": "gives 1 slot to heavy: -1 weighted slot",
    }
    back = plan(
        Problem(NODES, tuple(demand(d.job, d.weight, d.size_max, dict(lost.seats[d.job])) for d in (heavy, light)))
    )
    assert back.reasons == {
        "heavy": "all it wants",
        "light": "gets 1 slot: +1 weighted slot; all it wants",
    }


def test_who_leaves_a_slow_slot_gains_by_it_and_who_gets_one_gets_less() -> None:
    nodes = (*NODES[:3], Node("n3", (0,), speed=0.5))
    made = plan(Problem(nodes, (demand("fast", 2.0, 4, seats(0, 1, 2, 3)), demand("new", 1.0, 1, {}))))
    assert made.reasons == {
        "fast": "gives 1 slot to new: +2 weighted slots, without the slowest",
        "new": "gets 1 slot from fast: +0.5 weighted slots; all it wants",
    }


def test_a_job_that_is_left_with_less_than_it_needs_is_told() -> None:
    light, heavy = (demand(job, weight, 3, {}) for job, weight in (("light", 1.0), ("heavy", 99.0)))
    made = plan(Problem(NODES[:4], (replace(light, needed=2 * NOMINAL_FLOPS), heavy)))
    assert made.reasons == {
        "light": "gets 1 slot: +1 weighted slot; no more slots are free; that is less than it needs",
        "heavy": "gets 3 slots: +297 weighted slots; all it wants",
    }


LATE = replace(demand("late", 1.0, 4, {}), size_min=4)


def waiting(*others: Demand, late: Demand = LATE) -> str:
    return plan(Problem(NODES, (*others, late))).reasons["late"]


def test_a_job_that_waits_is_told_who_comes_before_it() -> None:
    running = [demand(f"job-{i}", 1.0, 1, seats(i)) for i in range(5)]
    assert waiting(running[0], running[1]) == (
        "waits for 1 slot more: its minimum is 4, and 3 are left: job-0 needs 1, job-1 1"
    )
    assert waiting(*running[:4]) == (
        "waits for 3 slots more: its minimum is 4, and 1 is left: job-0 needs 1, job-1 1, job-2 1, 1 other 1"
    )
    assert waiting(*running) == (
        "waits for 4 slots more: its minimum is 4, and 0 are left: job-0 needs 1, job-1 1, job-2 1, 2 others 2"
    )


def test_a_job_that_waits_for_replicas_is_told_how_many_there_is_room_for() -> None:
    assert (
        waiting(late=replace(LATE, replica=2))
        == "waits for 4 slots more: its minimum is 4, and the whole cluster has room for 0"
    )


def test_a_job_that_waits_for_a_silent_node_is_told_so() -> None:
    assert waiting(late=replace(LATE, may_grow=False)) == "waits: it does not grow while a node of it is silent"


def test_flops_are_told_only_of_jobs_whose_speed_is_known() -> None:
    made = plan(Problem(NODES[:2], (demand("known", 1.0, 2, {}, rated=True),)))
    assert made.reasons == {"known": "gets 2 slots: +2 weighted TFLOP/s; all it wants"}


@pytest.mark.parametrize(
    ("rate", "rated", "words"),
    [
        (0.0, True, "0 weighted FLOP/s"),
        (2.345e15, True, "2.35 weighted PFLOP/s"),
        (NOMINAL_FLOPS, False, "1 weighted slot"),
        (2.5 * NOMINAL_FLOPS, False, "2.5 weighted slots"),
        (0.0, False, "0 weighted slots"),
    ],
)
def test_worth(rate: float, rated: bool, words: str) -> None:
    assert worth(rate, rated) == words


def test_what_it_does_to_the_cluster() -> None:
    unknown = PlannedJob("a", flops_before=2e12, flops_after=3e12)
    known = PlannedJob("b", flops_before=6e12, flops_after=6e12, rated=True)
    assert change_of_waf([unknown]) == "all jobs together: 2 weighted slots now, 3 weighted slots then (+50.0%)"
    assert change_of_waf([unknown, known]) == (
        "all jobs together: 8 weighted TFLOP/s now, 9 weighted TFLOP/s then (+12.5%)"
        "; nobody has told the speed of a: a slot counts as 1 TFLOP/s"
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            PlanView(7, proven=True, rung="ilp", solver="bounds", seconds=0.001),
            "plan 7 was found by bounds alone, proven best, in 0.001 s",
        ),
        (
            PlanView(7, proven=True, rung="ilp", solver="cbc", seconds=0.02),
            "plan 7 was found by cbc, proven best, in 0.020 s",
        ),
        (PlanView(proven=True, rung="table", solver="bounds"), "this plan was foreseen, proven best, in 0.000 s"),
        (
            PlanView(7, value=99.0, bound=100.0, rung="greedy", solver="greedy", seconds=0.3, note="the time was up"),
            "plan 7 is the best that was found in time, at most 1.00% short of the best, in 0.300 s (the time was up)",
        ),
    ],
)
def test_certificates_in_words(made: PlanView, words: str) -> None:
    assert certificate(made) == words


def test_where_a_job_is() -> None:
    workers = [WorkerView(f"gpt/{i}.0", f"node-{i // 2}", i % 2, "member") for i in range(11)]
    assert nodes_of(JobView("gpt", workers=tuple(workers[:3]))) == "node-0 x2, node-1"
    assert nodes_of(JobView("gpt", workers=tuple(workers))) == "node-0 x2, node-1 x2, node-2 x2, node-3 x2 and 2 more"
    leaving = WorkerView("gpt/0.0", "node-0", 0, "leaving")
    assert nodes_of(JobView("gpt", workers=(leaving, workers[2]))) == "node-1"
