"""What a worker has its agent do with snapshots: all parts of one step are always somewhere, and come back whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker.test_snapshots import FINGERPRINT, OF, mark, model, written

from unicorn_mgr.messages import Attached, BackupEnded, SnapshotFetched, SnapshotTaken, SnapshotWanted
from unicorn_mgr.model import Holdings, Mark
from unicorn_mgr.ring import RingWriter
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.errands import Errands
from unicorn_mgr.worker.exchange import Broken, Overtaken
from unicorn_mgr.worker.memory import Files, Memory
from unicorn_mgr.worker.siblings import Single


@dataclass
class Line:
    """The link to the agent, and the membership over it."""

    told: list[Any] = field(default_factory=list)
    backup_ended: BackupEnded | None = None
    snapshot_fetched: SnapshotFetched | None = None
    on_wanted: Callable[[SnapshotWanted], None] = lambda _: None
    overtaken: bool = False
    forgotten: list[type] = field(default_factory=list)

    def tell(self, said: Any) -> None:
        self.told.append(said)
        if isinstance(said, SnapshotWanted):
            self.on_wanted(said)

    def tell_no_more(self, kind: type) -> None:
        self.forgotten.append(kind)

    def wait(self, ready: Callable[[], bool]) -> bool:
        return not self.overtaken and ready()

    def wait_out(self, ready: Callable[[], bool]) -> None:
        assert ready(), "this would block for ever"


def errands(line: Line, welcome: Attached | None = None) -> Errands:
    anything = cast("Any", line)
    return Errands(anything, RingWriter(bytearray(4096)), welcome or Attached(), anything)


# -- copies ---------------------------------------------------------------------------------


def test_a_snapshot_is_told_of_once_when_it_is_committed() -> None:
    line = Line()
    made = errands(line)
    made.next(mark(7), succeeded=False)
    made.committed(6)
    assert line.told == []
    made.committed(7)
    made.committed(8)
    assert line.told == [SnapshotTaken(mark(7), Mark())]


def test_whoever_is_told_of_another_one_waits_on() -> None:
    line = Line()
    made = errands(line)
    assert (made.waits, made.failed) == (False, False)
    made.next(mark(7), succeeded=False)
    line.backup_ended = BackupEnded(mark(5), kept=True)
    assert (made.waits, made.failed) == (True, True)
    line.backup_ended = BackupEnded(mark(7), kept=True)
    assert (made.waits, made.failed) == (False, False)
    line.backup_ended = BackupEnded(mark(7), kept=False)
    assert (made.waits, made.failed) == (False, True)


@given(st.integers(1, 3), st.data())
def test_there_is_always_a_step_of_which_all_parts_are_somewhere(parts: int, data: st.DataObject) -> None:
    """Whatever becomes of each copy, and whenever: what all had is given up for what all have, and for nothing else."""
    lines = [Line() for _ in range(parts)]
    workers = [errands(line) for line in lines]
    kept: list[set[Mark]] = [set() for _ in range(parts)]
    told = [0] * parts
    had_common = False
    for step in range(data.draw(st.integers(1, 12))):
        waits, failed = any(w.waits for w in workers), any(w.failed for w in workers)
        for worker in workers:
            if not waits:
                worker.next(mark(step), succeeded=not failed)
            worker.committed(step)
        for i, line in enumerate(lines):
            if told[i] < len(line.told) and data.draw(st.booleans()):  # this agent has come to an end with it
                taken = line.told[told[i]]
                told[i] += 1
                oldest = sorted(kept[i], key=lambda m: m.order)[:2]
                kept[i] = {m for m in kept[i] if m == taken.base or (m in oldest and taken.base == Mark())}
                if arrived := data.draw(st.booleans()):
                    kept[i].add(taken.mark)
                line.backup_ended = BackupEnded(taken.mark, arrived)
            common = set.intersection(*kept)
            had_common = had_common or bool(common)
            assert common or not had_common
            assert len(kept[i]) <= 3
        newest = max((m.step for m in set.intersection(*kept)), default=-1)
        assert all(w._ring.backed_up <= newest for w in workers), "nothing counts that is not there"


# -- and back -------------------------------------------------------------------------------


ELSEWHERE = Attached(job_id="id", snapshot_bytes=1 << 20, elsewhere=(mark(6), mark(7)), elsewhere_committed=(mark(7),))


@pytest.fixture
def files() -> Iterator[tuple[int, int]]:
    made = os.memfd_create("one"), os.memfd_create("other")
    yield made
    for file in made:
        os.close(file)


def memory(line: Line, *own: int) -> Memory:
    made = Memory(ELSEWHERE, Files(own, own), Single(), Drills(), errands(line, ELSEWHERE))
    made.set_fingerprint(FINGERPRINT)
    return made


def bringing(line: Line, files: tuple[int, int], bring: Callable[[int], None]) -> None:
    """An agent that puts something into the worker's memory."""

    def wanted(asked: SnapshotWanted) -> None:
        if asked.mark != Mark():
            bring(files[asked.buffer])
            line.snapshot_fetched = SnapshotFetched(asked.mark)

    line.on_wanted = wanted


