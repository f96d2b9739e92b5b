"""Policies that are compared with: small histories told by hand, one for each thing that may happen at a bad moment."""

from __future__ import annotations

import pytest
from simulator.comparisons import COSTS, D, M, T, W, assert_conserved, lived, node, process, scenario, slow, story, work

from unicorn_mgr.simulator.policies import Policy
from unicorn_mgr.simulator.policies.bounds import Clairvoyant, ClairvoyantUnbound, NoFault
from unicorn_mgr.simulator.policies.elastic import Bamboo, Elastic, Oobleck
from unicorn_mgr.simulator.policies.restart import Megatron, RestartFast, Spares, Varuna, Waits
from unicorn_mgr.simulator.policies.rules import BySize, ByWeight, Equal
from unicorn_mgr.simulator.scenario import Kind

# -- restart --------------------------------------------------------------------------------


def test_a_lost_node_is_seen_and_the_job_goes_on_with_what_it_has_left() -> None:
    history = lived(Megatron(), scenario(work()), node(1000.0, 1))
    assert story(history) == [
        (0.0, T, 16, 160.0, ""),
        (1000.0, D, 12, 0.0, "ECC"),
        (1010.0, M, 12, 0.0, "ECC"),
        (1310.0, T, 12, 120.0, "ECC"),
    ]
    # Checkpoints at 300, 600, 900.
    assert [(r.at, r.flop) for r in history.repeats] == [(1000.0, 100 * 160.0)]


def test_a_dead_process_is_noticed_by_the_timeout_alone() -> None:
    assert story(lived(Megatron(), scenario(work()), process(1000.0))) == [
        (0.0, T, 16, 160.0, ""),
        (1000.0, D, 16, 0.0, "OOM"),
        (2000.0, M, 16, 0.0, "OOM"),
        (2300.0, T, 16, 160.0, ""),
    ]
    fast = lived(RestartFast(), scenario(work()), process(1000.0))
    assert [(since, doing) for since, doing, *_ in story(fast)] == [(0.0, T), (1000.0, D), (1020.0, M), (1320.0, T)]


@pytest.mark.parametrize("kind", [Kind.HANG, Kind.LINK])
def test_what_stands_still_and_what_breaks_between_processes_is_found_like_a_dead_process(kind: Kind) -> None:
    history = lived(Megatron(), scenario(work()), process(1000.0, kind=kind))
    assert [since for since, *_ in story(history)] == [0.0, 1000.0, 2000.0, 2300.0]


def test_a_node_that_is_lost_while_nobody_knows_of_a_hang_ends_the_detection() -> None:
    history = lived(Megatron(), scenario(work()), process(1000.0, kind=Kind.HANG), node(1500.0, 3))
    assert story(history)[1:] == [
        (1000.0, D, 16, 0.0, "OOM"),
        (1500.0, D, 12, 0.0, "OOM"),
        (1510.0, M, 12, 0.0, "OOM"),
        (1810.0, T, 12, 120.0, "ECC"),
    ]
    assert len(history.repeats) == 1


def test_a_hang_while_the_loss_of_a_node_is_not_known_yet_does_not_delay_that() -> None:
    history = lived(Megatron(), scenario(work()), node(1000.0, 3), process(1005.0, kind=Kind.HANG))
    assert story(history)[1:3] == [(1000.0, D, 12, 0.0, "ECC"), (1010.0, M, 12, 0.0, "ECC")]


def test_in_the_queue_nothing_runs_that_could_break_and_a_node_is_missed_when_it_ends() -> None:
    history = lived(RestartFast(), scenario(work()), process(1000.0), process(1050.0), node(1060.0, 3, repair=30.0))
    assert story(history)[1:] == [
        (1000.0, D, 16, 0.0, "OOM"),
        (1020.0, M, 16, 0.0, "OOM"),
        (1060.0, M, 12, 0.0, "OOM"),
        (1120.0, M, 16, 0.0, "OOM"),
        (1320.0, T, 16, 160.0, ""),
    ]


