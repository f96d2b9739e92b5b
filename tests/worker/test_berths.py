"""A template that stores what workers hand over lives through whatever they, and the porters, do."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worker.warm import PATIENCE_SECONDS, bench
from worker.warm_table import script

from unicorn_mgr.seal import HEAD_AT
from unicorn_mgr.worker import berths
from unicorn_mgr.worker.berths import ORDER_BYTES_MAX, RETRY_SECONDS_MAX, Berth, Berths, Place

PLACE = Place("agent", "job", 0)


class Played:
    """The berths of a template that forks nobody."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.berths = Berths(select.poll(), lambda worker, said: self.said.append(said), lambda kept: None)

    def open(self, worker: str) -> tuple[Berth, socket.socket]:
        berth, theirs = self.berths.open(PLACE, worker, "log")
        theirs.settimeout(PATIENCE_SECONDS)
        return berth, theirs


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """A sealed part is taken for a whole one, and there is never a process more."""

    def fork() -> int:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(berths, "_is_sealed", lambda file: True)
    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(os, "listdir", lambda path: ["one thread"])
    made = Played()
    yield made
    made.berths.give_back(PLACE.agent, {PLACE.job})


def test_news_of_a_line_that_is_closed_is_not_waited_for_on_the_next(played: Played) -> None:
    """Both come in one turn: a worker's line ends, and the next worker's gets its number."""
    before, theirs = played.open("a")
    theirs.close()
    assert before.bell is not None
    number = before.bell.fileno()
    berth, theirs = played.open("b")
    assert berth.bell is not None
    assert berth.bell.fileno() == number, "or this proves nothing"
    assert played.berths.turn(number)
    assert berth.bell is not None, "the line of the next is left alone"
    theirs.close()


def test_an_order_that_is_too_long_is_the_worker_s_to_carry_out(played: Played) -> None:
    berth, theirs = played.open("a")
    theirs.send(json.dumps({"environment": {"A": "a" * ORDER_BYTES_MAX}}).encode())
    assert berth.bell is not None
    played.berths.turn(berth.bell.fileno())
    assert "more than" in theirs.recv(1000).decode()
    assert not berth.busy
    theirs.close()


def test_without_a_process_for_it_a_part_waits(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often: and of what it is to be told then, each word once."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    berth, theirs = played.open("a")
    os.pwrite(berth.file, bytes(HEAD_AT), 0)
    theirs.send(b'{"step": 4}')
    assert berth.bell is not None
    played.berths.turn(berth.bell.fileno())
    for step in range(2000):
        played.berths.word("a", [step, 0, 1, 1])
        now += RETRY_SECONDS_MAX
        played.berths.tend()
    assert berth.busy
    assert berth.tries == 2001
    assert berth.words == [{"op": "complete", "mark": [1999, 0, 1, 1]}]
    theirs.close()


LEAVES_A_PART = """
    import json, os
    import torch
    from unicorn_mgr.model import Epoch, Lineage, Mark
    from unicorn_mgr.worker.handover import Handover
    from unicorn_mgr.worker.snapshot import Draft
    from unicorn_mgr.worker.state import pack

    handover = Handover.inherited(json.loads(os.environ["UNICORN_SNAPSHOT_FDS"]), 1 << 20, 2)
    of = {"job": "job", "position": 0, "axes": {}}
    handover.take(Draft(Mark(4, Lineage(0, Epoch(1, 1))), of, pack({"w": torch.ones(3)})))
    handover.commit()
    handover._buffer.seal()
    order = {"step": 4, "url": URL, "keep": 3, "fingerprint": {}, "blocked": 0.0, "drills": []}
    order |= {"environment": dict(os.environ), "folder": os.getcwd()}
    handover._line.send(json.dumps(order).encode())
    os.kill(os.getpid(), 9)
"""


def test_who_stores_a_part_ends_with_its_template(tmp_path: Path) -> None:
    """Nobody would hear of it, and nobody else would ever end it."""
    (tmp_path / "no folder").touch()
    row = script(LEAVES_A_PART.replace("URL", repr(str(tmp_path / "no folder" / "run"))))
    with bench(tmp_path) as made:
        assert made.warm(row.command, row.files, forget=False).status == -9
        (template,) = made.host._templates._started
        (porter,) = [os.pidfd_open(pid) for pid in children_of(template.pid)]
        template.kill()
        assert select.select([porter], [], [], PATIENCE_SECONDS)[0]
        os.close(porter)


def children_of(parent: int) -> list[int]:
    """Processes that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, of = path.read_text().rpartition(")")[2].split()[:2]
        except FileNotFoundError:
            continue
        if int(of) == parent and state != "Z":
            found.append(int(path.parent.name))
    return found