def test_what_others_have_is_offered_beside_what_is_here(files: tuple[int, int]) -> None:
    written(files[0], 6)
    assert memory(Line(), *files).offer(Holdings()) == Holdings(
        snapshots=(mark(6),), committed=(mark(6), mark(7)), elsewhere=(mark(7),)
    )


def test_one_is_brought_and_read_like_an_own_one(files: tuple[int, int]) -> None:
    """It comes where the least is lost by it."""
    line = Line()
    written(files[0], 5)
    bringing(line, files, lambda file: (written(file, 7), None)[1])
    here = memory(line, *files)
    here.offer(Holdings())
    origin = here.load(model(), mark(7))
    assert (origin.source, origin.progress and origin.progress.applied) == ("peer", 7)
    assert line.told == [SnapshotWanted(mark(7), 1)]
    assert line.forgotten == [SnapshotWanted], "a new agent would write over what is written there next"
    found = here.offer(Holdings())
    assert (set(found.snapshots), found.elsewhere) == ({mark(5), mark(7)}, (mark(6),))


@pytest.mark.parametrize(
    "planted",
    [
        lambda file: written(file, 6),
        lambda file: written(file, 7, of={**OF, "job": "another"}),
        lambda file: written(file, 7, of={**OF, "position": 1}),
        lambda file: written(file, 7, of={**OF, "model": ["q", "b"]}),
        lambda file: written(file, 7, epoch=9),
        lambda file: None,
        lambda file: os.truncate(file, 500 if written(file, 7) else 0),
    ],
    ids=["stale", "foreign job", "foreign part", "foreign model", "another lineage", "nothing", "torn"],
)
def test_what_is_not_the_one_is_not_taken(files: tuple[int, int], planted: Callable[[int], Any]) -> None:
    line = Line()
    bringing(line, files, lambda file: (planted(file), None)[1])
    here = memory(line, *files)
    here.offer(Holdings())
    with pytest.raises(Broken, match="step 7"):
        here.load(model(), mark(7))
    assert mark(7) not in here.offer(Holdings()).elsewhere


def test_a_flipped_bit_of_its_body_is_found(files: tuple[int, int]) -> None:
    def damage(file: int) -> None:
        end = len(written(file, 7)._memory or b"") - (64 << 10)
        (byte,) = os.pread(file, 1, end - 70)
        os.pwrite(file, bytes([byte ^ 4]), end - 70)

    line = Line()
    bringing(line, files, damage)
    here = memory(line, *files)
    here.offer(Holdings())
    with pytest.raises(Broken, match="step 7"):
        here.load(model(), mark(7))
    assert mark(7) not in (found := here.offer(Holdings())).elsewhere
    assert mark(7) not in found.snapshots


def test_one_that_can_not_be_brought_is_offered_no_more(files: tuple[int, int]) -> None:
    line = Line()
    line.on_wanted = lambda asked: setattr(line, "snapshot_fetched", SnapshotFetched(asked.mark, "b: gone"))
    here = memory(line, *files)
    here.offer(Holdings())
    with pytest.raises(Broken, match="b: gone"):
        here.load(model(), mark(7))
    assert here.offer(Holdings()).elsewhere == (mark(6),)


@pytest.mark.parametrize("agent", ["stops", "has only just come"])
def test_nobody_writes_into_a_worker_s_memory_once_it_goes_on(files: tuple[int, int], agent: str) -> None:
    """A newer membership comes while one is brought: the agent is told to stop, and has."""
    line = Line(overtaken=True)

    def wanted(asked: SnapshotWanted) -> None:
        if asked.mark == Mark():
            said = SnapshotFetched(mark(7), "it is not wanted any more")
            line.snapshot_fetched = said if agent == "stops" else SnapshotFetched(Mark(), "nothing is under way")

    line.on_wanted = wanted
    here = memory(line, *files)
    here.offer(Holdings())
    with pytest.raises(Overtaken):
        here.load(model(), mark(7))
    assert [asked.mark for asked in line.told] == [mark(7), Mark()]
    assert mark(7) in here.offer(Holdings()).elsewhere


def test_a_job_that_knows_no_peers_has_none(files: tuple[int, int]) -> None:
    made = Memory(Attached(job_id="id"), Files(files, files), Single(), Drills())
    made.committed(3)
    assert made.offer(Holdings()) == Holdings()
