"""The planner's question, and what its answer is good for.

A plan is made for a *situation*: the slots that may be used, and what jobs wish.  Where that is no
longer the present one, the planner is asked anew, and until it answers everybody keeps what is left to
it: healing waits for no solver.  An answer is applied only if it was made for the situation of the
moment and fits it still.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.suspension import suspendable
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job, JobPhase, NodePhase
from unicorn_mgr.coordinator.throughput import departed, micro_batches, rated, staircases
from unicorn_mgr.effects.coordinator import Decision, PaceChanged, PlanReady, PlanWanted
from unicorn_mgr.planner.problem import Demand, Node, Place, Plan, Problem
from unicorn_mgr.planner.reasons import slots

DOMAINS = 2
"""Failure domains that a job is spread over if it does not say: the loss of one leaves a copy of its state."""


def wants_slots(job: Job) -> bool:
    """It takes part in planning."""
    return not (job.over or job.cancelled or job.give_up is not None or job.phase is JobPhase.ENDING)


def problem_of(state: ClusterState, settings: Settings) -> Problem:
    """What the planner is asked at this moment."""
    return problem_with(state, settings, _nodes(state), [j for j in state.jobs.values() if wants_slots(j)])


def problem_with(state: ClusterState, settings: Settings, nodes: tuple[Node, ...], jobs: Iterable[Job]) -> Problem:
    """What it would be asked if there were these nodes and jobs."""
    # What jobs make of slots that are away for now is told, too: so plans can be made before one is lost or back.
    slots = max(sum(len(n.slots) for n in state.nodes.values()), sum(len(n.slots) for n in nodes))
    return Problem(
        nodes,
        tuple(_demand(state, j, nodes, slots) for j in jobs),
        node_mtbf=settings.node_mtbf_seconds,
        objective="paper" if settings.paper_objective else "cost",
        hysteresis=settings.hysteresis,
    )


def _nodes(state: ClusterState) -> tuple[Node, ...]:
    """Slots that may be used: also those of silent nodes, as long as what runs there is not given up."""
    blocked = _blocked(state)
    found = []
    for name, node in sorted(state.nodes.items()):
        if node.phase in (NodePhase.UP, NodePhase.SILENT) and not node.draining and not node.quarantine:
            slots = tuple(sorted(s.index for s in node.slots if (name, s.index) not in blocked))
            if slots:
                found.append(Node(name, slots, device=next(s.device for s in node.slots), domain=node.domain))
    return tuple(found)


def _blocked(state: ClusterState) -> set[Place]:
    """Slots that jobs which are ending still hold."""
    return {
        (w.node, w.slot)
        for j in state.jobs.values()
        if not j.over and not wants_slots(j)
        for w in j.workers.values()
        if w.exited is None
    }


def _demand(state: ClusterState, job: Job, nodes: tuple[Node, ...], slots: int) -> Demand:
    """A job's wish, on these nodes, and what it makes of up to so many slots."""
    silent = {n.name for n in state.nodes.values() if n.phase is NodePhase.SILENT}
    places = {(n.name, s) for n in nodes for s in n.slots}
    members = [w for w in job.living_members() if job.seats.get(w.seat) == (w.node, w.slot)]
    kept = sum(place in places for place in job.seats.values())
    # Survivors go on below the minimum, too: to stop them would help nobody.
    floor = min(job.spec.size_min, kept) if members else 0
    if job.gang and any(w.alive for w in job.workers.values()):
        floor = kept  # it would begin anew, and nobody knows what that costs it
    return Demand(
        job=job.name,
        size_min=job.spec.size_min,
        floor=floor,
        suspendable=suspendable(job) and not job.gang,
        size_max=job.spec.size_max,
        weight=job.spec.weight,
        priority=job.spec.priority,
        replica=job.spec.replica_size or 1,
        within="domain" if job.spec.replica_within == "domain" else "node",
        domains=job.spec.domains or DOMAINS,
        needed=job.spec.throughput_min,
        throughput=staircases(job, floor or job.spec.size_min, slots, sorted({n.device for n in nodes})),
        rated=rated(job.spec),
        seats=job.seats,
        members=sum((w.node, w.slot) in places for w in members),
        hit=bool(job.lost_members()) or any(place not in places for place in job.seats.values()),
        barred=frozenset(job.barred),
        occupied=frozenset(w.seat for w in job.alive()),
        warm=frozenset(job.warm),
        may_grow=not silent.intersection(n for n, _ in job.seats.values()),
    )


def situation_of(state: ClusterState, problem: Problem) -> str:
    """A digest of what a plan is made for: slots, wishes, pace.  What jobs have is not in it: plans change that."""
    wishes = [
        (
            *(d.job, d.size_min, d.size_max, d.weight, d.priority),
            *(sorted(d.barred), d.may_grow, d.suspendable, *_pace(state.jobs[d.job])),
        )
        for d in problem.demands
    ]
    return hashlib.sha256(repr((problem.nodes, wishes)).encode()).hexdigest()[:16]


def _pace(job: Job) -> tuple[object, ...]:
    return micro_batches(job), job.paces


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
    problem, planning = problem_of(c.state, c.settings), c.state.planning
    situation = situation_of(c.state, problem)
    if planning.situation != situation:
        yield PlanWanted(planning.number + 1, situation, "slots or wishes have changed")
    elif planning.answered and planning.plan is not None and not _fits(problem, planning.plan):
        yield PlanWanted(planning.number + 1, situation, "the newest plan does not fit any more")
    elif any(c.now >= due for due in retry_deadlines(c)):
        yield PlanWanted(planning.number + 1, situation, "the solver had failed")


def retry_deadlines(c: Context) -> Iterator[float]:
    """When a solver that has failed is tried again: what stood in for it is no optimum."""
    planning = c.state.planning
    if planning.answered and planning.plan is not None and planning.plan.rung == "shrink":
        yield planning.answered_at + c.settings.plan_retry_seconds


def current(c: Context, problem: Problem) -> Plan:
    """What holds now: the policy's word, the newest plan if it is for this, or what everybody has."""
    if c.policy is not None:
        return c.policy.solve(problem)
    planning = c.state.planning
    if planning.answered and planning.plan is not None:
        return Plan(planning.plan.seats, planning.plan.reasons)
    usable = {(n.name, s) for n in problem.nodes for s in n.slots}
    kept = {d.job: {s: p for s, p in sorted(d.seats.items()) if p in usable} for d in problem.demands}
    lost = {d.job: len(d.seats) - len(kept[d.job]) for d in problem.demands}
    had = {d.job: c.state.jobs[d.job].seats_reason for d in problem.demands}
    return Plan(kept, {job: f"has lost {slots(lost[job])}" if lost[job] else why for job, why in had.items()})


def _fits(problem: Problem, plan: PlanReady) -> bool:
    """Whether it can be applied as it stands.

    Nobody else has its slots, its seats are free or the job's own, and whoever can't be stopped goes on.
    """
    usable = {(n.name, s) for n in problem.nodes for s in n.slots}
    taken: set[Place] = set()
    for demand in problem.demands:
        if demand.floor and not demand.suspendable and not plan.seats.get(demand.job):
            return False
        for seat, place in plan.seats.get(demand.job, {}).items():
            has_moved = seat in demand.occupied and demand.seats.get(seat) != place
            if place not in usable or place in taken or seat in demand.barred or has_moved:
                return False
            taken.add(place)
    return True
