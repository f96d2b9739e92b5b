"""The task as a job of unicorn."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path

import torch

import unicorn_mgr as unicorn
from benchmarks.scripts.task import (
    BATCH_SIZE,
    LEARNING_RATE,
    MICRO_BATCHES,
    Records,
    batch,
    model_and_optimizer,
    update,
    worker_name,
)


class Pieces(torch.utils.data.Dataset[torch.Tensor]):
    """The same text, for loader processes."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return batch(index // (MICRO_BATCHES * BATCH_SIZE), index % MICRO_BATCHES)[0]


class Faults:
    """SIGUSR1 asks for an exception and SIGUSR2 for a hang, in the forward pass of the next micro-batch."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._wanted = ""
        signal.signal(signal.SIGUSR1, lambda *_: self._want("exception"))
        signal.signal(signal.SIGUSR2, lambda *_: self._want("hang"))

    def _want(self, fault: str) -> None:
        self._wanted = fault

    def strike(self) -> None:
        """Do what is wanted, and say when."""
        if self._wanted:
            self._records.write(what="fault", fault=self._wanted)
            if self._wanted == "exception":
                raise RuntimeError("asked for by the benchmark")
            while True:
                time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--loaders", type=int, default=0, help="loader processes of each worker")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of an evaluation after the 100th step")
    parser.add_argument("--split", action="store_true", help="by FSDP2 over the workers of a replica")
    args = parser.parse_args()
    records = Records(args.out / "records", worker_name())
    faults = Faults(records)
    source = unicorn.Source(Pieces(), BATCH_SIZE, prefetch=4, workers=args.loaders) if args.loaders else None
    stop = args.out / "stop"
    with unicorn.attach() as job:
        mesh = job.replica_mesh("shard") if args.split else None
        model, optimizer = model_and_optimizer(args.dtype, args.learning_rate, mesh)
        training = job.train(model, optimizer, MICRO_BATCHES)
        for step in training.steps(args.steps):
            for given in step.micro_batches(source):
                if not step.rehearsal:
                    records.micro_batch(step.number, step.current)
                faults.strike()
                tokens = given if isinstance(given, torch.Tensor) else batch(step.number, step.current)
                step.backward(model.loss(tokens))
            update(model, optimizer)
            if not step.rehearsal:
                records.step(step.number, size=job.size, loss=step.metrics["loss"])
            if args.pause and step.number == 100 and job.is_leader:
                time.sleep(args.pause)
            if stop.exists():
                training.stop()
    records.write(what="ended")
    torch.save(model.state_dict(), args.out / f"{worker_name().replace('/', '-')}.pt")


if __name__ == "__main__":
    main()
