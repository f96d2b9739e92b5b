"""What a deadline needs: the fewest slots on which the job's remaining steps are done in time.

The work that is left over the time that is left is a throughput, and it changes with every second; the
smallest size that has it changes seldom.  Only that is decided, and plans charge for less.
"""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator.outlook import wants_slots
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import ClusterState, Job
from unicorn_mgr.coordinator.throughput import rising, work_of_step
from unicorn_mgr.effects.coordinator import DeadlineReckoned, Decision
from unicorn_mgr.planner.problem import Staircase
from unicorn_mgr.planner.reasons import slots

SPARE = 0.1
"""Share of the throughput.  Fewer slots are enough only if they have so much to spare, or a job would give a slot and
want it back soon; and a job whose best falls short by no more is still helped."""

SURELY_SECONDS = 1.0
"""After the moment at which more slots are needed: by then that is so whatever rounding does."""


def reckoned(c: Context, job: Job) -> Iterator[Decision]:
    """The fewest slots that keep its deadline are others than before, or it can't be kept."""
    if c.policy is None and job.spec.deadline and wants_slots(job):
        found = prospect(job, slots_there(c.state), job.spec.deadline - c.state.wall(c.now))
        if found != (job.due_slots, job.due_prospect):
            yield DeadlineReckoned(job.name, *found)


def deadlines(c: Context, job: Job) -> Iterator[float]:
    """When more slots are needed because time goes by; a job that runs tells of its steps often enough."""
    if not job.spec.deadline or job.running or not wants_slots(job):
        return
    due = job.spec.deadline - c.state.wall(0.0)
    yield due
    rates = dict(rising(job, slots_there(c.state)))
    work = work_of_step(job)
    if job.due_slots in rates and work is not None:
        alone = _steps_left(job) * work / rates[job.due_slots]
        yield from (due - alone + SURELY_SECONDS, due - alone / (1 + SPARE) + SURELY_SECONDS)


def slots_there(state: ClusterState) -> int:
    """Slots that jobs could have, whoever has them now."""
    return sum(len(n.offered) for n in state.nodes.values() if n.counts)


def prospect(job: Job, most: int, seconds: float) -> tuple[int, str]:
    """The fewest of at most so many slots that keep its deadline, which is so far away; 0 if none is to be kept."""
    left, work = _steps_left(job), work_of_step(job)
    if left <= 0:
        return 0, ""
    if seconds <= 0:
        return 0, "its deadline has passed"
    if work is None:
        return 0, "what its deadline needs is known when its steps have been measured"
    needed, stairs = left * work / seconds, rising(job, most)
    size = _fewest(stairs, needed, job.due_slots)
    if size:
        return size, f"its deadline needs {slots(size)}"
    if stairs and stairs[-1][1] * (1 + SPARE) >= needed:
        return stairs[-1][0], f"even on {slots(stairs[-1][0])} it is late for its deadline"
    return 0, "its deadline can't be kept on the slots there are, so it is planned as if it had none"


def _steps_left(job: Job) -> int:
    return job.spec.steps - 1 - job.committed


def _fewest(stairs: Staircase, needed: float, before: int) -> int:
    """The smallest size that is fast enough; one that is smaller than before only with something to spare."""
    present = dict(stairs).get(before, 0.0)
    wanted = min(present, needed * (1 + SPARE)) if present >= needed else needed
    return next((size for size, rate in stairs if rate >= wanted), 0)
