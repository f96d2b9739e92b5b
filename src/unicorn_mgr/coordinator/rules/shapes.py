"""A job that waits takes another of its shapes, if there is room for it in that one.

Nothing of it runs: whoever there was has stored the state and ended, or is lost.  So a change of shape is a
beginning as any other, in which each worker reads what its own part is made of.  A shape is kept as long as
there is room for it: a change costs a standstill, and slots that come back are filled with more replicas.
"""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator.outlook import wants_slots
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import Job, JobPhase
from unicorn_mgr.effects.coordinator import Decision, ShapeChanged
from unicorn_mgr.model import said


def changed(c: Context, job: Job) -> Iterator[Decision]:
    """The first of its shapes in which it need not wait, unless that has been tried in the same surroundings."""
    if len(job.spec.shapes) < 2 or c.state.paused or not wants_slots(job) or not _waits(c, job):
        return
    around = c.outlook.surroundings(c.state, job)
    for shape in job.spec.shapes:
        tried = shape.axes == job.spec.replica or job.shapes_tried.get(said(shape.axes)) == around
        if not tried and c.outlook.has_room(c.state, job, shape.axes):
            reason = f"there is no room for replicas of {said(job.spec.replica)}"
            yield ShapeChanged(job.name, dict(shape.axes), reason, around)
            return


def _waits(c: Context, job: Job) -> bool:
    """Nothing of it is left, it is to be begun again, and who gets which slots is decided."""
    if job.life and c.state.observes(job):
        return False
    decided = c.policy is not None or c.state.planning.answered
    return decided and job.phase is JobPhase.WAITING and not (job.seats or job.members or job.alive())
