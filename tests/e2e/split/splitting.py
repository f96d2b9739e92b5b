"""What the jobs whose model is split over several workers have in common: their options, data and records."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import unicorn_mgr as unicorn

WIDTH, HIDDEN, CLASSES, BATCH = 10, 14, 7, 3


def options(axes: str) -> argparse.ArgumentParser:
    """Those of every such job; `axes` are a replica's, unless others are given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a micro-batch takes, until told to hurry")
    parser.add_argument("--axes", type=lambda text: text.split(","), default=axes.split(","))
    return parser


def batch_of(step: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A micro-batch: inputs and classes."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of it, wherever its parts are."""
    found: Any = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return torch.as_tensor(found)


@dataclass
class Diary:
    """What a worker leaves for the test to read."""

    out: Path
    pace: float
    me: str = field(default_factory=lambda: os.environ.get("UNICORN_WORKER", "alone").replace("/", "-"))

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self._records = (self.out / f"records-{self.me}-{os.getpid()}.jsonl").open("a", buffering=1)

    def computes(self, step: unicorn.Step, number: int) -> None:
        """A micro-batch that counts is begun."""
        self._records.write(json.dumps([os.getpid(), step.number, number, step.rehearsal]) + "\n")

    def take_time(self) -> None:
        """As long as a micro-batch is to take."""
        if self.pace and not (self.out / "hurry").exists():
            time.sleep(self.pace)

    def end(self, model: nn.Module, lr: Sequence[float | torch.Tensor], **more: Any) -> None:
        """What has become of the model."""
        state = {name: whole(value) for name, value in model.state_dict().items()}
        torch.save({"state": state, "lr": lr, "scale": 1.0, **more}, self.out / f"weights-{self.me}.pt")
        (self.out / f"ended-{self.me}.json").write_text(json.dumps({"worker": self.me, "pid": os.getpid()}))
        sys.stdout.flush()
