"""Gradients in flat buckets: what is accumulated here, and what is reduced.

Each bucket has two flat buffers.  `local` holds the sum over the micro-batches this worker
holds; every `p.grad` is a view of it while a step's micro-batches run.  `reduced` receives
a copy at launch and is summed over all members there, so that a failed collective, which
leaves a buffer partly summed, never touches `local`.  When all buckets of the step are
complete, the scaled sums are written back into `local`: that is the gradient the user
clips and steps with.  `reduced` keeps the sum of the finished step, for a member that is
late, until the same bucket of the next step is launched; no further copy is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from unicorn_mgr.worker.groups import Group, Operation
from unicorn_mgr.worker.sharding import as_part_of, part_of

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(eq=False)
class Bucket:
    """One flat buffer that is reduced as a whole.  `local` and `reduced` have shape (numel,)."""

    local: torch.Tensor
    reduced: torch.Tensor = field(init=False)
    complete: bool = False
    """`reduced` holds the sum over all members for the open step."""
    kept: bool = False
    """`reduced` still holds the sum of the last applied step."""
    operation: Operation | None = None
    """The reduction under way in the present epoch."""

    def __post_init__(self) -> None:
        self.reduced = torch.empty_like(self.local)

    def load(self) -> None:
        """Take what is held locally, to be reduced."""
        self.kept = False
        self.reduced.copy_(self.local)

    def launch(self, group: Group) -> None:
        """Start to reduce what is loaded."""
        self.operation = group.all_reduce(self.reduced)

    def settle(self) -> bool:
        """Take note of a finished reduction; False if it is still running or has failed."""
        if self.operation is not None and self.operation.done and not self.operation.error:
            self.complete, self.operation = True, None
        return self.complete

    def abandon(self) -> None:
        """The epoch is over.  What has not been seen complete may still be written to by the old group."""
        if self.operation is None:
            return
        if not self.settle():
            self.operation = None
            self.reduced = torch.empty_like(self.local)

    def open(self) -> None:
        """A new step: nothing is held."""
        self.local.zero_()
        self.complete, self.operation = False, None

    def close(self) -> None:
        """The step is applied: the sum is kept for late members."""
        self.kept, self.complete = self.complete, False

    def forget(self) -> None:
        """The state came from elsewhere: no sum here belongs to it."""
        self.kept = self.complete = False


def layout(parameters: Sequence[torch.Tensor], first_bytes: int, bucket_bytes: int) -> list[list[int]]:
    """Indices of parameters per bucket: in reverse order of creation, as backward finishes them.

    A bucket has one dtype and one device.  The first is small, so that its reduction starts early.
    """
    plan: list[list[int]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    for index in reversed(range(len(parameters))):
        p = parameters[index]
        key = (p.dtype, p.device)
        size = p.numel() * p.element_size()
        members, filled = open_buckets.get(key, ([], 0))
        limit = first_bytes if plan and plan[0] is members else bucket_bytes
        if not members or filled + size > limit:
            members, filled = [], 0
            plan.append(members)
        members.append(index)
        open_buckets[key] = (members, filled + size)
    return plan


def _in_memory_order_of(p: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A view of `flat` in p's shape and, where p fills its memory, with its strides, as torch makes gradients."""
    filled = 1
    for size, stride in sorted(zip(p.shape, p.stride(), strict=True), key=lambda dimension: dimension[1]):
        if size != 1 and stride != filled:
            return flat.view(p.shape)
        filled *= size
    return flat.as_strided(p.shape, p.stride())


