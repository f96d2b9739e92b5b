"""Blocks of steps in turns: without storing the state, with unicorn's snapshots in memory, with torch's ways.

One process alone, with one thread.  First the state is stored before every step of a block, then before its
first step alone: as many steps lie between two as the budget of unicorn's snapshots makes of what they cost.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import time
from concurrent.futures import Future
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

import unicorn_mgr as unicorn
from benchmarks.scripts.task import Records
from benchmarks.scripts.wide import MICRO_BATCHES, WIDTH, Wide
from unicorn_mgr.messages import Attached
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.engine import Engine
from unicorn_mgr.worker.memory import Files, Memory, Pace
from unicorn_mgr.worker.siblings import Single

STEPS_MAX = 1_000_000
WARM = 5
BUDGET = 0.005
NO_LIMIT = 1e9


class Way(Protocol):
    """One way to store the state between two steps."""

    def store(self, engine: Engine, state: dict[str, Any]) -> None:
        """Return when training may go on."""

    def settle(self) -> None:
        """Until nothing is under way any more."""


class Nothing:
    """Nothing is stored."""

    def store(self, engine: Engine, state: dict[str, Any]) -> None:
        """At once."""

    def settle(self) -> None:
        """At once."""


class Snapshots:
    """unicorn's, into memory as an agent's template keeps it."""

    def __init__(self) -> None:
        files = tuple(os.memfd_create(f"snapshot-{i}") for i in range(2))
        welcome = Attached(job_id="benchmark", snapshot_budget=NO_LIMIT, snapshot_bytes=1 << 40)
        self._memory = Memory(welcome, Files(files, files), Single(), Drills())
        self.blocked: list[float] = []
        self.sealed: list[float] = []

    def store(self, engine: Engine, state: dict[str, Any]) -> None:
        """As at the head of the loop of a job that asks for them."""
        del state
        began = time.monotonic()
        self._memory.at_head(engine)
        self.blocked.append(time.monotonic() - began)
        self._memory.committed(engine.committed)

    def settle(self) -> None:
        """Until the newest is whole."""
        self._memory._sealed()
        self.sealed.append(self._memory._seal_seconds)


class Saved:
    """torch.save, into a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "saved"

    def store(self, engine: Engine, state: dict[str, Any]) -> None:
        """Until it is in the file, which is not synced."""
        del engine
        torch.save(state, self._path)

    def settle(self) -> None:
        """It is there."""
        self._path.unlink()


class SavedLater:
    """torch.distributed.checkpoint's async_save, into a folder; before the next one the last must have ended."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder / "later", itertools.count()
        self._under_way: Future[Any] | None = None

    def store(self, engine: Engine, state: dict[str, Any]) -> None:
        """Until the state is copied."""
        del engine
        self.settle()
        future = async_save(state, checkpoint_id=self._folder / str(next(self._numbers)), no_dist=True)
        assert isinstance(future, Future)
        self._under_way = future

    def settle(self) -> None:
        """Until it is written."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
            shutil.rmtree(self._folder)


class Loop:
    """Training, step by step."""

    def __init__(self, job: unicorn.Job, megabytes: float, rows: int) -> None:
        self._model = Wide(int(megabytes * 1e6))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._training = job.train(self._model, self._optimizer, MICRO_BATCHES)
        self._rows = rows

    def block(self, way: Way, steps: int, stored: int) -> dict[str, float]:
        """Seconds for each of so many steps, and CPU seconds; before the first ones of them the state is stored."""
        began, used = time.monotonic(), time.process_time()
        for i in range(steps):
            step = self._training.begin(STEPS_MAX)
            assert step is not None
            if i < stored:
                state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
                way.store(self._training._engine, state)
            for number in step.micro_batches():
                step.backward(self._model(torch.full((self._rows, WIDTH), 0.01 * (number + 1))).square().mean())
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._training.end(step)
        seconds = time.monotonic() - began
        way.settle()
        return {"seconds": seconds / steps, "cpu": (time.process_time() - used) / steps}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--rounds", type=int, nargs=2, required=True)
    parser.add_argument("--block", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(args.out, "records")
    ours = Snapshots()
    ways: dict[str, Way] = {
        "none": Nothing(),
        "unicorn": ours,
        "torch.save": Saved(args.out),
        "async_save": SavedLater(args.out),
    }
    with unicorn.attach() as job:
        loop = Loop(job, args.megabytes, args.rows)
        loop.block(ways["none"], WARM, 0)
        loop.block(ours, WARM, WARM)
        records.write(what="first", seconds=ours.blocked[:2])
        ours.blocked.clear()
        ours.sealed.clear()
        for way in ways.values():
            loop.block(way, 1, 1)
        step_seconds = rounds(records, loop, ways, args.rounds[0], args.block, args.block)
        pace = Pace(BUDGET)
        pace.pay(median(ours.blocked) + median(ours.sealed))
        every = pace.interval(1, step_seconds)
        records.write(what="cost", blocked=ours.blocked, sealed=ours.sealed, every=every, step=step_seconds)
        rounds(records, loop, ways, args.rounds[1], every, 1)


def rounds(records: Records, loop: Loop, ways: dict[str, Way], count: int, steps: int, stored: int) -> float:
    """All ways in turns, each time another one first; returns what a step takes without any."""
    alone = []
    for i in range(count):
        names = [*ways][i % len(ways) :] + [*ways][: i % len(ways)]
        found = {name: loop.block(ways[name], steps, stored) for name in names}
        records.write(what="round", every=1 if stored == steps else steps, **found)
        alone.append(found["none"]["seconds"])
    return median(alone)


if __name__ == "__main__":
    main()
