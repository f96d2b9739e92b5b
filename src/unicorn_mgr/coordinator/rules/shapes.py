"""A job takes the shape that the planner has chosen for it, once nothing of it runs.

Whoever there was has stored the state and ended, as if to wait, or is lost.  So a change of shape is a beginning
as any other, in which each worker reads what its own part is made of.  The slots that it is to have in the
other shape are its own in the plan meanwhile, so that nobody else is given them.
"""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.planning import current
from unicorn_mgr.coordinator.state import Job, JobPhase
from unicorn_mgr.effects.coordinator import Decision, ShapeChanged
from unicorn_mgr.model import axes_of, said
from unicorn_mgr.planner.problem import Plan


def changed(c: Context, job: Job) -> Iterator[Decision]:
    """Nothing of it is left, it is to be begun again, and that in another shape."""
    begins = job.phase in (JobPhase.WAITING, JobPhase.STARTING) and not job.cancelled
    if len(job.spec.shapes) < 2 or c.state.paused or not begins:
        return
    if job.seats or job.members or job.alive():
        return
    plan = current(c)
    if not in_planned_shape(job, plan):
        yield ShapeChanged(job.name, axes_of(plan.shapes[job.name]), plan.reasons.get(job.name, ""))


def in_planned_shape(job: Job, plan: Plan) -> bool:
    """Whether the seats that a plan gives it are for replicas as it has them now."""
    return plan.shapes.get(job.name, said(job.spec.replica)) == said(job.spec.replica)
