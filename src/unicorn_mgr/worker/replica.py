"""One worker's copy of the model state, and the buckets of the step that is open on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from unicorn_mgr.model import NO_STATE, Holdings
from unicorn_mgr.worker.buckets import BUCKET_BYTES, Bucket, GradientStore
from unicorn_mgr.worker.buffers import BufferKeeper
from unicorn_mgr.worker.checks import LoopError
from unicorn_mgr.worker.checksum import checksum
from unicorn_mgr.worker.sharding import part_of
from unicorn_mgr.worker.siblings import Siblings, Single, of_each
from unicorn_mgr.worker.state import ReplicaState, Stateful
from unicorn_mgr.worker.tail import Tail, Totals


class Replica:
    """Model, optimizers and everything else that travels, with gradients in buckets."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        extra: Mapping[str, Stateful],
        metrics: Sequence[str] = (),
        seats: int = 1,
        bucket_bytes: int = BUCKET_BYTES,
        siblings: Siblings | None = None,
    ) -> None:
        siblings = siblings or Single()
        trained = [p for p in model.parameters() if p.requires_grad]
        self._untrained = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self.state = ReplicaState(model, optimizers, extra)
        self.gradients = GradientStore(trained, bucket_bytes)
        self.buffers = BufferKeeper(model)
        self.tail = Tail(metrics, len(trained), seats, trained[0].device, _beside(len(trained), siblings))
        # Its workers may have parts of other sizes: what they reduce together must be the same bucket.
        (most,) = siblings.largest(len(self.gradients.buckets) + len(self.buffers.buckets))
        self.gradients.fill_up(most - len(self.buffers.buckets))
        self._checksum = (NO_STATE, 0)
        self.buckets: list[Bucket] = [*self.gradients.buckets, *self.buffers.buckets, self.tail.bucket]

    def gather(self, bucket: Bucket, siblings: Siblings) -> None:
        """Sum what is loaded of a bucket over the workers of the replica, if each has its own part of it."""
        if bucket is self.tail.bucket:
            siblings.add(bucket.reduced)
        elif any(bucket is of_buffers for of_buffers in self.buffers.buckets):
            siblings.add(bucket.reduced, alike=True)

    def open(self) -> None:
        """A step begins: nothing is held."""
        self.gradients.open()
        self.buffers.open()
        self.tail.bucket.open()

    def check_in_time(self) -> None:
        """Raise `LoopError` if a gradient has come that its bucket had not waited for."""
        if self.gradients.late_gradient:
            raise LoopError(
                f"{self.gradients.late_gradient} got a second gradient in one backward, after its bucket had been "
                "launched: use job.train(overlap=False)"
            )

    def seal(self, stop: bool, checksum_of_seat: tuple[int, int] | None) -> None:
        """All micro-batches are done here: what else rides in the tail."""
        self.tail.seal(self.gradients.used, stop)
        if checksum_of_seat is not None:
            self.tail.put_checksum(*checksum_of_seat)

    def complete(self) -> Totals:
        """Every bucket is complete: gradients and buffers become those of the whole batch."""
        for name, p in self._untrained:
            if p.requires_grad:
                raise LoopError(
                    f"{name} began to require a gradient after job.train: let it require one there, and freeze it "
                    "afterwards"
                )
        totals = self.tail.totals()
        self.gradients.finish(totals.weight, totals.used)
        self.buffers.finish(totals.count)
        return totals

    def complete_alone(self) -> Totals:
        """The same over what is held here alone: the end of a rehearsal."""
        self.seal(stop=False, checksum_of_seat=None)
        for bucket in self.buckets:
            bucket.reduced.copy_(bucket.local)
        return self.complete()

    def void(self, before: Totals | None) -> Totals:
        """The turn is void: harmless gradients, and the metrics of the step before if there was one."""
        self.gradients.void()
        names = ("loss", *self.tail.names)
        metrics = before.metrics if before is not None else dict.fromkeys(names, math.nan)
        return Totals(0.0, 0, False, dict(metrics), (), {})

    def give_up_held(self) -> None:
        """What was held clashes with another member's: none of it counts any more."""
        for bucket in self.buckets:
            bucket.local.zero_()
        self.gradients.used = [False] * len(self.gradients.used)

    def holdings(self, applied: int, held: Sequence[int] | None) -> Holdings:
        """What is published of it; `held` is None while no step is open."""
        kept = tuple(b.kept for b in self.buckets)
        if held is None:
            return Holdings(applied, kept=kept)
        return Holdings(applied, tuple(sorted(held)), tuple(b.complete for b in self.buckets), kept)

    def forget(self) -> None:
        """The state is about to come from elsewhere, or has: no sum here belongs to it."""
        self._checksum = NO_STATE, 0
        for bucket in self.buckets:
            bucket.forget()

    def checksum_before(self, step: int) -> int:
        """64 bits of all parameters, or of this worker's part, equal on all replicas; taken once per step."""
        if self._checksum[0] != step:
            self._checksum = step, checksum(part_of(p) for p in self.state.parameters.values())
        return self._checksum[1]

    def closing_token(self) -> torch.Tensor:
        """Something to reduce when there is nothing left to say."""
        return torch.zeros(1, dtype=torch.float64, device=self.tail.bucket.local.device)


def _beside(parameters: int, siblings: Siblings) -> tuple[int, int]:
    """How many parameters the stages before this worker's have, and those after it."""
    place = siblings.place
    if place.stages == 1:
        return 0, 0
    by_stage = dict(zip(of_each(siblings, place.stage), of_each(siblings, parameters), strict=True))
    before = sum(n for stage, n in by_stage.items() if stage < place.stage)
    return before, sum(by_stage.values()) - before - parameters
