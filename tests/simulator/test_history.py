"""Figures of a history, against sums done by hand."""

from __future__ import annotations

from random import Random

import pytest

from unicorn_mgr.simulator.history import Costs, Doing, History
from unicorn_mgr.simulator.scenario import Fault, Kind, Scenario, Work


def work(name: str, weight: float = 1.0) -> Work:
    return Work(name, ((4, 40.0), (8, 80.0)), size_min=4, size_max=8, weight=weight)


def scenario(seconds: float, *jobs: Work, gpus_per_slot: int = 1) -> Scenario:
    return Scenario("small", "", nodes=4, slots=4, gpus_per_slot=gpus_per_slot, seconds=seconds, jobs=jobs)


FAULTS = (
    Fault(100.0, "ECC", Kind.NODE, (1,), repair_seconds=400.0),
    Fault(200.0, "OOM", Kind.PROCESS, (2,)),
)


@pytest.fixture
def lived() -> History:
    """Job a trains 100 s at full speed, is found out in 20 s, restarts in 30, trains at half, then whole again."""
    history = History("megatron", scenario(1000.0, work("a"), work("b", 2.0)), 0, {"a": 80.0, "b": 40.0}, FAULTS)
    history.becomes(0.0, "a", Doing.TRAINING, 8, 80.0)
    history.becomes(0.0, "b", Doing.TRAINING, 4, 40.0)
    history.becomes(100.0, "a", Doing.DETECTION, 4, 0.0, "ECC", 0)
    history.repeat(100.0, "a", 4_000.0, "ECC", 0)
    history.becomes(120.0, "a", Doing.TRANSITION, 4, 0.0, "ECC", 0)
    history.becomes(150.0, "a", Doing.TRAINING, 4, 40.0, "ECC", 0)
    history.becomes(200.0, "b", Doing.DETECTION, 4, 0.0, "OOM", 1)
    history.becomes(210.0, "b", Doing.TRAINING, 4, 40.0)
    history.becomes(500.0, "a", Doing.TRAINING, 8, 80.0)
    return history


def test_flop_waf_and_goodput(lived: History) -> None:
    a = 100 * 80 + 350 * 40 + 500 * 80 - 4_000
    b = 990 * 40
    assert lived.flop("a") == a
    assert lived.flop("b") == b
    assert lived.waf == pytest.approx((a + 2 * b) / 1000)
    assert lived.goodput == pytest.approx((a + 2 * b) / (80 * 1000 + 2 * 40 * 1000))


def test_costs_are_told_by_cause_and_by_fault(lived: History) -> None:
    ecc = Costs(detection=20 * 80, transition=30 * 80, sub_healthy=350 * 40, repeated=4_000)
    oom = Costs(detection=10 * 40 * 2)
    assert lived.costs() == {"ECC": ecc, "OOM": oom}
    assert [incident.costs for incident in lived.incidents()] == [ecc, oom]
    assert [incident.fault for incident in lived.incidents()] == list(FAULTS)


def test_lost_gpu_hours_count_gpus_of_the_first_allocation() -> None:
    history = History("p", scenario(7200.0, work("a"), gpus_per_slot=8), 0, {"a": 80.0})
    history.becomes(0.0, "a", Doing.TRAINING, 8, 80.0)
    history.becomes(3600.0, "a", Doing.TRAINING, 4, 40.0, "ECC")
    # 64 GPUs for an hour at half of their speed.
    lost = history.lost_gpu_hours()
    assert list(lost) == ["ECC"]
    assert lost["ECC"].sub_healthy == lost["ECC"].total == pytest.approx(32.0)


def test_work_done_twice_is_unproductive_while_it_is_done_again_at_the_speed_of_then(lived: History) -> None:
    # 4,000 FLOP at 40 FLOP/s: until 250.
    assert lived.ettr(["a"]) == pytest.approx((100 + 850 - 100) / 1000)
    assert lived.ettr() == pytest.approx((0.85 + 0.99) / 2)


def test_work_lost_for_good_is_subtracted() -> None:
    history = History("p", scenario(1000.0, work("a")), 0, {"a": 80.0})
    history.becomes(0.0, "a", Doing.TRAINING, 8, 80.0)
    history.repeat(500.0, "a", 8_000.0, "ECC")
    history.becomes(500.0, "a", Doing.WAITING, 0, 0.0, "ECC")
    assert history.ettr() == pytest.approx(0.4)


def test_work_may_be_lost_while_the_job_goes_on() -> None:
    history = History("p", scenario(1000.0, work("a")), 0, {"a": 80.0})
    history.becomes(0.0, "a", Doing.TRAINING, 8, 80.0)
    history.repeat(500.0, "a", 8_000.0, "ECC")
    assert history.ettr() == pytest.approx(0.9)
    # The worst window of 100 s is the one in which all of it is done again.
    assert history.ettr_worst(100.0) == 0.0
    assert history.ettr_worst(200.0) == pytest.approx(0.5)


