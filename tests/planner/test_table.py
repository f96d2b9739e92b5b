"""The table of next events: what it foresees is what a fresh solution is, and it answers nothing else."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from planner.oracles import after, check, problems

from unicorn_mgr.planner.choices import sizes_of
from unicorn_mgr.planner.placement import Unplaceable
from unicorn_mgr.planner.planner import plan, plan_of
from unicorn_mgr.planner.problem import Demand, Node, Problem
from unicorn_mgr.planner.sizing import sized
from unicorn_mgr.planner.table import NOTHING, Foreseen, Known, Table, followers, situation, without_slots


def filled(problem: Problem) -> Table:
    table = Table.of(problem)
    for key, follower in table.missing():
        sizes = sizes_of(follower)
        table.answers[key] = Foreseen.of(sizes, sized(sizes.knapsack, 10.0, "cbc", sizes.least))
    return table


@given(problems(varied=False))
@settings(max_examples=15, deadline=None)
def test_what_was_foreseen_is_what_a_fresh_solution_is(problem: Problem) -> None:
    settled = after(problem, plan(problem, 10.0))
    table = filled(settled)
    for follower in followers(settled, table.known):
        assert Known.of(follower, table.known).situation == situation(follower)
        found = table.look_up(follower)
        assert found is not None, "everything that may happen next is in it"
        fresh = sizes_of(follower)
        assert found == Foreseen.of(fresh, sized(fresh.knapsack, 10.0, "cbc", fresh.least))
        try:
            check(follower, plan_of(follower, found.sizes, found.sizing))
        except Unplaceable:
            check(follower, plan(follower, 10.0))


RUNNING = Problem(
    tuple(Node(f"n{i}", (0, 1)) for i in range(3)),
    tuple(
        Demand(
            job,
            1,
            6,
            throughput={"cpu": tuple((k, float(k)) for k in range(1, 7))},
            seats={0: (node, 0), 1: (node, 1)},
            members=2,
        )
        for job, node in (("one", "n0"), ("other", "n1"), ("third", "n2"))
    ),
)


def test_nodes_that_are_alike_share_an_entry() -> None:
    crowd = Problem(tuple(Node(f"n{i}", (0, 1)) for i in range(50)), ())
    assert len(filled(crowd).answers) == 2, "one of them is lost, or one more joins"


def test_it_answers_for_another_node_of_the_same_kind_only_if_the_same_jobs_are_hit() -> None:
    table = filled(RUNNING)
    lost = [without_slots(RUNNING, node, node.slots) for node in RUNNING.nodes]
    found = [table.look_up(problem) for problem in lost]
    assert all(found)
    assert len({situation(problem) for problem in lost}) == 3


@given(problems(), problems())
@settings(max_examples=50)
def test_a_situation_is_the_same_wherever_one_comes_from(before: Problem, problem: Problem) -> None:
    assert Known.of(problem, Known.of(before, NOTHING)).situation == situation(problem)


def test_domains_that_are_alike_share_an_entry() -> None:
    racks = Problem(tuple(Node(f"n{i}", (0, 1), domain=f"rack {i // 5}") for i in range(50)), ())
    assert len(filled(racks).answers) == 3, "one node is lost, one more joins a rack, or one comes alone"


def test_what_was_not_foreseen_is_not_answered() -> None:
    table = filled(RUNNING)
    lost = without_slots(RUNNING, RUNNING.nodes[0], (0, 1))
    twice = without_slots(lost, lost.nodes[0], (0, 1))
    heavier = replace(lost, demands=(replace(lost.demands[0], weight=2.0), *lost.demands[1:]))
    shorter = replace(lost, node_mtbf=1.0)
    assert table.look_up(lost) is not None
    assert [table.look_up(p) for p in (twice, heavier, shorter)] == [None, None, None]
