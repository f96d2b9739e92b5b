"""Snapshots in memory: which are whole, which are of this job, and which of them is taken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from unicorn_mgr.messages import Attached, SnapshotsStopped
from unicorn_mgr.model import NO_STATE, Epoch, Holdings, Lineage, Mark
from unicorn_mgr.seal import Torn, find
from unicorn_mgr.transition.deal import Deal, LateState, column, deal
from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.exchange import Broken
from unicorn_mgr.worker.memory import Files, Memory, Nearest, Pace
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.siblings import Single
from unicorn_mgr.worker.snapshot import Buffer, Draft
from unicorn_mgr.worker.state import Packed, Progress

FINGERPRINT = {"parameters": "p", "buffers": "b"}
OF = {"job": "id", "position": 0, "axes": {}, "model": ["p", "b"]}


def mark(step: int, epoch: int = 1) -> Mark:
    return Mark(step, Lineage(0, Epoch(1, epoch)))


def model() -> Replica:
    network = nn.Linear(3, 2)
    return Replica(network, [torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)], {}, (), 1)


def state(replica: Replica, step: int) -> Packed:
    return replica.state.collect(Progress(step, -1, 0), randomness.capture())


@pytest.fixture
def files() -> Iterator[tuple[int, int]]:
    made = os.memfd_create("one"), os.memfd_create("other")
    yield made
    for file in made:
        os.close(file)


def written(file: int, step: int, committed: bool = True, of: dict[str, Any] = OF, epoch: int = 1) -> Buffer:
    buffer, draft = Buffer(file), Draft(mark(step, epoch), of, state(model(), step))
    buffer.make_room(draft)
    buffer.write(draft, lambda: None)
    buffer.seal()
    if committed:
        buffer.commit()
    return buffer


def memory(*found: int) -> Memory:
    made = Memory(Attached(job_id="id"), Files(found=found), Single(), Drills())
    made.set_fingerprint(FINGERPRINT)
    return made


def offered(*found: int) -> Holdings:
    return memory(*found).offer(Holdings())


def test_a_whole_one_is_read_bit_by_bit(files: tuple[int, int]) -> None:
    here, there = model(), model()
    buffer, draft = Buffer(files[0]), Draft(mark(7), OF, state(here, 7))
    buffer.make_room(draft)
    buffer.write(draft, lambda: None)
    buffer.seal()
    buffer.commit()
    found = memory(files[0])
    assert found.offer(Holdings()) == Holdings(NO_STATE, snapshots=(mark(7),), committed=(mark(7),))
    origin = found.load(there, mark(7))
    assert (origin.source, origin.progress) == ("memory", Progress(7, -1, 0))
    for mine, theirs in zip(here.state.parameters.values(), there.state.parameters.values(), strict=True):
        assert torch.equal(mine, theirs)


def test_one_whose_writer_has_died_in_it_is_none(files: tuple[int, int]) -> None:
    buffer = written(files[0], 7)
    draft = Draft(mark(9), OF, state(model(), 9))

    class Died(Exception):
        pass

    def die() -> None:
        raise Died

    with pytest.raises(Died):
        buffer.write(draft, die)
    assert find(files[0]) is None
    written(files[1], 8)
    assert offered(*files).snapshots == (mark(8),)


def test_one_that_is_written_and_not_sealed_is_none(files: tuple[int, int]) -> None:
    buffer, draft = Buffer(files[0]), Draft(mark(9), OF, state(model(), 9))
    buffer.make_room(draft)
    buffer.write(draft, lambda: None)
    assert find(files[0]) is None


def flip(file: int, at: int) -> None:
    (byte,) = os.pread(file, 1, at)
    os.pwrite(file, bytes([byte ^ 4]), at)


@pytest.mark.parametrize("at", [64, 72, 100, 400])
def test_one_flipped_bit_of_its_head_is_found(
    files: tuple[int, int], at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    written(files[0], 7)
    flip(files[0], at)
    with pytest.raises(Torn):
        find(files[0])
    assert offered(files[0]).snapshots == ()
    assert "not used" in capsys.readouterr().err


@pytest.mark.parametrize("at", ["first", "last"])
def test_one_flipped_bit_of_its_body_is_found(
    files: tuple[int, int], at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it is loaded; then it is never offered again, and the one before is taken."""
    written(files[0], 8)
    written(files[1], 7)
    found = find(files[0])
    assert found is not None
    flip(files[0], found.body_at if at == "first" else found.end - 64)
    here = memory(*files)
    assert here.offer(Holdings()).snapshots == (mark(8), mark(7))
    with pytest.raises(Broken, match="step 8"):
        here.load(model(), mark(8))
    assert "not used" in capsys.readouterr().err
    assert here.offer(Holdings()).snapshots == (mark(7),)
    assert here.load(model(), mark(7)).progress == Progress(7, -1, 0)


