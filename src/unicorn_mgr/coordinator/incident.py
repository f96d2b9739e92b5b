"""One failure and what became of it.  A part of the coordinator's state, written only by `record`."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.messages import StateSource
from unicorn_mgr.model import Epoch


@dataclass(slots=True)
class Incident:
    """One failure from its first sign to full speed."""

    id: str
    job: str
    node: str
    worker: str
    cause: str
    severity: str
    detected_by: str
    evidence: str
    opened_at: float
    opened_wall: float
    occurred_at: float
    of_member: bool = False
    """It hit a worker that had joined."""
    granted_at: float | None = None
    formed_at: float | None = None
    resumed_at: float | None = None
    closed_at: float | None = None
    epoch_before: Epoch = field(default_factory=Epoch)
    epoch_after: Epoch | None = None
    worker_seconds: dict[str, float] = field(default_factory=dict)
    """Largest over the members: fence, regroup, restore, recompute, added."""
    steps_lost: int = 0
    micro_batches_recomputed: int = 0
    sources: tuple[StateSource, ...] = ()
    story: list[str] = field(default_factory=list)
    escalations: list[str] = field(default_factory=list)
    would_have: bool = False
    isolated: bool = False
    """Its node has been taken out of use for it; if an operator gives it back it stays."""

    @property
    def open(self) -> bool:
        """Full speed has not been reached again."""
        return self.closed_at is None
