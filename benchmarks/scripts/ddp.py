"""The task on torch's own DistributedDataParallel, restarted by torchrun from its newest checkpoint."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from model import GPT
from torch.nn.parallel import DistributedDataParallel

from benchmarks.scripts.task import BATCH_SIZE, MICRO_BATCHES, Records, batch, model_and_optimizer, update, worker_name


def gradient(
    wrapped: DistributedDataParallel, step: int, records: Records | None = None, batch_size: int = BATCH_SIZE
) -> None:
    """This rank's micro-batches of a step, accumulated and reduced as torch's documentation has it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = range(rank, MICRO_BATCHES, size)
    for number in mine:
        if records is not None:
            records.micro_batch(step, number)
        with contextlib.nullcontext() if number == mine[-1] else wrapped.no_sync():
            # The loss is computed inside the wrapper, or it would not know that a backward is coming.
            (wrapped(batch(step, number, batch_size)) * size / MICRO_BATCHES).backward()


def agreed(stop: bool) -> bool:
    """Whether any rank has seen that all are to stop."""
    flag = torch.tensor(float(stop))
    dist.all_reduce(flag)
    return bool(flag)


class Loss(torch.nn.Module):
    """What DistributedDataParallel wraps: tokens in, loss out."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model.loss(tokens)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--stops", action="store_true", help="with a checkpoint, once there is a file `stop`")
    args = parser.parse_args()
    records = Records(args.out / "records", worker_name())
    records.write(what="started", pid=os.getpid(), rank=int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    model, optimizer = model_and_optimizer()
    wrapped = DistributedDataParallel(Loss(model), gradient_as_bucket_view=True)
    newest, step = args.out / "checkpoint.pt", 0
    if newest.exists():
        kept = torch.load(newest, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"] + 1
    over = False
    while not over:
        gradient(wrapped, step, records)
        update(model, optimizer)
        records.step(step, size=dist.get_world_size())
        over = args.stops and agreed((args.out / "stop").exists())
        if dist.get_rank() == 0 and (over or step % args.checkpoint_every == 0):
            beside = newest.with_suffix(".writing")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
            beside.rename(newest)
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
