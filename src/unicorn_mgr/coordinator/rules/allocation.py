"""Slots to jobs, processes to slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

from unicorn_mgr.coordinator.outlook import wants_slots
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.budget import restart_due_at, spent
from unicorn_mgr.coordinator.rules.planning import current, yields
from unicorn_mgr.coordinator.rules.preparation import holders, may_begin, successor_due_at
from unicorn_mgr.coordinator.rules.replicas import near_memory, seats_beside, whole_seats
from unicorn_mgr.coordinator.rules.shapes import in_planned_shape
from unicorn_mgr.coordinator.state import Job, NodePhase, Worker, WorkerPhase
from unicorn_mgr.effects.coordinator import (
    Decision,
    JobGivenUp,
    RetirementOrdered,
    SlotsAssigned,
    WorkerCondemned,
    WorkerDismissed,
    WorkerOrdered,
)
from unicorn_mgr.model import WorkerName
from unicorn_mgr.planner.problem import Place


def assigned(c: Context) -> Iterator[Decision]:
    """What holds for the present situation, applied where it differs from what jobs have."""
    if c.state.paused:
        return
    plan = current(c)
    for job in (j for j in c.state.jobs.values() if wants_slots(j)):
        planned = plan.seats.get(job.name, {}) if in_planned_shape(job, plan) else {}  # nothing of it may run then
        seats, reason = _seats(job, planned), plan.reasons.get(job.name, "")
        if seats is not job.seats or reason != job.seats_reason:
            yield SlotsAssigned(job.name, seats, reason)


def _seats(job: Job, planned: dict[int, Place]) -> dict[int, Place]:
    """The places of a plan: where a worker still is that was to leave, it simply stays in its seat."""
    if planned is job.seats or planned == job.seats:
        return job.seats
    if job.spec.replica:  # a seat's number says where in its replica it is
        found = near_memory(job, planned)
        return job.seats if found == job.seats else found
    there = {(w.node, w.slot): w.seat for w in job.alive() if not w.retiring}
    there |= {place: seat for seat, place in job.seats.items()}
    own = {seat: there.get(place, seat) for seat, place in planned.items()}
    seats = {seat if own[seat] in planned else own[seat]: place for seat, place in planned.items()}
    return next((known for known in (job.seats, planned) if known == seats), seats)


def ordered(c: Context, job: Job) -> Iterator[Decision]:
    """Every seat has a process, or one is on its way."""
    if c.state.paused or not wants_slots(job) or job.suspension is not None or not _gang_may_start(c, job):
        return
    empty = _empty_seats(c, job)
    if not empty or yields(c, job):
        return
    replacing = [seat for seat in empty if job.follows_failure(seat)]
    if c.state.observes(job) and replacing:
        return  # observe mode: a lost process is not replaced
    reason = spent(c, job)
    if reason:
        yield JobGivenUp(job.name, _exit_code(job), reason)
        return
    due, world = cache(partial(_restart_due_at, c, job)), cache(partial(_world, job))
    for seat in [seat for seat in empty if due(seats_beside(job, seat).start) <= c.now]:
        node, slot = job.seats[seat]
        meets = world(seats_beside(job, seat).start if job.spec.replica else 0)
        yield WorkerOrdered(
            worker=str(WorkerName(job.name, seat, job.incarnations.get(seat, 0))),
            node=node,
            slot=slot,
            rank=meets.ranks[seat],
            world_size=len(meets.ranks),
            restarts=meets.start,
            local_slots=meets.slots[node],
            job_running=job.running,
            job_step=max(job.committed, 0),
            reason="replaces the one before" if seat in replacing else job.seats_reason,
        )


@dataclass(frozen=True, slots=True)
class _World:
    """Seats whose processes meet as torch's ranks: all, or those of one replica."""

    ranks: dict[int, int]
    slots: dict[str, tuple[int, ...]]
    """Of each of their nodes, rising."""
    start: int


def _world(job: Job, first: int) -> _World:
    seats = list(seats_beside(job, first)) if job.spec.replica else sorted(job.seats)
    slots: dict[str, list[int]] = {}
    for seat in seats:
        node, slot = job.seats[seat]
        slots.setdefault(node, []).append(slot)
    ranks = {seat: rank for rank, seat in enumerate(seats)}
    return _World(ranks, {node: tuple(sorted(mine)) for node, mine in slots.items()}, _start(job, seats))


def _start(job: Job, world: list[int]) -> int:
    """Processes that are to meet do so by the number of their start: whoever comes late to one belongs to it."""
    if job.spec.replica:
        return job.starts_before + max(job.incarnations.get(seat, 0) for seat in world)
    return job.gang_restarts + bool(job.gang and any(job.incarnations.values()) and not job.alive())


