"""Facts about workers into state."""

from __future__ import annotations

from typing import assert_never

from unicorn_mgr.coordinator import triage
from unicorn_mgr.coordinator.state import (
    ClusterState,
    Death,
    Inquiry,
    Job,
    JobPhase,
    Sentence,
    Worker,
    WorkerPhase,
)
from unicorn_mgr.coordinator.transfers import heed_written
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import (
    CheckpointFailed,
    CheckpointHanded,
    CheckpointPublished,
    CheckpointWritten,
    ChecksumsDiffer,
    Exited,
    FreshStart,
    LastingFact,
    Leaving,
    LoopEnded,
    Mistake,
    Raised,
    Ready,
    Resumed,
    SnapshotsStopped,
    Suspended,
    Symptom,
    Unreachable,
)
from unicorn_mgr.model import WorkerName

DEATHS_KEPT = 500
VICTIMS_KEPT = 100

RETRY_SECONDS = 5.0
"""After an inquiry that found nobody guilty the next one waits this long."""

LINK_VERDICT = "nobody is behind: the link is"

WorkerEvent = (
    e.WorkerStarted
    | e.WorkerAttached
    | e.WorkerDying
    | e.WorkerExited
    | e.WorkerTold
    | e.WorkerOrdered
    | e.WorkerCondemned
    | e.WorkerDismissed
    | e.WorkerOverstayed
    | e.RetirementOrdered
    | e.WorkerQuiet
    | e.EvidenceTaken
    | e.ReadingTaken
    | e.InquiryOpened
    | e.InquiryClosed
)


def gone(state: ClusterState, worker: Worker, reason: str, now: float) -> None:
    """From now on this worker does not count."""
    if not worker.alive:
        return
    job = state.jobs[worker.job]
    if worker.phase in (WorkerPhase.MEMBER, WorkerPhase.LEAVING) and job.down_since is None:
        job.down_since = now
    worker.phase, worker.gone_at, worker.gone_reason = WorkerPhase.GONE, now, reason
    if job.sentence is not None and job.sentence.worker == worker.name:
        job.sentence = None
    raised = worker.raised or (worker.exited.raised if worker.exited is not None else None)
    worker.cut_off = bool(job.spec.replica) and triage.of_link(raised)
    if worker.condemned:
        return
    lost = job.lost_beside(worker)
    if worker.cut_off or worker.fresh_start or not all(w.cut_off for w in lost):
        # Its replica has lost another already: this is no incident of its own.
        worker.condemned = bool(lost)
    else:
        for sign in lost:
            excuse(job, sign)


def excuse(job: Job, worker: Worker) -> None:
    """Another of its replica turns out to have been the cause."""
    worker.condemned = True
    job.deaths = [d for d in job.deaths if d.worker != worker.name]


def vanished(state: ClusterState, worker: Worker, now: float) -> None:
    """Its agent does not know it: the order never came, or it ended with all that was known of it."""
    worker.fresh_start = worker.fresh_start or worker.phase is WorkerPhase.ORDERED
    _exited(state, worker, Exited(worker.name, -9, witness="its agent does not know it"), now)


def record(state: ClusterState, event: WorkerEvent, now: float) -> None:
    """Write one fact about a worker."""
    match event:
        case e.WorkerOrdered():
            _ordered(state, event, now)
        case e.InquiryOpened(job_name, number):
            job = state.jobs[job_name]
            job.inquiry, job.inquiries, job.quiet = Inquiry(number, now), number, None
        case e.InquiryClosed(job_name, _, verdict, culprit):
            _inquiry_closed(state, state.jobs[job_name], verdict, culprit, now)
        case e.ReadingTaken(job_name, number, samples):
            inquiry = state.jobs[job_name].inquiry if job_name in state.jobs else None
            if inquiry is not None and inquiry.number == number:
                inquiry.readings.append((now, samples))
                state.jobs[job_name].last_reading = samples
        case e.WorkerExited(exited):
            worker = state.worker(exited.worker)
            if worker is not None and worker.exited is None:
                _exited(state, worker, exited, now)
        case e.WorkerQuiet(sample):
            worker = state.worker(sample.worker)
            if worker is not None:
                state.jobs[worker.job].quiet = sample
        case (
            e.WorkerStarted()
            | e.WorkerAttached()
            | e.WorkerDying()
            | e.WorkerTold()
            | e.WorkerCondemned()
            | e.WorkerDismissed()
            | e.WorkerOverstayed()
            | e.RetirementOrdered()
            | e.EvidenceTaken()
        ):
            worker = state.worker(event.worker)
            if worker is not None:
                _of_worker(state, worker, event, now)
        case _:
            assert_never(event)


