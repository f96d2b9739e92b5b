"""Buffers of the model (BatchNorm statistics and the like), exact whatever the world.

Each micro-batch starts from the buffers the step began with.  Of floating buffers the mean
of the changes over all micro-batches is applied at the end of the step; integer buffers
take what micro-batch 0 made of them.  Both ride in buckets of their own, as differences,
so that they are lost and recomputed together with the gradients of the same micro-batch.
Buffers that are not part of the model's state dict are caches and are left alone.
"""

from __future__ import annotations

import torch

from unicorn_mgr.worker.buckets import Bucket


class BufferKeeper:
    """Follows a model's persistent buffers through a step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._places = _persistent(model)
        self._tensors = [found for module, key in self._places if (found := module._buffers[key]) is not None]
        self._base = [b.detach().clone() for b in self._tensors]
        self._sums: list[tuple[Bucket, int]] = []
        sizes: dict[tuple[torch.dtype, torch.device], int] = {}
        for b in self._tensors:
            sizes[b.dtype, b.device] = sizes.get((b.dtype, b.device), 0) + b.numel()
        made = {key: Bucket(torch.zeros(n, dtype=_wire_dtype(key[0]), device=key[1])) for key, n in sizes.items()}
        self.buckets = list(made.values())
        offsets = dict.fromkeys(sizes, 0)
        for b in self._tensors:
            key = (b.dtype, b.device)
            self._sums.append((made[key], offsets[key]))
            offsets[key] += b.numel()

    def open(self) -> None:
        """A step begins: what the buffers are now is what every micro-batch starts from."""
        for bucket in self.buckets:
            bucket.open()
        with torch.no_grad():
            for i, b in enumerate(self._in_place()):
                self._base[i].copy_(b)

    def lend(self) -> None:
        """Until `took` or `put_back` the model has copies: backward may still want what they are then."""
        for i, (module, key) in enumerate(self._places):
            module._buffers[key] = self._base[i].clone()

    def took(self, number: int) -> None:
        """Micro-batch `number` is done: note its changes and go back to the step's start.

        Every buffer is compared: BatchNorm's kernel writes its statistics without raising
        the tensor's version.
        """
        with torch.no_grad():
            for i, b in enumerate(self._in_place()):
                base, change = self._base[i], self._view(i)
                if _averaged(b):
                    change.add_(b - base)
                elif number == 0:
                    change.add_(b.to(change.dtype) - base.to(change.dtype))
                b.copy_(base)

    def put_back(self) -> None:
        """A micro-batch is done whose changes another worker notes."""
        with torch.no_grad():
            for i, b in enumerate(self._in_place()):
                b.copy_(self._base[i])

    def finish(self, count: int) -> None:
        """The step is complete over `count` micro-batches."""
        with torch.no_grad():
            for i, b in enumerate(self._tensors):
                bucket, at = self._sums[i]
                change = bucket.reduced[at : at + b.numel()].view_as(b)
                if _averaged(b):
                    b.copy_(self._base[i] + change / max(count, 1))
                else:
                    b.copy_((self._base[i].to(change.dtype) + change).to(b.dtype))

    def _in_place(self) -> list[torch.Tensor]:
        """The buffers; one that the model has replaced is filled with what replaced it."""
        for (module, key), mine in zip(self._places, self._tensors, strict=True):
            now = module._buffers[key]
            if now is not None and now is not mine:
                with torch.no_grad():
                    mine.copy_(now)
                module._buffers[key] = mine
        return self._tensors

    def _view(self, index: int) -> torch.Tensor:
        bucket, at = self._sums[index]
        b = self._tensors[index]
        return bucket.local[at : at + b.numel()].view_as(b)


def _persistent(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """Where the buffers live that are in the state dict, shared ones once."""
    saved = set(model.state_dict(keep_vars=True))
    places: list[tuple[torch.nn.Module, str]] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for key, b in module._buffers.items():
            name = f"{prefix}.{key}" if prefix else key
            if b is not None and name in saved and id(b) not in seen:
                seen.add(id(b))
                places.append((module, key))
    return places


def _averaged(b: torch.Tensor) -> bool:
    return b.dtype.is_floating_point or b.dtype.is_complex


def _wire_dtype(dtype: torch.dtype) -> torch.dtype:
    """Integer and boolean buffers travel as int64 differences; halves as float32."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    if dtype.is_floating_point or dtype.is_complex:
        return dtype
    return torch.int64
