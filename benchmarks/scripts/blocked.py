"""A training loop, and how long each way to store its state keeps it from going on.

One process alone: unicorn's checkpoint is taken at the head of the loop, the others are
called between two steps, in turns, when nothing is being written any more.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save, save

import unicorn_mgr as unicorn
from benchmarks.scripts.task import Records
from benchmarks.scripts.wide import MICRO_BATCHES, WIDTH, Wide

EVERY_STEPS = 8
STEPS_MAX = 1_000_000


class Loop:
    """Training that stores its state every few steps."""

    def __init__(self, job: unicorn.Job, model: Wide, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self._model, self._optimizer, self._folder = model, optimizer, folder
        self._training = job.train(
            model, optimizer, MICRO_BATCHES, checkpoint=str(folder), checkpoint_every=EVERY_STEPS, checkpoint_keep=1
        )
        self._taken = -1
        self.heads: list[float] = []
        """Seconds at the head of the loop, where no checkpoint was due."""

    def step(self) -> tuple[int, float, float]:
        """One step: the one before it, seconds at its head, and seconds for the rest."""
        began = time.monotonic()
        step = self._training.begin(STEPS_MAX)
        at = time.monotonic()
        assert step is not None
        for number in step.micro_batches():
            step.backward(self._model(torch.full((1, WIDTH), 0.01 * (number + 1))).square().mean())
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._training.end(step)
        return step.number - 1, at - began, time.monotonic() - at

    def checkpoint(self) -> dict[str, float]:
        """Until the next one is stored: how long it blocked the loop, what it cost the steps meanwhile, all in all."""
        quiet: list[float] = []
        while True:
            applied, head, rest = self.step()
            if applied - self._taken >= EVERY_STEPS:
                break
            self.heads.append(head)
            quiet.append(rest)
        self._taken, began, before = applied, time.monotonic(), self._published()
        typical = sorted(quiet)[len(quiet) // 2] if quiet else rest
        slowed = rest - typical
        while self._published() == before:
            slowed += self.step()[2] - typical
        return {"blocked": head, "slowed": slowed, "stored": head + time.monotonic() - began}

    def _published(self) -> set[str]:
        return {path.name for path in self._folder.glob("*.json")}


def save_plainly(state: dict[str, Any], path: Path) -> None:
    """As most scripts do."""
    torch.save(state, path)


def save_dcp(state: dict[str, Any], path: Path) -> None:
    """torch.distributed.checkpoint, waiting until it is written."""
    save(state, checkpoint_id=path, no_dist=True)


def save_dcp_later(state: dict[str, Any], path: Path) -> Future[Any]:
    """torch.distributed.checkpoint, which copies the state and writes it in a thread."""
    future = async_save(state, checkpoint_id=path, no_dist=True)
    assert isinstance(future, Future)
    return future


def timed(way: Callable[[dict[str, Any], Path], Future[Any] | None], state: dict[str, Any], path: Path) -> float:
    """Seconds until the loop could go on."""
    began = time.monotonic()
    later = way(state, path)
    seconds = time.monotonic() - began
    if later is not None:
        later.result()
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return seconds


WAYS: dict[str, Callable[[dict[str, Any], Path], Future[Any] | None]] = {
    "torch.save": save_plainly,
    "torch.distributed.checkpoint.save": save_dcp,
    "torch.distributed.checkpoint.async_save": save_dcp_later,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--times", type=int, required=True)
    args = parser.parse_args()
    records = Records(args.out, "records")
    model = Wide(int(args.megabytes * 1e6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with unicorn.attach() as job:
        loop = Loop(job, model, optimizer, args.out / "unicorn")
        for _ in range(args.times):
            records.write(what="unicorn", **loop.checkpoint())
            for name, way in WAYS.items():
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                records.write(what=name, blocked=timed(way, state, args.out / "other"))
        records.write(what="head", seconds=loop.heads)


if __name__ == "__main__":
    main()
