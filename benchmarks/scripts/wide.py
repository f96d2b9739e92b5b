"""A job whose state has a given size: parameters and AdamW's two moments of them."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import unicorn_mgr as unicorn
from benchmarks.scripts.task import Records, worker_name

WIDTH = 512
LAYER_BYTES = 3 * 4 * WIDTH * WIDTH
MICRO_BATCHES = 4


class Wide(nn.Module):
    """As many square layers as it takes."""

    def __init__(self, state_bytes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(max(1, round(state_bytes / LAYER_BYTES)))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Wide(int(args.megabytes * 1e6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    records = Records(args.out / "records", worker_name())
    stop = args.out / "stop"
    with unicorn.attach() as job:
        training = job.train(model, optimizer, MICRO_BATCHES)
        for step in training.steps(1_000_000):
            for number in step.micro_batches():
                x = torch.full((1, WIDTH), 0.01 * (number + 1))
                step.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if not step.rehearsal:
                records.step(step.number, size=job.size)
            if stop.exists():
                training.stop()


if __name__ == "__main__":
    main()
