"""What a worker has handed over is stored by another process: whatever storage does, and whatever the worker does."""

from __future__ import annotations

import errno
import itertools
import json
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from worker.checkpoints import EPOCH, FLAKY, MARKS, MODEL, Bench, weight
from worker.flaky import FlakyFileSystem

from unicorn_mgr.codec import decoder
from unicorn_mgr.messages import (
    CheckpointFailed,
    CheckpointHanded,
    CheckpointPublished,
    CheckpointWritten,
    Fact,
    WorkerMessage,
)
from unicorn_mgr.model import Epoch, Lineage, Mark
from unicorn_mgr.seal import COMMITTED_AT, find
from unicorn_mgr.worker import attempts, berths
from unicorn_mgr.worker.handover import Handover
from unicorn_mgr.worker.porter import COMMIT_POLL_SECONDS, TemplateGone, carry
from unicorn_mgr.worker.snapshot import Buffer, Draft, mapped
from unicorn_mgr.worker.state import Progress, pack
from unicorn_mgr.worker.storage import Storage

pytestmark = MARKS

MARK = Mark(4, Lineage(0, EPOCH))
NEWER = Mark(2, Lineage(0, Epoch(1, 2)))
read = decoder(WorkerMessage)
PATIENCE_SECONDS = 20.0
ROOM = 1 << 20


