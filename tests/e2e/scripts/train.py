"""The job of the healing tests: everything that makes exactness hard, in float64.

Dropout, clipping by global norm, a gradient scaler, a scheduler, loader processes, BatchNorm
buffers, a parameter that no micro-batch uses, and a thread of the user's with connections of
its own that must survive every fault.  The loss function itself records each call.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unicorn_mgr as unicorn

VOCABULARY, WIDTH, LENGTH, BATCH = 32, 16, 8, 3


class Text(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 101

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = int(torch.randint(0, VOCABULARY, ()))  # drawn from the generators that the source seeds
        start = torch.arange(LENGTH + 1) * (index % 7 + 1) + index + noise
        return start % VOCABULARY


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(WIDTH, VOCABULARY)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.drop(torch.tanh(self.mix(x)))
        logits: torch.Tensor = self.out(x)
        return logits


class Connections:
    """A server and a client of the user's own, in threads; counts round trips and breaks."""

    def __init__(self) -> None:
        self.round_trips = self.breaks = 0
        listener = socket.create_server(("127.0.0.1", 0))
        self.client = socket.create_connection(listener.getsockname())
        self.server, _ = listener.accept()
        threading.Thread(target=self._echo, daemon=True).start()
        threading.Thread(target=self._ask, daemon=True).start()

    def _echo(self) -> None:
        while data := self.server.recv(1):
            self.server.sendall(data)

    def _ask(self) -> None:
        while True:
            try:
                self.client.sendall(b"x")
                if self.client.recv(1) != b"x":
                    raise OSError("closed")
                self.round_trips += 1
            except OSError:
                self.breaks += 1
                return
            time.sleep(0.005)


class Script:
    """One worker's run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.me = os.environ.get("UNICORN_WORKER", "alone")
        self.seat = self.me.rpartition("/")[2].partition(".")[0]
        self.model = Model()
        if args.hidden:
            self.model.hidden = nn.Parameter(torch.zeros(args.hidden))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.1)
        self.optimizer.register_step_post_hook(self.in_update)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: 1.0 / (1 + s))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)
        self.source = unicorn.Source(Text(), batch_size=BATCH, seed=5, prefetch=4, workers=2)
        self.records = self.file(f"records-{{}}-{os.getpid()}.jsonl").open("a", buffering=1)
        self.connections = Connections()
        self.step: unicorn.Step

    def file(self, name: str) -> Path:
        """One of this worker's own."""
        path: Path = self.args.out / name.format(self.me.replace("/", "-"))
        return path

    def is_first_at(self, address: str) -> bool:
        """Whether this is the first incarnation of SEAT, in STEP."""
        return address == f"{self.seat}:{self.step.number}" and self.me.endswith(".0")

    def loss_of(self, number: int, tokens: torch.Tensor) -> torch.Tensor:
        step, args = self.step, self.args
        self.records.write(json.dumps([os.getpid(), step.number, number, step.rehearsal]) + "\n")
        if args.raise_at in (f"{step.number}:{number}", f"{step.number}:*") and not step.rehearsal:
            raise ValueError(f"planted: micro-batch {number} of step {step.number}")
        if args.kill_at == f"{step.number}:{number}" and not step.rehearsal:
            os.kill(os.getpid(), signal.SIGKILL)
        if args.pace and not (args.out / "hurry").exists():
            time.sleep(args.pace)
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        if args.hidden:
            loss = loss + self.model.get_parameter("hidden").sum() * 1e-3
        return loss

    def in_update(self, *_: object) -> None:
        if self.is_first_at(self.args.update_kill) and not self.step.rehearsal:
            os.kill(os.getpid(), signal.SIGKILL)

    def train(self) -> None:
        args = self.args
        state: dict[str, Any] = {"scheduler": self.scheduler, "scaler": self.scaler}
        with unicorn.attach() as job:
            training = job.train(self.model, self.optimizer, args.micro_batches, state=state, seed=3, bucket_bytes=4096)
            for step in training.steps(args.steps):
                self.step = step
                for tokens in step.micro_batches(self.source):
                    self.compute(tokens, job.size)
                self.update()
                if args.stop_at == step.number:
                    training.stop()
                if args.evaluate.startswith(f"{step.number}:"):
                    time.sleep(float(args.evaluate.split(":")[1]))
                if self.is_first_at(args.leave_at):
                    break
                if job.is_leader:
                    loss = step.metrics["loss"]
                    print(f"step {step.number} loss {loss:.12f} size {job.size}", flush=True)

    def compute(self, tokens: torch.Tensor, size: int) -> None:
        """One micro-batch."""
        number = self.step.current
        if self.args.skip_at == f"{self.step.number}:{number}":
            self.step.skip(number)
            return
        weight = tokens[:, 1:].numel()
        if self.args.plant == "weight" and size == 2:
            weight += 1
        self.step.backward(self.loss_of(number, tokens), weight=weight, scaler=self.scaler)

    def update(self) -> None:
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def tell(self) -> None:
        """What has come out of it."""
        lr, scale = self.scheduler.get_last_lr(), self.scaler.get_scale()
        torch.save({"state": self.model.state_dict(), "lr": lr, "scale": scale}, self.file("weights-{}.pt"))
        trips, breaks = self.connections.round_trips, self.connections.breaks
        told = {"worker": self.me, "pid": os.getpid(), "round_trips": trips, "breaks": breaks}
        self.file("ended-{}.json").write_text(json.dumps(told))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a micro-batch takes, until told to hurry")
    parser.add_argument("--raise-at", default="", help="STEP:NUMBER, or STEP:* for every micro-batch")
    parser.add_argument("--kill-at", default="", help="STEP:NUMBER, a micro-batch that kills whoever computes it")
    parser.add_argument("--skip-at", default="", help="STEP:NUMBER, a micro-batch that counts for nothing")
    parser.add_argument("--hidden", type=int, default=0, help="further parameters, for a larger state")
    parser.add_argument("--update-kill", default="", help="SEAT:STEP, inside optimizer.step, first incarnation")
    parser.add_argument("--plant", default="", help="a planted bug: the test must notice")
    parser.add_argument("--stop-at", type=int, default=-1)
    parser.add_argument("--evaluate", default="", help="STEP:SECONDS, a pause between two steps")
    parser.add_argument("--leave-at", default="", help="SEAT:STEP, break out of the loop")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    script = Script(args)
    script.train()
    script.tell()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
