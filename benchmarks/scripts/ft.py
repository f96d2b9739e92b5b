"""The task on torchft: one replica group a process, a quorum each step."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from benchmarks.scripts.ddp import Loss
from benchmarks.scripts.task import MICRO_BATCHES, NORM_MAX, Records, batch, model_and_optimizer, worker_name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout", type=float, required=True, help="seconds of gloo's")
    args = parser.parse_args()
    torchft = importlib.import_module("torchft")  # no dependency of this project
    replica, replicas = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    records = Records(args.out / "records", f"replica-{replica}-{worker_name()}")
    records.write(what="started", pid=os.getpid(), rank=replica)
    model, plain = model_and_optimizer()

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=args.timeout)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"benchmark_{replica}",
        timeout=timedelta(seconds=2 * args.timeout),
    )
    wrapped = torchft.DistributedDataParallel(manager, Loss(model))
    optimizer = torchft.Optimizer(manager, plain)
    mine = range(replica, MICRO_BATCHES, replicas)
    while True:
        optimizer.zero_grad()
        step = manager.current_step()
        for number in mine:
            with contextlib.nullcontext() if number == mine[-1] else wrapped.no_sync():
                (wrapped(batch(step, number)) / len(mine)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), NORM_MAX)
        optimizer.step()
        if manager.current_step() > step:
            records.step(step)


if __name__ == "__main__":
    main()