def test_a_fault_in_the_start_lets_it_begin_anew_and_nothing_is_lost_twice() -> None:
    history = lived(RestartFast(), scenario(work()), process(1000.0), node(1200.0, 2))
    assert story(history)[1:] == [
        (1000.0, D, 16, 0.0, "OOM"),
        (1020.0, M, 16, 0.0, "OOM"),
        (1200.0, D, 12, 0.0, "ECC"),
        (1210.0, M, 12, 0.0, "ECC"),
        (1510.0, T, 12, 120.0, "ECC"),
    ]
    assert len(history.repeats) == 1


def test_a_repair_that_is_quicker_than_the_restart_counts_if_it_comes_before_the_nodes_are_chosen() -> None:
    history = lived(Megatron(), scenario(work()), node(1000.0, 1, repair=50.0))
    assert story(history)[-1] == (1310.0, T, 16, 160.0, "")
    late = lived(Megatron(), scenario(work()), node(1000.0, 1, repair=200.0))
    assert story(late)[3:] == [(1310.0, M, 16, 0.0, "ECC"), (1610.0, T, 16, 160.0, "")]


def test_a_returning_node_is_taken_if_that_pays_until_the_next_fault() -> None:
    history = lived(Megatron(), scenario(work()), node(1000.0, 1, repair=2000.0))
    # At 3,000 s: one fault in 3,000 s, and 160 FLOP/s in 2,700 of them are more than 120 in all.
    assert story(history)[3:] == [
        (1310.0, T, 12, 120.0, "ECC"),
        (3000.0, M, 16, 0.0, "ECC"),
        (3300.0, T, 16, 160.0, ""),
    ]
    assert len(history.repeats) == 1
    assert history.moves == 4
    # It has stored a checkpoint before that.
    hit = lived(RestartFast(), scenario(work()), node(1000.0, 1, repair=2000.0), process(3350.0))
    assert [r.flop for r in hit.repeats] == [100 * 160.0, 50 * 160.0]
    # At 1,010 s: 160 FLOP/s in 710 s are less than 120 in 1,010.
    early = lived(Megatron(), scenario(work()), node(700.0, 1, repair=200.0))
    assert story(early)[3:] == [(1010.0, T, 12, 120.0, "ECC")]
    taken = lived(Megatron(), scenario(work()), node(700.0, 1, repair=200.0), process(5000.0))
    assert story(taken)[-1] == (6300.0, T, 16, 160.0, "")


def test_a_returning_node_goes_to_the_task_hit_first() -> None:
    jobs = (work("a", size_max=8), work("b", size_max=8))
    history = lived(Megatron(), scenario(*jobs), node(1000.0, 3), node(1500.0, 1, repair=2500.0))
    assert story(history, "b")[-1] == (4300.0, T, 8, 80.0, "")
    assert story(history, "a")[-1] == (1810.0, T, 4, 40.0, "ECC")


def test_below_its_minimum_a_job_waits() -> None:
    history = lived(
        Megatron(), scenario(work(size_min=16)), node(1000.0, 1, repair=5000.0), node(4000.0, 2, repair=100.0)
    )
    assert story(history)[2:] == [
        (1010.0, M, 12, 0.0, "ECC"),
        (1110.0, W, 12, 0.0, "ECC"),
        (4000.0, W, 8, 0.0, "ECC"),
        (6000.0, M, 16, 0.0, "ECC"),
        (6200.0, T, 16, 160.0, ""),
    ]


def test_a_node_that_is_hit_again_while_it_is_down_is_back_after_the_later_repair() -> None:
    first, again = node(1000.0, 1, repair=500.0), node(1200.0, 1, repair=3000.0, cause="again")
    assert story(lived(Waits(), scenario(work()), first, again))[-2:] == [
        (4200.0, M, 16, 0.0, "ECC"),
        (4400.0, T, 16, 160.0, ""),
    ]
    sooner = node(1200.0, 1, repair=100.0)
    assert story(lived(Waits(), scenario(work()), first, sooner))[-1][0] == 1700.0
    thrice = (first, sooner, node(1250.0, 1, repair=100.0))
    assert story(lived(Waits(), scenario(work()), *thrice))[-1][0] == 1700.0
    forever = node(1200.0, 1)
    assert story(lived(Waits(), scenario(work()), first, forever))[-1] == (1110.0, W, 12, 0.0, "ECC")


