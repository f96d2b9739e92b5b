"""Workers of a job whose model is split by FSDP2, without processes: what each has, leaves and takes.

Models are split over a process group that is none, a rank at a time.  The workers of a replica agree by meeting in
threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.scripts.pier import HERE, JOB, KEY
from unicorn_mgr.agent.backups import Backups
from unicorn_mgr.effects.agent import AgentEvent, Fetched, Gather, Lot
from unicorn_mgr.messages import (
    Attached,
    CheckpointComplete,
    CheckpointWritten,
    FormerSnapshot,
    Holder,
    PieceWanted,
    SnapshotFetched,
    SnapshotWanted,
)
from unicorn_mgr.model import Epoch, Holdings, Lineage, Mark, StatePart, said
from unicorn_mgr.pieces import size_of
from unicorn_mgr.ring import RingWriter
from unicorn_mgr.seal import find
from unicorn_mgr.tokens import token
from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.checkpoint import Checkpointer, CheckpointSettings
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.errands import Errands
from unicorn_mgr.worker.memory import Files, Memory
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.sharding import part_of
from unicorn_mgr.worker.siblings import place_of
from unicorn_mgr.worker.snapshot import Buffer, Draft
from unicorn_mgr.worker.state import Packed, Progress

# What the agent says of each errand is no part of the report.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

TENSORS = 8
MODEL = {"parameters": "p", "buffers": "b"}
EPOCH = Epoch(1, 1)
BYTES_MAX = 1 << 40


class Block(torch.nn.Module):
    """So many bytes of parameters, of which none divides evenly; with momentum twice as many of state."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        count = size_bytes // 4 // TENSORS
        self.parts = torch.nn.ParameterList(torch.arange(count + 1 + i, dtype=torch.float32) for i in range(TENSORS))


class Meeting:
    """Where the workers of a replica, each in a thread, agree."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._said: list[tuple[int, ...]] = [()] * size

    def largest(self, position: int, values: tuple[int, ...]) -> tuple[int, ...]:
        """Of each value the largest that any of them has."""
        self._said[position] = values
        self._barrier.wait()
        found = tuple(map(max, zip(*self._said, strict=True)))
        self._barrier.wait()
        return found


class Sibling:
    """One of them."""

    def __init__(self, meeting: Meeting, axes: dict[str, int], position: int) -> None:
        self.place = place_of(axes, position)
        self._meeting = meeting

    def largest(self, *values: int) -> tuple[int, ...]:
        """Together with the others."""
        return self._meeting.largest(self.place.position, values)

    def add(self, tensor: torch.Tensor, alike: bool = False) -> None:
        """Nobody adds anything here."""


class Worker:
    """What one of a replica has."""

    def __init__(self, meeting: Meeting, axes: dict[str, int], position: int, megabytes: int, stored: str) -> None:
        self.name = f"{JOB}/{position}"
        self.siblings = Sibling(meeting, axes, position)
        self.replica = _replica(axes, position, megabytes)
        self.of = {"job": JOB, "position": position, "axes": axes, "model": list(MODEL.values())}
        self.written = threading.Event()
        settings = CheckpointSettings(stored, 1, 1, JOB)
        self.checkpointer = Checkpointer(settings, self._hear, Drills(), alone=False, siblings=self.siblings)
        self.checkpointer.set_fingerprint(MODEL)

    def _hear(self, told: object) -> None:
        if isinstance(told, CheckpointWritten):
            self.written.set()

    def packed(self, step: int) -> Packed:
        """Its state."""
        return self.replica.state.collect(Progress(step, -1, 0), randomness.capture())

    def parts(self) -> list[torch.Tensor]:
        """Its part of each parameter."""
        return [part_of(p) for p in self.replica.state.parameters.values()]


def workers(axes: dict[str, int], megabytes: int, stored: str) -> list[Worker]:
    """All of a replica."""
    size = place_of(axes, 0).size
    meeting = Meeting(size)
    return [Worker(meeting, axes, position, megabytes, stored) for position in range(size)]


def _replica(axes: dict[str, int], position: int, megabytes: int) -> Replica:
    _clear_sharding_prop_cache()
    dist.init_process_group("fake", store=FakeStore(), rank=position, world_size=place_of(axes, 0).size)
    try:
        model = Block((megabytes << 20) // 2)
        fully_shard(model, mesh=init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        return Replica(model, [optimizer], {})
    finally:
        dist.destroy_process_group()


def at_once(parts: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each in a thread of its own."""
    with ThreadPoolExecutor(len(parts)) as threads:
        return [of.result() for of in [threads.submit(part) for part in parts]]


