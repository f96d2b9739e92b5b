"""The real core in virtual time: what members lose, what is remembered, and that nobody is forgotten."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from simulator.comparisons import COSTS, D, M, T, W, assert_conserved, lived, node, process, scenario, slow, story, work
from simulator.test_random_policies import drawn

from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.simulator.crew import Reuse
from unicorn_mgr.simulator.fleet import Fleet
from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.policies.bounds import ClairvoyantUnbound
from unicorn_mgr.simulator.policies.ours import Ours
from unicorn_mgr.simulator.scenario import Fault, Kind, Scenario

SMALL = replace(work(size_max=4), step_flops=1_000.0)
"""On one node, with short steps."""


def fleet_of(told: Scenario, faults: tuple[Fault, ...]) -> Fleet:
    history = History("ours", told, 0, {}, faults)
    fleet = Fleet(told, faults, COSTS, history, Settings(), None, Reuse())
    fleet.live()
    return fleet


def doings(history: History, job: str = "a") -> list[str]:
    return [doing for _, doing, *_ in story(history, job)]


def test_a_node_that_is_hit_again_while_it_is_down_is_back_after_the_later_repair() -> None:
    history = lived(Ours(), scenario(work()), node(1000.0, 3, repair=500.0), node(1200.0, 3, repair=3000.0))
    assert not any(flops == 160.0 for since, _, _, flops, _ in story(history) if 1000.0 <= since < 4200.0)
    assert story(history)[-1][3] == 160.0
    never = lived(Ours(), scenario(work()), node(1000.0, 3, repair=500.0), node(1200.0, 3))
    assert story(never)[-1][1:4] == (T, 12, 120.0)


def test_a_node_that_is_lost_at_the_moment_at_which_it_is_back_comes_back() -> None:
    history = lived(Ours(), scenario(work()), node(1000.0, 3, repair=500.0), node(1500.0, 3, repair=0.0))
    assert story(history)[-1][1:4] == (T, 16, 160.0)


def test_of_two_things_that_make_a_node_slow_each_lasts_until_it_is_mended() -> None:
    told = [(since, flops) for since, _, _, flops, _ in story(two_slow())]
    assert told == [(0.0, 160.0), (1000.0, 40.0), (4000.0, 80.0), (5000.0, 160.0)]


def two_slow() -> History:
    one, other = slow(1000.0, 2, 2.0, repair=4000.0), slow(1000.0, 2, 4.0, repair=3000.0)
    return lived(Ours(), scenario(work()), one, other)


def test_snapshots_are_gone_with_all_nodes_that_had_them() -> None:
    all_at_once = lived(Ours(), scenario(work()), node(1000.0, 0, 1, 2, 3, repair=100.0))
    assert sum(r.flop for r in all_at_once.repeats) == pytest.approx(100 * 160)  # since the checkpoint at 900 s
    late = node(1190.0, 0, 1, 2, 3, repair=100.0)
    assert sum(r.flop for r in lived(Ours(), scenario(work()), late).repeats) == pytest.approx(290 * 160)


def test_what_is_on_one_node_alone_has_a_second_home() -> None:
    one = node(1190.0, 0, repair=100.0)
    assert sum(r.flop for r in lived(Ours(), scenario(SMALL), one).repeats) <= 2_000
    both = node(1190.0, 0, 1, repair=100.0)
    assert sum(r.flop for r in lived(Ours(), scenario(SMALL), both).repeats) == pytest.approx(290 * 40)


def test_a_second_home_that_is_lost_has_a_successor() -> None:
    faults = (node(1100.0, 1), node(1190.0, 0, repair=100.0))
    history = lived(Ours(), scenario(SMALL), *faults)
    assert sum(r.flop for r in history.repeats) <= 2_000


def test_processes_that_end_leave_the_memory_of_their_nodes() -> None:
    faults = [process(1190.0, number) for number in range(4)]
    history = lived(Ours(), scenario(work(size_min=16)), *faults)
    assert 0 < sum(r.flop for r in history.repeats) <= 2 * 13_000


def test_a_job_that_has_no_slots_left_waits() -> None:
    told = scenario(work("a", size_min=8, size_max=8), work("b", size_min=8, size_max=8), nodes=4)
    history = lived(Ours(), told, node(1000.0, 0, 1, repair=3000.0))
    hit = next(job for job in "ab" if len(story(history, job)) > 1)
    assert doings(history, hit) == [T, D, W, M, T]
    assert history.costs()["ECC"].detection < history.costs()["ECC"].sub_healthy / 10


def test_what_happens_before_the_beginning_is_no_history() -> None:
    told = scenario(work("a"), work("b"))
    history = lived(Ours(), told)
    assert [(since, doing, flops) for since, doing, _, flops, _ in story(history)] == [(0.0, T, history.full["a"])]
    assert (history.repeats, history.moves) == ([], 0)


def test_return_of_a_node_is_part_of_the_incident() -> None:
    history = lived(Ours(), scenario(work()), node(1000.0, 3, repair=500.0))
    assert set(history.costs()) == {"ECC"}
    (incident,) = history.incidents()
    assert incident.costs.total == pytest.approx(history.costs()["ECC"].total)


def test_a_regrouping_stores_nothing() -> None:
    """The next checkpoint is due as long after the last one as before."""
    burst = node(1190.0, 0, 1, 2, 3, repair=100.0)
    history = lived(Ours(), scenario(work()), process(1000.0, kind=Kind.LINK), burst)
    assert sum(r.flop for r in history.repeats) == pytest.approx((290 - 3.15) * 160)


@pytest.mark.parametrize("seed", [*range(12), 40, 59])
def test_after_a_calm_time_the_core_is_right_and_whoever_has_slots_trains(seed: int) -> None:
    told, all_faults = drawn(seed)
    fleet = fleet_of(told, tuple(f for f in all_faults if f.repair_seconds < math.inf and f.at < 10_000))
    assert_conserved(fleet.history)
    assert "other" not in fleet.history.costs()
    for crew in fleet.crews.values():
        believed = fleet.brain.state.jobs[crew.name]
        assert believed.members == crew.members
        assert len(crew.living()) == len(crew.members)
        assert crew.doing is (Doing.TRAINING if crew.slots else Doing.WAITING)
        assert crew.rate == crew.work.rate(len(crew.members))
        assert crew.done >= 0.0


@pytest.mark.parametrize("seed", [*range(6), 91, 114, 115])
def test_whatever_breaks_nobody_is_better_than_the_bound(seed: int) -> None:
    told, faults = drawn(seed)
    history = fleet_of(told, faults).history
    assert history.waf <= ClairvoyantUnbound().live(told, faults, COSTS, seed).waf * (1 + 1e-9)
