"""The coordinator's core: a checkpoint of a split model is complete with all its parts, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from unit.test_core_suspension import STORE, Suspending
from unit.world import World, kinds

from unicorn_mgr import messages as m
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, Lineage

SPLIT: dict[str, Any] = {"replica": {"shard": 2}, "replica_size": 2, "checkpoint_url": STORE}
LINEAGE = Lineage(0, Epoch(1, 1))
NEWER = Lineage(0, Epoch(1, 2))


class Storing(World):
    """Two replicas of two workers each."""

    def write(self, seat: int, step: int, lineage: Lineage = LINEAGE, incarnation: int = 0) -> list[e.Event]:
        """A worker has written its part."""
        return self.tell(e.WorkerTold(f"gpt/{seat}.{incarnation}", m.CheckpointWritten(step, lineage, STORE)))

    def fail(self, seat: int, step: int) -> None:
        self.tell(e.WorkerTold(f"gpt/{seat}.0", m.CheckpointFailed(step, "no space left on device")))

    def stored(self) -> list[int]:
        return [d.step for d in self.decisions(e.CheckpointCommitted)]


@pytest.fixture
def world() -> Iterator[Storing]:
    made = Storing(nodes=3, slots=2)
    made.train("gpt", 4, 2, **SPLIT)
    yield made
    made.check_replay()


# -- complete -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_it_is_complete_with_the_last_part(world: Storing, order: tuple[int, int]) -> None:
    assert world.write(order[0], 20) == []
    assert world.directives(m.CheckpointComplete) == []
    (committed,) = world.write(order[1], 20)
    assert isinstance(committed, e.CheckpointCommitted)
    assert (committed.step, committed.lineage, committed.url) == (20, LINEAGE, STORE)
    assert sorted(committed.writers) == ["gpt/0.0", "gpt/1.0"]
    told = world.directives(m.CheckpointComplete)
    assert told == [(f"gpt/{seat}.0", m.CheckpointComplete(20, LINEAGE)) for seat in range(4)]


def test_a_part_that_is_told_twice_is_one_part(world: Storing) -> None:
    world.write(0, 20)
    assert world.write(0, 20) == []
    assert kinds(world.write(1, 20)) == ["CheckpointCommitted"]
    world.take()
    assert world.write(1, 20) == [], "told again, it is not committed again"
    assert world.directives(m.CheckpointComplete) == [("gpt/1.0", m.CheckpointComplete(20, LINEAGE))]


def test_parts_of_different_steps_make_no_checkpoint(world: Storing) -> None:
    world.write(0, 20)
    world.write(1, 30)
    world.write(0, 20)
    assert world.stored() == []
    world.write(0, 30)
    assert world.stored() == [30]


def test_parts_of_different_lineages_make_no_checkpoint(world: Storing) -> None:
    world.write(0, 20)
    world.write(1, 20, NEWER)
    world.write(0, 20)
    assert world.stored() == []
    world.write(0, 20, NEWER)
    assert [d.lineage for d in world.decisions(e.CheckpointCommitted)] == [NEWER]


def test_a_late_part_of_an_older_step_changes_nothing(world: Storing) -> None:
    for seat in (0, 1):
        world.write(seat, 30)
    world.take()
    assert world.write(0, 20) == []
    assert world.write(1, 20) == []
    told = world.directives(m.CheckpointComplete)
    assert told == [(f"gpt/{seat}.0", m.CheckpointComplete(30, LINEAGE)) for seat in (0, 1)], "it will never be"


def test_halves_of_two_replicas_are_no_whole(world: Storing) -> None:
    world.write(0, 20)
    world.write(3, 20)
    world.write(2, 30)
    world.write(1, 30)
    assert world.stored() == []


# -- faults in the middle -------------------------------------------------------------------


def test_if_a_writer_dies_the_next_replica_writes(world: Storing) -> None:
    world.write(0, 20)
    world.die("gpt/1.0")
    world.wait(world.settings.death_batch_seconds)
    assert world.members() == ["gpt/2.0", "gpt/3.0"]
    world.resume(step=21)
    lineage = Lineage(0, world.job().epoch)
    world.write(0, 20)
    assert world.stored() == []
    world.write(2, 21, lineage)
    assert world.stored() == []
    world.write(3, 21, lineage)
    assert world.stored() == [21]


def test_the_part_of_a_writer_that_has_died_does_not_count(world: Storing) -> None:
    """It is on storage, and its replica is about to be ended with it."""
    world.write(0, 20)
    world.die("gpt/0.0")
    world.write(1, 20)
    assert world.stored() == []


def test_a_replica_that_is_begun_anew_writes_all_its_parts(world: Storing) -> None:
    world.write(0, 20)
    for seat in range(4):
        world.die(f"gpt/{seat}.0")
    world.wait(60.0)
    world.begin_all()
    world.resume(step=8)
    lineage = Lineage(0, world.job().epoch)
    world.write(1, 20, lineage, incarnation=1)
    assert world.stored() == []
    world.write(0, 20, lineage, incarnation=1)
    assert world.stored() == [20]


def test_a_part_that_can_not_be_stored_is_an_error_until_all_are(world: Storing) -> None:
    world.fail(1, 20)
    world.write(0, 20)
    assert not world.job().suspendable
    world.write(1, 20)
    assert world.job().suspendable


# -- the end --------------------------------------------------------------------------------


def test_a_job_that_is_given_up_is_saved_by_its_first_whole_replica(world: Storing) -> None:
    world.tell(e.WorkerTold("gpt/0.0", m.Mistake("model", "x", "mend it")))
    saves = {worker: word.save for worker, word in world.directives(m.GiveUp)}
    assert saves == {"gpt/0.0": True, "gpt/1.0": True, "gpt/2.0": False, "gpt/3.0": False}
    world.write(0, 20)
    assert world.stored() == []
    world.write(1, 20)
    assert world.stored() == [20]


def test_half_a_replica_saves_nothing(world: Storing) -> None:
    world.tell(e.WorkerDying("gpt/1.0", "mutex"))
    world.take()
    world.tell(e.WorkerTold("gpt/2.0", m.Mistake("model", "x", "mend it")))
    saves = {worker: word.save for worker, word in world.directives(m.GiveUp)}
    assert saves == {"gpt/2.0": True, "gpt/3.0": True}


def test_a_split_job_gives_way_once_all_its_parts_are_stored() -> None:
    world = Suspending(nodes=3, slots=2)
    world.train_planned("low", 4, 6, **SPLIT)
    world.submit("high", 6, 6, priority=1)
    world.answer()
    world.stand()
    world.take()
    epoch = world.job("low").epoch
    written = m.CheckpointWritten(41, Lineage(0, epoch), STORE)
    world.tell(e.WorkerTold("low/1.0", written))
    assert world.decisions(e.CheckpointCommitted) == []
    world.tell(e.WorkerTold("low/0.0", written))
    assert world.decisions(e.JobSuspended) == [], "complete, and not yet published"
    world.tell(
        e.WorkerTold("low/0.0", m.CheckpointPublished(41, STORE)), e.WorkerTold("low/0.0", m.Suspended(epoch, 41))
    )
    assert world.decisions(e.JobSuspended) == [e.JobSuspended("low", 41)]
    assert len(world.decisions(e.WorkerCondemned)) == 6
    world.check_replay()
