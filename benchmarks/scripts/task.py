"""The training task that all are measured on, and the records that its processes keep.

A GPT of 1.8 M parameters on the source of the Python standard library, twelve micro-batches
of 64 bytes a step: the same model, data and optimizer whoever drives the loop.
"""

from __future__ import annotations

import json
import os
import sysconfig
import time
from functools import cache
from pathlib import Path

import torch
from model import GPT
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

MICRO_BATCHES = 12
BATCH_SIZE = 1
CONTEXT = 64
LAYERS, WIDTH, HEADS = 4, 192, 4
LEARNING_RATE = 1e-3
NORM_MAX = 1.0


@cache
def text() -> Tensor:
    """All of it, a byte a token."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def batch(step: int, number: int, size: int = BATCH_SIZE) -> Tensor:
    """The pieces of text of a micro-batch, (size, CONTEXT + 1)."""
    first = (step * MICRO_BATCHES + number) * size
    pieces = (len(text()) - 1) // CONTEXT
    starts = [(first + i) % pieces * CONTEXT for i in range(size)]
    return torch.stack([text()[s : s + CONTEXT + 1] for s in starts]).long()


def model_and_optimizer(
    dtype: str = "float32", learning_rate: float = LEARNING_RATE, mesh: DeviceMesh | None = None
) -> tuple[GPT, torch.optim.Optimizer]:
    """The same at the start on every worker; with a mesh each has its part, block by block."""
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    model = GPT(256, CONTEXT, LAYERS, WIDTH, HEADS)
    if mesh is not None:
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.1)


def update(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    """What follows once the gradient is complete."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), NORM_MAX)
    optimizer.step()
    optimizer.zero_grad()


class Records:
    """A line for everything that this process does, with the machine's monotonic clock."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"{name.replace('/', '-')}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def micro_batch(self, step: int, number: int) -> None:
        """About to be computed."""
        self.write(what="micro_batch", step=step, number=number)

    def step(self, step: int, **facts: object) -> None:
        """The optimizer has made it."""
        self.write(what="step", step=step, **facts)

    def write(self, **facts: object) -> None:
        """One line, at once: whoever is killed next has written it."""
        os.write(self._file, (json.dumps({"at": time.monotonic(), **facts}) + "\n").encode())


def worker_name() -> str:
    """Whoever runs this process calls it so."""
    return os.environ.get("UNICORN_WORKER", f"rank-{os.environ.get('RANK', '0')}-{os.getpid()}")
