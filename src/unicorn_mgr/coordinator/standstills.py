"""What changes of a job have cost it, so that plans charge what a change costs it, not what one might cost.

Each move to a new epoch is a sample of one kind of change, by where its state came from: members left
and who stayed had all; newcomers took it from a live replica; nobody had it.  So is each time that its state
was stored for all to end.  The figure of a kind is the median of its newest samples, as single ones wait for a
slow disk or a silent node.

Before there are any it is predicted: a part that is usual whatever the job, and the job's bytes over the
bandwidth of the source that they come from.  As samples come they take the prediction's place by and by.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from unicorn_mgr.coordinator.state import Job, Transition
from unicorn_mgr.coordinator.transfers import Bandwidths, nearest, seconds_of
from unicorn_mgr.planner.problem import Costs

Kind = Literal["shrink", "grow", "start", "store"]

WINDOW = 16
"""Newest samples that count."""

ENOUGH = 3
"""So many outweigh the prediction wholly, fewer for their share."""

FROM_NOBODY = frozenset({"memory", "peer", "storage", "initial"})
"""Sources of state that no member is."""


def costs_of(job: Job, rates: Bandwidths) -> Costs:
    """Seconds that its changes take."""
    usual = Costs()
    return Costs(
        shrink=_typical(job, "shrink", usual.shrink),
        grow=_typical(job, "grow", usual.grow + seconds_of(job, rates, ("live",))),
        start=_typical(job, "start", usual.start + seconds_of(job, rates, nearest(job))),
        store=_typical(job, "store", usual.store + seconds_of(job, rates, ("store",))),
    )


def _typical(job: Job, kind: Kind, predicted: float) -> float:
    samples = job.standstills.get(kind, ())
    share = min(1.0, len(samples) / ENOUGH)
    return share * median(samples) + (1 - share) * predicted if samples else predicted


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
    add(job, transition.kind, seconds)


def add(job: Job, kind: str, seconds: float) -> None:
    """One more sample."""
    job.standstills[kind] = [*job.standstills.get(kind, []), seconds][-WINDOW:]
