"""The seam for process groups: how the members of one epoch reach each other.

A `Group` starts operations and never blocks; an `Operation` is done when its flag says
so, and calls `wake` when that changes.  The main thread waits on one condition for all of
them and for news of a newer epoch, so it never blocks inside torch.distributed.

Implementations: `local` (a world of one), `gloo`.  `tests/worker/test_groups.py` runs the
same conformance test on each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Wake = Callable[[], None]


class Operation(Protocol):
    """One collective or transfer under way."""

    @property
    def done(self) -> bool:
        """It has ended, well or not."""

    @property
    def error(self) -> str:
        """Why it failed; empty if it did not."""


class Group(Protocol):
    """The members of one epoch, by rank."""

    @property
    def size(self) -> int:
        """How many members there are."""

    def all_reduce(self, tensor: torch.Tensor) -> Operation:
        """Start to sum `tensor` over all members, in place."""

    def bury(self) -> None:
        """Cut, drain and drop, elsewhere: returns at once, and no operation blocks any more."""