# -- through storage ------------------------------------------------------------------------


def store(old: Sequence[Worker], step: int) -> None:
    """All store their parts, and the checkpoint is published."""
    for worker in old:
        worker.written.clear()
        worker.checkpointer.take(worker.packed(step), step, EPOCH, 0)
        worker.checkpointer.committed(step)
    for worker in old:
        worker.written.wait()
    for worker in old:
        worker.checkpointer.completed(CheckpointComplete(step, Lineage(0, EPOCH)))
        worker.checkpointer.wait_until_idle()


def restore(new: Sequence[Worker]) -> None:
    """Each takes its own part of what is stored."""
    at_once([partial(worker.checkpointer.find, worker.replica) for worker in new])


# -- through memory -------------------------------------------------------------------------


def leave(worker: Worker, buffer: Buffer, step: int) -> None:
    """A snapshot that is whole and committed."""
    draft = Draft(Mark(step, Lineage(0, EPOCH)), worker.of, worker.packed(step), piecewise=True)
    buffer.make_room(draft)
    buffer.write(draft, lambda: None)
    buffer.seal()
    buffer.commit()


class Agent:
    """Of the node of the new workers; `port` is where the other node's is."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._told: dict[str, queue.Queue[Fetched]] = {}
        self._backups = Backups("new", None, BYTES_MAX, self._emit)
        self.moved = 0
        """Bytes of tensors that have come from the other node."""

    def _emit(self, event: AgentEvent) -> None:
        if isinstance(event, Fetched):
            self._told[event.worker].put(event)

    def add(self, worker: str, files: tuple[int, int]) -> None:
        """It has this memory."""
        self._told[worker] = queue.Queue()
        self._backups.copies.add_own(worker, JOB, tuple(map(os.dup, files)))

    def close(self) -> None:
        """All memory is given back."""
        for worker in self._told:
            self._backups.copies.end_own(worker)
        self._backups.copies.release(())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def gather(self, worker: str, asked: SnapshotWanted) -> SnapshotFetched:
        """Bring it pieces."""
        lots = tuple(map(self._lot, asked.pieces))
        self.moved += sum(size_of(lot.runs) for lot in lots if lot.fingerprint)
        order = Gather(worker, asked.mark, asked.buffer, asked.at, lots)
        self._loop.call_soon_threadsafe(self._backups.gather, order)
        return SnapshotFetched(asked.mark, self._told[worker].get().failed)

    def _lot(self, piece: PieceWanted) -> Lot:
        part = StatePart(JOB, piece.shape, piece.position)
        holder = Holder("other", HERE, self._port, token(KEY, part, "new"))
        return Lot(part, piece.fingerprint, piece.runs, (holder,))


class Line:
    """From a worker to its agent."""

    def __init__(self, agent: Agent, worker: str) -> None:
        self._agent = agent
        self._worker = worker
        self.snapshot_fetched: SnapshotFetched | None = None

    def tell(self, said: SnapshotWanted) -> None:
        """It is done when this returns."""
        self.snapshot_fetched = self._agent.gather(self._worker, said)

    def tell_no_more(self, kind: type) -> None:
        """Nobody tells it again."""

    def wait(self, ready: Callable[[], bool]) -> bool:
        """As a membership that nothing overtakes."""
        return ready()


def take(worker: Worker, agent: Agent, own: tuple[int, int], here: Sequence[int], away: Sequence[int]) -> None:
    """Its part of what others have left: in files on its own node, and in others on the other node."""
    line: Any = Line(agent, worker.name)
    heads = [head for file in away if (head := find(file)) is not None]
    former = tuple(FormerSnapshot(said(h.of["axes"]), h.of["position"], h.mark, h.committed, h.body_at) for h in heads)
    welcome = Attached(job_id=JOB, snapshot_bytes=BYTES_MAX, former=former)
    errands = Errands(line, RingWriter(bytearray(4096)), welcome, line)
    memory = Memory(welcome, Files(own, (*own, *here)), worker.siblings, Drills(), errands)
    memory.set_fingerprint(MODEL)
    (mark,) = memory.offer(Holdings()).committed
    memory.load(worker.replica, mark)
