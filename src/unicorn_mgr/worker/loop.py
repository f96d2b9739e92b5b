"""What the training loop is told, and what can end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.state import Progress


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the user said about the loop."""

    micro_batches: int
    seed: int
    verify_every: int
    exact: bool = True
    overlap: bool = True


class FreshStartNeeded(Exception):
    """This process has no state, its initial one is spoilt, and nobody else has any."""


Founder = Callable[[Replica], "tuple[Progress | None, int]"]
"""Loads a stored state when no member has any (None: there is none), and says this job's generation."""
