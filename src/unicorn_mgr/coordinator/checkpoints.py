"""Checkpoints of a job: the newest complete one, and parts that are on their way to storage.

in memory (handed over) --> stored --> complete, with all parts of its step --> published
     |                        |
     +------------------------+--> overtaken by a newer checkpoint, damaged, or given up: not counted on any more
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from unicorn_mgr.messages import CheckpointHanded, CheckpointWritten
from unicorn_mgr.model import Lineage, Mark

DISOWNED_MAX = 100
"""So many of the newest are remembered."""

PartState = Literal["memory", "stored", "complete"]
PART_STATES: tuple[PartState, ...] = get_args(PartState)


@dataclass(slots=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    lineage: Lineage
    url: str
    at: float = 0.0
    """When it became complete."""

    @property
    def mark(self) -> Mark:
        """Which state it is."""
        return Mark(self.step, self.lineage)


@dataclass(slots=True)
class Part:
    """What one worker has left of a checkpoint."""

    mark: Mark
    url: str
    since: float
    handed: bool = False
    """A process that outlives the worker stores it, or has."""
    stored: bool = False


@dataclass(slots=True)
class Parts:
    """By worker: of checkpoints that are not published yet."""

    of: dict[str, Part] = field(default_factory=dict)
    disowned: list[str] = field(default_factory=list)
    """Workers nothing of whom counts."""

    def heed(
        self, worker: str, fact: CheckpointHanded | CheckpointWritten, newest: Checkpoint | None, now: float
    ) -> None:
        """One has been left in memory, or is stored; what is told again of a complete checkpoint changes nothing."""
        mark = Mark(fact.step, fact.lineage)
        if worker in self.disowned or (newest is not None and mark.order <= newest.mark.order):
            return
        known = self.of.get(worker)
        if known is None or known.mark.order < mark.order:
            known = self.of[worker] = Part(mark, fact.url, now)
        if known.mark == mark:
            known.handed = known.handed or isinstance(fact, CheckpointHanded) or fact.handed
            known.stored = known.stored or isinstance(fact, CheckpointWritten)

    def disown(self, workers: Sequence[str]) -> None:
        """Their state is not that of most replicas: whoever stores what they have left does so in vain."""
        self.disowned = [*self.disowned, *workers][-DISOWNED_MAX:]
        for worker in workers:
            self.of.pop(worker, None)

    def drop(self, worker: str, step: int) -> None:
        """It is published, or will never be."""
        if worker in self.of and self.of[worker].mark.step == step:
            del self.of[worker]

    def committed(self, mark: Mark, publishers: Collection[str]) -> None:
        """All parts of it are stored.  Who publishes it, and whose older part is obsolete, is still to say so."""
        for worker, part in list(self.of.items()):
            awaited = part.handed and (part.mark != mark or worker in publishers)
            if part.mark.order <= mark.order and not awaited:
                del self.of[worker]

    def state(self, worker: str, newest: Checkpoint | None) -> PartState:
        """How far a worker's is."""
        part = self.of[worker]
        if newest is not None and part.mark == newest.mark:
            return "complete"
        return "stored" if part.stored else "memory"

    def stored(self) -> list[Mark]:
        """Of which there is something in storage, newest first."""
        return sorted({p.mark for p in self.of.values() if p.stored}, key=lambda mark: mark.order, reverse=True)