class GradientStore:
    """The gradients of a model, in buckets.

    `on_ready` is called, inside backward of the last micro-batch only, each time one more
    bucket at the head of the order has all its gradients.  It must not raise: an exception
    in a hook tears backward apart and leaves some parameters updated and others not.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], bucket_bytes: int = BUCKET_BYTES) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.parameters = list(parameters)
        self._parts = [part_of(p) for p in self.parameters]
        self.buckets: list[Bucket] = []
        self.used = [False] * len(self.parameters)
        self.late_gradient = ""
        self._views: list[torch.Tensor] = [torch.empty(0)] * len(self.parameters)
        self._gradients: list[torch.Tensor] = [torch.empty(0)] * len(self.parameters)
        """The views, laid out as their parameters are."""
        self._bucket_of = [0] * len(self.parameters)
        self._waiting: list[int] = []
        self._sizes: list[int] = []
        self._overlapping = False
        # Each bucket costs a collective: more than an early start can hide of a model that fits into one.
        fits = sum(p.numel() * p.element_size() for p in self._parts) <= bucket_bytes
        first_bytes = bucket_bytes if fits else min(FIRST_BUCKET_BYTES, bucket_bytes)
        for members in layout(self._parts, first_bytes, bucket_bytes):
            self._add(members)
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(i)) for i, p in enumerate(self.parameters)]

    def _add(self, members: list[int]) -> None:
        first = self._parts[members[0]]
        total = sum(self._parts[i].numel() for i in members)
        bucket = Bucket(torch.zeros(total, dtype=first.dtype, device=first.device))
        offset = 0
        for i in members:
            p = self._parts[i]
            self._views[i] = _in_memory_order_of(p, bucket.local[offset : offset + p.numel()])
            self._gradients[i] = as_part_of(self.parameters[i], self._views[i])
            self._bucket_of[i] = len(self.buckets)
            offset += p.numel()
        self.buckets.append(bucket)
        self._sizes.append(len(members))

    def fill_up(self, count: int) -> None:
        """Have so many buckets, the last ones empty."""
        for _ in range(count - len(self.buckets)):
            self.buckets.append(Bucket(torch.zeros(0, dtype=self._parts[0].dtype, device=self._parts[0].device)))
            self._sizes.append(0)

    def open(self) -> None:
        """A new step: every gradient is a zeroed view."""
        for bucket in self.buckets:
            bucket.open()
        self.attach()
        self.used = [False] * len(self.parameters)

    def attach(self) -> None:
        """Point every `p.grad` at its place in the buckets."""
        for p, gradient in zip(self.parameters, self._gradients, strict=True):
            p.grad = gradient

    def expect(self, last: bool, anew: bool = True) -> None:
        """A backward begins; with `last`, buckets may be launched as its gradients come.

        Not `anew`: it is the last of other parameters than one before, which it goes on from.
        """
        self._overlapping = last
        if last and anew:
            self._waiting = list(self._sizes)

    def detach(self) -> None:
        """A backward is about to run that goes past the hooks: it is to leave gradients of its own."""
        self.collect()
        for p in self.parameters:
            p.grad = None

    def collect(self) -> None:
        """Take up what has been left past the hooks: even where it is zero, its parameter is used."""
        for i, p in enumerate(self.parameters):
            if p.grad is not None and p.grad is not self._gradients[i]:
                self._views[i].add_(part_of(p.grad))
                self.used[i] = True
            p.grad = self._gradients[i]

    def head(self) -> int:
        """How many buckets from the front have all gradients of the last micro-batch."""
        if not self._overlapping:
            return 0
        return next((b for b, left in enumerate(self._waiting) if left > 0), len(self._waiting))

    def finish(self, weight: float, used: Sequence[bool]) -> None:
        """All buckets are complete: the gradient is the sum divided by the summed weights.

        A parameter that no micro-batch used keeps grad None: AdamW moves a zero grad, not a None.
        """
        self._overlapping = False
        scale = 1.0 / weight if weight else 0.0
        for bucket in self.buckets:
            torch.mul(bucket.reduced, scale, out=bucket.local)
        for p, gradient, was_used in zip(self.parameters, self._gradients, used, strict=True):
            p.grad = gradient if was_used else None

    def void(self) -> None:
        """The step will be overwritten by another's state: any gradient will do that hurts nothing."""
        self._overlapping = False
        for bucket in self.buckets:
            bucket.local.zero_()
            bucket.forget()
        self.attach()

    def close(self) -> None:
        """Stop following the model."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def accumulated(p: torch.Tensor) -> None:
            gradient = self._gradients[index]
            if p.grad is not gradient and p.grad is not None:
                # The user's code dropped or replaced p.grad: add it where it belongs.
                self._views[index].add_(part_of(p.grad))
                p.grad = gradient
            self.used[index] = True
            if self._overlapping:
                self._arrived(index)

        return accumulated

    def _arrived(self, index: int) -> None:
        bucket = self._bucket_of[index]
        self._waiting[bucket] -= 1
        if self._waiting[bucket] == 0:
            self.on_ready()
        elif self._waiting[bucket] < 0:
            self.late_gradient = self.late_gradient or f"parameter {index} {tuple(self.parameters[index].shape)}"