_OfWorker = (
    e.WorkerStarted
    | e.WorkerAttached
    | e.WorkerDying
    | e.WorkerTold
    | e.WorkerCondemned
    | e.WorkerDismissed
    | e.WorkerOverstayed
    | e.RetirementOrdered
    | e.EvidenceTaken
)


def _of_worker(state: ClusterState, worker: Worker, event: _OfWorker, now: float) -> None:
    job = state.jobs[worker.job]
    match event:
        case e.WorkerStarted(_, pid):
            worker.pid, worker.started_at = pid, worker.started_at or now
            job.warm_up(worker.node)
            if worker.phase is WorkerPhase.ORDERED:
                worker.phase = WorkerPhase.STARTED
        case e.WorkerAttached():
            job.gang = False
            if worker.phase in (WorkerPhase.ORDERED, WorkerPhase.STARTED):
                worker.phase = WorkerPhase.ATTACHED
        case e.WorkerDying(_, witness, last):
            # Whoever is not in the middle of training may be ending as it should: its exit will tell.
            if worker.trained and not worker.loop_ended and (job.has_member(worker.name) or not worker.was_member):
                gone(state, worker, f"dying (witness: {witness})", now)
            if last is not None:
                _victim(job, worker, last.step, last.micro_batch)
        case e.WorkerTold(_, fact):
            _told(state, job, worker, fact, now)
        case e.WorkerCondemned(_, reason):
            for sample in job.last_reading if worker.incident else ():
                if sample.worker == worker.name:
                    _victim(job, worker, sample.step, sample.micro_batch)
            worker.condemned, worker.retiring = True, worker.retiring or event.yields
            gone(state, worker, reason, now)
        case e.WorkerDismissed(name):
            del job.workers[name]
            job.parts.of.pop(name, None)
            _off_slot(state, worker)
        case e.WorkerOverstayed():
            worker.overstayed = True
        case e.RetirementOrdered():
            worker.retiring = True
        case e.EvidenceTaken(_, stacks, tool):
            if job.sentence is not None and job.sentence.worker == worker.name:
                job.sentence.stacks = True
            incident = state.incidents.get(worker.incident)
            if incident is not None and stacks:
                incident.evidence += f"\nstacks by {tool}:\n{stacks}"
        case _:
            assert_never(event)


def _ordered(state: ClusterState, event: e.WorkerOrdered, now: float) -> None:
    name = WorkerName.parse(event.worker)
    job = state.jobs[name.job]
    if job.follows_failure(name.seat):
        job.restarts += 1
        state.counters.restarts += 1
    job.incarnations[name.seat] = name.incarnation + 1
    job.workers[event.worker] = Worker(event.worker, name.job, name.seat, event.node, event.slot, now, event.restarts)
    state.nodes[event.node].processes.setdefault(event.slot, []).append(event.worker)
    job.gang_restarts = max(job.gang_restarts, event.restarts)
    if job.phase is JobPhase.WAITING:
        job.phase = JobPhase.STARTING


def _told(state: ClusterState, job: Job, worker: Worker, fact: LastingFact, now: float) -> None:
    match fact:
        case Ready():
            worker.ready, worker.trained = fact, True
            _trains(job)
            if worker.phase in (WorkerPhase.ORDERED, WorkerPhase.STARTED, WorkerPhase.ATTACHED):
                worker.phase, worker.ready_at = WorkerPhase.READY, now
        case Symptom(epoch, error):
            if epoch == job.epoch and job.symptom_at is None and worker.alive:
                job.symptom_at, job.symptom = now, f"{worker.name}: {error}"
        case Unreachable(epoch, workers, _):
            if job.transition is not None and job.transition.epoch == epoch:
                job.transition.unreachable[worker.name] = workers
                job.transition.unreachable_at = job.transition.unreachable_at or now
        case Resumed():
            if job.transition is not None and job.transition.epoch == fact.epoch:
                job.transition.resumed[worker.name] = fact
        case LoopEnded(step):
            worker.loop_ended = True
            if worker.alive:
                worker.phase = WorkerPhase.ENDED
            job.loop_ended_step = job.committed = step
            job.phase = JobPhase.ENDING
        case Leaving():
            worker.retiring = True
            if worker.phase is WorkerPhase.MEMBER:
                worker.phase = WorkerPhase.LEAVING
        case Raised():
            worker.raised = fact
            gone(state, worker, f"{fact.type}: {fact.message}"[:200], now)
            _victim(job, worker, fact.step, fact.micro_batch)
        case Mistake():
            worker.mistake = fact
        case FreshStart():
            worker.fresh_start = True
        case Suspended(epoch, step):
            if epoch == job.epoch and job.standing and job.suspension is not None:
                job.suspension.stored_step = step
        case ChecksumsDiffer(_, step, minority):
            job.checksums_differ = (step, minority)
            job.backups.disown(minority)
            job.parts.disown(minority)
        case CheckpointHanded() | CheckpointWritten() | CheckpointFailed() | CheckpointPublished():
            if not job.over and worker.start >= job.starts_before:  # its part is one of this shape
                _checkpoint(state, job, worker, fact, now)
        case SnapshotsStopped():
            pass  # its user is told of it by the journal
        case _:
            assert_never(fact)


