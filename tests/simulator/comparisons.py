"""A small scenario with round costs, and what must be true of every history in it."""

from __future__ import annotations

import math

import pytest

from unicorn_mgr.simulator.costs import Costs as Prices
from unicorn_mgr.simulator.history import Costs, Doing, History
from unicorn_mgr.simulator.policies import Policy
from unicorn_mgr.simulator.scenario import Fault, Kind, Scenario, Work

COSTS = Prices(
    exit_seen_seconds=1.0,
    regroup_seconds=2.0,
    regroup_seconds_per_doubling=0.0,
    communicator_seconds_per_thousand=0.0,
    process_start_seconds=5.0,
    cold_start_seconds=10.0,
    state_bytes_per_second=2.0,
    storage_bytes_per_second=1.0,
    hang_seconds=7.0,
    timeout_seconds=1000.0,
    node_loss_seen_seconds=10.0,
    fast_detection_seconds=20.0,
    queue_seconds=100.0,
    setup_seconds=190.0,
    standby_seconds=30.0,
    elastic_stall_seconds=25.0,
    elastic_rejoin_seconds=15.0,
)
"""Round ones.  A start from storage takes 200 s: 40 bytes over four slots."""

STAIRS = ((4, 40.0), (8, 80.0), (12, 120.0), (16, 160.0))


def work(name: str = "a", size_min: int = 4, size_max: int = 16, weight: float = 1.0) -> Work:
    return Work(
        name,
        STAIRS,
        size_min,
        size_max,
        weight,
        replica=4,
        step_flops=13_000.0,
        state_bytes=40.0,
        checkpoint_seconds=300.0,
    )


def scenario(*jobs: Work, nodes: int = 4, spares: int = 0, seconds: float = 10_000.0) -> Scenario:
    return Scenario("small", "", nodes, 4, 1, seconds, jobs, spares=spares)


def node(at: float, *nodes: int, repair: float = math.inf, cause: str = "ECC") -> Fault:
    return Fault(at, cause, Kind.NODE, nodes, repair_seconds=repair)


def process(at: float, number: int = 0, kind: Kind = Kind.PROCESS, cause: str = "OOM") -> Fault:
    return Fault(at, cause, kind, (number,))


def slow(at: float, number: int, slowness: float, repair: float = math.inf) -> Fault:
    return Fault(at, "throttled", Kind.SLOW, (number,), repair_seconds=repair, slowness=slowness)


def lived(policy: Policy, told: Scenario, *faults: Fault) -> History:
    history = policy.live(told, faults, COSTS, 0)
    assert_conserved(history)
    assert "other" not in history.costs()
    return history


def assert_conserved(history: History) -> None:
    """What was not done is told of, once."""
    for job in history.scenario.jobs:
        if history.full[job.name]:
            assert next(iter(history.spans(job.name)))[0] == 0.0
    most = sum(w.weight * history.full[w.name] for w in history.scenario.jobs) * history.scenario.seconds
    done = sum(w.weight * history.flop(w.name) for w in history.scenario.jobs)
    by_cause = sum(costs.total for costs in history.costs().values())
    by_fault = sum(incident.costs.total for incident in history.incidents())
    by_fault += history.costs().get("other", Costs()).total
    assert done + by_cause == pytest.approx(most, rel=1e-9)
    assert by_fault == pytest.approx(by_cause, rel=1e-9, abs=1e-6)


def story(history: History, job: str = "a") -> list[tuple[float, str, int, float, str]]:
    """From when on: what it does, on how many slots, how fast, and why not faster."""
    spans = history.spans(job)
    return [(since, str(change.doing), change.slots, change.flops, change.cause) for since, _, change in spans]


T, D, M, W = (str(doing) for doing in (Doing.TRAINING, Doing.DETECTION, Doing.TRANSITION, Doing.WAITING))
