"""Blocks of steps of a model that is split by FSDP2, when the benchmark says so.

Once as a job of unicorn, once by torch's own hybrid sharding on as many processes: the two take turns, so that
what slows this machine down for a while slows both down.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import unicorn_mgr as unicorn
from benchmarks.scripts.ours import Ours
from benchmarks.scripts.task import MICRO_BATCHES, Records, batch, model_and_optimizer, update, worker_name

WARM_UP_STEPS = 5
LOOK_SECONDS = 0.005


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--block", type=int, required=True, help="steps of a block")
    parser.add_argument("--batch-size", type=int, required=True, help="pieces of text in a micro-batch")
    parser.add_argument("--shards", type=int, default=0, help="by torch itself, with so many workers a replica")
    args = parser.parse_args()
    steps = WARM_UP_STEPS + args.pairs * args.block
    with contextlib.ExitStack() as stack:
        side = Torch(args.shards, args.batch_size) if args.shards else ours(stack, steps, args.batch_size)
        take_turns(side, args)
        side.end()
    whole = {name: v.full_tensor() if isinstance(v, DTensor) else v for name, v in side.model.state_dict().items()}
    torch.save(whole, args.out / f"{worker_name().replace('/', '-')}.pt")


def ours(stack: contextlib.ExitStack, steps: int, batch_size: int) -> Ours:
    job = stack.enter_context(unicorn.attach())
    return Ours(job, steps, batch_size, job.replica_mesh("shard"))


def take_turns(side: Ours | Torch, args: argparse.Namespace) -> None:
    """A block whenever the benchmark asks for one; what it took is written down."""
    records = Records(args.out / "records", worker_name())
    side.run(WARM_UP_STEPS)
    records.write(what="ready")
    for pair in range(args.pairs):
        while not (args.out / f"go-{pair}").exists():
            time.sleep(LOOK_SECONDS)
        began, before = time.monotonic(), time.process_time()
        side.run(args.block)
        records.write(what="pair", pair=pair, began=began, cpu=time.process_time() - before)


class Torch:
    """The same training by FSDP2 on a mesh of (replicate, shard), as torch's documentation has it."""

    def __init__(self, shards: int, batch_size: int) -> None:
        dist.init_process_group("gloo")
        shape = (dist.get_world_size() // shards, shards)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        self.model, self._optimizer = model_and_optimizer(mesh=mesh)
        self._step, self._batch_size = 0, batch_size

    def run(self, count: int) -> None:
        """The next `count` steps, each with one reduction between replicas, at its end."""
        rank, size = dist.get_rank(), dist.get_world_size()
        sharded: Any = self.model
        mine = range(rank, MICRO_BATCHES, size)
        for _ in range(count):
            for number in mine:
                sharded.set_requires_all_reduce(number == mine[-1])
                loss = self.model.loss(batch(self._step, number, self._batch_size))
                (loss * size / MICRO_BATCHES).backward()
            update(self.model, self._optimizer)
            self._step += 1

    def end(self) -> None:
        """Nothing more is coming."""


if __name__ == "__main__":
    main()
