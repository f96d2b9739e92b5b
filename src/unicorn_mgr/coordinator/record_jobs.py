"""Facts about jobs into state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from unicorn_mgr.coordinator.checkpoints import Checkpoint, Parts
from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.record_incidents import tell
from unicorn_mgr.coordinator.shapes import in_shape
from unicorn_mgr.coordinator.standstills import FROM_NOBODY, add, kind_of, measure
from unicorn_mgr.coordinator.state import (
    ClusterState,
    Job,
    JobPhase,
    Suspension,
    Transition,
    WorkerPhase,
)
from unicorn_mgr.coordinator.transfers import heed_resumed
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import Resumed, StateSource
from unicorn_mgr.model import WorkerName, said
from unicorn_mgr.profiles.measured import restored

JobEvent = (
    e.JobSubmitted
    | e.JobCancelled
    | e.ObserveSet
    | e.DrillOrdered
    | e.SlotsAssigned
    | e.EpochGranted
    | e.GroupFormed
    | e.TransitionEnded
    | e.LifeEnded
    | e.JobHalted
    | e.JobProgressed
    | e.WishesSet
    | e.PaceChanged
    | e.DeadlineReckoned
    | e.SeatBarred
    | e.PoisonFound
    | e.JobGivenUp
    | e.SuspensionOrdered
    | e.SuspensionWithdrawn
    | e.JobSuspended
    | e.ShapeChanged
    | e.CheckpointCommitted
    | e.PartGivenUp
    | e.BackupsPlaced
    | e.CopiesReleased
    | e.JobEnded
)


def record(state: ClusterState, event: JobEvent, now: float) -> None:
    """Write one fact about a job."""
    match event:
        case e.JobSubmitted(_, name, spec):
            # Replicas of several workers are supervised one by one: they can do nothing without attach().
            state.jobs[name] = Job(name, spec, now, observe=spec.observe, gang=not spec.replica)
            state.jobs[name].backups.shape = said(spec.replica)
        case e.ObserveSet(_, name, observe):
            if name:
                state.jobs[name].observe = observe
            else:
                state.observe = observe
        case e.DrillOrdered():
            pass
        case _:
            job = state.jobs.get(event.job)
            if job is not None:
                _of_job(state, job, event, now)


_OfJob = (
    e.JobCancelled
    | e.SlotsAssigned
    | e.EpochGranted
    | e.GroupFormed
    | e.TransitionEnded
    | e.LifeEnded
    | e.JobHalted
    | e.JobProgressed
    | e.WishesSet
    | e.PaceChanged
    | e.DeadlineReckoned
    | e.SeatBarred
    | e.PoisonFound
    | e.JobGivenUp
    | e.SuspensionOrdered
    | e.SuspensionWithdrawn
    | e.JobSuspended
    | e.ShapeChanged
    | e.CheckpointCommitted
    | e.PartGivenUp
    | e.BackupsPlaced
    | e.CopiesReleased
    | e.JobEnded
)


def _of_job(state: ClusterState, job: Job, event: _OfJob, now: float) -> None:
    match event:
        case e.JobCancelled():
            job.cancelled = True
        case e.SlotsAssigned(_, seats, reason):
            state.counters.moves += dict(seats) != job.seats
            job.seats, job.seats_reason = seats, reason
        case e.EpochGranted():
            _epoch_granted(state, job, event, now)
        case e.GroupFormed(_, epoch):
            if job.transition is not None and job.transition.epoch == epoch:
                job.transition.formed_at = now
                for name in job.members:
                    job.workers[name].formed = True
                for incident in _healed_by(state, job):
                    incident.formed_at = incident.formed_at or now
        case e.TransitionEnded():
            _transition_ended(state, job, now)
        case e.LifeEnded():
            _life_ended(job)
        case e.JobHalted():
            job.halted = True
        case e.JobProgressed():
            _progressed(state, job, event)
        case e.PaceChanged(_, size, seconds):
            job.paces[size] = seconds
        case e.DeadlineReckoned(_, slots, prospect):
            job.due_slots, job.due_prospect = slots, prospect
        case e.SeatBarred(_, seat, reason):
            job.barred[seat] = reason
        case e.PoisonFound(_, step, number, skip):
            if skip:
                job.poison.append((step, number))
                for incident in state.open_incidents(job):
                    tell(incident, now, f"micro-batch {number} of step {step} is skipped from now on")
        case e.WishesSet(_, _, weight, priority, size_min, size_max):
            job.spec = replace(job.spec, weight=weight, priority=priority, size_min=size_min, size_max=size_max)
        case e.JobGivenUp(_, exit_code, reason):
            job.give_up, job.give_up_at = (exit_code, reason), now
            job.phase = JobPhase.ENDING
        case e.SuspensionOrdered() | e.SuspensionWithdrawn() | e.JobSuspended():
            _suspended(state, job, event, now)
        case e.ShapeChanged():
            _shape_changed(job, event)
        case e.CheckpointCommitted():
            _checkpoint_committed(job, event, now)
        case e.PartGivenUp(_, worker, step):
            job.parts.drop(worker, step)
        case e.BackupsPlaced() | e.CopiesReleased():
            job.backups.heed(event)
        case e.JobEnded():
            _job_ended(job, event, now)
        case _:
            assert_never(event)


def _progressed(state: ClusterState, job: Job, event: e.JobProgressed) -> None:
    job.link_stalled = job.link_stalled and event.committed <= job.committed
    job.committed, job.step_seconds = max(job.committed, event.committed), event.step_seconds or job.step_seconds
    job.backups.told(event.backed_up)
    _measured(state, job, event.step_seconds)


def _life_ended(job: Job) -> None:
    job.life += 1
    job.members, job.left, job.transition, job.symptom_at = (), (), None, None
    job.fingerprint, job.fingerprint_of = None, ""
    job.inquiry, job.sentence, job.halted = None, None, False
    job.suspension, job.standing = None, False
    job.phase = JobPhase.STARTING if job.seats else JobPhase.WAITING


def _job_ended(job: Job, event: e.JobEnded, now: float) -> None:
    job.phase, job.exit_code, job.end_reason, job.ended_at = JobPhase.ENDED, event.exit_code, event.reason, now
    job.seats, job.members, job.transition, job.parts = {}, (), None, Parts()
    job.inquiry, job.sentence, job.suspension = None, None, None
    _up_again(job, now)


def _shape_changed(job: Job, event: e.ShapeChanged) -> None:
    """What was known of its seats, and of its pace, was of replicas of another shape."""
    job.other_paces[said(job.spec.replica)] = job.paces
    job.spec, job.seats_reason = in_shape(job.spec, event.axes), event.reason
    job.starts_before += max(job.incarnations.values(), default=0) + 1
    job.barred, job.marks, job.parts, job.measured = {}, {}, Parts(), {}
    job.paces = job.other_paces.pop(said(event.axes), {})
    job.backups.change_shape(said(event.axes))


def _suspended(
    state: ClusterState, job: Job, event: e.SuspensionOrdered | e.SuspensionWithdrawn | e.JobSuspended, now: float
) -> None:
    match event:
        case e.SuspensionOrdered(_, reason):
            job.suspension = Suspension(reason, now)
        case e.SuspensionWithdrawn(_, reason):
            _slots_kept(state, job, reason)
        case e.JobSuspended(_, step):
            assert job.suspension is not None
            job.suspension.done = True
            add(job, "store", now - job.suspension.ordered_at)
            job.committed = max(job.committed, step)
        case _:
            assert_never(event)


def _slots_kept(state: ClusterState, job: Job, reason: str) -> None:
    """Its slots are its own again.  Nobody else has begun anything there."""
    job.suspension, job.seats_reason = None, reason
    job.seats = {w.seat: (w.node, w.slot) for w in job.living_members()}
    job.checkpoint_error = job.checkpoint_error or reason
    held = set(job.seats.values())
    for other in state.jobs.values():
        if other is not job:
            other.seats = {seat: place for seat, place in other.seats.items() if place not in held}


def _measured(state: ClusterState, job: Job, seconds: float) -> None:
    """How long its steps take at this size; not while it moves to another one."""
    if job.transition is None and job.members:
        measured = restored(job.measured)
        measured.add(len(job.members), seconds * state.slowest(w.node for w in job.living_members()))
        job.measured = measured.plain()


def _checkpoint_committed(job: Job, event: e.CheckpointCommitted, now: float) -> None:
    size = math.prod(job.spec.replica.values())
    job.checkpoint, job.checkpoint_error = Checkpoint(event.step, event.lineage, event.url, now), ""
    publishers = [name for name in event.writers if WorkerName.parse(name).seat % size == 0]
    job.parts.committed(job.checkpoint.mark, publishers)


def forget_pace(job: Job) -> None:
    """What is known of the speed of its nodes has changed, and what its steps have shown with it."""
    job.measured.pop(str(len(job.members)), None)
    job.paces.pop(len(job.members), None)


def _epoch_granted(state: ClusterState, job: Job, event: e.EpochGranted, now: float) -> None:
    before, kind = job.epoch, kind_of(job, event.members)
    job.epoch, job.members, job.standing = event.epoch, event.members, event.suspends
    job.skipped = list(job.poison)
    job.transition = Transition(event.epoch, now, kind)
    job.symptom_at, job.symptom, job.halted = None, "", False
    job.inquiry, job.link_stalled, job.quiet, job.checksums_differ = None, False, None, None
    job.regrouped_for = event.regrouped_for or job.regrouped_for
    state.counters.epochs += 1
    if job.phase is JobPhase.STARTING:
        job.phase = JobPhase.RUNNING
        job.started_at = job.started_at or now
    for name in event.members:
        worker = job.workers[name]
        if job.fingerprint is None and worker.ready is not None:
            job.fingerprint, job.fingerprint_of = worker.ready.fingerprint, name
            told = worker.ready.fingerprint.get("micro_batches", "")
            job.micro_batches = int(told) if told.isdecimal() else 0
        if worker.phase in (WorkerPhase.READY, WorkerPhase.LEAVING):
            worker.phase = WorkerPhase.MEMBER
        worker.was_member = True
    for worker in job.alive():
        if worker.phase is WorkerPhase.LEAVING:
            worker.gone_at = now  # it was told that it may end
            job.left = tuple(dict.fromkeys((*job.left, worker.name)))
    for incident in state.open_incidents(job):
        if incident.granted_at is None:
            incident.granted_at, incident.epoch_before = now, before
        if incident.resumed_at is None:
            incident.epoch_after, incident.formed_at = event.epoch, None


def _healed_by(state: ClusterState, job: Job) -> list[Incident]:
    """Incidents that the newest epoch answers and that have not been resumed from."""
    return [i for i in state.open_incidents(job) if i.resumed_at is None and i.epoch_after == job.epoch]


def _transition_ended(state: ClusterState, job: Job, now: float) -> None:
    transition, job.transition, job.left = job.transition, None, ()
    assert transition is not None
    measure(job, transition, now)
    heed_resumed(state, job, transition.resumed)
    told = transition.resumed.values()
    redone = sum(len(r.recomputed) for r in told)
    restored = [r.restored_step for r in told if r.source in FROM_NOBODY]
    lost = max((job.committed - step for step in restored), default=0)
    healed = _healed_by(state, job)
    for incident in state.open_incidents(job):
        incident.sources = _with(incident.sources, _sources(job, transition.resumed))
    for incident in healed:
        incident.resumed_at = now
        incident.micro_batches_recomputed += redone
        incident.steps_lost += max(0, lost)
        inexact = sorted({n for r in told if not r.exact for n in r.recomputed})
        if inexact:
            tell(incident, now, f"not exact: micro-batches {inexact} were made up for with other samples")
        for phase in ("regroup", "restore", "recompute", "added"):
            worst = max((float(getattr(r, f"{phase}_seconds")) for r in told), default=0.0)
            incident.worker_seconds[phase] = worst
    job.micro_batches_redone += redone
    job.steps_redone += max(0, lost)
    if lost > 0:
        job.committed = max(restored)
    job.committed = max(job.committed, *(r.step - 1 for r in told)) if told else job.committed
    job.marks = {}
    job.backups.go_back(job.committed)
    for worker in job.living_members() if job.spec.snapshot_budget > 0 else ():
        job.backups.at_home(worker.seat % math.prod(job.spec.replica.values()), worker.node)
    if told:
        # What the worst member lost against the step it expected; a planned join costs, too.
        job.lost_seconds += max(r.added_seconds for r in told)
        job.down_since = None
    _up_again(job, now)


def _sources(job: Job, resumed: Mapping[str, Resumed]) -> list[StateSource]:
    """Where each part of the model has come from to those that lacked it, by its position in a replica."""
    size = math.prod(job.spec.replica.values())
    return [
        StateSource(WorkerName.parse(name).seat % size, told.source, 1, told.state_bytes, told.restore_seconds)
        for name, told in resumed.items()
        if told.source not in ("", "own")
    ]


def _with(known: Iterable[StateSource], more: Iterable[StateSource]) -> tuple[StateSource, ...]:
    """One for each part and source."""
    found: dict[tuple[int, str], StateSource] = {}
    for new in (*known, *more):
        old = found.get((new.position, new.source), StateSource())
        found[new.position, new.source] = replace(
            new,
            workers=old.workers + new.workers,
            size_bytes=old.size_bytes + new.size_bytes,
            seconds=max(old.seconds, new.seconds),
        )
    return tuple(of for _, of in sorted(found.items()))


def _up_again(job: Job, now: float) -> None:
    if job.down_since is not None:
        job.lost_seconds += now - job.down_since
        job.down_since = None