def _trains(job: Job) -> None:
    """Processes that ended before anybody trained may have done their work; now it shows that they have not."""
    for worker in () if job.trains else job.workers.values():
        worker.ended_well = False
    job.trains = True


_OfCheckpoint = CheckpointHanded | CheckpointWritten | CheckpointFailed | CheckpointPublished


def _checkpoint(state: ClusterState, job: Job, worker: Worker, fact: _OfCheckpoint, now: float) -> None:
    if isinstance(fact, CheckpointWritten):
        heed_written(state, fact)
    match fact:
        case CheckpointHanded() | CheckpointWritten():
            job.parts.heed(worker.name, fact, job.checkpoint, now)
        case CheckpointFailed(step, error, superseded):
            if worker.alive or not superseded:
                job.checkpoint_error = error
            if superseded:
                job.parts.drop(worker.name, step)
        case CheckpointPublished(step, _):
            job.published_step = max(job.published_step, step)
            job.parts.drop(worker.name, step)


def _exited(state: ClusterState, worker: Worker, exited: Exited, now: float) -> None:
    job = state.jobs[worker.job]
    worker.exited = exited
    _off_slot(state, worker)
    ended_well = exited.code == 0 and worker.phase in (WorkerPhase.ENDED, WorkerPhase.LEAVING)
    ended_well = ended_well or (worker.overstayed and worker.phase is WorkerPhase.LEAVING)
    # A program that never attaches may have done its work, but not if it was told to end.
    ended_well = ended_well or (exited.code == 0 and not job.trains and not worker.condemned)
    worker.ended_well = ended_well
    gone(state, worker, "finished" if ended_well else triage.of_exit(exited).cause, now)
    if exited.last is not None:
        job.committed = max(job.committed, exited.last.committed)
    if not ended_well and not worker.condemned and not worker.fresh_start:
        if exited.last is not None:
            _victim(job, worker, exited.last.step, exited.last.micro_batch)
        cause = triage.of_exit(exited).cause
        mark = triage.signature(exited.raised) or (f"exit code {exited.code}" if job.gang and exited.code > 0 else "")
        mark = "" if worker.cut_off else mark
        job.deaths = [*job.deaths[-DEATHS_KEPT:], Death(now, worker.name, worker.node, cause, mark, worker.was_member)]
        job.marks[worker.seat] = mark


def _off_slot(state: ClusterState, worker: Worker) -> None:
    processes = state.nodes[worker.node].processes
    left = [name for name in processes.pop(worker.slot, []) if name != worker.name]
    if left:
        processes[worker.slot] = left


def _victim(job: Job, worker: Worker, step: int, micro_batch: int) -> None:
    """A micro-batch was open on a dying worker."""
    if worker.cut_off or worker.condemned or any(not w.cut_off for w in job.lost_beside(worker)):
        return  # it has only gone down with another, or because somebody wanted it
    entry = (worker.name, step, micro_batch)
    if micro_batch >= 0 and worker.was_member and entry not in job.victims:
        job.victims = [*job.victims[-VICTIMS_KEPT:], entry]


def _inquiry_closed(state: ClusterState, job: Job, verdict: str, culprit: str, now: float) -> None:
    inquiry, job.inquiry = job.inquiry, None
    job.next_inquiry_at = now + RETRY_SECONDS
    job.link_stalled = verdict == LINK_VERDICT
    if culprit:
        job.sentence = Sentence(culprit, verdict, now)
    elif inquiry is not None and verdict.startswith("progress"):
        state.counters.averted += 1
