"""The planner's question, and what its answer is good for.

A plan is made for a *situation*: the slots that may be used, and what jobs wish.  Where that is no
longer the present one, the planner is asked anew, and until it answers everybody keeps what is left to
it: healing waits for no solver.  An answer is applied only if it was made for the situation of the
moment and fits it still.
"""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator.outlook import wants_slots
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import Job
from unicorn_mgr.coordinator.throughput import departed
from unicorn_mgr.effects.coordinator import Decision, PaceChanged, PlanWanted
from unicorn_mgr.planner.problem import Demand, Place, Plan
from unicorn_mgr.planner.reasons import slots


def paced(c: Context, job: Job) -> Iterator[Decision]:
    """Measured throughput departs from what plans count on."""
    if c.policy is not None or job.over or not job.members or job.transition is not None:
        return
    seconds = departed(job, len(job.members))
    if seconds is not None:
        yield PaceChanged(job.name, len(job.members), seconds)


def wanted(c: Context) -> Iterator[Decision]:
    """A plan for the present situation, if the newest one asked for is for another."""
    if c.state.paused or c.policy is not None:
        return
    planning, situation = c.state.planning, c.outlook.situation(c.state)
    if planning.situation != situation:
        yield PlanWanted(planning.number + 1, situation, "slots or wishes have changed")
    elif planning.answered and planning.plan is not None and not c.outlook.fits(c.state, planning.plan):
        yield PlanWanted(planning.number + 1, situation, "the newest plan does not fit any more")
    elif any(c.now >= due for due in retry_deadlines(c)):
        yield PlanWanted(planning.number + 1, situation, "the solver had failed")


def yields(c: Context, job: Job) -> bool:
    """Nothing of it runs, somebody waits who comes before it, and the planner has not said yet who gets its slots."""
    if c.policy is not None or c.state.planning.answered or job.alive():
        return False
    others = (j for j in c.state.jobs.values() if wants_slots(j) and not j.seats)
    return any(other.spec.priority > job.spec.priority for other in others)


def retry_deadlines(c: Context) -> Iterator[float]:
    """When a solver that has failed is tried again: what stood in for it is no optimum."""
    planning = c.state.planning
    if planning.answered and planning.plan is not None and planning.plan.rung == "shrink":
        yield planning.answered_at + c.settings.plan_retry_seconds


def current(c: Context) -> Plan:
    """What holds now: the policy's word, the newest plan if it is for this, or what everybody has."""
    problem = c.outlook.problem(c.state)
    if c.policy is not None:
        return c.policy.solve(problem)
    planning = c.state.planning
    if planning.answered and planning.plan is not None:
        return Plan(planning.plan.seats, planning.plan.reasons, planning.plan.shapes)
    kept = {d.job: _kept(c, d, c.state.jobs[d.job].seats) for d in problem.demands}
    lost = {d.job: d.size - len(kept[d.job]) for d in problem.demands}
    had = {d.job: c.state.jobs[d.job].seats_reason for d in problem.demands}
    return Plan(kept, {job: f"has lost {slots(lost[job])}" if lost[job] else why for job, why in had.items()})


def _kept(c: Context, demand: Demand, seats: dict[int, Place]) -> dict[int, Place]:
    """Those that are left to it, if it was hit."""
    return {seat: place for seat, place in sorted(seats.items()) if c.outlook.holds(place)} if demand.hit else seats