def test_faults_of_idle_nodes_and_of_jobs_that_wait_cost_nothing() -> None:
    idle = lived(Megatron(), scenario(work(size_max=8)), node(1000.0, 3, repair=10.0), process(2000.0, 2))
    assert story(idle) == [(0.0, T, 8, 80.0, "")]
    assert idle.idle == [(0.0, 8), (1000.0, 4), (1010.0, 8)]
    assert not idle.costs()
    waiting = lived(Waits(), scenario(work()), node(1000.0, 1), process(3000.0, 2, Kind.HANG))
    assert story(waiting)[-1] == (1110.0, W, 12, 0.0, "ECC")


def test_free_nodes_are_taken_at_a_restart() -> None:
    history = lived(Waits(), scenario(work(size_max=12)), node(1000.0, 1))
    assert story(history)[-1] == (1310.0, T, 12, 120.0, "")
    assert history.moves == 4
    assert history.idle[-1][1] == 0


def test_a_burst_hits_all_at_once() -> None:
    jobs = (work("a", size_max=8), work("b", size_max=8))
    history = lived(RestartFast(), scenario(*jobs), node(1000.0, 1, 2, cause="switch"))
    for name in ("a", "b"):
        assert story(history, name)[-1] == (1310.0, T, 4, 40.0, "switch")
    assert [incident.costs.total for incident in history.incidents()] == [history.costs()["switch"].total]


def test_all_wait_for_a_slow_node_and_nobody_does_anything_about_it() -> None:
    history = lived(Megatron(), scenario(work()), slow(1000.0, 1, 2.0, 3000.0), slow(2000.0, 2, 4.0, 500.0))
    assert story(history) == [
        (0.0, T, 16, 160.0, ""),
        (1000.0, T, 16, 80.0, "throttled"),
        (2000.0, T, 16, 40.0, "throttled"),
        (2500.0, T, 16, 80.0, "throttled"),
        (4000.0, T, 16, 160.0, ""),
    ]
    lost = lived(Megatron(), scenario(work()), slow(1000.0, 1, 2.0), node(2000.0, 1))
    assert story(lost)[-1] == (2310.0, T, 12, 120.0, "ECC")
    back = lived(Megatron(), scenario(work()), slow(1000.0, 1, 2.0), node(2000.0, 1, repair=5.0))
    assert story(back)[-1] == (2310.0, T, 16, 160.0, "")


def test_the_order_in_which_faults_of_one_moment_are_given_changes_nothing() -> None:
    faults = (process(1000.0), node(1000.0, 3, repair=2000.0), slow(1000.0, 2, 2.0, 50.0), node(1000.0, 0, cause="zap"))
    told = [lived(Megatron(), scenario(work()), *some) for some in (faults, faults[::-1])]
    assert told[0].changes == told[1].changes
    assert told[0].costs() == told[1].costs()


# -- spares ---------------------------------------------------------------------------------


def test_a_standby_takes_the_place_and_the_open_step_is_lost() -> None:
    told = scenario(work(), nodes=5, spares=1)
    history = lived(Spares(), told, node(1000.0, 1))
    assert story(history) == [
        (0.0, T, 16, 160.0, ""),
        (1000.0, D, 12, 0.0, "ECC"),
        (1010.0, M, 16, 0.0, "ECC"),
        (1040.0, T, 16, 160.0, ""),
    ]
    assert [r.flop for r in history.repeats] == [pytest.approx(160_000 % 13_000)]
    assert history.idle == [(0.0, 4), (1010.0, 0)]


def test_without_a_spare_the_job_waits_for_a_repair_and_starts_in_new_pods() -> None:
    told = scenario(work(), nodes=5, spares=1)
    history = lived(Spares(), told, node(1000.0, 1, repair=5000.0), node(2000.0, 2, repair=7000.0))
    assert story(history)[-3:] == [
        (2010.0, W, 12, 0.0, "ECC"),
        (6000.0, M, 16, 0.0, "ECC"),
        (6190.0, T, 16, 160.0, ""),
    ]
    # The second node is a spare when it comes back.
    assert history.idle[-1] == (9000.0, 4)


