"""What is trained in the tests of the engine, and the plain torch loop that says what comes out.

A `Recipe` builds a model and everything around it; `plain` trains it in one process without
the library, `script` trains the same with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.attach import Job
from unicorn_mgr.worker.state import Stateful

STEPS, MICRO_BATCHES, SEED = 5, 4, 11

Loss = Callable[[int, int], tuple[Tensor, float]]
"""(step, number) -> the loss and its weight."""


@dataclass(eq=False)
class Parts:
    """A model and everything around it."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    loss: Loss
    state: dict[str, Stateful] = field(default_factory=dict)
    schedulers: list[torch.optim.lr_scheduler.LRScheduler] = field(default_factory=list)
    scaler: torch.amp.GradScaler | None = None
    clip: float | None = None
    after: Callable[[], None] = lambda: None
    """The rest of the update."""

    def update(self) -> None:
        """What a script does with a complete gradient."""
        if self.scaler is not None:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for optimizer in self.optimizers:
            if self.scaler is not None:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if self.scaler is not None:
            self.scaler.update()
        for scheduler in self.schedulers:
            scheduler.step()
        self.after()

    def everything(self) -> dict[str, Any]:
        """All that must be the same in the end."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "state": {name: item.state_dict() for name, item in self.state.items()},
        }


Build = Callable[[], Parts]


@dataclass(frozen=True, slots=True)
class Zeroing:
    """When and how the script zeroes its gradients."""

    set_to_none: bool = True
    first: bool = False
    """At the beginning of a step, not at its end."""


def plain(build: Build) -> dict[str, Any]:
    """The same training without the library."""
    torch.manual_seed(0)
    parts = build()
    for step in range(STEPS):
        for optimizer in parts.optimizers:
            optimizer.zero_grad()
        weights = 0.0
        buffers = _PlainBuffers(parts.model)
        for number in range(MICRO_BATCHES):
            randomness.seed_all(randomness.seed_of(SEED, step, number))
            loss, weight = parts.loss(step, number)
            (loss if parts.scaler is None else parts.scaler.scale(loss)).backward()
            weights += weight
            buffers.took(number)
        for p in parts.model.parameters():
            if p.grad is not None:
                p.grad.div_(weights)
        buffers.finish()
        parts.update()
    return parts.everything()


class _PlainBuffers:
    """Each micro-batch starts from the step's buffers; the mean of their changes counts, of integers the first's."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._base = {name: b.clone() for name, b in self._present().items()}
        self._after: dict[str, list[Tensor]] = {name: [] for name in self._base}

    def _present(self) -> dict[str, Tensor]:
        kept = self._model.state_dict()
        return {name: b for name, b in self._model.named_buffers() if name in kept}

    def took(self, number: int) -> None:
        for name, b in self._present().items():
            self._after[name].append(b.clone())
            b.copy_(self._base[name])

    def finish(self) -> None:
        for name, b in self._present().items():
            after = self._after[name]
            b.copy_(torch.stack(after).mean(dim=0) if b.is_floating_point() else after[0])


def script(build: Build, zeroing: Zeroing | None = None, **settings: Any) -> Callable[[Job], dict[str, Any]]:
    """A training script that uses the library; returns what is there in the end."""
    zero = zeroing or Zeroing()

    def main(job: Job) -> dict[str, Any]:
        torch.manual_seed(0)
        parts = build()
        with job:
            training = job.train(
                parts.model,
                parts.optimizers,
                MICRO_BATCHES,
                parts.state,
                **{"seed": SEED, "bucket_bytes": 64} | settings,
            )
            for step in training.steps(STEPS):
                if zero.first:
                    _zero(parts, zero)
                for number in step.micro_batches():
                    loss, weight = parts.loss(step.number, number)
                    step.backward(loss, weight=weight, scaler=parts.scaler)
                parts.update()
                if not zero.first:
                    _zero(parts, zero)
        return parts.everything()

    return main


def _zero(parts: Parts, zeroing: Zeroing) -> None:
    for optimizer in parts.optimizers:
        optimizer.zero_grad(set_to_none=zeroing.set_to_none)


def difference(one: Any, other: Any, path: str = "") -> float:
    """Largest difference between two trees; everything that is not a number must be equal."""
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor), path
        assert one.dtype == other.dtype, (path, one.dtype, other.dtype)
        assert one.shape == other.shape, path
        if one.numel() == 0:
            return 0.0
        wide = torch.complex128 if one.is_complex() else torch.float64
        return float((one.to(wide) - other.to(wide)).abs().max())
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if isinstance(one, dict):
        assert one.keys() == other.keys(), (path, sorted(map(str, one.keys() ^ other.keys())))
        return max((difference(one[k], other[k], f"{path}.{k}") for k in one), default=0.0)
    if isinstance(one, list | tuple):
        assert len(one) == len(other), path
        return max(
            (difference(a, b, f"{path}.{i}") for i, (a, b) in enumerate(zip(one, other, strict=True))), default=0.0
        )
    assert one == other, (path, one, other)
    return 0.0


# -- the smallest there is -------------------------------------------------------------------


def line() -> nn.Linear:
    """Two parameters."""
    torch.manual_seed(0)
    return nn.Linear(2, 1, bias=False).double()


def loss_of(model: nn.Module, number: int) -> Tensor:
    """Of its micro-batch `number`."""
    loss: Tensor = model(torch.tensor([[number + 1.0, 2.0]], dtype=torch.float64)).sum()
    return loss
