"""What changes of a job have cost it, so that plans charge what a change costs it, not what one might cost.

Each move to a new epoch is a sample of one kind of change, by where its state came from: members left
and who stayed had all; newcomers took it from a live replica; nobody had it.  The figure of a kind is the
median of its newest samples, as single ones wait for a slow disk or a silent node.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from unicorn_mgr.coordinator.state import Job, Transition
from unicorn_mgr.planner.problem import Costs

Kind = Literal["shrink", "grow", "start"]

WINDOW = 16
"""Newest samples that count."""

ENOUGH = 3
"""Fewer say nothing: until then a usual cost is taken."""

FROM_NOBODY = frozenset({"memory", "peer", "storage", "initial"})
"""Sources of state that no member is."""


def costs_of(job: Job) -> Costs:
    """Seconds that its changes take."""
    usual = Costs()
    return Costs(
        shrink=_typical(job, "shrink", usual.shrink),
        grow=_typical(job, "grow", usual.grow),
        start=_typical(job, "start", usual.start),
    )


def _typical(job: Job, kind: Kind, usual: float) -> float:
    samples = job.standstills.get(kind, ())
    return median(samples) if len(samples) >= ENOUGH else usual


def kind_of(job: Job, members: Sequence[str]) -> str:
    """Which change the move to these members is; empty: none.  What a move that was cut short has begun it goes on."""
    new = [name for name in members if not job.workers[name].was_member]
    if len(new) == len(members):
        return "start"
    unfinished = job.transition.kind if job.transition is not None else ""
    if new or unfinished in ("start", "grow"):
        return "start" if unfinished == "start" else "grow"
    return "shrink" if set(job.members) - set(members) else unfinished


def measure(job: Job, transition: Transition, now: float) -> None:
    """Take a sample when a move has ended."""
    told = transition.resumed.values()
    restored = any(r.source in FROM_NOBODY for r in told)
    if not told or not transition.kind or job.standing or restored != (transition.kind == "start"):
        return
    if restored:
        seconds = now - min(job.workers[name].ordered_at for name in job.members if name in job.workers)
    else:
        seconds = max(r.added_seconds for r in told)
    samples = job.standstills.get(transition.kind, [])
    job.standstills[transition.kind] = [*samples, seconds][-WINDOW:]
