"""What follows from the state: each rule yields decisions, and changes nothing itself.

Rules are tried in order until none has anything to say.  Each derives what is missing from
the state alone, so a lost or doubled event costs a delay, never a wrong decision.  A rule
also tells when time alone could make it speak: its `deadlines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unicorn_mgr.coordinator.outlook import Outlook
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job
from unicorn_mgr.effects.coordinator import Decision
from unicorn_mgr.planner.problem import Policy


@dataclass(frozen=True, slots=True)
class Context:
    """What rules look at."""

    state: ClusterState
    settings: Settings
    policy: Policy | None
    now: float
    outlook: Outlook


JobRule = Callable[[Context, Job], Iterator[Decision]]
"""Looks at one job; tried for jobs that something has happened to."""

ClusterRule = Callable[[Context], Iterator[Decision]]
"""Looks at everything; tried whenever something has happened."""

JobDeadlines = Callable[[Context, Job], Iterator[float]]
ClusterDeadlines = Callable[[Context], Iterator[float]]
