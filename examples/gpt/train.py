"""Train a GPT, byte by byte, on the source of the Python standard library.

    python train.py                                             # alone
    unicorn run --name gpt --min 1 --max 4 -- python train.py   # on a cluster; it heals when something breaks

What makes it a job that heals are the lines with `unicorn`, `job`, `training` and `step`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
from model import GPT
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

import unicorn_mgr as unicorn


class StandardLibrary(torch.utils.data.Dataset[Tensor]):
    """Pieces of `context` bytes, each with the byte that follows."""

    def __init__(self, context: int) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"".join(file.read_bytes() for file in files)
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.context
        return self.bytes[start : start + self.context + 1].long()


class Records:
    """What this process did, a line each; `unicorn demo` counts micro-batches by them, whatever unicorn says."""

    def __init__(self, folder: Path | None) -> None:
        self.worker = os.environ.get("UNICORN_WORKER", "alone")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.worker.replace('/', '-')}.jsonl" if folder is not None else Path(os.devnull)
        self.lines = path.open("a", buffering=1)

    def computed(self, step: unicorn.Step) -> None:
        """The loss of a micro-batch; in a rehearsal it counts for nothing."""
        self.write(step=step.number, micro_batch=step.current, rehearsal=step.rehearsal)

    def applied(self, step: unicorn.Step) -> None:
        """The optimizer has made its step."""
        self.write(step=step.number, loss=step.metrics["loss"], rehearsal=step.rehearsal)

    def write(self, **facts: object) -> None:
        self.lines.write(json.dumps({"worker": self.worker, "at": time.time(), **facts}) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a GPT on the source of the Python standard library.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=128, help="bytes that a prediction may look back")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--micro-batches", type=int, default=12, help="in a step, on however many workers")
    parser.add_argument("--batch-size", type=int, default=4, help="pieces of text in a micro-batch")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--decay-steps", type=int, help="length of the cosine schedule; as --steps if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--stop-file", type=Path, help="end, on all workers after the same step, once it is there")
    parser.add_argument("--out", type=Path, help="folder for each worker's weights at the end")
    parser.add_argument("--records", type=Path, help="folder for what each worker did")
    return parser.parse_args()


def learning_rate_share(steps: int, warm_up: int = 10) -> Callable[[int], float]:
    """Of the highest one: up in a line, then down to a tenth along half a cosine."""

    def share(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        done = min(1.0, (step - warm_up) / max(1, steps - warm_up))
        return 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2

    return share


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_default_dtype(getattr(torch, args.dtype))
    model = GPT(256, args.context, args.layers, args.width, args.heads, args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.1)
    scheduler = LambdaLR(optimizer, learning_rate_share(args.decay_steps or args.steps))
    source = unicorn.Source(StandardLibrary(args.context), args.batch_size, seed=args.seed)
    records = Records(args.records)

    with unicorn.attach() as job:
        training = job.train(model, optimizer, args.micro_batches, state={"scheduler": scheduler}, seed=args.seed)
        for step in training.steps(args.steps):
            for tokens in step.micro_batches(source):
                loss = model.loss(tokens)
                records.computed(step)
                step.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            records.applied(step)
            if args.stop_file and args.stop_file.exists():
                training.stop()
            if job.is_leader:
                print(f"step {step.number}  loss {step.metrics['loss']:.4f}  workers {job.size}", flush=True)

    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), args.out / f"{records.worker.replace('/', '-')}.pt")


if __name__ == "__main__":
    main()
