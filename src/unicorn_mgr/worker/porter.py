"""A process that stores the part of a checkpoint that a worker has handed over, and outlives the worker.

It is forked from the warm template, as workers are, with the worker's environment, reads the part where it lies in
memory, and writes it in the same format to the same place as a worker would.  What it has to tell goes to the
template, which passes it to the agent and repeats it to the next one; so it comes to the coordinator as if the worker
had told it.  It ends when the checkpoint is published, or never will be; if it dies before, the template forks
another, which begins again: a part that is half written is no part.

It gets out of training's way: it computes with one thread and yields the processor to whoever wants it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from typing import Any, NoReturn

import torch

from unicorn_mgr.codec import encode
from unicorn_mgr.messages import CheckpointFailed, CheckpointHanded, CheckpointWritten, Fact, WorkerMessage
from unicorn_mgr.model import Drill, Epoch, Lineage, Mark
from unicorn_mgr.seal import COMMITTED_AT, Snapshot, Torn, find
from unicorn_mgr.worker import launch
from unicorn_mgr.worker.attempts import Superseded
from unicorn_mgr.worker.berths import BROKEN, STORED, SUPERSEDED, UNABLE
from unicorn_mgr.worker.carrier import Carrier, Waybill
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.snapshot import mapped
from unicorn_mgr.worker.storage import Manifest, Storage, StorageError

COMMIT_POLL_SECONDS = 0.05
"""The worker says in memory that the step is committed, and nothing wakes whoever looks there."""

WORD_BYTES_MAX = 4096
NICENESS = 10


class TemplateGone(Superseded):
    """Nobody would hear what becomes of the part; another attempt would not change that."""


class Words:
    """What is heard of a part while it is on its way."""

    def __init__(self, line: socket.socket, part: Snapshot) -> None:
        self._line = line
        self._part = part
        self._gone = False
        """The worker has ended."""
        self._complete: Mark | None = None
        """The newest checkpoint that has all its parts."""

    def overtaken(self) -> bool:
        """A newer checkpoint is complete."""
        self._hear(0.0)
        return self._complete is not None and self._complete.order > self._part.mark.order

    def is_committed(self) -> bool:
        """Wait until the step is; False if it will not be, or that does not matter any more."""
        while not os.pread(self._part.file, 1, COMMITTED_AT)[0]:
            if self.overtaken() or self._gone:
                return bool(os.pread(self._part.file, 1, COMMITTED_AT)[0])
            self._hear(COMMIT_POLL_SECONDS)
        return True

    def await_complete(self) -> None:
        """Until all parts are there, or a newer checkpoint is complete."""
        while self._complete is None or self._complete.order < self._part.mark.order:
            self._hear(None)

    def _hear(self, seconds: float | None) -> None:
        while select.select([self._line], [], [], seconds)[0]:
            said = self._line.recv(WORD_BYTES_MAX)
            if not said:
                raise TemplateGone
            word = json.loads(said)
            self._gone = self._gone or word["op"] == "gone"
            if word["op"] == "complete":
                step, generation, term, number = word["mark"]
                mark = Mark(step, Lineage(generation, Epoch(term, number)))
                self._complete = mark if self._complete is None or mark.order > self._complete.order else self._complete
            seconds = 0.0


def run(log: str, order: dict[str, Any], file: int, line: socket.socket, first: bool) -> NoReturn:
    """In a child of the template: be the porter of a part; never returns."""
    code = 70
    try:
        launch.be_porter(log, order["environment"], order["folder"])
        os.nice(NICENESS)
        torch.set_num_threads(1)
        code = carry(order, file, line, first)
    except TemplateGone:
        sys.stderr.write("unicorn: a checkpoint's part is given up: the template has died\n")
    except BaseException as failed:  # noqa: BLE001 - a child must not run on as a second template
        sys.stderr.write(f"unicorn: a checkpoint's part is taken up again: {failed!r}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def carry(order: dict[str, Any], file: int, line: socket.socket, first: bool = True) -> int:
    """Store the part; returns the exit status."""

    def tell(fact: Fact) -> None:
        said = {"kind": type(fact).__name__, "fact": encode(WorkerMessage(fact)).hex()}
        try:
            line.send(json.dumps(said).encode())
        except OSError as failed:
            raise TemplateGone from failed

    try:
        part = find(file)
        assert part is not None, "the template looks for a seal"
        packed = mapped(part)
    except Torn as why:
        tell(CheckpointFailed(order["step"], f"the part that was left in memory: {why}", superseded=True))
        return BROKEN
    try:
        storage = Storage(order["url"])
    except StorageError as unknown:
        sys.stderr.write(f"unicorn: {order['url']}: {unknown}; this worker stores its checkpoints itself\n")
        return UNABLE
    mark, words = part.mark, Words(line, part)
    tell(CheckpointHanded(mark.step, mark.lineage, storage.url))
    drills = Drills([Drill(**said) for said in order["drills"]] if first else [])
    drills.reach("handed", mark.step)
    bare = Manifest(mark.step, mark.lineage, part.of["job"], order["fingerprint"], {}, part.of["axes"])
    carrier = Carrier(storage, Waybill(bare, part.of["position"], order["keep"]), tell, drills, words.overtaken)
    began = time.monotonic()
    try:
        size = carrier.write(packed)
        if not words.is_committed():
            carrier.discard()
            raise Superseded("its worker has died before the step was committed")
        seconds = time.monotonic() - began
        tell(CheckpointWritten(mark.step, mark.lineage, storage.url, size, order["blocked"], seconds, handed=True))
        words.await_complete()
        carrier.publish()
    except TemplateGone:
        raise
    except Superseded as why:
        tell(CheckpointFailed(mark.step, str(why), superseded=True))
        return SUPERSEDED
    return STORED