def test_a_spare_may_be_lost_too() -> None:
    told = scenario(work(), nodes=5, spares=1)
    assert story(lived(Spares(), told, node(900.0, 4), node(1000.0, 1)))[-1][1] == W


def test_a_process_is_restarted_where_it_was() -> None:
    history = lived(Spares(), scenario(work()), process(1000.0))
    assert [(since, doing) for since, doing, *_ in story(history)] == [(0.0, T), (1000.0, D), (1020.0, M), (1050.0, T)]
    hang = lived(Spares(), scenario(work()), process(1000.0, kind=Kind.HANG))
    assert [since for since, *_ in story(hang)] == [0.0, 1000.0, 1600.0, 1630.0]


def test_a_slow_node_is_swapped_for_a_spare() -> None:
    told = scenario(work(), nodes=5, spares=1)
    history = lived(Spares(), told, slow(1000.0, 1, 2.0, 3000.0))
    assert story(history) == [
        (0.0, T, 16, 160.0, ""),
        (1000.0, T, 16, 80.0, "throttled"),
        (1020.0, M, 16, 0.0, "throttled"),
        (1050.0, T, 16, 160.0, ""),
    ]
    assert history.idle == [(0.0, 4), (1020.0, 0), (4000.0, 4)]
    unnoticed = lived(Spares(), told, slow(1000.0, 1, 1.05))
    assert len(story(unnoticed)) == 2
    without = lived(Spares(), scenario(work()), slow(1000.0, 1, 2.0, 3000.0))
    assert story(without)[1:] == [(1000.0, T, 16, 80.0, "throttled"), (4000.0, T, 16, 160.0, "")]


# -- elastic --------------------------------------------------------------------------------


def test_replicas_go_on_without_one_and_take_it_in_again() -> None:
    assert story(lived(Elastic(), scenario(work()), process(1000.0))) == [
        (0.0, T, 16, 160.0, ""),
        (1000.0, D, 16, 0.0, "OOM"),
        (1020.0, M, 16, 0.0, "OOM"),
        (1025.0, T, 16, 120.0, "OOM"),
        (1190.0, M, 16, 0.0, "OOM"),
        (1205.0, T, 16, 160.0, ""),
    ]


def test_elastic_replicas_lose_the_open_step() -> None:
    history = lived(Elastic(), scenario(work()), process(1000.0))
    assert [r.at for r in history.repeats] == [1000.0]
    assert history.repeats[0].flop == pytest.approx(160_000 % 13_000)


def test_a_replica_whose_node_is_lost_waits_for_it() -> None:
    assert story(lived(Elastic(), scenario(work()), node(1000.0, 1, repair=3000.0)))[3:] == [
        (1025.0, T, 12, 120.0, "ECC"),
        (4000.0, T, 16, 120.0, "ECC"),
        (4190.0, M, 16, 0.0, "ECC"),
        (4205.0, T, 16, 160.0, ""),
    ]
    spare = lived(Elastic(), scenario(work(size_max=12)), node(1000.0, 1))
    assert story(spare)[-1] == (1205.0, T, 12, 120.0, "")
    assert spare.moves == 4


def test_nobody_hears_anything_of_a_hang_and_a_broken_connection_breaks_no_replica() -> None:
    hang = lived(Elastic(), scenario(work()), process(1000.0, kind=Kind.HANG))
    assert story(hang)[1:4] == [
        (1000.0, D, 16, 0.0, "OOM"),
        (1060.0, M, 16, 0.0, "OOM"),
        (1085.0, T, 16, 120.0, "OOM"),
    ]
    link = lived(Elastic(), scenario(work()), process(1000.0, kind=Kind.LINK))
    assert story(link)[-1] == (1025.0, T, 16, 160.0, "")
    assert len(link.repeats) == 1


