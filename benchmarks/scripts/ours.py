"""Blocks of steps by unicorn, for scripts that compare it with something else in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import unicorn_mgr as unicorn
from benchmarks.scripts.task import MICRO_BATCHES, batch, model_and_optimizer, update

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Ours:
    """The training as a job of unicorn."""

    def __init__(self, job: unicorn.Job, steps: int, batch_size: int, mesh: DeviceMesh | None = None) -> None:
        self.model, self._optimizer = model_and_optimizer(mesh=mesh)
        self._training = job.train(self.model, self._optimizer, MICRO_BATCHES)
        self._steps, self._batch_size = steps, batch_size

    def run(self, count: int) -> None:
        """The next `count` steps."""
        for _ in range(count):
            step = self._training.begin(self._steps)
            assert step is not None, "too few steps"
            for number in step.micro_batches():
                step.backward(self.model.loss(batch(step.number, number, self._batch_size)))
            update(self.model, self._optimizer)
            self._training.end(step)

    def end(self) -> None:
        """All steps have been made."""
        assert self._training.begin(self._steps) is None, "too many steps"