def test_ettr_over_time_is_exact_where_its_slope_changes(lived: History) -> None:
    grown = dict(lived.ettr_over_time(jobs=["a"]))
    assert grown[100.0] == 1.0
    assert grown[250.0] == pytest.approx(0.4)
    assert grown[1000.0] == pytest.approx(lived.ettr(["a"]))
    window = dict(lived.ettr_over_time(200.0, jobs=["a"]))
    assert window[200.0] == pytest.approx(0.5)
    assert window[250.0] == pytest.approx(0.25)
    assert window[450.0] == pytest.approx(1.0)
    assert lived.ettr_worst(200.0, jobs=["a"]) == pytest.approx(0.25)
    assert lived.ettr_worst(5000.0) == pytest.approx(lived.ettr())


def test_the_worst_window_is_no_better_than_any_that_is_tried() -> None:
    draw = Random("windows")
    history = History("p", scenario(1000.0, work("a"), work("b")), 0, {"a": 80.0, "b": 80.0})
    for job in ("a", "b"):
        history.becomes(0.0, job, Doing.TRAINING, 8, 80.0)
    for at in sorted(draw.uniform(0, 1000) for _ in range(60)):
        job, doing = draw.choice("ab"), draw.choice([Doing.TRAINING, Doing.TRANSITION])
        history.becomes(at, job, doing, 8, 80.0)
        history.repeat(at, job, draw.uniform(0, 500), "ECC")

    def productive(job: str, since: float, until: float) -> float:
        return sum(max(0.0, min(b, until) - max(a, since)) for a, b in history._productive(job)[0])

    tried = [
        (productive("a", at, at + 90) + productive("b", at, at + 90)) / 180
        for at in (draw.uniform(0, 910) for _ in range(3000))
    ]
    worst = history.ettr_worst(90.0)
    assert worst <= min(tried) + 1e-9
    assert worst >= min(tried) - 0.02


def test_series_for_plots(lived: History) -> None:
    waf = lived.waf_over_time()
    assert waf == [
        (0.0, 160.0),
        (100.0, 80.0),
        (120.0, 80.0),
        (150.0, 120.0),
        (200.0, 40.0),
        (210.0, 120.0),
        (500.0, 160.0),
    ]
    assert lived.allocation_over_time() == [(0.0, (8, 4)), (100.0, (4, 4)), (500.0, (8, 4))]


def test_the_same_again_says_nothing(lived: History) -> None:
    before = len(lived.changes)
    lived.becomes(600.0, "a", Doing.TRAINING, 8, 80.0)
    assert len(lived.changes) == before
    lived.leaves_idle(0.0, 4)
    lived.leaves_idle(10.0, 4)
    lived.leaves_idle(500.0, 8)
    assert lived.idle == [(0.0, 4), (500.0, 8)]
    assert lived.idle_slots == pytest.approx(6.0)


def test_nothing_counts_after_the_end(lived: History) -> None:
    figures = (lived.waf, lived.ettr(), lived.costs(), lived.ettr_worst())
    lived.becomes(1500.0, "a", Doing.DETECTION, 8, 0.0, "late")
    lived.repeat(1500.0, "a", 1e6, "late")
    assert (lived.waf, lived.ettr(), lived.costs(), lived.ettr_worst()) == figures
    assert lived.waf_over_time()[-1][0] == 500.0


def test_a_job_that_never_fits_has_no_ettr() -> None:
    history = History("p", scenario(1000.0, work("a"), work("b")), 0, {"a": 80.0, "b": 0.0})
    history.becomes(0.0, "a", Doing.TRAINING, 8, 80.0)
    history.becomes(0.0, "b", Doing.WAITING, 0, 0.0)
    assert history.ettr() == 1.0
    assert history.ettr(["b"]) == 0.0
    assert not history.costs()


def test_which_fault_it_is_may_be_left_open() -> None:
    faults = (FAULTS[0], Fault(300.0, "OOM", Kind.PROCESS, (0,)), Fault(600.0, "ECC", Kind.NODE, (3,)))
    history = History("p", scenario(1000.0, work("a")), 0, {"a": 80.0}, faults)
    history.becomes(0.0, "a", Doing.TRAINING, 8, 80.0)
    history.becomes(100.0, "a", Doing.DETECTION, 4, 0.0, "ECC")
    history.repeat(100.0, "a", 10.0, "ECC")
    history.becomes(110.0, "a", Doing.TRAINING, 4, 40.0, "ECC")
    history.becomes(300.0, "a", Doing.DETECTION, 4, 0.0, "OOM")
    history.becomes(310.0, "a", Doing.TRAINING, 4, 40.0, "ECC")
    history.becomes(600.0, "a", Doing.DETECTION, 0, 0.0, "ECC")
    history.becomes(700.0, "a", Doing.WAITING, 0, 0.0, "ECC")
    assert [change.fault for change in history.changes] == [-1, 0, 0, 1, 0, 2, 2]
    assert history.repeats[0].fault == 0
    history.becomes(800.0, "a", Doing.WAITING, 0, 0.0, "nobody's")
    assert history.changes[-1].fault == -1
