"""What a change of shape moves, and how long it takes, against the same through storage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from statistics import median

import torch

from benchmarks.cluster import PATIENCE_SECONDS, Failed, environment
from benchmarks.numbers import interval, ratios
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, plain, words
from benchmarks.scripts import shaped
from benchmarks.scripts.shaped import Agent, Worker
from unicorn_mgr.worker.snapshot import Buffer

TITLE = "a change of shape: what it moves, and how long it takes against saving and loading through storage"
MEGABYTES, MEGABYTES_QUICK = 512, 32
TIMES, TIMES_QUICK = 15, 3

LEAVE, BEGIN = "memory: leave a last snapshot", "memory: put the new parts together"
SAVE, LOAD = "storage: save", "storage: load"


@dataclass(frozen=True, slots=True)
class Change:
    """From so many shards to so many; the first of the old ones lie where the new ones begin."""

    before: int
    after: int
    here: int

    @property
    def words(self) -> str:
        return f"{self.before} shards to {self.after}, {self.here} of them on the node of the new ones"


CHANGES = (Change(4, 2, 2), Change(4, 3, 1), Change(2, 4, 1), Change(4, 2, 0))
CHANGES_QUICK = (Change(4, 3, 1), Change(4, 2, 0))


@dataclass(frozen=True, slots=True)
class Measured:
    """One change, several times."""

    change: Change
    state: int
    moved: int
    """Bytes, each time."""
    least: int
    seconds: dict[str, list[float]]


def run(options: Options) -> Found:
    """Each change by both ways in turns."""
    megabytes, times = (MEGABYTES_QUICK, TIMES_QUICK) if options.quick else (MEGABYTES, TIMES)
    options.folder.mkdir(parents=True)
    changes = CHANGES_QUICK if options.quick else CHANGES
    # Each in a process of its own: what the one before had in memory is gone with it.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        found = [processes.submit(_measured, change, megabytes, times, options).result() for change in changes]
    tables, aims = [], []
    bytes_rows = [
        (m.change.words, plain(m.state / 1e6), plain(m.moved / 1e6), plain(m.least / 1e6), plain(m.moved / m.least))
        for m in found
    ]
    head = ("change", "MB of state", "MB moved between nodes", "the least, MB", "moved by least")
    tables.append(Table(head, tuple(bytes_rows)))
    for m in found:
        rows = tuple((way, *figures(m.seconds[way])) for way in (LEAVE, BEGIN, SAVE, LOAD))
        tables.append(Table((m.change.words, *FIGURES), rows))
        through = ratios(_sums(m, SAVE, LOAD), _sums(m, LEAVE, BEGIN))
        low, high = interval(through)
        reached = f"{plain(median(through))} ({plain(low)} to {plain(high)}) times as long through storage"
        aims.append(Aim(f"{m.change.words}: no slower than storage", reached, median(through) >= 1))
    moved = sum(m.moved for m in found) / sum(m.least for m in found)
    aims.insert(0, Aim("no byte moved that need not be", f"{plain(moved)} of the least", moved == 1))
    return Found(
        tables=tuple(tables),
        notes=(
            words("""
                Two processes on one machine, over its loopback; storage is its page cache, written with fsync. All
                workers of a shape do what they do at the same time, in threads of one process. What says where tensors
                lie in a snapshot moves, too, and is not counted; processes that end and begin are not in it.
            """),
        ),
        aims=tuple(aims),
        samples={m.change.words: {"moved": m.moved, "least": m.least, "seconds": m.seconds} for m in found},
    )


def _sums(m: Measured, *ways: str) -> list[float]:
    return [sum(of) for of in zip(*(m.seconds[way] for way in ways), strict=True)]


def _measured(change: Change, megabytes: int, times: int, options: Options) -> Measured:
    stored = str(options.folder / f"stored-{change.before}-{change.after}-{change.here}")
    old = shaped.workers({"shard": change.before}, megabytes, stored)
    new = shaped.workers({"shard": change.after}, megabytes, stored)
    files = [os.memfd_create("part") for _ in old]
    own = [(os.memfd_create("own"), os.memfd_create("other")) for _ in new]
    buffers = [Buffer(file) for file in files]
    here, away = files[: change.here], files[change.here :]
    seconds: dict[str, list[float]] = {way: [] for way in (LEAVE, BEGIN, SAVE, LOAD)}
    moved: set[int] = set()
    with _other_node(away, options) as port:
        agent = Agent(port)
        for worker, memory in zip(new, own, strict=True):
            agent.add(worker.name, memory)
        jobs = [(w, agent, memory, here, away) for w, memory in zip(new, own, strict=True)]
        begin = [partial(shaped.take, *job) for job in jobs]
        for step in range(times + 1):
            began = [time.monotonic()]
            shaped.at_once([partial(shaped.leave, w, buffer, step) for w, buffer in zip(old, buffers, strict=True)])
            began.append(time.monotonic())
            agent.moved = 0
            shaped.at_once(begin)
            began.append(time.monotonic())
            moved.add(agent.moved)
            _check(old, new)
            began.append(time.monotonic())
            shaped.store(old, step)
            began.append(time.monotonic())
            shaped.restore(new)
            began.append(time.monotonic())
            _check(old, new)
            if step:  # pages and files are there from now on
                took = [then - first for first, then in pairwise(began)]
                for way, of in zip((LEAVE, BEGIN, SAVE, LOAD), (*took[:2], *took[3:]), strict=True):
                    seconds[way].append(of)
        agent.close()
    for file in (*files, *(file for pair in own for file in pair)):
        os.close(file)
    (each,) = moved
    return Measured(change, sum(w.packed(0).size_bytes for w in old), each, _least(old, new, change.here), seconds)


def _check(old: Sequence[Worker], new: Sequence[Worker]) -> None:
    """Parameters are as they were, and taken away for the next time."""
    for there, here in zip(_whole(old), _whole(new), strict=True):
        if not torch.equal(there, here):
            raise Failed("the new shape has another state than the old one")
    for worker in new:
        for part in worker.parts():
            part.zero_()


def _whole(of: Sequence[Worker]) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(*(worker.parts() for worker in of), strict=True)]


def _least(old: Sequence[Worker], new: Sequence[Worker], here: int) -> int:
    """Bytes that the new workers want and no part on their node has: parameters, momentum, random state."""
    total = 0
    for tensor in range(shaped.TENSORS):
        at = sum(worker.parts()[tensor].numel() for worker in old[:here])  # all before lies here
        sizes = [worker.parts()[tensor].numel() for worker in new]
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        total += sum(max(0, end - max(end - size, at)) for size, end in zip(sizes, ends, strict=True))
    random = (t for w in new for name, t in _named(w) if name.startswith("random.") and not here)
    return 2 * 4 * total + sum(t.numel() * t.element_size() for t in random)


def _named(worker: Worker) -> Iterator[tuple[str, torch.Tensor]]:
    packed = worker.packed(0)
    return zip(packed.names, packed.tensors, strict=True)


@contextmanager
def _other_node(files: Sequence[int], options: Options) -> Iterator[int]:
    log = options.folder / "pier.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scripts.pier", *map(str, files)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=files,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise Failed(f"the other node did not start; see {log}")
        yield int(line)
    finally:
        process.stdin.close()
        process.wait(PATIENCE_SECONDS)
