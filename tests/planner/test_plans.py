"""Whole plans: valid whatever the problem, best where that is proven, and they leave alone what need not move."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from planner.oracles import PATIENT, after, check, problems

from unicorn_mgr.planner.choices import Grade, sizes_of
from unicorn_mgr.planner.packing import packed
from unicorn_mgr.planner.placement import Room, Unplaceable, Wish
from unicorn_mgr.planner.planner import plan, wish_of
from unicorn_mgr.planner.problem import Costs, Demand, Node, Place, Problem

DAY = 86_400.0


def nodes(count: int, slots: int = 8, **kind: Any) -> tuple[Node, ...]:
    return tuple(Node(f"n{i}", tuple(range(slots)), **kind) for i in range(count))


def demand(job: str, size_min: int, size_max: int, *seats: Place, batches: int = 840, **wish: Any) -> Demand:
    """A job of so many micro-batches a step; its members are on `seats`."""
    rates = {size: 1e12 * batches / -(-batches // size) for size in range(1, size_max + 1)}
    stairs = tuple((size, rate) for size, rate in rates.items() if rate > rates.get(size - 1, 0.0))
    return Demand(
        job,
        size_min,
        size_max,
        **{
            "throughput": {"cpu": stairs},
            "seats": dict(enumerate(seats)),
            "members": len(seats),
            **wish,
        },
    )


def on(node: str, slots: int) -> tuple[Place, ...]:
    return tuple((node, s) for s in range(slots))


def sizes(problem: Problem) -> dict[str, Any]:
    made = plan(problem, 10.0)
    check(problem, made)
    assert made.proven
    return {job: len(seats) for job, seats in made.seats.items()}


# -- any problem ----------------------------------------------------------------------------


@given(problems())
@settings(max_examples=150, deadline=None)
def test_every_plan_can_be_applied(problem: Problem) -> None:
    check(problem, plan(problem, 10.0))


@given(problems())
@settings(max_examples=40, deadline=None)
def test_without_a_moment_of_time_a_plan_can_be_applied_too(problem: Problem) -> None:
    made = plan(problem, 0.0)
    check(problem, made)
    assert made.solver in ("greedy", "bounds")


@given(problems())
@settings(max_examples=40, deadline=None)
def test_no_set_of_sizes_that_can_be_placed_is_worth_more(problem: Problem) -> None:
    made = plan(problem, 10.0)
    wanted = sizes_of(problem)
    for chosen in product(*wanted.knapsack.jobs):
        wishes = [replace(wish_of(d, wanted, c), frozen=False) for d, c in zip(problem.demands, chosen, strict=True)]
        worth = sum(c.value for c in chosen)
        if worth > made.value + 1e-6 * max(1.0, abs(worth)) and made.proven:
            with pytest.raises(Unplaceable):
                packed(problem, wishes, PATIENT)
        assert worth <= made.bound + 1e-6 * max(1.0, abs(worth)) or not wanted.knapsack.fits(
            [mine.index(c) for mine, c in zip(wanted.knapsack.jobs, chosen, strict=True)]
        )


@given(problems())
@settings(max_examples=60, deadline=None)
def test_a_plan_that_is_carried_out_stays(problem: Problem) -> None:
    """Nothing has changed, so nothing moves: else the cluster would never come to rest.

    Once all have come: who runs already is moved at another price than who is about to start.
    """
    started = after(problem, plan(problem, 10.0))
    made = plan(started, 10.0)
    if made.proven:
        assert plan(after(started, made), 10.0).seats == made.seats


# -- who gets what --------------------------------------------------------------------------


def test_the_heavier_job_gets_more_where_slots_pay_the_same() -> None:
    problem = Problem(nodes(2), (demand("light", 2, 16), demand("heavy", 2, 16, weight=2.0)))
    assert sizes(problem) == {"light": 2, "heavy": 14}


def test_a_step_of_the_staircase_that_is_not_reached_gets_no_slots() -> None:
    """Of 8 micro-batches, 5 to 7 workers take as many rounds as 4."""
    problem = Problem(nodes(1, 7), (demand("gpt", 1, 8, batches=8),))
    assert sizes(problem) == {"gpt": 4}


def test_minimums_are_honoured_by_priority_and_the_others_are_told_what_they_wait_for() -> None:
    problem = Problem(
        nodes(1),
        (demand("first", 6, 8), demand("urgent", 5, 8, priority=1), demand("small", 2, 8)),
    )
    made = plan(problem, 10.0)
    assert {j: len(s) for j, s in made.seats.items()} == {"first": 0, "urgent": 6, "small": 2}
    assert made.reasons["first"] == "waits for 3 slots more: its minimum is 6, and 3 are left: urgent needs 5"


def test_who_runs_is_not_turned_out_by_who_came_first() -> None:
    problem = Problem(nodes(1), (demand("waiting", 6, 8), demand("running", 4, 4, *on("n0", 4))))
    assert sizes(problem) == {"waiting": 0, "running": 4}


def test_who_can_be_suspended_makes_room_for_a_higher_priority_and_for_no_other() -> None:
    running = demand("running", 4, 8, *on("n0", 8), floor=4, suspendable=True)
    assert sizes(Problem(nodes(1), (running, demand("urgent", 5, 8, priority=1)))) == {"running": 0, "urgent": 8}
    assert sizes(Problem(nodes(1), (running, demand("urgent", 4, 8, priority=1))))["running"] == 4
    assert sizes(Problem(nodes(1), (running, demand("heavy", 5, 8, weight=9.0)))) == {"running": 8, "heavy": 0}


def test_who_cannot_be_suspended_keeps_its_floor_whoever_comes() -> None:
    running = demand("running", 4, 8, *on("n0", 8), floor=4)
    assert sizes(Problem(nodes(1), (running, demand("urgent", 5, 8, priority=1)))) == {"running": 8, "urgent": 0}


def test_of_equals_each_keeps_its_floor_before_any_is_made_whole() -> None:
    hit = demand("hit", 4, 4, *on("n0", 3), floor=3, suspendable=True)
    other = demand("other", 4, 4, *on("n1", 4), floor=4, suspendable=True)
    places = (Node("n0", (0, 1, 2)), Node("n1", (0, 1, 2, 3)))
    assert sizes(Problem(places, (hit, other))) == {"hit": 3, "other": 4}


def test_a_minimum_above_the_whole_cluster_waits_and_says_so() -> None:
    made = plan(Problem(nodes(1), (demand("huge", 64, 64),)))
    assert made.seats == {"huge": {}}
    assert made.reasons["huge"] == "waits for 56 slots more: its minimum is 64, and the whole cluster has room for 8"


def test_a_job_for_another_device_waits_and_says_so() -> None:
    made = plan(Problem(nodes(1), (demand("gpt", 1, 8, throughput={"h100": ((1, 1.0),)}),)))
    assert made.reasons["gpt"] == "waits: it runs on h100, and no such slot may be used"


def test_no_cluster_no_jobs() -> None:
    assert plan(Problem((), ())).seats == {}
    assert plan(Problem((), (demand("gpt", 1, 8),))).seats == {"gpt": {}}
    assert plan(Problem(nodes(1), ())).proven


# -- what a change costs --------------------------------------------------------------------


def test_a_lost_node_is_made_up_for_by_who_loses_least() -> None:
    """Of two like jobs the one that was hit has 4 slots left; the other one gives."""
    lost = (
        demand("hit", 4, 8, *on("gone", 4), *on("n0", 4), hit=True, weight=3.0),
        demand("whole", 2, 8, *on("n1", 8)),
    )
    made = plan(Problem(nodes(2), lost))
    check(Problem(nodes(2), lost), made)
    assert {j: len(s) for j, s in made.seats.items()} == {"hit": 12 - 4, "whole": 8} or len(made.seats["hit"]) > 4


def test_where_moving_is_dear_all_stay() -> None:
    """A gain within one transition of it is none."""
    costs = Costs(shrink=3_000.0, grow=3_000.0, start=3_000.0)
    jobs = (
        demand("light", 2, 16, *on("n0", 8), costs=costs),
        demand("heavy", 2, 16, *on("n1", 8), costs=costs, weight=1.2),
    )
    assert sizes(Problem(nodes(2), jobs, node_mtbf=3_600.0)) == {"light": 8, "heavy": 8}
    assert sizes(Problem(nodes(2), jobs, node_mtbf=90 * DAY)) == {"light": 2, "heavy": 14}


def test_ties_keep_what_runs() -> None:
    jobs = (demand("one", 2, 16, *on("n0", 8)), demand("other", 2, 16, *on("n1", 8)))
    problem = Problem(nodes(2), jobs)
    assert plan(problem).seats == {d.job: d.seats for d in jobs}


def test_slots_that_gain_a_job_nothing_stay_until_somebody_wants_them() -> None:
    """With six micro-batches four workers are no faster than three, but one may be lost at no cost."""
    idle = demand("idle", 1, 4, *on("n0", 4), batches=6)
    assert sizes(Problem(nodes(1, 4), (idle,))) == {"idle": 4}
    assert sizes(Problem(nodes(1, 4), (idle, demand("new", 1, 1)))) == {"idle": 3, "new": 1}


def test_a_horizon_shorter_than_a_transition_is_held_up() -> None:
    """Otherwise every value is negative, and the smallest sizes win."""
    jobs = (demand("gpt", 2, 16, costs=Costs(start=600.0)),)
    assert Problem(nodes(2), jobs, node_mtbf=10.0).horizon == 1_200.0
    assert sizes(Problem(nodes(2), jobs, node_mtbf=10.0)) == {"gpt": 16}


def test_all_hit_all_are_planned() -> None:
    jobs = tuple(demand(f"j{i}", 1, 8, *on(f"n{i}", 8), hit=True) for i in range(3))
    assert sizes(Problem(nodes(3), jobs)) == {"j0": 8, "j1": 8, "j2": 8}


def test_the_papers_objective_charges_the_rate_before() -> None:
    """G = F(k) D - F(x) D_transition for whoever changes (Unicron, section 5: equation 3)."""
    jobs = (demand("gpt", 2, 16, *on("n0", 8), costs=Costs(1.0, 2.0, 300.0)),)
    problem = Problem(nodes(2), jobs, node_mtbf=2 * DAY, objective="paper")
    (choices,) = sizes_of(problem).knapsack.jobs
    rate = {c.size: c.value for c in choices}
    assert rate[8] == 840 / 105 * 1e12 * DAY
    assert rate[12] == 840 / 70 * 1e12 * DAY - 840 / 105 * 1e12 * 300.0


@pytest.mark.parametrize(
    "node",
    [Node("n1", tuple(range(8)), "other"), Node("n1", tuple(range(8)), speed=2.0)],
    ids=["another device type", "faster nodes of the same type"],
)
def test_a_job_that_moves_as_a_whole_is_charged_for_newcomers_not_for_leavers(node: Node) -> None:
    """All of its members leave: whoever comes has to be given the state."""
    stairs = {device: tuple((k, k * 1e12) for k in range(1, 17)) for device in ("cpu", "other")}
    job = demand("gpt", 2, 16, *on("n0", 8), costs=Costs(1.0, 300.0, 900.0), throughput=stairs)
    problem = Problem((Node("n0", tuple(range(8))), node), (job,), node_mtbf=2 * DAY, hysteresis=0.0)
    sizes = sizes_of(problem)
    moved = [c for c in sizes.knapsack.jobs[0] if sizes.grades[c.grade] == Grade(node.device, node.speed)]
    rate = node.speed * 1e12
    assert [c.value for c in moved if c.size == 8] == [8 * rate * (DAY - 300.0)]


def test_a_job_that_needs_throughput_for_its_deadline_gets_it() -> None:
    jobs = (demand("late", 1, 16, needed=6e12), demand("heavy", 1, 16, weight=3.0))
    assert sizes(Problem(nodes(1), jobs)) == {"late": 6, "heavy": 2}


# -- which slots ----------------------------------------------------------------------------


def test_a_job_that_stays_keeps_its_very_slots_and_one_that_grows_keeps_its_own() -> None:
    jobs = (demand("stays", 3, 3, ("n0", 1), ("n0", 5), ("n1", 7)), demand("grows", 1, 13, ("n1", 0), weight=2.0))
    problem = Problem(nodes(2), jobs)
    made = plan(problem)
    check(problem, made)
    assert made.seats["stays"] == jobs[0].seats
    assert made.seats["grows"][0] == ("n1", 0)
    assert len(made.seats["grows"]) >= 12


def test_warm_nodes_are_preferred() -> None:
    problem = Problem(nodes(3, 4), (demand("gpt", 2, 2, warm=frozenset({"n2"}), domains=1),))
    assert {n for n, _ in plan(problem).seats["gpt"].values()} == {"n2"}


def test_a_job_is_spread_so_that_one_loss_leaves_a_copy() -> None:
    racks = tuple(Node(f"n{i}", tuple(range(4)), domain=f"rack {i // 2}") for i in range(4))
    made = plan(Problem(racks, (demand("gpt", 4, 4),)))
    assert {n for n, _ in made.seats["gpt"].values()} == {"n0", "n2"}
    together = plan(Problem(racks, (demand("gpt", 4, 4, domains=1),)))
    assert len({n for n, _ in together.seats["gpt"].values()}) == 1


def test_replicas_stay_whole_within_a_node() -> None:
    """A node of 7 slots has room for one replica of 4."""
    odd = (Node("n0", tuple(range(7))), Node("n1", tuple(range(8))))
    made = plan(Problem(odd, (demand("tp", 4, 16, replica=4),)))
    assert Counter(n for n, _ in made.seats["tp"].values()) == {"n0": 4, "n1": 8}


@pytest.mark.parametrize(("within", "room"), [("node", 4 + 8), ("domain", 16)])
def test_room_is_counted_in_whole_replicas(within: Literal["node", "domain"], room: int) -> None:
    rack = (Node("n0", tuple(range(7))), Node("n1", tuple(range(9))))
    wanted = replace(demand("tp", 4, 16, replica=4), within=within)
    assert Wish(wanted, 16, Grade(rack[0].device, 1.0), frozen=False).room_in(rack) == room


def test_a_rack_that_is_full_is_not_offered_in_place_of_an_empty_one() -> None:
    racks = (Node("n0", (0, 1), domain="a"), Node("n1", (0, 1), domain="b"))
    wanted = Wish(demand("gpt", 2, 2, domains=1), 2, Grade(racks[0].device, 1.0), frozen=False)
    room = Room.of(Problem(racks, (wanted.demand,)), [])
    room.fill(wanted, {}, {"n0": 2})
    assert room.offers(wanted, 2) == {"n1": 2}


def test_replicas_wider_than_a_node_stay_within_a_rack() -> None:
    racks = tuple(Node(f"n{i}", tuple(range(4)), domain=f"rack {i % 3}") for i in range(6))
    made = plan(Problem(racks, (demand("tp", 8, 16, replica=8, within="domain"),)))
    by_rack = Counter(int(n[1:]) % 3 for n, _ in made.seats["tp"].values())
    assert sorted(by_rack.values()) == [8, 8]


def test_halves_of_two_replicas_are_put_together() -> None:
    """They are as many slots as one, but no worker of it has its place."""
    racks = tuple(Node(f"n{i}", (0,), domain="rack") for i in (1, 2))
    halves = {1: ("n1", 0), 2: ("n2", 0)}
    left = demand("fsdp", 2, 4, replica=2, within="domain", shape="shard=2", seats=halves, members=0)
    assert set(plan(Problem(racks, (left,))).seats["fsdp"]) == {0, 1}
    whole = replace(left, seats={2: ("n1", 0), 3: ("n2", 0)})
    assert plan(Problem(racks, (whole,))).seats["fsdp"] == whole.seats, "what is whole stays"


def test_jobs_that_stand_in_the_way_of_a_replica_are_moved_if_nothing_else_helps() -> None:
    scattered = (demand("one", 2, 2, ("n0", 0), ("n1", 0)), demand("tp", 4, 4, replica=4, weight=9.0))
    problem = Problem(nodes(2, 4), scattered)
    made = plan(problem)
    check(problem, made)
    assert len(made.seats["tp"]) == 4


def test_slow_slots_slow_the_whole_job() -> None:
    """Eight fast slots do more than eight fast and four at half speed together."""
    mixed = (Node("fast", tuple(range(8))), Node("slow", tuple(range(4)), speed=0.5))
    problem = Problem(mixed, (demand("gpt", 1, 12),))
    made = plan(problem)
    check(problem, made)
    assert {n for n, _ in made.seats["gpt"].values()} == {"fast"}


def test_jobs_share_devices_of_several_types_by_what_they_do_there() -> None:
    types = (Node("a", tuple(range(4)), device="a100"), Node("h", tuple(range(4)), device="h100"))
    stairs = {"a100": tuple((s, 1e12 * s) for s in range(1, 5)), "h100": tuple((s, 3e12 * s) for s in range(1, 5))}
    slight = {"a100": stairs["a100"], "h100": tuple((s, 1.2e12 * s) for s in range(1, 5))}
    jobs = (demand("gains", 1, 4, throughput=stairs), demand("hardly", 1, 4, throughput=slight))
    made = plan(Problem(types, jobs))
    assert {n for n, _ in made.seats["gains"].values()} == {"h"}
    assert {n for n, _ in made.seats["hardly"].values()} == {"a"}
