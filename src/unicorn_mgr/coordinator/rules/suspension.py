"""A running job waits: it gives all its slots up, and comes back with its state from storage.

A suspension is a membership as any other, of the same members: those of an epoch that `suspends` finish
the step that is open, so that all have applied the same one, and stand still there.  The first replica
stores that state.  Only when it is in storage do the processes end, and only when they have ended are
their slots used for others.  Whatever happens before is healed by the next epoch, as ever: without a
member that has died, or, if storage fails, of the same members that go on as if nothing had been.

    running --> ordered --> standing --> stored --> suspended --> the last process is gone: waiting
                   |            |
                   +--- fails --+--> withdrawn: running, and not asked again before a checkpoint succeeds
"""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import Job, JobPhase
from unicorn_mgr.effects.coordinator import (
    Decision,
    JobSuspended,
    SuspensionOrdered,
    SuspensionWithdrawn,
    WorkerCondemned,
)


def ordered(c: Context, job: Job) -> Iterator[Decision]:
    """A running job that is to have no slots at all stores its state."""
    if c.state.paused or job.suspension is not None or job.seats or not job.suspendable:
        return
    settled = job.phase is JobPhase.RUNNING and job.running and job.transition is None and not job.standing
    if settled and not job.cancelled:
        yield SuspensionOrdered(job.name, job.seats_reason)


def withdrawn(c: Context, job: Job) -> Iterator[Decision]:
    """What can't be stored must not be ended."""
    suspension = job.suspension
    if suspension is None or suspension.stored_step is not None or not job.running or job.phase is JobPhase.ENDING:
        return
    if job.checkpoint_error:
        yield SuspensionWithdrawn(job.name, f"it can't wait, as its state can't be stored: {job.checkpoint_error}")
    elif c.now >= suspension.ordered_at + c.settings.suspend_seconds:
        limit = f"{c.settings.suspend_seconds:g} s"
        yield SuspensionWithdrawn(job.name, f"it can't wait, as its state was not stored within {limit}")


def ended(c: Context, job: Job) -> Iterator[Decision]:
    """What is stored may end."""
    suspension = job.suspension
    if suspension is None or suspension.stored_step is None or c.state.paused:
        return
    if not suspension.done:
        yield JobSuspended(job.name, suspension.stored_step)
        return
    for worker in job.alive():
        why = f"the job is suspended: its state after step {suspension.stored_step} is in storage"
        yield WorkerCondemned(worker.name, why, gently=True, yields=True)


def deadlines(c: Context, job: Job) -> Iterator[float]:
    """When its state should have been stored."""
    if job.suspension is not None:
        yield job.suspension.ordered_at + c.settings.suspend_seconds
