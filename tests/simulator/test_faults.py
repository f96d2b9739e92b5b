"""Faults are drawn as their models say: how often, what, whom, and always the same from the same seed."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicorn_mgr.simulator.faults import Cause, Drawn, Model, Moment, Recorded, Repairs, draw
from unicorn_mgr.simulator.scenario import DAY, Fault, Kind, Scenario

HOUR = 3_600.0
SOON = Repairs("fixed", 0.5 * HOUR)
PROCESS = Cause("bug", Kind.PROCESS)
NODE = Cause("ECC", Kind.NODE, repairs=SOON)


def cluster(nodes: int = 100, days: float = 10, domain_nodes: int = 0, slots: int = 8) -> Scenario:
    return Scenario("test", "", nodes, slots, 1, days * DAY, (), domain_nodes)


def drawn(model: Model, seed: int = 1, scenario: Scenario | None = None) -> tuple[Fault, ...]:
    return draw(scenario or cluster(), [model], seed)


# -- how often ---------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), times=st.integers(0, 60))
def test_as_many_as_said_in_order_and_within_the_scenario(seed: int, times: int) -> None:
    scenario = cluster()
    found = draw(scenario, [Drawn((PROCESS,), times=times), Drawn((NODE,), times=times)], seed)
    assert Counter(f.cause for f in found) == Counter(dict.fromkeys(["bug", "ECC"], times) if times else {})
    assert [f.at for f in found] == sorted(f.at for f in found)
    assert all(0 <= f.at < scenario.seconds and 0 <= f.slot < scenario.slots for f in found)


def test_a_rate_is_poissons() -> None:
    counts = [len(drawn(Drawn((PROCESS,), per_day=4.0), seed)) for seed in range(300)]
    mean = sum(counts) / len(counts)
    variance = sum((c - mean) ** 2 for c in counts) / len(counts)
    assert mean == pytest.approx(40, abs=4 * math.sqrt(40 / 300))
    assert variance == pytest.approx(40, rel=0.4)


def test_times_are_anywhere() -> None:
    days = [f.at / DAY for seed in range(100) for f in drawn(Drawn((PROCESS,), times=10), seed)]
    assert sum(days) / len(days) == pytest.approx(5, abs=0.4)
    assert min(days) < 0.1
    assert max(days) > 9.9


# -- what --------------------------------------------------------------------------------


def test_causes_have_their_shares() -> None:
    mix = (Cause("common", Kind.HANG, share=3.0), Cause("rare", Kind.LINK, share=1.0))
    found = Counter(f.cause for f in drawn(Drawn(mix, times=4_000)))
    assert found["common"] == pytest.approx(3_000, abs=4 * math.sqrt(4_000 * 0.75 * 0.25))
    assert {f.kind for f in drawn(Drawn(mix, times=50))} == {Kind.HANG, Kind.LINK}


def test_only_what_is_lost_or_slow_is_repaired() -> None:
    mix = tuple(Cause(str(kind), kind, repairs=SOON, slowness=2.0) for kind in Kind)
    for fault in drawn(Drawn(mix, times=200)):
        assert fault.repair_seconds == (0.5 * HOUR if fault.kind in {Kind.NODE, Kind.SLOW} else 0.0)
        assert fault.slowness == (2.0 if fault.kind is Kind.SLOW else 1.0)


@pytest.mark.parametrize(
    ("repairs", "mean", "deviation"),
    [
        (Repairs("fixed", 7.0), 7.0, 0.0),
        (Repairs("exponential", 7.0), 7.0, 7.0),
        (Repairs("lognormal", 7.0, sigma=0.5), 7.0, 7.0 * math.sqrt(math.exp(0.25) - 1)),
    ],
    ids=["fixed", "exponential", "lognormal"],
)
def test_repairs_have_their_mean_and_spread(repairs: Repairs, mean: float, deviation: float) -> None:
    chance = Random(1)
    found = [repairs.draw(chance) for _ in range(20_000)]
    assert sum(found) / len(found) == pytest.approx(mean, rel=0.03)
    assert math.sqrt(sum((x - mean) ** 2 for x in found) / len(found)) == pytest.approx(deviation, rel=0.05)


def test_never_is_never() -> None:
    assert Repairs("never").draw(Random(1)) == math.inf


# -- whom --------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_what_is_away_is_not_hit_until_it_is_back(seed: int) -> None:
    busy = Drawn((Cause("ECC", Kind.NODE, repairs=Repairs("exponential", DAY)),), per_day=20)
    away: dict[int, float] = {}
    for fault in draw(cluster(nodes=12), [busy, Drawn((PROCESS,), per_day=20)], seed):
        assert all(away.get(node, 0.0) <= fault.at for node in fault.nodes)
        if fault.kind is Kind.NODE:
            away.update(dict.fromkeys(fault.nodes, fault.at + fault.repair_seconds))


def test_nobody_is_hit_once_nobody_is_left() -> None:
    found = drawn(Drawn((Cause("ECC", Kind.NODE),), times=50), scenario=cluster(nodes=5))
    assert sorted(node for f in found for node in f.nodes) == [0, 1, 2, 3, 4]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), burst=st.integers(2, 8))
def test_a_burst_hits_so_many_of_one_domain(seed: int, burst: int) -> None:
    scenario = cluster(domain_nodes=8)
    for fault in draw(scenario, [Drawn((PROCESS,), times=30, burst=burst)], seed):
        domains = {node // 8 for node in fault.nodes}
        last = domains == {12}  # 100 nodes: four of them
        assert len(set(fault.nodes)) == (min(burst, 4) if last else burst)
        assert len(domains) == 1
        assert list(fault.nodes) == sorted(fault.nodes)


def test_a_burst_of_the_cluster_goes_beyond_domains() -> None:
    found = drawn(Drawn((PROCESS,), times=30, burst=8, burst_within="cluster"), scenario=cluster(domain_nodes=8))
    assert all(len(set(f.nodes)) == 8 for f in found)
    assert any(len({node // 8 for node in f.nodes}) > 1 for f in found)


def test_without_offenders_all_are_hit_alike() -> None:
    hits = Counter(f.nodes[0] for f in drawn(Drawn((PROCESS,), times=10_000)))
    assert len(hits) == 100
    assert max(hits.values()) < 100 + 5 * math.sqrt(100)


def test_offenders_take_their_share() -> None:
    hits = Counter(f.nodes[0] for f in drawn(Drawn((PROCESS,), times=4_000, offenders=0.05, offences=0.6)))
    worst = sum(number for _, number in hits.most_common(5))
    assert worst == pytest.approx(2_400, abs=4 * math.sqrt(4_000 * 0.6 * 0.4))


def test_recorded_faults_come_when_and_where_they_were() -> None:
    moments = (Moment(10.0, PROCESS, nodes=(7,), slot=3), Moment(20.0, NODE, (1, 2), repair_seconds=60.0))
    first, second = drawn(Recorded(moments))
    assert (first.at, first.nodes, first.slot) == (10.0, (7,), 3)
    assert (second.at, second.nodes, second.repair_seconds) == (20.0, (1, 2), 60.0)


def test_recorded_faults_are_spread_and_those_after_the_end_left_out() -> None:
    moments = tuple(Moment(day * DAY, PROCESS) for day in range(20))
    found = drawn(Recorded(moments, spread_seconds=DAY))
    assert [int(f.at // DAY) for f in found] == list(range(10))
    assert len({f.at % DAY for f in found}) == 10


# -- always the same ---------------------------------------------------------------------

MODELS: tuple[Model, ...] = (
    Drawn((NODE, Cause("flap", Kind.LINK)), per_day=5, offenders=0.1, offences=0.5),
    Drawn((PROCESS,), times=20, burst=3, burst_within="cluster"),
)


def test_another_seed_is_another_history() -> None:
    assert draw(cluster(), MODELS, 1) == draw(cluster(), MODELS, 1)
    assert draw(cluster(), MODELS, 1) != draw(cluster(), MODELS, 2)
    assert draw(replace(cluster(), name="other"), MODELS, 1) != draw(cluster(), MODELS, 1)


def test_a_model_that_is_added_leaves_moments_and_causes_of_others_as_they_are() -> None:
    alone = [(f.at, f.cause) for f in draw(cluster(), MODELS[:1], 1)]
    assert [(f.at, f.cause) for f in draw(cluster(), MODELS, 1) if f.cause != "bug"] == alone


SAME = """
from unicorn_mgr.simulator import scenario_file
for name in scenario_file.names():
    print(name, scenario_file.load(name).faults(7))
"""


def test_hash_seeds_change_nothing() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", SAME],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "2")
    }
    assert len(said) == 1
    assert b"Kind.NODE" in said.pop()