def test_where_two_have_the_same_one_the_sound_one_is_read(files: tuple[int, int]) -> None:
    written(files[0], 7)
    written(files[1], 7)
    found = find(files[0])
    assert found is not None
    flip(files[0], found.body_at)
    here = memory(*files)
    here.offer(Holdings())
    assert here.load(model(), mark(7)).progress == Progress(7, -1, 0)


def test_one_that_is_cut_short_is_none(files: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    written(files[0], 7)
    found = find(files[0])
    assert found is not None
    os.ftruncate(files[0], found.end - 1)
    assert offered(files[0]).snapshots == ()
    assert "its length" in capsys.readouterr().err


def test_one_that_is_written_over_between_the_word_and_the_reading(files: tuple[int, int]) -> None:
    buffer = written(files[0], 7)
    here = memory(files[0])
    here.offer(Holdings())
    draft = Draft(mark(9), OF, state(model(), 9))
    buffer.write(draft, lambda: None)
    with pytest.raises(Broken):
        here.load(model(), mark(7))


@pytest.mark.parametrize(
    "foreign", [{"job": "another"}, {"position": 1}, {"axes": {"shard": 2}}, {"model": ["q", "b"]}]
)
def test_one_of_something_else_is_not_offered(files: tuple[int, int], foreign: dict[str, Any]) -> None:
    written(files[0], 9, of={**OF, **foreign})
    written(files[1], 7)
    assert offered(*files).snapshots == (mark(7),)


def test_one_that_is_given_up_is_none(files: tuple[int, int]) -> None:
    buffer = written(files[0], 7)
    here = memory(files[0])
    here.offer(Holdings())
    buffer.release()
    with pytest.raises(Broken):
        here.load(model(), mark(7))
    assert offered(files[0]) == Holdings()


# -- which is taken -------------------------------------------------------------------------


def holds(*snapshots: Mark, committed: tuple[Mark, ...] = ()) -> Holdings:
    return Holdings(NO_STATE, snapshots=snapshots, committed=committed)


def test_the_newest_committed_one_anywhere_is_the_origin() -> None:
    found = deal(
        ["a", "b", "c"],
        {
            "a": holds(mark(5), mark(6), committed=(mark(5), mark(6))),
            "b": holds(mark(7), mark(8), committed=(mark(7),)),
            "c": holds(mark(7), committed=(mark(7),)),
        },
        4,
        1,
    )
    assert found.restored == mark(7)
    assert found.late == {"a": LateState("b")}  # c has it, too: nothing is moved to it


def test_a_newer_lineage_has_replaced_an_older_one() -> None:
    old, new = mark(40, epoch=2), mark(9, epoch=3)
    found = deal(["a", "b"], {"a": holds(old, committed=(old,)), "b": holds(new, committed=(new,))}, 4, 1)
    assert (found.restored, set(found.late)) == (new, {"a"})


def test_whoever_has_state_goes_before_any_snapshot() -> None:
    found = deal(["a", "b"], {"a": holds(mark(9), committed=(mark(9),)), "b": Holdings(3)}, 4, 1)
    assert found.restored is None
    assert set(found.late) == {"a"}


def columns(*seats: Holdings, size: int = 2) -> list[Deal]:
    """What the workers at each position make of it."""
    held = [column(dict(enumerate(seats)), position, size) for position in range(size)]
    return [deal([str(s) for s in of], {str(s): h for s, h in of.items()}, 4, 1) for of in held]


def test_all_positions_begin_with_the_same_step() -> None:
    """One has written over the older while another died before it knew that the newer one is committed."""
    found = columns(
        holds(mark(7), mark(8), committed=(mark(7),)), holds(mark(6), mark(7), committed=(mark(6),)), size=2
    )
    assert [d.restored for d in found] == [mark(7), mark(7)]
    assert [d.late for d in found] == [{}, {}]


def test_parts_may_be_on_different_replicas() -> None:
    """Of each replica one worker's memory is gone."""
    found = columns(holds(mark(7), committed=(mark(7),)), holds(), holds(), holds(mark(7)))
    assert [d.restored for d in found] == [mark(7), mark(7)]
    assert [d.late for d in found] == [{"2": LateState("0")}, {"1": LateState("3")}]


def test_a_step_of_which_a_part_is_with_nobody_is_no_choice() -> None:
    old = (mark(4),)
    found = columns(holds(mark(7), mark(4), committed=(mark(7), mark(4))), holds(*old), holds(mark(7)), holds(*old))
    assert [d.restored for d in found] == [mark(4), mark(4)]
    assert [d.late for d in found] == [{"2": LateState("0")}, {}]


def test_what_is_stored_goes_before_older_snapshots() -> None:
    newer, older = Holdings(stored=mark(9)), replace(holds(mark(8), committed=(mark(8),)), stored=mark(2))
    found = deal(["a", "b"], {"a": newer, "b": older}, 4, 1)
    assert (found.restored, found.from_storage, found.late) == (mark(8), True, {"b": LateState("a")})
    found = deal(["a", "b"], {"a": replace(newer, stored=mark(8)), "b": older}, 4, 1)
    assert (found.restored, found.from_storage, found.late) == (mark(8), False, {"a": LateState("b")})


# -- storage beside -------------------------------------------------------------------------


@pytest.mark.parametrize(("readable", "source"), [(8, "storage"), (5, "memory"), (7, "storage")])
def test_a_stored_one_that_cant_be_read_is_no_reason_to_go_back_further_than_memory(
    files: tuple[int, int], readable: int, source: str
) -> None:
    written(files[0], 7)
    here = memory(files[0])
    nearest = Nearest(here, lambda _: (Progress(readable, -1, 0), 0), mark(8), Single())
    assert nearest.offer(Holdings()).stored == mark(8)
    origin = nearest.restore(model(), mark(7), from_storage=True)
    assert origin.source == source
    assert origin.progress == Progress(7 if source == "memory" else readable, -1, 0)


def test_whoever_lacks_the_snapshot_keeps_to_what_is_stored() -> None:
    nearest = Nearest(memory(), lambda _: (Progress(5, -1, 0), 0), mark(8), Single())
    nearest.offer(Holdings())
    assert nearest.restore(model(), mark(7), from_storage=True).progress == Progress(5, -1, 0)


# -- how much and how often -----------------------------------------------------------------


@pytest.mark.parametrize(("cost", "every"), [(0.0, 1), (0.001, 1), (0.005, 1), (0.0051, 2), (0.05, 10)])
def test_as_often_as_the_budget_pays_for(cost: float, every: int) -> None:
    pace = Pace(0.005)
    pace.pay(cost)
    assert pace.interval(1, 1.0) == every


def test_what_a_step_takes_must_be_known_before_a_second_one() -> None:
    pace = Pace(0.005)
    assert pace.interval(1, 0.0) == 1
    pace.pay(0.001)
    assert [pace.interval(since, 0.0) for since in (1, 2, 3)] == [2, 3, 4]


def test_waiting_is_paid_for_too() -> None:
    pace = Pace(0.01)
    pace.pay(0.02)
    assert [pace.left(since, 1.0) for since in (1, 2, 5)] == pytest.approx([0.0, 0.0, 0.03])


class Loop:
    """An engine as far as snapshots look at it."""

    def __init__(self, replica: Replica, step_seconds: float, epoch: int = 1) -> None:
        self.replica, self.applied, self.generation = replica, -1, 0
        self.told: list[SnapshotsStopped] = []
        self.membership = SimpleNamespace(formation=SimpleNamespace(epoch=Epoch(1, epoch)), tell=self.told.append)
        self.ring = SimpleNamespace(write=lambda _: None)
        self.watch = SimpleNamespace(step_seconds=step_seconds)

    def packed(self) -> Packed:
        return state(self.replica, self.applied)


def writer(files: tuple[int, int], budget: float = 1e9, bytes_max: int = 1 << 20) -> Memory:
    welcome = Attached(job_id="id", snapshot_budget=budget, snapshot_bytes=bytes_max)
    made = Memory(welcome, Files(files, files), Single(), Drills())
    made.set_fingerprint(FINGERPRINT)
    return made


def train(memory: Memory, steps: range, step_seconds: float = 1.0, epoch: int = 1) -> None:
    loop: Any = Loop(model(), step_seconds, epoch)
    for step in steps:
        loop.applied = step
        memory.at_head(loop)
        memory.committed(step - 1)


def test_two_take_turns(files: tuple[int, int]) -> None:
    here = writer(files)
    train(here, range(5))
    assert set(here.offer(Holdings()).snapshots) == {mark(3), mark(4)}
    assert here.offer(Holdings()).committed == (mark(3),)


@pytest.mark.parametrize("budget", [1e9, 1e-9])
def test_whoever_stands_still_leaves_the_step_that_is_applied(files: tuple[int, int], budget: float) -> None:
    here = writer(files, budget)
    train(here, range(5))
    loop: Any = Loop(model(), 1.0)
    loop.applied = 5
    here.at_standstill(loop)
    here.at_standstill(loop)
    found = writer(files).offer(Holdings())
    assert set(found.snapshots) == {mark(5), mark(4) if budget > 1 else mark(0)}
    assert mark(5) in found.committed
    loop.applied = 3  # the job has begun again before that
    here.at_standstill(loop)
    assert mark(3) in writer(files).offer(Holdings()).committed


def test_a_state_that_most_do_not_have_is_left_to_nobody(files: tuple[int, int]) -> None:
    here = writer(files)
    train(here, range(5))
    loop: Any = Loop(model(), 1.0)
    here.disown(loop)
    train(here, range(5, 7))
    assert writer(files).offer(Holdings()).snapshots == ()
    assert [told.reason for told in loop.told] == ["its parameters differ from those of most replicas"]


def test_a_successor_first_writes_over_what_does_not_count(files: tuple[int, int]) -> None:
    """It inherits step 3, which is committed, and step 4, which is not."""
    train(writer(files), range(5))
    successor = writer(files)
    train(successor, range(3, 4))
    assert set(successor.offer(Holdings()).snapshots) == {mark(3)}
    third = writer(files)
    train(third, range(3, 6))
    assert set(third.offer(Holdings()).snapshots) == {mark(4), mark(5)}


def test_what_a_job_has_begun_with_again_stays_until_a_newer_one_counts(files: tuple[int, int]) -> None:
    """It has gone back to step 3, which is committed, from step 4, which is not."""
    here = writer(files)
    train(here, range(5))
    train(here, range(3, 4), epoch=2)
    assert set(here.offer(Holdings()).snapshots) == {mark(3), mark(3, epoch=2)}
    assert here.offer(Holdings()).committed == (mark(3),)
    train(here, range(4, 6), epoch=2)
    assert set(here.offer(Holdings()).snapshots) == {mark(4, epoch=2), mark(5, epoch=2)}


def test_a_step_of_a_life_that_is_lost_never_counts(files: tuple[int, int]) -> None:
    """Though one of its number is committed later, before anything has been written over it."""
    here = writer(files)
    train(here, range(5))
    here._pace = Pace(1e-9)
    here._pace.pay(1.0)
    train(here, range(3, 7), epoch=2)
    assert set(here.offer(Holdings()).snapshots) == {mark(3), mark(4)}
    assert here.offer(Holdings()).committed == (mark(3),)


def test_a_small_budget_leaves_long_gaps(files: tuple[int, int]) -> None:
    here = writer(files, budget=1e-9)
    train(here, range(100))
    assert here.offer(Holdings()).snapshots == (mark(0),)


def test_too_little_memory_is_one_line_and_takes_none(
    files: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    train(writer(files, bytes_max=1000), range(3))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--snapshot-bytes" in said
    assert os.fstat(files[0]).st_size == 0


def test_a_state_that_cant_be_copied_is_one_line_too(
    files: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Training goes on."""
    loop: Any = Loop(model(), 1.0)
    loop.replica.state.extra = {"odd": SimpleNamespace(state_dict=lambda: {"a": print})}
    here = writer(files)
    for loop.applied in range(3):
        here.at_head(loop)
    said = capsys.readouterr().err
    assert (said.count("\n"), "leave it out" in said) == (1, True)
    assert [(fact.step, fact.reason in said) for fact in loop.told] == [(0, True)]
