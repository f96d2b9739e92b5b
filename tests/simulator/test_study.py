"""What is made of histories: figures that can be worked out by hand, pairs by seed, spreads, swings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulator.toy import COSTS, FULL, FULL_WAF, HOUR, SITUATION, TOY, Stops, toy_faults, undisturbed

from unicorn_mgr.simulator.history import Costs, Doing, History
from unicorn_mgr.simulator.sensitivity import BURST, SITUATIONS, in_bursts, repaired, sensitivity, spread_evenly, varied
from unicorn_mgr.simulator.study import (
    CLAIRVOYANT,
    FIRST_ALLOCATION,
    Compared,
    Spread,
    compare,
    percentile,
    reduced,
)

GPU_HOURS = 4 * 2 * 8 * 10


def stopped(policy: str = "one", seed: int = 1) -> History:
    """The big job is down from 2 h to 3 h, unnoticed for the first quarter, and does half an hour twice."""
    lived = undisturbed(policy, seed, toy_faults(seed))
    lived.becomes(2.0 * HOUR, "big", Doing.DETECTION, 4, 0.0, "ECC")
    lived.becomes(2.25 * HOUR, "big", Doing.TRANSITION, 4, 0.0, "ECC")
    lived.becomes(3.0 * HOUR, "big", Doing.TRAINING, 4, FULL["big"])
    lived.repeat(3.0 * HOUR, "big", FULL["big"] * HOUR / 2, "ECC")
    return lived


# -- one history ----------------------------------------------------------------------------


def test_figures_of_a_history_are_those_of_the_hand() -> None:
    lived = stopped()
    lived.moves = 3
    lived.idle = [(0.0, 0), (5.0 * HOUR, 4)]
    found = reduced(lived)
    assert found.waf == pytest.approx(FULL_WAF - 2 * 4e15 * 0.15)
    assert found.full_waf == pytest.approx(FULL_WAF)
    assert found.goodput == pytest.approx(0.88)
    assert found.ettr == pytest.approx((0.85 + 1.0) / 2)
    assert (found.faults, found.moves) == (4, 3)
    assert found.idle_slots == pytest.approx(2.0)
    assert found.ettr_worst_hour == pytest.approx(0.5)


# -- over seeds -----------------------------------------------------------------------------


def test_a_spread_is_of_its_values() -> None:
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (spread.mean, spread.p5, spread.p95) == pytest.approx((3.0, 1.2, 4.8))
    assert spread.std == pytest.approx(2.5**0.5)
    assert Spread.of([7.0]) == Spread(7.0, 0.0, 7.0, 7.0)


def test_a_percentile_of_one_value_is_that_one() -> None:
    assert percentile([4.0], 0.95) == 4.0
    assert percentile([1.0, 3.0], 0.5) == 2.0


def test_costs_are_gpu_hours_by_cause_the_mean_over_seeds() -> None:
    compared = Compared(SITUATION)
    compared.add(stopped())
    other = undisturbed("one", 2)
    other.becomes(9.0 * HOUR, "small", Doing.WAITING, 0, 0.0, "switch")
    compared.add(other)
    (outcome,) = compared.study().outcomes
    assert outcome.lost == {
        "ECC": Costs(0.25 * 32 / 2, 0.75 * 32 / 2, 0.0, 0.5 * 32 / 2),
        "switch": Costs(0.0, 0.0, 1.0 * 32 / 2, 0.0),
    }
    assert list(outcome.lost) == ["ECC", "switch"]


def test_what_a_smaller_first_allocation_costs_is_told_apart() -> None:
    spares = History("spares", TOY, 1, {"big": 2e15, "small": 2e15})
    spares.becomes(0.0, "big", Doing.TRAINING, 2, 2e15)
    spares.becomes(0.0, "small", Doing.TRAINING, 4, 2e15)
    compared = Compared(SITUATION)
    compared.add(spares)
    compared.add(undisturbed("all"))
    found = {outcome.policy: outcome for outcome in compared.study().outcomes}
    assert found["spares"].goodput.mean == 1.0
    assert found["spares"].lost[FIRST_ALLOCATION].total == pytest.approx(0.4 * GPU_HOURS)
    assert found["all"].lost == {}


def test_policies_are_compared_seed_by_seed() -> None:
    """The ratio of means would be another."""
    compared = Compared(SITUATION, baseline="base")
    for seed, share in ((1, 1.0), (2, 0.25)):
        base = undisturbed("base", seed)
        base.becomes(0.0, "big", Doing.TRAINING, 4, 4e15 * share)
        base.becomes(0.0, "small", Doing.WAITING, 0, 0.0)
        compared.add(base)
        double = undisturbed("double", seed)
        double.becomes(0.0, "big", Doing.TRAINING, 4, 4e15 * (1.5 if seed == 1 else 0.75))
        double.becomes(0.0, "small", Doing.WAITING, 0, 0.0)
        compared.add(double)
    base_, double_ = compared.study().outcomes
    assert base_.ratio == Spread(1.0, 0.0, 1.0, 1.0)
    assert double_.ratio is not None
    assert double_.ratio.mean == pytest.approx((1.5 + 3.0) / 2)
    assert double_.gap is None


def test_the_gap_to_who_knows_the_future() -> None:
    compared = Compared(SITUATION)
    compared.add(stopped("ours"))
    compared.add(undisturbed(CLAIRVOYANT))
    ours, best = compared.study().outcomes
    assert ours.gap is not None
    assert best.gap is not None
    assert ours.gap.mean == pytest.approx(0.12)
    assert best.gap.mean == 0.0
    assert ours.ratio is None


def test_every_policy_lives_through_the_same_faults_of_every_seed() -> None:
    slow, fast = Stops("slow"), Stops("fast", share=0.5)
    lived: list[History] = []
    found = compare(SITUATION, [slow, fast], range(3), baseline="slow", lived=lived.append)
    assert slow.lived == fast.lived == ["0 toy", "1 toy", "2 toy"]
    assert [(history.policy, history.seed) for history in lived[:3]] == [("slow", 0), ("fast", 0), ("slow", 1)]
    assert len(lived) == 6
    assert found.seeds == (0, 1, 2)
    assert found.faults == 4.0
    ratio = found.outcomes[1].ratio
    assert ratio is not None
    assert ratio.mean > 1.0
    assert found.plotted == ()
    assert found == compare(SITUATION, [Stops("slow"), Stops("fast", share=0.5)], range(3), baseline="slow")


def test_only_histories_of_the_first_seed_are_kept_and_only_if_wanted() -> None:
    found = compare(SITUATION, [Stops("slow"), Stops("fast")], range(5, 8), keeps_first=True)
    assert [(history.policy, history.seed) for history in found.plotted] == [("slow", 5), ("fast", 5)]


# -- what moves it most ---------------------------------------------------------------------


def test_each_assumption_is_moved_alone() -> None:
    low, high = replace(COSTS), replace(COSTS)
    for name in COSTS.__dataclass_fields__:
        low, high = replace(low, **{name: 50.0}), replace(high, **{name: 200.0})
    ends = {each.name: each for each in varied(SITUATION, low, high)}
    assert len(ends) * 2 + 1 == SITUATIONS
    slow = ends["detection time"].high
    assert (slow.prices.timeout_seconds, slow.prices.queue_seconds) == (200.0, 100.0)
    assert slow.scenario == TOY
    slow = ends["transition time"].low
    assert (slow.prices.timeout_seconds, slow.prices.queue_seconds) == (100.0, 50.0)
    rare = ends["checkpoint interval"].high
    assert [work.checkpoint_seconds for work in rare.scenario.jobs] == [3_600.0, 3_600.0]
    assert rare.prices == COSTS
    assert ends["repair time"].low.draw(1)[0].repair_seconds == HOUR / 4
    assert ends["repair time"].high.draw(1)[0].repair_seconds == HOUR


def test_faults_come_evenly_or_in_bursts_and_remain_what_they_are() -> None:
    faults = toy_faults(1) + tuple(replace(f, at=f.at + 9 * HOUR) for f in toy_faults(2))
    even = spread_evenly(faults, TOY)
    assert [fault.at for fault in even] == pytest.approx([(i + 0.5) * TOY.seconds / 8 for i in range(8)])
    burst = in_bursts(faults)
    assert [fault.at for fault in burst] == [faults[0].at] * BURST + [faults[BURST].at] * (8 - BURST)
    assert [f.cause for f in even] == [f.cause for f in burst] == [f.cause for f in faults]
    assert repaired(faults, 2.0)[0].repair_seconds == HOUR


def test_what_moves_the_result_most_comes_first() -> None:
    low, high = replace(COSTS, timeout_seconds=0.0), replace(COSTS, timeout_seconds=HOUR)
    swings = sensitivity(SITUATION, low, high, [Stops()], range(3))
    assert swings[0].name == "detection time"
    worst, as_it_is, best = reversed(swings[0].goodput["stops"])
    assert worst < as_it_is < best
    found = {swing.name: swing for swing in swings}
    assert found["transition time"].largest == 0.0
    assert found["checkpoint interval"].largest > 0.0
    assert [swing.largest for swing in swings] == sorted((swing.largest for swing in swings), reverse=True)
