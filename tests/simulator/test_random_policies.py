"""What is true of every policy, whatever breaks at whatever moment."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from random import Random

import pytest
from simulator.comparisons import COSTS, assert_conserved

from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.policies.bounds import Clairvoyant, ClairvoyantUnbound
from unicorn_mgr.simulator.policies.fluid import Fluid, Life
from unicorn_mgr.simulator.policies.registry import POLICIES
from unicorn_mgr.simulator.scenario import Fault, Kind, Scenario, Work

FLUID = [name for name in sorted(POLICIES) if isinstance(POLICIES[name](), Fluid)]


def seeds(name: str, most: int) -> range:
    """Fewer where the real core runs: it takes some hundred times longer."""
    return range(most // 8 if name.startswith("ours") else most)


def drawn(seed: int) -> tuple[Scenario, tuple[Fault, ...]]:
    """A small cluster in which far too much breaks, often at the same moment."""
    draw = Random(f"policies {seed}")
    nodes, slots = draw.randint(2, 6), draw.randint(1, 4)
    jobs = tuple(_job(draw, f"job-{i}", nodes * slots) for i in range(draw.randint(1, 4)))
    scenario = Scenario("drawn", "", nodes, slots, 1, 20_000.0, jobs, spares=draw.randint(0, 1))
    faults = [_fault(draw, scenario) for _ in range(draw.randint(1, 40))]
    return scenario, tuple(sorted(faults, key=lambda fault: fault.at))


def _job(draw: Random, name: str, capacity: int) -> Work:
    replica = draw.choice([1, 1, 2, 3])
    sizes = sorted({replica * draw.randint(1, max(1, capacity // replica)) for _ in range(6)})
    speed, sublinear = draw.uniform(5, 20), draw.uniform(0.7, 1.0)
    least = draw.choice(sizes[:2])
    stairs = tuple((size, speed * size**sublinear) for size in sizes if size >= least)
    return Work(
        name,
        stairs,
        size_min=least,
        size_max=sizes[-1],
        weight=draw.choice([0.5, 1.0, 2.0]),
        replica=replica,
        step_flops=draw.uniform(100, 20_000),
        state_bytes=draw.uniform(1, 200),
        checkpoint_seconds=draw.choice([60.0, 300.0, 1800.0]),
    )


def _fault(draw: Random, scenario: Scenario) -> Fault:
    kind = draw.choice(list(Kind))
    nodes = tuple(draw.sample(range(scenario.nodes), draw.choice([1, 1, 1, 2]) if kind is Kind.NODE else 1))
    lasting = kind in {Kind.NODE, Kind.SLOW}
    return Fault(
        # Round times meet the round costs: much happens at the same moment.
        at=float(draw.choice([draw.uniform(0, 19_000), draw.randint(0, 190) * 100])),
        cause=draw.choice(["ECC", "OOM", "switch"]),
        kind=kind,
        nodes=nodes,
        slot=draw.randrange(scenario.slots),
        repair_seconds=draw.choice([0.0, 5.0, 100.0, 3_000.0, 3_000.0, math.inf]) if lasting else 0.0,
        slowness=draw.choice([1.05, 1.5, 3.0]) if kind is Kind.SLOW else 1.0,
    )


def written(history: History) -> tuple[object, ...]:
    return history.changes, history.repeats, history.idle, history.moves, history.full


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_is_not_done_has_a_cause_and_nobody_is_better_than_the_bound(name: str) -> None:
    for seed in seeds(name, 40):
        scenario, faults = drawn(seed)
        history = POLICIES[name]().live(scenario, faults, COSTS, seed)
        assert_conserved(history)
        assert name.startswith("ours") or "other" not in history.costs()
        most = ClairvoyantUnbound().live(scenario, faults, COSTS, seed)
        if name != "nofault":
            assert history.waf <= most.waf * (1 + 1e-9), seed
        assert 0.0 <= history.ettr_worst() <= 1.0 + 1e-9
        assert history.ettr_worst() <= history.ettr() + 1e-9


@pytest.mark.parametrize("name", FLUID)
def test_nobody_who_leaves_no_job_waiting_is_better_than_the_clairvoyant(name: str) -> None:
    compared = 0
    for seed in seeds(name, 40):
        scenario, faults = drawn(seed)
        history = POLICIES[name]().live(scenario, faults, COSTS, seed)
        if not any(change.doing is Doing.WAITING for change in history.changes):
            assert history.waf <= Clairvoyant().live(scenario, faults, COSTS, seed).waf * (1 + 1e-9), seed
            compared += 1
    assert compared


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_same_again_and_in_any_order_of_faults_of_a_moment(name: str) -> None:
    for seed in seeds(name, 16):
        scenario, faults = drawn(seed)
        mixed = sorted(Random(seed).sample(faults, len(faults)), key=lambda fault: fault.at)
        once, again = (POLICIES[name]().live(scenario, some, COSTS, seed) for some in (faults, mixed))
        assert written(once) == written(again)


LIVED = """
from unicorn_mgr.simulator import costs, scenario_file
from unicorn_mgr.simulator.policies.registry import POLICIES
loaded = scenario_file.load("unicron-trace-b")
for name in POLICIES:
    if not name.startswith("ours"):
        history = POLICIES[name]().live(loaded.scenario, loaded.faults(7), costs.load(), 7)
        print(name, history.waf, history.changes, history.repeats, history.idle)
"""


def test_hash_seeds_change_nothing() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", LIVED],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(said) == 1
    assert b"megatron" in said.pop()


@pytest.mark.parametrize("name", FLUID)
def test_no_slot_ever_has_two_owners_and_none_is_forgotten(name: str) -> None:
    for seed in seeds(name, 40):
        scenario, faults = drawn(seed)
        policy = POLICIES[name]()
        assert isinstance(policy, Fluid)
        life = Life(policy, scenario, faults, COSTS, seed)
        life.begins()
        while life.goes_on():
            owned = [(place, (job.number, i)) for job in life.jobs for i, place in enumerate(job.seats) if place]
            assert len({place for place, _ in owned}) == len(owned)
            assert all(life.cluster.owner(place) == seat and life.cluster.is_up(place[0]) for place, seat in owned)
            assert len(owned) + life.cluster.free == life.cluster.up
            for job in life.jobs:
                assert job.present == sum(place is not None for place in job.seats)
                assert job.doing is not Doing.TRAINING or job.work.size_min <= job.size <= job.present


@pytest.mark.parametrize("name", FLUID)
def test_nobody_stands_still_for_ever_once_all_is_repaired(name: str) -> None:
    for seed in seeds(name, 40):
        scenario, faults = drawn(seed)
        healed = tuple(f for f in faults if f.repair_seconds < math.inf and f.at < 10_000)
        history = POLICIES[name]().live(scenario, healed, COSTS, seed)
        for work in scenario.jobs:
            last = [change for change in history.changes if change.job == work.name][-1]
            assert last.doing is Doing.TRAINING or not history.full[work.name], (seed, work.name)
