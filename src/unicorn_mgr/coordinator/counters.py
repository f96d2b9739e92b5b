"""What the metrics count: part of the state, so that a restart goes on counting."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """What the metrics count since the cluster began; label values are joined by '|'."""

    incidents: dict[str, int] = field(default_factory=dict)
    phase_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Per phase of recovery: one count per bucket of `RECOVERY_BUCKETS`, then the sum."""
    epochs: int = 0
    restarts: int = 0
    averted: int = 0
    """Suspicions that a second reading dispelled."""
    plans: dict[str, int] = field(default_factory=dict)
    """Answers of the planner, by rung of the ladder and solver."""
    plan_seconds: dict[str, float] = field(default_factory=dict)
    """All that they took, by the same."""
    moves: int = 0
    """Jobs that a plan has given or taken slots."""
    false_verdicts: int = 0
    """Nodes declared lost whose agent came back with the same processes."""