def _restart_due_at(c: Context, job: Job, seat: int) -> float:
    """When a process of this seat may be started; a replica is started as one."""
    nodes = {job.seats[s][0]: None for s in seats_beside(job, seat) if s in job.seats}
    return max(restart_due_at(c, job, node) for node in nodes)


def _exit_code(job: Job) -> int:
    """A program that never called attach() gives the job its own."""
    last = job.workers.get(job.deaths[-1].worker)
    return last.exited.code if job.gang and last is not None and last.exited and last.exited.code > 0 else 1


def _gang_may_start(c: Context, job: Job) -> bool:
    """A gang is started as one: the one before must be gone to the last process."""
    if not job.gang:
        return True
    failed = _failed(job)
    if not failed:
        return True
    gone = all(w.exited is not None for w in job.workers.values())
    return gone and c.now >= max(w.gone_at for w in failed) + c.settings.settle_seconds


def _failed(job: Job) -> list[Worker]:
    """Processes of this start that are gone as they should not be; one whose order never came has not been."""
    ended = [w for w in job.workers.values() if not w.alive and w.start == job.gang_restarts]
    return [w for w in ended if not (w.ended_well or w.fresh_start)]


def _empty_seats(c: Context, job: Job) -> list[int]:
    filled = {w.seat for w in job.alive()}
    filled |= {w.seat for w in job.gone() if w.ended_well and not w.retiring}
    empty = [
        seat
        for seat, place in sorted(job.seats.items())
        if seat not in filled and seat not in job.barred and c.state.nodes[place[0]].usable and may_begin(c, job, place)
    ]
    return whole_seats(job, empty)


def order_deadlines(c: Context, job: Job) -> Iterator[float]:
    """When a delayed restart is due, and when a gang's first failure has settled."""
    if job.gang and not job.over:
        yield from (w.gone_at + c.settings.settle_seconds for w in job.workers.values() if not w.alive)
    if wants_slots(job):
        for first in {seats_beside(job, seat).start: None for seat in _empty_seats(c, job)}:
            yield _restart_due_at(c, job, first)


def gang(c: Context, job: Job) -> Iterator[Decision]:
    """Without attach() the processes of a job live and die together."""
    if not job.gang or c.state.paused or c.state.observes(job) or not wants_slots(job):
        return
    dead = [w for w in _failed(job) if not w.condemned]
    if dead and c.now < min(w.gone_at for w in dead) + c.settings.settle_seconds:
        return  # the others may be about to say the same
    moved = [w for w in job.alive() if job.seats.get(w.seat) != (w.node, w.slot)]
    for worker in job.alive() if dead or moved else []:
        why = f"{dead[0].name} has failed" if dead else "its slots have changed"
        yield WorkerCondemned(worker.name, f"the gang is restarted: {why}", gently=True, yields=not dead)


def surplus(c: Context, job: Job) -> Iterator[Decision]:
    """Workers whose slot is wanted back leave, once whoever comes in their place has come, and who follows is ready."""
    if c.state.paused or job.over or job.gang:
        return
    extra = [w for w in job.alive() if job.seats.get(w.seat) != (w.node, w.slot) and not w.retiring]
    if not extra or not wants_slots(job):
        return
    staying = [w for w in job.living_members() if job.seats.get(w.seat) == (w.node, w.slot)]
    settled = (WorkerPhase.MEMBER, WorkerPhase.LEAVING, WorkerPhase.ENDED)
    coming = [w for w in job.unsettled() if w.phase not in settled and w not in extra and not holders(c.state, w)]
    for worker in extra:
        if worker.phase is not WorkerPhase.MEMBER:
            yield WorkerCondemned(worker.name, "its slot is wanted back", gently=True, yields=True)
        elif not coming and len(staying) >= job.spec.size_min and c.now >= successor_due_at(c, worker):
            yield RetirementOrdered(worker.name, f"its slot is wanted back: node {worker.node}")


def dismissed(c: Context, job: Job) -> Iterator[Decision]:
    """Ended processes that everything is known about are forgotten once nobody asks for them."""
    done = [w for w in (job.workers.values() if job.over else job.gone()) if _done_with(c, job, w)]
    for worker in sorted(done, key=lambda w: w.name):
        yield WorkerDismissed(worker.name, worker.node)


def _done_with(c: Context, job: Job, worker: Worker) -> bool:
    if worker.exited is None:
        node = c.state.nodes[worker.node]
        return job.over and node.phase in (NodePhase.LOST, NodePhase.ISOLATED)
    if job.over:
        return True
    if worker.name in job.parts.of:  # whoever stores what it has left speaks in its name
        return False
    if job.has_member(worker.name) or (worker.ended_well and not worker.retiring):
        return False
    told = worker.accounted or worker.condemned or worker.fresh_start or not worker.incident
    followed = job.incarnations[worker.seat] > WorkerName.parse(worker.name).incarnation + 1
    return told and (followed or worker.start < job.starts_before)  # nobody follows one of another shape
