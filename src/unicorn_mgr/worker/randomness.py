"""Random state belongs to (step, micro-batch), never to a process.

Each micro-batch runs with generators seeded from (seed, step, number), so that whoever
computes it draws the same dropout masks.  After the last of several on end the state from
before the first is put back: what the user's code draws next goes on as if they had drawn
nothing.
"""

from __future__ import annotations

import hashlib
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


def seed_of(seed: int, step: int, number: int, stage: int = 0) -> int:
    """A 63-bit seed, the same on every machine."""
    name = f"{seed}/{step}/{number}" + (f"/{stage}" if stage else "")
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _numpy() -> Any:
    """numpy.random, if anything here has imported numpy."""
    return getattr(sys.modules.get("numpy"), "random", None)


def seed_all(seed: int) -> None:
    """Seed every generator a micro-batch may draw from.

    Not by torch.manual_seed: for each kind of device that is not in use it formats the stack
    and keeps the call for later, which costs most of a millisecond.
    """
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if (numpy := _numpy()) is not None:
        numpy.seed(seed & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Raw:
    """The state of every generator, as their own modules give it.  Taking one costs microseconds."""

    python: tuple[Any, ...]
    host: torch.Tensor
    cuda: torch.Tensor | None
    numpy: tuple[Any, ...] | None


def capture() -> Raw:
    """The present state."""
    numpy = _numpy()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return Raw(random.getstate(), torch.get_rng_state(), cuda, numpy.get_state() if numpy else None)


def put_back(raw: Raw) -> None:
    """Inverse of `capture`, in the same process."""
    random.setstate(raw.python)
    torch.set_rng_state(raw.host)
    if raw.cuda is not None:
        torch.cuda.set_rng_state(raw.cuda)
    if raw.numpy is not None:
        _numpy().set_state(raw.numpy)


def portable(raw: Raw) -> dict[str, Any]:
    """As plain values and tensors, which can be sent and stored."""
    version, internal, gauss = raw.python
    state: dict[str, Any] = {"python": [version, list(internal), gauss], "torch": raw.host}
    if raw.cuda is not None:
        state["cuda"] = raw.cuda
    if raw.numpy is not None:
        name, keys, *rest = raw.numpy
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), *rest]
    return state


def restore(state: dict[str, Any]) -> None:
    """Put back what `portable` returned, in another process."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and (numpy := _numpy()) is not None:
        name, keys, *rest = state["numpy"]
        numpy.set_state((name, keys.numpy().astype("uint32"), *rest))


class MicroBatchRandom:
    """Seeds on entry to a micro-batch, puts back what was before the first on exit from the last."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._outer: Raw | None = None

    def enter(self, step: int, number: int, stage: int = 0) -> None:
        """A micro-batch begins, or one stage of it, whether or not what was before it has been left."""
        if self._outer is None:
            self._outer = capture()
        seed_all(seed_of(self._seed, step, number, stage))

    def leave(self) -> None:
        """No other micro-batch follows at once.  To leave twice does no harm."""
        if self._outer is not None:
            put_back(self._outer)
            self._outer = None
