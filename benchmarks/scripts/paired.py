"""Blocks of steps by unicorn and by DistributedDataParallel in turns, in the same processes.

Both have a model and an optimizer of their own, begun alike, and the same batches.  What
slows this machine down for a while slows both down.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import unicorn_mgr as unicorn
from benchmarks.scripts.ddp import Loss, gradient
from benchmarks.scripts.ours import Ours
from benchmarks.scripts.task import Records, model_and_optimizer, update, worker_name

WARM_UP_STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--block", type=int, required=True, help="steps of a block")
    parser.add_argument("--batch-size", type=int, required=True, help="pieces of text in a micro-batch")
    args = parser.parse_args()
    records = Records(args.out / "records", worker_name())
    dist.init_process_group("gloo")
    theirs = Plain(args.batch_size)
    with unicorn.attach() as job:
        ours = Ours(job, WARM_UP_STEPS + args.pairs * args.block, args.batch_size)
        ours.run(WARM_UP_STEPS)
        theirs.run(WARM_UP_STEPS)
        for pair in range(args.pairs):
            sides: dict[str, Ours | Plain] = {"ours": ours, "theirs": theirs}
            order = sorted(sides, reverse=pair % 2 == 1)
            records.write(what="pair", pair=pair, **{name: timed(sides[name], args.block) for name in order})
        ours.end()
    pairs = zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    records.write(what="ended", distance=max(float((a - b).detach().abs().max()) for a, b in pairs))
    dist.destroy_process_group()


def timed(side: Ours | Plain, steps: int) -> dict[str, float]:
    """Seconds per step of a block that all ranks begin together, and what this process, all threads, computed."""
    dist.barrier()
    began, before = time.monotonic(), time.process_time()
    side.run(steps)
    return {"seconds": (time.monotonic() - began) / steps, "cpu": (time.process_time() - before) / steps}


class Plain:
    """The same training as torch's documentation has it."""

    def __init__(self, batch_size: int) -> None:
        self.model, self._optimizer = model_and_optimizer()
        self._wrapped = DistributedDataParallel(Loss(self.model), gradient_as_bucket_view=True)
        self._step, self._batch_size = 0, batch_size

    def run(self, count: int) -> None:
        """The next `count` steps."""
        for _ in range(count):
            gradient(self._wrapped, self._step, batch_size=self._batch_size)
            update(self.model, self._optimizer)
            self._step += 1


if __name__ == "__main__":
    main()
