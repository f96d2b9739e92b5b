"""A checkpointer for tests, with a model and with everything it tells the coordinator."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from unicorn_mgr.messages import Fact
from unicorn_mgr.model import Epoch
from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.checkpoint import Checkpointer, CheckpointSettings
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.handover import Handover
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.siblings import Siblings
from unicorn_mgr.worker.state import Packed, Progress

EPOCH = Epoch(1, 1)
FLAKY = "flaky://bucket/run"
MODEL = {"parameters": "p", "buffers": "b"}
PATIENCE_SECONDS = 20.0

MARKS = [
    pytest.mark.usefixtures("flaky_place"),
    # torch says so at every save and load; the product's own filter is undone by pytest for each test.
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


class Places(Drills):
    """Says when the writing thread has come to a place."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.reached: list[str] = []

    def reach(self, place: str, step: int) -> None:
        with self.changed:
            self.reached.append(place)
            self.changed.notify_all()

    def wait(self, place: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: place in self.reached, PATIENCE_SECONDS)


class Bench:
    """A checkpointer with a model, and what it tells the coordinator."""

    def __init__(
        self,
        url: str,
        alone: bool = True,
        every: int = 1,
        keep: int = 3,
        job_id: str = "job",
        model: nn.Module | None = None,
        newest: int = -1,
        ends_after: int = -1,
        siblings: Siblings | None = None,
        handover: Handover | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Linear(2, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.replica = Replica(self.model, [self.optimizer], {})
        self.ends_after = ends_after
        self.told: list[Fact] = []
        self.places = Places()
        self.checkpointer = Checkpointer(
            CheckpointSettings(url, every, keep, job_id, newest),
            self.told.append,
            self.places,
            alone=alone,
            siblings=siblings,
            handover=handover,
        )
        self.checkpointer.set_fingerprint(MODEL)

    def packed(self, step: int) -> Packed:
        return self.replica.state.collect(Progress(step, self.ends_after, 0), randomness.capture())

    def take(self, step: int, epoch: Epoch = EPOCH, generation: int = 0) -> None:
        self.checkpointer.take(self.packed(step), step, epoch, generation)

    def store(self, step: int, epoch: Epoch = EPOCH, generation: int = 0) -> None:
        """Take one, commit it, and wait until it is published."""
        with torch.no_grad():
            for p in self.model.parameters():
                p.fill_(step)
        self.take(step, epoch, generation)
        self.checkpointer.committed(step)
        assert self.checkpointer.wait_until_idle()

    def find(self) -> tuple[Progress | None, int]:
        return self.checkpointer.find(self.replica)

    def of(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.told if isinstance(fact, kind)]


def weight(bench: Bench) -> float:
    """All of them are the step they were stored at."""
    (value,) = {float(v) for p in bench.model.parameters() for v in p.detach().flatten()}
    return value
