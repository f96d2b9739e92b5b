"""The coordinator's core: parts of checkpoints that outlive their workers count, are waited for, but not for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.test_core_parts import LINEAGE, NEWER, SPLIT, Storing
from unit.test_core_suspension import STORE
from unit.world import World, kinds

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.state import NodePhase
from unicorn_mgr.coordinator.views import job_view
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Lineage


class Handing(Storing):
    """Parts are handed over, and then stored by others than the workers."""

    def hand(self, seat: int, step: int, lineage: Lineage = LINEAGE) -> list[e.Event]:
        return self.tell(e.WorkerTold(f"gpt/{seat}.0", m.CheckpointHanded(step, lineage, STORE)))

    def store(self, seat: int, step: int, lineage: Lineage = LINEAGE) -> list[e.Event]:
        return self.tell(e.WorkerTold(f"gpt/{seat}.0", m.CheckpointWritten(step, lineage, STORE, handed=True)))

    def publish(self, step: int) -> list[e.Event]:
        return self.tell(e.WorkerTold("gpt/0.0", m.CheckpointPublished(step, STORE)))

    def end(self, *seats: int, code: int = 0) -> list[e.Event]:
        """They come to the end of the loop, and go."""
        workers = [f"gpt/{seat}.0" for seat in seats]
        ended = [e.WorkerTold(w, m.LoopEnded(99)) for w in workers]
        return self.tell(*ended, *(e.WorkerExited(m.Exited(w, code)) for w in workers))


@pytest.fixture
def world() -> Iterator[Handing]:
    made = Handing(nodes=4, slots=2)
    made.train("gpt", 4, 2, **SPLIT)
    yield made
    made.check_replay()


@pytest.fixture
def plain() -> Iterator[Handing]:
    """Two workers, each with the whole state, on two of three nodes."""
    made = Handing(nodes=3)
    made.train("gpt", 2, 1, checkpoint_url=STORE)
    yield made
    made.check_replay()


# -- what counts ----------------------------------------------------------------------------


def test_the_part_of_a_worker_that_has_died_counts_as_it_is_stored_all_the_same(world: Handing) -> None:
    for seat in (0, 1):
        world.hand(seat, 20)
    world.die("gpt/0.0")
    world.die("gpt/1.0")
    world.take()
    world.store(0, 20)
    assert world.stored() == []
    world.store(1, 20)
    assert world.stored() == [20]
    told = [worker for worker, _ in world.directives(m.CheckpointComplete)]
    assert {"gpt/0.0", "gpt/1.0"} <= set(told), "who stores what they have left is on their nodes"


def test_that_it_was_handed_over_may_be_heard_with_its_being_stored(world: Handing) -> None:
    """An agent that was away tells the newest of it alone."""
    world.die("gpt/0.0")
    for seat in (0, 1):
        world.store(seat, 20)
    assert world.stored() == [20]


def test_what_is_only_in_memory_is_no_checkpoint(world: Handing) -> None:
    world.hand(0, 20)
    world.hand(1, 20)
    world.store(0, 20)
    assert world.stored() == []


def test_a_worker_that_has_left_a_part_is_remembered_until_that_is_settled(plain: Handing) -> None:
    plain.hand(0, 20)
    plain.die("gpt/0.0")
    plain.regroup()
    plain.die("gpt/0.1")
    plain.regroup(step=9)
    assert "gpt/0.0" in plain.job().workers
    plain.store(0, 20)
    assert plain.stored() == [20]
    assert "gpt/0.0" in plain.job().workers, "it is not published yet"
    assert kinds(plain.publish(20)) == ["WorkerDismissed"]


@pytest.mark.parametrize("again", [m.CheckpointHanded, m.CheckpointWritten])
def test_what_is_told_again_is_answered_and_leaves_nothing_behind(
    plain: Handing, again: type[m.CheckpointHanded | m.CheckpointWritten]
) -> None:
    """Before and after a coordinator has noted it as complete, which may be all that it remembers."""
    plain.hand(0, 20)
    plain.store(0, 20)
    plain.store(0, 20)
    assert plain.stored() == [20]
    plain.publish(20)
    plain.take()
    plain.tell(e.WorkerTold("gpt/0.0", again(20, LINEAGE, STORE)))
    assert plain.directives(m.CheckpointComplete) == [("gpt/0.0", m.CheckpointComplete(20, LINEAGE))]
    assert plain.job().parts.of == {}


def test_a_newer_checkpoint_overtakes_what_is_on_its_way(plain: Handing) -> None:
    plain.hand(0, 20)
    plain.die("gpt/0.0")
    plain.wait(plain.settings.death_batch_seconds)
    plain.resume(step=21)
    plain.take()
    plain.write(1, 22, NEWER)
    assert plain.stored() == [22]
    assert ("gpt/0.0", m.CheckpointComplete(22, NEWER)) in plain.directives(m.CheckpointComplete)
    assert "gpt/0.0" in plain.job().parts.of, "until whoever stores it has heard that"
    plain.tell(e.WorkerTold("gpt/0.0", m.CheckpointFailed(20, "overtaken", superseded=True)))
    assert plain.job().parts.of == {}
    assert plain.job().suspendable, "nothing is wrong with storage"


def test_what_a_replica_has_left_that_has_another_state_than_most_is_no_checkpoint(plain: Handing) -> None:
    """It is stored nevertheless, and its worker is restarted."""
    plain.hand(0, 20)
    plain.tell(e.WorkerTold("gpt/1.0", m.ChecksumsDiffer(plain.job().epoch, 21, ("gpt/0.0",))))
    plain.store(0, 20)
    assert plain.stored() == []
    plain.take()
    plain.write(1, 22, NEWER)
    assert plain.stored() == [22]
    assert ("gpt/0.0", m.CheckpointComplete(22, NEWER)) in plain.directives(m.CheckpointComplete)


def test_storage_that_fails_is_known_whoever_tells_of_it(plain: Handing) -> None:
    plain.hand(0, 20)
    plain.die("gpt/0.0")
    plain.tell(e.WorkerTold("gpt/0.0", m.CheckpointFailed(20, "no space left on device")))
    assert not plain.job().suspendable
    plain.store(0, 20)
    assert plain.job().suspendable


def test_people_see_how_far_each_part_is(plain: Handing) -> None:
    def seen() -> list[tuple[str, str, int, str, float]]:
        view = job_view(plain.state, Liveness(plain.settings), plain.job(), plain.now)
        return [(p.worker, p.node, p.step, p.state, p.seconds) for p in view.parts]

    node = plain.worker("gpt/0.0").node
    assert seen() == []
    plain.hand(0, 20)
    plain.wait(3.0)
    assert seen() == [("gpt/0.0", node, 20, "memory", 3.0)]
    plain.store(0, 20)
    assert seen() == [("gpt/0.0", node, 20, "complete", 3.0)], "it is all that there is to be"
    plain.publish(20)
    assert seen() == []
    assert job_view(plain.state, Liveness(plain.settings), plain.job(), plain.now).checkpoint_at == plain.state.wall(
        plain.now
    )


# -- what waits -----------------------------------------------------------------------------


def test_a_drained_node_is_empty_when_what_was_left_there_is_stored(plain: Handing) -> None:
    plain.hand(0, 20)
    node = plain.worker("gpt/0.0").node
    plain.tell(e.NodeDrained(plain.request(), node))
    plain.tell(e.WorkerTold("gpt/0.0", m.Leaving(21)), e.WorkerExited(m.Exited("gpt/0.0", 0)))
    assert plain.node(node).phase is NodePhase.DRAINING
    plain.store(0, 20)
    assert plain.node(node).phase is NodePhase.DRAINING, "it is not published yet"
    plain.publish(20)
    assert plain.node(node).phase is NodePhase.DRAINED


def test_a_drain_does_not_wait_for_ever_and_says_what_it_does_not_wait_for(plain: Handing) -> None:
    plain.hand(0, 20)
    node = plain.worker("gpt/0.0").node
    plain.tell(e.NodeDrained(plain.request(), node))
    plain.tell(e.WorkerTold("gpt/0.0", m.Leaving(21)), e.WorkerExited(m.Exited("gpt/0.0", 0)))
    plain.wait(plain.settings.store_seconds - 1.0)
    assert plain.node(node).phase is NodePhase.DRAINING
    plain.take()
    plain.wait(1.0)
    assert plain.node(node).phase is NodePhase.DRAINED
    assert plain.decisions(e.PartGivenUp) == [
        e.PartGivenUp("gpt", "gpt/0.0", 20, f"it is not stored after {plain.settings.store_seconds:g} s")
    ]


def test_what_has_long_been_on_its_way_holds_up_no_drain(plain: Handing) -> None:
    plain.hand(0, 20)
    node = plain.worker("gpt/0.0").node
    plain.wait(plain.settings.store_seconds)
    assert plain.decisions(e.PartGivenUp) == [], "nobody waits for it"
    plain.tell(e.NodeDrained(plain.request(), node))
    assert len(plain.decisions(e.PartGivenUp)) == 1
    plain.tell(e.WorkerTold("gpt/0.0", m.Leaving(21)), e.WorkerExited(m.Exited("gpt/0.0", 0)))
    assert plain.node(node).phase is NodePhase.DRAINED


def test_a_job_whose_last_part_is_on_its_way_has_not_ended(world: Handing) -> None:
    """A worker that dies after the loop, and has left its part."""
    world.hand(0, 99)
    world.hand(1, 99)
    world.end(2, 3)
    world.end(0, 1, code=-9)
    assert not world.job().over
    world.store(0, 99)
    world.store(1, 99)
    assert world.stored() == [99]
    assert not world.job().over
    assert kinds(world.publish(99))[:1] == ["JobEnded"]


def test_the_others_of_a_replica_do_not_wait_in_vain_for_one_that_had_left_nothing(world: Handing) -> None:
    world.tell(*(e.WorkerTold(f"gpt/{seat}.0", m.LoopEnded(99)) for seat in range(4)))
    world.hand(0, 99)
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", -9)))
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/0.0"]


def test_nor_for_one_that_had_left_its_part_of_an_earlier_step(world: Handing) -> None:
    world.tell(*(e.WorkerTold(f"gpt/{seat}.0", m.LoopEnded(99)) for seat in range(4)))
    world.hand(1, 89)
    world.hand(0, 99)
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", -9)))
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/0.0"]


def test_nobody_is_ended_for_one_that_has_left_its_part(world: Handing) -> None:
    world.tell(*(e.WorkerTold(f"gpt/{seat}.0", m.LoopEnded(99)) for seat in range(4)))
    for seat in (0, 1):
        world.hand(seat, 99)
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", -9)))
    assert world.decisions(e.WorkerCondemned) == []


def test_the_end_of_a_job_does_not_wait_for_ever(plain: Handing) -> None:
    plain.hand(0, 99)
    plain.end(0, 1)
    plain.wait(plain.settings.store_seconds - 1.0)
    assert not plain.job().over
    plain.wait(1.0)
    assert plain.job().over
    assert [d.step for d in plain.decisions(e.PartGivenUp)] == [99]


def test_a_cancelled_job_waits_for_nothing(plain: Handing) -> None:
    plain.hand(0, 20)
    plain.tell(e.JobCancelled(plain.request(), "gpt"))
    plain.tell(*(e.WorkerExited(m.Exited(f"gpt/{seat}.0", -15)) for seat in (0, 1)))
    assert plain.job().over
    assert [d.reason for d in plain.decisions(e.PartGivenUp)] == ["the job is cancelled"]


def test_the_part_of_a_node_that_is_lost_is_waited_for_by_nobody(plain: Handing) -> None:
    plain.hand(0, 99)
    node = plain.worker("gpt/0.0").node
    plain.end(1)
    plain.tell(e.WorkerTold("gpt/0.0", m.LoopEnded(99)), e.NodeSilent(node, plain.settings.lease_seconds))
    plain.wait(plain.settings.silence_seconds_max)
    assert plain.node(node).phase is NodePhase.LOST
    assert plain.job().over


def test_what_a_new_agent_knows_nothing_of_is_lost(plain: Handing) -> None:
    """Its machine has been started anew."""
    plain.hand(0, 20)
    node = plain.worker("gpt/0.0").node
    plain.attach(node, incarnation="another")
    assert plain.job().parts.of == {}


def test_nor_of_what_a_worker_had_left_that_had_died_before(plain: Handing) -> None:
    plain.hand(0, 20)
    node = plain.worker("gpt/0.0").node
    plain.die("gpt/0.0")
    known = tuple(w.name for w in plain.state.on_node(node))
    plain.attach(node, workers=("gpt/0.0", *known), incarnation="another agent")
    assert "gpt/0.0" in plain.job().parts.of
    plain.attach(node, workers=known, incarnation="another machine")
    assert plain.job().parts.of == {}


def test_a_journal_without_anything_handed_over_is_as_ever() -> None:
    world = World(nodes=2)
    world.train("gpt", 2, 1, checkpoint_url=STORE)
    world.tell(e.WorkerTold("gpt/0.0", m.CheckpointWritten(7, LINEAGE, STORE)))
    assert [d.step for d in world.decisions(e.CheckpointCommitted)] == [7]
    assert world.job().parts.of == {}
    world.check_replay()