def test_a_second_replica_that_is_hit_in_detection_is_known_of_before_they_go_on() -> None:
    history = lived(Elastic(), scenario(work()), process(1000.0), process(1015.0, 1, cause="second"))
    assert story(history)[1:4] == [
        (1000.0, D, 16, 0.0, "OOM"),
        (1035.0, M, 16, 0.0, "OOM"),
        (1040.0, T, 16, 80.0, "OOM"),
    ]
    stalled = lived(Elastic(), scenario(work()), process(1000.0), process(1022.0, 1, cause="second"))
    assert story(stalled)[2:6] == [
        (1020.0, M, 16, 0.0, "OOM"),
        (1022.0, D, 16, 0.0, "second"),
        (1042.0, M, 16, 0.0, "second"),
        (1047.0, T, 16, 80.0, "OOM"),
    ]
    assert len(stalled.repeats) == 1


def test_a_replica_that_is_hit_while_it_is_mended_is_mended_anew_and_nobody_notices() -> None:
    history = lived(Elastic(), scenario(work()), process(1000.0), process(1100.0))
    assert [since for since, *_ in story(history)] == [0.0, 1000.0, 1020.0, 1025.0, 1290.0, 1305.0]


def test_with_all_replicas_lost_it_begins_at_the_checkpoint() -> None:
    history = lived(Elastic(), scenario(work(size_max=4)), process(1000.0))
    assert story(history)[-3:] == [(1025.0, W, 4, 0.0, "OOM"), (1200.0, M, 4, 0.0, "OOM"), (1215.0, T, 4, 40.0, "")]
    # What was done since 900 s, the open step in it.
    assert sum(r.flop for r in history.repeats) == pytest.approx(100 * 40.0)


def test_below_its_minimum_an_elastic_job_waits_with_its_state() -> None:
    history = lived(Elastic(), scenario(work(size_min=12)), node(1000.0, 1, 2, repair=2000.0))
    assert story(history)[3:] == [
        (1025.0, W, 8, 0.0, "ECC"),
        (3000.0, W, 16, 0.0, "ECC"),
        (3190.0, M, 16, 0.0, "ECC"),
        (3205.0, T, 16, 160.0, ""),
    ]


def test_a_slow_node_slows_an_elastic_job_unless_its_replica_is_broken() -> None:
    history = lived(Elastic(), scenario(work()), slow(500.0, 1, 2.0), process(1000.0, 1))
    assert [(since, flops) for since, _, _, flops, _ in story(history)] == [
        (0.0, 160.0),
        (500.0, 80.0),
        (1000.0, 0.0),
        (1020.0, 0.0),
        (1025.0, 120.0),
        (1190.0, 0.0),
        (1205.0, 80.0),
    ]


@pytest.mark.parametrize(("policy", "efficiency"), [(Bamboo(), 1 / 4.6), (Oobleck(), 1 / 3.7), (Varuna(), 1.2 / 4.8)])
def test_published_efficiency_counts_from_the_beginning(policy: Policy, efficiency: float) -> None:
    history = lived(policy, scenario(work()))
    assert history.waf == pytest.approx(160.0 * efficiency)
    assert history.goodput == pytest.approx(1.0)


# -- bounds ---------------------------------------------------------------------------------


def test_nothing_breaks() -> None:
    history = NoFault().live(scenario(work()), (node(1000.0, 1),), COSTS, 0)
    assert story(history) == [(0.0, T, 16, 160.0, "")]


def test_the_clairvoyant_loses_slots_alone_and_moves_them_to_where_they_are_worth_most() -> None:
    jobs = (work("a", size_max=8, weight=1.0), work("b", size_max=8, weight=2.0))
    again = (node(1200.0, 2, repair=1000.0, cause="again"), node(1300.0, 2, repair=100.0))
    faults = (node(1000.0, 2, repair=500.0), *again, process(3000.0))
    history = Clairvoyant().live(scenario(*jobs), faults, COSTS, 0)
    assert_conserved(history)
    assert story(history, "a") == [(0.0, T, 8, 80.0, ""), (1000.0, T, 4, 40.0, "ECC"), (2200.0, T, 8, 80.0, "")]
    assert story(history, "b") == [(0.0, T, 8, 80.0, "")]


