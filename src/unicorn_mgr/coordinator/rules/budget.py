"""How often processes are restarted: counted per job and per (node, cause), over a window."""

from __future__ import annotations

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import Death, Job
from unicorn_mgr.model import WorkerName


def recent(c: Context, job: Job) -> list[Death]:
    """A job's deaths within the window."""
    since = c.now - c.settings.restart_window_seconds
    return [d for d in job.deaths if d.at >= since]


def spent(c: Context, job: Job) -> str:
    """Why the job is not restarted any more; empty while it may be."""
    limit = job.spec.restarts_max or (c.settings.gang_restarts_max if job.gang else c.settings.restarts_max)
    found = recent(c, job)
    # Of processes that live and die together several may fail, one sooner than the other: that is one failure.
    count = len({WorkerName.parse(d.worker).incarnation for d in found}) if job.gang else len(found)
    if count <= limit:
        return ""
    newest = job.deaths[-1]
    return (
        f"restart budget spent: {count} failures in {c.settings.restart_window_seconds:.0f} s "
        f"(limit {limit}), the last one {newest.cause} of {newest.worker}"
    )


def restart_due_at(c: Context, job: Job, node: str) -> float:
    """When the next process may be started on `node`: at once at first, then with growing delay."""
    found = [d for d in recent(c, job) if d.node == node]
    if not found:
        return c.now
    same = [d for d in found if d.cause == found[-1].cause]
    beyond = len(same) - c.settings.restart_free
    if beyond <= 0:
        return c.now
    doubled = c.settings.restart_delay_seconds * 2.0 ** (beyond - 1)
    delay: float = min(doubled, c.settings.restart_delay_seconds_max)
    return same[-1].at + delay
