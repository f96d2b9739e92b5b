"""What a change is expected to cost before any has: bytes of state over the bandwidth of where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from unit.test_core_planning import begin_again
from unit.test_core_suspension import STORE, Suspending

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.transfers import BYTES_MIN, USUAL, WINDOW, bandwidths
from unicorn_mgr.coordinator.views import job_view
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, Lineage, ModelDescription, ReplicaShape
from unicorn_mgr.planner.problem import Costs

GIGABYTE = 1_000_000_000
QUARTER = 2**0.125
"""Figures are rounded to quarters of a doubling: they are off by no more than half of one."""

SPLIT: dict[str, Any] = {"replica": {"shard": 2}, "replica_size": 2}
MODEL = ModelDescription(1e9, 1_024, 16, device="h100")


@pytest.fixture
def world() -> Iterator[Suspending]:
    made = Suspending(nodes=3, slots=2)
    yield made
    made.check_replay()


def begun(world: Suspending, name: str = "gpt", held: int = 8 * GIGABYTE, **spec: Any) -> None:
    world.submit(name, 2, 2, **spec)
    world.answer()
    world.begin_all(name)
    world.resume(name, source="own", held_bytes=held)


def costs(world: Suspending, name: str = "gpt") -> Costs:
    (demand,) = (d for d in world.core.problem.demands if d.job == name)
    return demand.costs


def about(seconds: float) -> object:
    return pytest.approx(seconds, rel=QUARTER - 1)


def moved(world: Suspending, source: str, size_bytes: int, seconds: float, name: str = "gpt") -> None:
    """A member is replaced, and who comes takes its state from there."""
    world.die(world.members(name)[-1])
    world.wait(0.02)
    world.resume(name, step=5)
    world.begin_all(name)
    world.wait(1.0)
    world.resume(name, step=6, source=source, state_bytes=size_bytes, restore_seconds=seconds)


def test_nobody_has_told_how_much_it_is(world: Suspending) -> None:
    world.submit("gpt", 2, 2)
    world.answer()
    assert costs(world) == Costs(), "what is usual whatever the job"


def test_a_model_that_is_described_has_so_many_bytes_until_its_workers_tell_how_many(world: Suspending) -> None:
    world.submit("gpt", 2, 2, model=MODEL)
    world.answer()
    assert costs(world).grow - Costs().grow == about(14e9 / USUAL["live"])
    world.begin_all()
    world.resume(source="own", held_bytes=4 * GIGABYTE)
    assert costs(world).grow - Costs().grow == about(4e9 / USUAL["live"])


def test_its_workers_tell_with_their_first_step(world: Suspending) -> None:
    begun(world, checkpoint_url=STORE)
    told = costs(world)
    assert told.grow - Costs().grow == about(8e9 / USUAL["live"])
    assert told.start - Costs().start == about(8e9 / USUAL["storage"])
    assert told.store - Costs().store == about(8e9 / USUAL["store"])
    assert told.shrink == Costs().shrink, "who stays has all"


def test_of_a_replica_of_several_each_moves_its_part_alone(world: Suspending) -> None:
    shapes = (ReplicaShape({"shard": 2}), ReplicaShape({"shard": 1}))
    begun(world, held=3 * GIGABYTE, checkpoint_url=STORE, shapes=shapes, **SPLIT)
    assert world.job().copy_bytes == 6 * GIGABYTE
    assert costs(world).grow - Costs().grow == about(3e9 / USUAL["live"])
    assert world.replayed().jobs["gpt"].copy_bytes == 6 * GIGABYTE


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({"checkpoint_url": STORE, "snapshot_budget": 0.005}, 8e9 / USUAL["storage"]),
        ({"snapshot_budget": 0.005}, 8e9 / USUAL["memory"]),
        ({}, 0.0),
    ],
    ids=["storage", "memory", "nowhere"],
)
def test_a_job_begins_again_with_what_is_nearest(world: Suspending, spec: dict[str, Any], seconds: float) -> None:
    begun(world, **spec)
    assert costs(world).start - Costs().start == about(seconds)


def test_a_copy_on_another_node_is_nearer_than_storage(world: Suspending) -> None:
    begun(world, snapshot_budget=0.005, checkpoint_url=STORE, **SPLIT)
    assert world.job().backups.sources
    assert costs(world).start - Costs().start == about(8e9 / USUAL["peer"])


def test_what_one_job_has_shown_of_bandwidth_counts_for_all(world: Suspending) -> None:
    begun(world)
    begun(world, "other")
    before = world.core.problem
    moved(world, "live", 8 * GIGABYTE, 2.0, "other")
    assert bandwidths(world.state)["live"] == about(4e9)
    assert costs(world).grow - Costs().grow == about(2.0)
    assert world.core.problem is not before


def test_small_transfers_say_nothing_of_bandwidth_and_fast_ones_not_all(world: Suspending) -> None:
    begun(world)
    moved(world, "live", BYTES_MIN - 1, 100.0)
    assert world.state.transfers == {}
    moved(world, "live", 8 * GIGABYTE, 0.0)
    assert world.state.transfers == {}, "nobody moves anything in no time"
    for seconds in (2.0, 2.1, 900.0):
        moved(world, "live", 8 * GIGABYTE, seconds)
    assert bandwidths(world.state)["live"] == about(8e9 / 2.1)
    for _ in range(5):
        moved(world, "live", 8 * GIGABYTE, 8.0)
    assert bandwidths(world.state)["live"] == about(1e9)
    assert len(world.state.transfers["live"]) == WINDOW, "the newest count"


def test_storing_shows_how_fast_storage_takes_it(world: Suspending) -> None:
    begun(world, checkpoint_url=STORE)
    written = m.CheckpointWritten(5, Lineage(0, Epoch(1, 1)), STORE, 8 * GIGABYTE, write_seconds=80.0)
    world.tell(e.WorkerTold("gpt/0.0", written))
    assert costs(world).store - Costs().store == about(80.0)


def test_what_changes_have_cost_takes_the_place_of_the_prediction_by_and_by(world: Suspending) -> None:
    world.submit("gpt", 2, 2)
    world.answer()
    begin_again(world, 6.0, "initial")
    found = [costs(world).start]
    for _ in range(2):
        for name in list(world.members()):
            world.die(name)
        world.wait(0.02)
        begin_again(world, 6.0, "storage")
        found.append(costs(world).start)
    assert found == [pytest.approx(wanted, abs=0.1) for wanted in (42.0, 24.0, 6.0)]


def test_a_suspension_shows_how_long_storing_takes(world: Suspending) -> None:
    world.running_low()
    world.submit_high()
    world.stand()
    world.now += 7.0
    world.store()
    assert world.job("low").standstills["store"] == [pytest.approx(7.0)]
    assert costs(world, "low").store == pytest.approx((7.0 + 2 * Costs().store) / 3)


def test_it_is_shown_of_each_job(world: Suspending) -> None:
    begun(world)
    shown = job_view(world.state, Liveness(world.settings), world.job(), world.now).standstill_seconds
    assert shown == {kind: getattr(costs(world), kind) for kind in ("shrink", "grow", "start", "store")}
