"""The job of the healing tests: everything that makes exactness hard, in float64.

Dropout, clipping by global norm, a gradient scaler, a scheduler, loader processes, BatchNorm
buffers, a parameter that no micro-batch uses, and a thread of the user's with connections of
its own that must survive every fault.  The loss function itself records each call.
"""

from __future__ import annotations

import argparse
import json
import os
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a micro-batch takes, until told to hurry")
    parser.add_argument("--raise-at", default="", help="STEP:NUMBER, or STEP:* for every micro-batch")
    parser.add_argument("--hidden", type=int, default=0, help="further parameters, for a larger state")
    parser.add_argument("--update-kill", default="", help="SEAT:STEP, inside optimizer.step, first incarnation")
    parser.add_argument("--plant", default="", help="a planted bug: the test must notice")
    parser.add_argument("--stop-at", type=int, default=-1)
    parser.add_argument("--evaluate", default="", help="STEP:SECONDS, a pause between two steps")
    parser.add_argument("--leave-at", default="", help="SEAT:STEP, break out of the loop")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    model = Model()
    if args.hidden:
        model.hidden = nn.Parameter(torch.zeros(args.hidden))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0 / (1 + s))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)
    source = unicorn.Source(Text(), batch_size=BATCH, seed=5, prefetch=4, workers=2)
    me = os.environ.get("UNICORN_WORKER", "alone")
    seat = me.rpartition("/")[2].partition(".")[0]
    records = (args.out / f"records-{me.replace('/', '-')}-{os.getpid()}.jsonl").open("a", buffering=1)
    connections = Connections()
    hurry = args.out / "hurry"
    open_step: list[unicorn.Step] = []

    def loss_of(number: int, tokens: torch.Tensor) -> torch.Tensor:
        step = open_step[0]
        records.write(json.dumps([os.getpid(), step.number, number, step.rehearsal]) + "\n")
        if args.raise_at in (f"{step.number}:{number}", f"{step.number}:*") and not step.rehearsal:
            raise ValueError(f"planted: micro-batch {number} of step {step.number}")
        if args.pace and not hurry.exists():
            time.sleep(args.pace)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        if args.hidden:
            loss = loss + model.get_parameter("hidden").sum() * 1e-3
        return loss

    def in_update(*_: object) -> None:
        step = open_step[0]
        if args.update_kill == f"{seat}:{step.number}" and me.endswith(".0") and not step.rehearsal:
            os.kill(os.getpid(), 9)

    optimizer.register_step_post_hook(in_update)
    with unicorn.attach() as job:
        state: dict[str, Any] = {"scheduler": scheduler, "scaler": scaler}
        training = job.train(model, optimizer, micro_batches=args.micro_batches, state=state, seed=3, bucket_bytes=4096)
        for step in training.steps(args.steps):
            open_step[:] = [step]
            numbers = iter(step.micro_batches(source))
            for tokens in numbers:
                number = step.current
                weight = tokens[:, 1:].numel()
                if args.plant == "weight" and job.size == 2:
                    weight += 1
                step.backward(loss_of(number, tokens), weight=weight, scaler=scaler)
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
            if args.stop_at == step.number:
                training.stop()
            if args.evaluate and args.evaluate.split(":")[0] == str(step.number):
                time.sleep(float(args.evaluate.split(":")[1]))
            if args.leave_at == f"{seat}:{step.number}" and me.endswith(".0"):
                break
            if job.is_leader:
                print(f"step {step.number} loss {step.metrics['loss']:.12f} size {job.size}", flush=True)
    ended = {"state": model.state_dict(), "lr": scheduler.get_last_lr(), "scale": scaler.get_scale()}
    torch.save(ended, args.out / f"weights-{me.replace('/', '-')}.pt")
    told = {"worker": me, "pid": os.getpid(), "round_trips": connections.round_trips, "breaks": connections.breaks}
    (args.out / f"ended-{me.replace('/', '-')}.json").write_text(json.dumps(told))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