_lines: list[socket.socket] = []


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever fails is tried again at once; no line stays open."""
    monkeypatch.setattr(attempts, "RETRY_SECONDS", 0.001)
    yield
    while _lines:
        _lines.pop().close()


def line() -> tuple[socket.socket, socket.socket]:
    """Both ends, the template's first."""
    _lines.extend(ends := socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    ends[0].settimeout(PATIENCE_SECONDS)
    return ends


def left_in(file: int, committed: bool = True, of: dict[str, Any] | None = None) -> None:
    """The part that a worker has left after step 4; all its weights are 4."""
    bench = Bench(FLAKY)
    with torch.no_grad():
        for p in bench.model.parameters():
            p.fill_(4)
    draft = Draft(MARK, of or {"job": "job", "position": 0, "axes": {}}, bench.packed(4))
    buffer = Buffer(file)
    buffer.make_room(draft)
    buffer.write(draft, lambda: None)
    buffer.seal()
    if committed:
        buffer.commit()


def order(url: str, keep: int = 3) -> dict[str, Any]:
    return {"step": 4, "url": url, "keep": keep, "fingerprint": MODEL, "blocked": 0.0, "drills": []}


class Porter:
    """One at work in a thread, and its template, which is played here."""

    def __init__(self, file: int, url: str) -> None:
        self.ours, theirs = line()
        self.ended: list[int | BaseException] = []

        def work() -> None:
            try:
                self.ended.append(carry(order(url), file, theirs))
            except TemplateGone as gone:
                self.ended.append(gone)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def hear(self, kind: type[Fact]) -> Any:
        """What it tells next of a kind."""
        while True:
            fact = read(bytes.fromhex(json.loads(self.ours.recv(1 << 16))["fact"])).body
            if isinstance(fact, kind):
                return fact

    def complete(self, mark: Mark = MARK) -> None:
        lineage = mark.lineage
        said = [mark.step, lineage.generation, lineage.epoch.term, lineage.epoch.number]
        self.ours.send(json.dumps({"op": "complete", "mark": said}).encode())

    def gone(self) -> None:
        self.ours.send(b'{"op": "gone"}')

    def end(self) -> int | BaseException:
        self._thread.join(PATIENCE_SECONDS)
        (ended,) = self.ended
        return ended


@pytest.fixture
def part() -> Iterator[int]:
    file = os.memfd_create("part")
    yield file
    os.close(file)


def test_it_is_stored_as_the_worker_would_have(url: str, part: int) -> None:
    left_in(part)
    porter = Porter(part, url)
    assert porter.hear(CheckpointHanded) == CheckpointHanded(4, MARK.lineage, url)
    written = porter.hear(CheckpointWritten)
    assert (written.step, written.lineage, written.url, written.handed) == (4, MARK.lineage, url, True)
    assert written.size_bytes > 0
    assert Bench(url).find() == (None, 0), "nobody has said yet that all parts are there"
    porter.complete()
    assert porter.hear(CheckpointPublished) == CheckpointPublished(4, url)
    assert porter.end() == berths.STORED
    fresh = Bench(url)
    assert fresh.find() == (Progress(4, -1, 0), 0)
    assert weight(fresh) == 4


def test_every_byte_whatever_the_number_of_chunks(url: str, part: int) -> None:
    """Odd and even numbers of pieces, of every size around them: none is left out in the copy."""
    tree = {str(n): torch.arange(n, dtype=torch.uint8) for n in (0, 1, 63, 64, 65, 1 << 19, 3 << 19, (5 << 19) + 1)}
    draft = Draft(MARK, {"job": "job", "position": 0, "axes": {}}, pack(tree))
    buffer = Buffer(part)
    buffer.make_room(draft)
    buffer.write(draft, lambda: None)
    buffer.seal()
    found = find(part)
    assert found is not None
    assert all(map(torch.equal, mapped(found).tensors, tree.values()))


@pytest.mark.parametrize(("call", "times"), [("put_file", 1), ("put_file", 7), ("pipe_file", 3), ("ls", 2)])
def test_storage_that_fails_is_tried_again_until_it_does_not(part: int, call: str, times: int) -> None:
    left_in(part)
    FlakyFileSystem.failures[call] = iter([OSError("down")] * times)
    porter = Porter(part, FLAKY)
    porter.complete()
    failed = [porter.hear(CheckpointFailed) for _ in range(times)]
    assert all(f.error == "down" and not f.superseded for f in failed)
    assert porter.end() == berths.STORED
    assert Bench(FLAKY).find() == (Progress(4, -1, 0), 0)


def test_a_full_disk_is_tried_again(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is full in the middle of a file; what was half written is gone before the next attempt."""
    left_in(part)
    plain, full = FileSystemWriter.write_data, iter([True, True, False])

    def write(self: FileSystemWriter, *arguments: Any) -> Any:
        if next(full):
            (Path(self.path) / "half").write_bytes(b"x" * 1000)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert list(Path(self.path).iterdir()) == []
        return plain(self, *arguments)

    monkeypatch.setattr(FileSystemWriter, "write_data", write)
    porter = Porter(part, str(tmp_path / "run"))
    assert "No space left on device" in porter.hear(CheckpointFailed).error
    porter.complete()
    assert porter.end() == berths.STORED
    assert Bench(str(tmp_path / "run")).find() == (Progress(4, -1, 0), 0)


def test_all_is_on_disk_before_that_is_told(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file, and the folder that has their names; and the manifest before anybody hears that it is published."""
    left_in(part)
    synced: set[int] = set()
    plain = os.fsync

    def fsync(file: int) -> None:
        plain(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    porter = Porter(part, str(tmp_path / "run"))
    porter.hear(CheckpointWritten)
    (folder,) = (tmp_path / "run").iterdir()
    assert len(list(folder.iterdir())) == 3
    assert {path.stat().st_ino for path in (*folder.iterdir(), folder, tmp_path / "run")} <= synced
    synced.clear()
    porter.complete()
    porter.hear(CheckpointPublished)
    (manifest,) = (tmp_path / "run").glob("*.json")
    assert {manifest.stat().st_ino, manifest.parent.stat().st_ino} <= synced
    assert porter.end() == berths.STORED


def test_another_one_begins_again_where_one_has_died(url: str, part: int) -> None:
    """What the first has written is no checkpoint, and does not harm the second."""
    left_in(part)
    name = f"step-{4:010d}.0-1-1"
    storage = Storage(url)
    with storage.staging(name) as folder:
        (folder / "__0_0.distcp").write_bytes(b"torn")
        storage.upload(name, folder)
    assert Bench(url).find() == (None, 0)
    porter = Porter(part, url)
    porter.complete()
    assert porter.end() == berths.STORED
    fresh = Bench(url)
    assert fresh.find() == (Progress(4, -1, 0), 0)
    assert weight(fresh) == 4


@pytest.mark.parametrize("at", ["head", "body"])
def test_a_part_that_is_damaged_in_memory_is_never_stored(url: str, part: int, at: str) -> None:
    left_in(part)
    found = find(part)
    assert found is not None
    place = 80 if at == "head" else found.body_at
    (byte,) = os.pread(part, 1, place)
    os.pwrite(part, bytes([byte ^ 1]), place)
    porter = Porter(part, url)
    failed = porter.hear(CheckpointFailed)
    assert failed.superseded
    assert "is not as it was written" in failed.error
    assert porter.end() == berths.BROKEN
    assert Bench(url).find() == (None, 0)


def test_nothing_is_told_before_the_step_is_committed(url: str, part: int) -> None:
    left_in(part, committed=False)
    porter = Porter(part, url)
    porter.hear(CheckpointHanded)
    porter.ours.settimeout(0.2)
    with pytest.raises(TimeoutError):
        porter.hear(CheckpointWritten)
    porter.ours.settimeout(PATIENCE_SECONDS)
    os.pwrite(part, b"\1", COMMITTED_AT)
    porter.hear(CheckpointWritten)
    porter.complete()
    assert porter.end() == berths.STORED


def test_whoever_waits_for_a_commit_does_not_spin(url: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left_in(part, committed=False)
    paused: list[float | None] = []
    enough = threading.Event()
    plain = select.select

    def wait(lines: Any, others: Any, errors: Any, seconds: float | None) -> Any:
        paused.append(seconds)
        if paused.count(COMMIT_POLL_SECONDS) >= 5:
            enough.set()
        return plain(lines, others, errors, seconds)

    monkeypatch.setattr(select, "select", wait)
    porter = Porter(part, url)
    porter.hear(CheckpointHanded)
    assert enough.wait(PATIENCE_SECONDS)
    looked = len(paused)
    assert paused.count(0.0) <= looked // 2 + 10, "between any two looks it has waited"
    os.pwrite(part, b"\1", COMMITTED_AT)
    porter.hear(CheckpointWritten)
    porter.complete()
    assert porter.end() == berths.STORED


def test_a_step_that_nobody_has_seen_committed_is_not_stored(url: str, part: int) -> None:
    """Its worker has died in the next one."""
    left_in(part, committed=False)
    porter = Porter(part, url)
    porter.gone()
    assert porter.hear(CheckpointFailed).superseded
    assert porter.end() == berths.SUPERSEDED
    assert list(Storage(url).manifests()) == []


def test_one_that_was_committed_is_stored_though_its_worker_is_gone(url: str, part: int) -> None:
    left_in(part)
    porter = Porter(part, url)
    porter.gone()
    porter.complete()
    assert porter.end() == berths.STORED


@pytest.mark.parametrize("storage", ["is up", "is down"])
def test_a_newer_checkpoint_ends_it(part: int, storage: str) -> None:
    """It does not wait for storage to come back to learn that nobody wants it."""
    left_in(part)
    if storage == "is down":
        FlakyFileSystem.failures["put_file"] = itertools.repeat(OSError("down"))
    porter = Porter(part, FLAKY)
    porter.hear(CheckpointFailed if storage == "is down" else CheckpointWritten)
    porter.complete(NEWER)
    while not porter.hear(CheckpointFailed).superseded:
        pass
    assert porter.end() == berths.SUPERSEDED
    FlakyFileSystem.failures.clear()
    assert Bench(FLAKY).find() == (None, 0)


def test_an_older_one_does_not(url: str, part: int) -> None:
    left_in(part)
    porter = Porter(part, url)
    porter.complete(Mark(3, MARK.lineage))
    porter.hear(CheckpointWritten)
    porter.complete()
    assert porter.end() == berths.STORED


def test_without_its_template_it_does_not_try_for_ever(part: int) -> None:
    left_in(part)
    FlakyFileSystem.failures["put_file"] = itertools.repeat(OSError("down"))
    porter = Porter(part, FLAKY)
    porter.hear(CheckpointFailed)
    porter.ours.close()
    assert isinstance(porter.end(), TemplateGone)


def test_without_its_template_it_ends(url: str, part: int) -> None:
    """Nobody would hear of it; whoever is started next begins with a sound place."""
    left_in(part)
    porter = Porter(part, url)
    porter.hear(CheckpointWritten)
    porter.ours.close()
    assert isinstance(porter.end(), TemplateGone)
    assert list(Storage(url).manifests()) == []


def test_storage_that_only_the_script_knows_is_left_to_the_worker(
    part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    left_in(part)
    assert Porter(part, "nosuch://bucket").end() == berths.UNABLE
    assert "this worker stores its checkpoints itself" in capsys.readouterr().err


# -- the worker's end -----------------------------------------------------------------------


class Handing(Bench):
    """A checkpointer whose template is played by a test."""

    def __init__(self, url: str, file: int, bytes_max: int = ROOM, copies: int = 2) -> None:
        self.ours, theirs = line()
        super().__init__(url, handover=Handover(file, theirs, bytes_max, copies))

    def rung(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.ours.recv(1 << 18))
        return said

    def answer(self, said: str) -> None:
        self.ours.send(said.encode())


def test_a_worker_leaves_what_is_there_and_hears_how_it_ended(tmp_path: Path, part: int) -> None:
    bench = Handing(str(tmp_path), part)
    bench.take(4)
    said = bench.rung()
    found = find(part)
    assert found is not None
    assert (found.mark, found.committed) == (MARK, False)
    assert (said["url"], said["keep"], said["fingerprint"]) == (str(tmp_path), 3, MODEL)
    bench.checkpointer.committed(4)
    committed = find(part)
    assert committed is not None
    assert committed.committed
    assert not bench.checkpointer.is_idle()
    bench.answer(berths.ANSWERS[berths.STORED])
    assert bench.checkpointer.wait_until_idle()
    assert bench.checkpointer.is_published(4)
    assert not bench.checkpointer.is_due(4)
    assert bench.told == [], "who stores it says so"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("bytes_max", "why"), [(0, "bytes are needed for that, and a slot of this node may have 0"), (ROOM, "on its way")]
)
def test_without_room_it_stores_from_its_own_memory_and_says_so_once(
    tmp_path: Path, part: int, bytes_max: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left_in(part)
    before = find(part)
    bench = Handing(str(tmp_path), part, bytes_max=bytes_max)
    for step in (5, 6):
        bench.store(step)
    said = capsys.readouterr().err
    assert said.count("checkpoints are stored by this worker itself") == 1
    assert why in said
    assert find(part) == before, "what another has left stays as it is"
    assert Bench(str(tmp_path)).find() == (Progress(6, -1, 0), 0)


@pytest.mark.parametrize("said", ["the part was damaged in memory", "", "gone"])
def test_what_nobody_stores_the_worker_stores_itself(
    tmp_path: Path, part: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Handing(str(tmp_path), part)
    bench.take(4)
    bench.rung()
    bench.checkpointer.committed(4)
    if said:
        bench.answer(said)
    else:
        bench.ours.close()
    assert bench.checkpointer.wait_until_idle()
    assert [type(fact) for fact in bench.told] == [CheckpointWritten, CheckpointPublished]
    assert find(part) is None
    assert (said or "the template has died") in capsys.readouterr().err
    bench.store(5)
    assert Bench(str(tmp_path)).find() == (Progress(5, -1, 0), 0)


def test_a_damaged_berth_is_nobody_s_to_write_over(tmp_path: Path, part: int) -> None:
    left_in(part)
    (byte,) = os.pread(part, 1, 80)
    os.pwrite(part, bytes([byte ^ 1]), 80)
    bench = Handing(str(tmp_path), part)
    bench.store(5)
    assert Bench(str(tmp_path)).find() == (Progress(5, -1, 0), 0)
