"""A newcomer is prepared while its slot is still another's: who waits for whom, and what may go wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.test_core_planning import Planned

from unicorn_mgr import messages as m
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import ModelDescription, Slot

SMALL = ModelDescription(parameters=1e9, sequence_length=2048, global_batch=64, device="H100")
LARGE = ModelDescription(parameters=3e9, sequence_length=2048, global_batch=64, device="H100")


@pytest.fixture
def world() -> Iterator[Planned]:
    made = Planned(nodes=4)
    yield made
    made.check_replay()


def moving(world: Planned, **spec: object) -> tuple[str, str]:
    """One slot is to go from a job to another, both of which run: (who leaves, who follows)."""
    world.train_planned("giver", 1, 3, weight=2.0, **spec)
    world.train_planned("taker", 1, 3, **spec)
    assert world.sizes() == {"giver": 3, "taker": 1}
    world.take()
    world.tell(e.WishesSet(world.request(), "taker", 9.0, 0, 1, 2))
    world.answer()
    assert world.sizes() == {"giver": 2, "taker": 2}
    (leaver,) = (w for w in world.job("giver").alive() if world.job("giver").seats.get(w.seat) != (w.node, w.slot))
    return leaver.name, "taker/1.0"


def retired(world: Planned) -> list[str]:
    return [d.worker for d in world.decisions(e.RetirementOrdered)]


def ordered(world: Planned) -> list[str]:
    return [d.worker for d in world.decisions(e.WorkerOrdered)]


def leaves(world: Planned, worker: str) -> None:
    """It has finished its last step, the others go on without it, and it ends."""
    world.tell(e.WorkerTold(worker, m.Leaving(7)))
    world.resume("giver", step=7)
    world.tell(e.WorkerExited(m.Exited(worker, 0)))


def test_who_is_to_leave_goes_on_until_who_follows_is_ready(world: Planned) -> None:
    leaver, follower = moving(world)
    assert ordered(world) == [follower]
    assert world.worker(follower).node == world.worker(leaver).node
    assert retired(world) == []
    world.begin(follower)
    assert retired(world) == [leaver]
    world.wait(5.0)
    assert world.members("taker") == ["taker/0.0"], "the slot is not its own yet"
    leaves(world, leaver)
    assert world.members("taker") == ["taker/0.0", follower], "at once: nothing is left to prepare"
    assert world.incidents == []


def test_who_follows_is_not_waited_for_without_end(world: Planned) -> None:
    leaver, _ = moving(world)
    world.wait(world.settings.prepare_seconds - 0.1)
    assert retired(world) == []
    world.wait(0.2)
    assert retired(world) == [leaver]


def test_who_leaves_first_is_followed_once_the_other_is_ready(world: Planned) -> None:
    leaver, follower = moving(world)
    world.wait(world.settings.prepare_seconds)
    leaves(world, leaver)
    world.wait(5.0)
    assert world.members("taker") == ["taker/0.0"]
    world.begin(follower)
    assert world.members("taker") == ["taker/0.0", follower]


def test_a_newcomer_that_dies_is_replaced_before_anybody_leaves(world: Planned) -> None:
    leaver, follower = moving(world)
    world.die(follower)
    assert ordered(world) == [follower, "taker/1.1"]
    assert retired(world) == []
    world.begin("taker/1.1")
    assert retired(world) == [leaver]


def test_a_leaver_that_dies_is_followed_at_once(world: Planned) -> None:
    leaver, follower = moving(world)
    world.begin(follower)
    world.die(leaver)
    assert world.members("taker") == ["taker/0.0", follower]
    world.wait(world.settings.death_batch_seconds)
    assert len(world.members("giver")) == 2


def test_a_plan_taken_back_ends_the_newcomer_and_nobody_has_left(world: Planned) -> None:
    leaver, follower = moving(world)
    world.tell(e.WishesSet(world.request(), "taker", 1.0, 0, 1, 1))
    world.answer()
    assert world.sizes() == {"giver": 3, "taker": 1}
    assert not world.worker(follower).alive
    assert retired(world) == []
    world.tell(e.WorkerExited(m.Exited(follower, -15)))
    assert leaver in world.members("giver")
    assert world.incidents == []


def test_a_new_life_does_not_begin_on_a_slot_that_is_anothers(world: Planned) -> None:
    leaver, follower = moving(world)
    world.begin(follower)
    world.die("taker/0.0")
    world.wait(0.1)
    world.begin("taker/0.1")
    world.wait(world.settings.start_grace_seconds / 2)
    assert world.members("taker") == []
    world.wait(world.settings.start_grace_seconds)
    assert world.members("taker") == ["taker/0.1"]
    world.resume("taker")
    leaves(world, leaver)
    assert set(world.members("taker")) == {"taker/0.1", follower}


def test_nobody_is_prepared_where_an_operator_says_so() -> None:
    world = Planned(nodes=4, prepare_seconds=0.0)
    leaver, follower = moving(world)
    assert (ordered(world), retired(world)) == ([], [leaver])
    leaves(world, leaver)
    assert ordered(world) == [follower]
    world.check_replay()


def test_a_program_that_has_never_attached_begins_when_the_slot_is_free(world: Planned) -> None:
    """It would not wait to be admitted."""
    world.train_planned("giver", 1, 4)
    world.submit("plain", 1, 1, weight=9.0)
    world.take()
    world.answer()
    assert ordered(world) == []
    assert len(retired(world)) == 1


@pytest.mark.parametrize(("model", "prepared"), [(SMALL, True), (LARGE, False), (None, False)])
def test_the_memory_of_a_device_must_hold_both(model: ModelDescription | None, prepared: bool) -> None:
    """Of 80 GB: 16 bytes a parameter, and activations.  Of a model that nobody has described nothing is known."""
    world = Planned(nodes=0)
    for i in range(4):
        world.tell(e.NodeAttached(f"n{i}", f"agent of n{i}", (Slot(0, "cuda:0"),), "10.0.0.1", (), {}))
    leaver, follower = moving(world, model=model)
    assert ordered(world) == ([follower] if prepared else [])
    assert retired(world) == ([] if prepared else [leaver])


def test_a_leaver_that_does_not_end_is_ended(world: Planned) -> None:
    """An exit handler of the user's, or a library's destructor, would hold the slot for ever."""
    leaver, follower = moving(world)
    world.begin(follower)
    world.tell(e.WorkerTold(leaver, m.Leaving(7)))
    world.resume("giver", step=7)
    world.take()
    world.wait(world.settings.linger_seconds + 0.1)
    assert [d.worker for d in world.decisions(e.WorkerOverstayed)] == [leaver]
    world.tell(e.WorkerExited(m.Exited(leaver, -9)))
    assert follower in world.members("taker")
    assert world.incidents == []
    assert world.job("giver").deaths == []