def test_minima_are_kept_unless_nothing_binds() -> None:
    jobs = (work("a", size_min=8, size_max=8, weight=0.1), work("b"))
    faults = (node(1000.0, 2),)
    kept = Clairvoyant().live(scenario(*jobs), faults, COSTS, 0)
    assert story(kept, "a") == [(0.0, T, 8, 80.0, "")]
    assert story(kept, "b") == [(0.0, T, 8, 80.0, ""), (1000.0, T, 4, 40.0, "ECC")]
    unbound = ClairvoyantUnbound().live(scenario(*jobs), faults, COSTS, 0)
    assert story(unbound, "a") == [(0.0, W, 0, 0.0, "")]
    assert story(unbound, "b") == [(0.0, T, 16, 160.0, ""), (1000.0, T, 12, 120.0, "ECC")]


# -- rules ----------------------------------------------------------------------------------


def test_rules_heal_as_we_do_and_lose_the_hit_replica_s_part_alone() -> None:
    history = lived(Equal(), scenario(work()), process(1000.0))
    # Start 5 s, state 40 bytes over four slots at 2 bytes a second.
    assert story(history) == [
        (0.0, T, 16, 160.0, ""),
        (1000.0, D, 16, 0.0, "OOM"),
        (1001.0, M, 16, 0.0, "OOM"),
        (1003.0, T, 16, 120.0, "OOM"),
        (1010.0, M, 16, 0.0, "OOM"),
        (1012.0, T, 16, 160.0, ""),
    ]
    assert history.repeats[0].flop == pytest.approx(160_000 % 13_000 / 4)
    link = lived(Equal(), scenario(work()), process(1000.0, kind=Kind.LINK))
    assert story(link)[1:] == [(1000.0, D, 16, 0.0, "OOM"), (1001.0, M, 16, 0.0, "OOM"), (1003.0, T, 16, 160.0, "")]
    assert not link.repeats
    hang = lived(Equal(), scenario(work()), process(1000.0, kind=Kind.HANG))
    assert [since for since, *_ in story(hang)][:4] == [0.0, 1000.0, 1007.0, 1009.0]


def test_the_later_of_two_detections_ends_them() -> None:
    history = lived(Equal(), scenario(work()), process(1000.0, kind=Kind.HANG), process(1003.0, 1))
    assert story(history)[1:3] == [(1000.0, D, 16, 0.0, "OOM"), (1007.0, M, 16, 0.0, "OOM")]


def test_who_has_too_much_gives_its_broken_replica_first_and_goes_on() -> None:
    jobs = (work("a", size_min=8, size_max=8), work("b", size_max=8))
    history = lived(Equal(), scenario(*jobs), process(1000.0, 2), node(1003.5, 0))
    assert story(history, "b")[1:] == [
        (1000.0, D, 8, 0.0, "OOM"),
        (1001.0, M, 8, 0.0, "OOM"),
        (1003.0, T, 8, 40.0, "OOM"),
        (1006.0, T, 4, 40.0, "ECC"),
    ]


def test_a_rule_is_applied_again_when_a_node_is_lost_and_when_it_is_back() -> None:
    jobs = (work("a", size_min=8, size_max=8), work("b", size_max=8))
    history = lived(Equal(), scenario(*jobs), node(1000.0, 0, repair=1000.0))
    assert story(history, "a") == [
        (0.0, T, 8, 80.0, ""),
        (1000.0, D, 4, 0.0, "ECC"),
        (1002.5, M, 8, 0.0, "ECC"),
        (1004.5, W, 8, 0.0, "ECC"),
        (1022.5, M, 8, 0.0, "ECC"),
        (1024.5, T, 8, 80.0, ""),
    ]
    assert story(history, "b") == [
        (0.0, T, 8, 80.0, ""),
        (1002.5, M, 4, 0.0, "ECC"),
        (1004.5, T, 4, 40.0, "ECC"),
        (2000.0, T, 8, 40.0, "ECC"),
        (2020.0, M, 8, 0.0, "ECC"),
        (2022.0, T, 8, 80.0, ""),
    ]
    assert history.moves == 8


def test_rules_share_by_what_they_are_named_after() -> None:
    jobs = (work("a", weight=3.0), work("b", weight=1.0))
    for policy, slots in ((Equal(), (8, 8)), (ByWeight(), (12, 4)), (BySize(), (8, 8))):
        assert lived(policy, scenario(*jobs)).allocation_over_time() == [(0.0, slots)]
