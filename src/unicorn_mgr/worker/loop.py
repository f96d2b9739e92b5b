"""What the training loop is told, and what can end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unicorn_mgr.model import Holdings, Mark
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


@dataclass(frozen=True, slots=True)
class Origin:
    """What a job without any state begins with."""

    progress: Progress | None
    """None: the initial state."""
    generation: int
    """Of this job's lineage."""
    source: str = "storage"


class Founder(Protocol):
    """Finds a state for a job of which no member has any."""

    def offer(self, holdings: Holdings) -> Holdings:
        """What a member without state publishes: its holdings, with the snapshots that it can read."""

    def restore(self, replica: Replica, mark: Mark | None, from_storage: bool) -> Origin:
        """Load the nearest state into the replica: the snapshot that was dealt, or the stored one, if that is newer.

        Raises `Broken` if it can't be read; then what was in the replica is torn.
        """
