"""How jobs end: well, by their own fault, or because somebody wants it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from unicorn_mgr.coordinator import triage
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.incidents import DIED, incident_id
from unicorn_mgr.coordinator.rules.replicas import replica_size, seats_beside
from unicorn_mgr.coordinator.state import Job, NodePhase, Worker, WorkerPhase
from unicorn_mgr.effects.coordinator import (
    Decision,
    IncidentOpened,
    JobEnded,
    JobGivenUp,
    PoisonFound,
    SeatBarred,
    WorkerCondemned,
    WorkerOverstayed,
)

EXIT_MISTAKE = 2
EXIT_CANCELLED = 130

_ONE_MODEL = "build the same model on every worker, whatever its node, its rank and its environment"
_CURES = {
    "parameters": _ONE_MODEL,
    "buffers": _ONE_MODEL,
    "order": "create parameters in the same order on every worker, not as they come out of a set",
    "code": "keep the files that the job runs on as they are, or submit a snapshot of them",
    "torch": "install the same torch on all nodes",
}
_ONE_CALL = "give job.train and training.steps the same on every worker"


def mistakes(c: Context, job: Job) -> Iterator[Decision]:
    """A mistake of the user: a joiner's bars its replica's seats, a first worker's ends the job."""
    del c
    if job.over or job.give_up is not None:
        return
    mistaken = [w for w in job.workers.values() if w.mistake is not None and w.seat not in job.barred]
    for worker in sorted(mistaken, key=lambda w: w.name):
        text = str(worker.mistake)
        if job.running and not worker.was_member:
            yield from _barred(job, worker, text)
        else:
            yield JobGivenUp(job.name, EXIT_MISTAKE, text)
        return


def other_code(c: Context, job: Job) -> Iterator[Decision]:
    """A worker that is ready with another program, model or seed never joins."""
    if job.over or job.give_up is not None:
        return
    ready = [w for w in job.unsettled() if w.phase is WorkerPhase.READY and w.ready is not None]
    if not ready:
        return
    reference, of = job.fingerprint, job.fingerprint_of
    if reference is None:
        assert ready[0].ready is not None
        reference, of = ready[0].ready.fingerprint, ready[0].name
    for worker in ready:
        assert worker.ready is not None
        differs = _differences(worker.ready.fingerprint, reference)
        if not differs:
            continue
        text = f"{worker.name} differs from {of}: {differs}"
        if not job.members:
            yield JobGivenUp(job.name, EXIT_MISTAKE, text)
        elif not worker.incident:
            found = triage.OTHER_CODE
            yield IncidentOpened(
                incident_id(c),
                job.name,
                worker.node,
                worker.name,
                found.cause,
                found.severity,
                found.method,
                text,
            )
        else:
            yield from _barred(job, worker, text)
            yield WorkerCondemned(worker.name, text)
        return


def _barred(job: Job, worker: Worker, text: str) -> Iterator[Decision]:
    """The others of a replica can't join without it."""
    yield from (SeatBarred(job.name, seat, text) for seat in seats_beside(job, worker.seat))


def _differences(mine: dict[str, str], theirs: dict[str, str]) -> str:
    """What differs, and what to do about it; empty if nothing does."""
    odd = [k for k in sorted(mine.keys() | theirs.keys()) if mine.get(k) != theirs.get(k)]
    if {"parameters", "order"} <= set(odd):
        odd.remove("order")
    found = [f"{k} is {mine.get(k, 'absent')} here and {theirs.get(k, 'absent')} there" for k in odd]
    return "; ".join(found + list(dict.fromkeys(_CURES.get(k, _ONE_CALL) for k in odd)))


def poison(c: Context, job: Job) -> Iterator[Decision]:
    """A micro-batch that was open on two dying workers is not dealt a third time."""
    if job.over or job.give_up is not None or c.state.observes(job):
        return
    limit = job.spec.poison_deaths or c.settings.poison_deaths
    victims: dict[tuple[int, int], list[str]] = defaultdict(list)
    for worker, step, number in job.victims:
        victims[step, number].append(worker)
    for (step, number), workers in sorted(victims.items()):
        if len(set(workers)) < limit or (step, number) in job.poison:
            continue
        yield PoisonFound(job.name, step, number, job.spec.skip_poison)
        if not job.spec.skip_poison:
            text = _last_words(c, job, workers)
            yield JobGivenUp(
                job.name,
                1,
                f"micro-batch {number} of step {step} was open on {', '.join(workers)}\n{text}".strip(),
            )
        return


def same_everywhere(c: Context, job: Job) -> Iterator[Decision]:
    """The same exception on every replica is the program's: another start would end alike.

    So is the same exit code of all processes that have not called attach().
    """
    if job.over or job.give_up is not None or c.state.observes(job) or job.running or not job.seats:
        return
    replicas = sorted({seat // replica_size(job) for seat in job.seats})
    # Of a replica of several workers only the first to fail has a mark.
    told = [[job.marks.get(s, "") for s in seats_beside(job, r * replica_size(job))] for r in replicas]
    marks = {next(filter(None, of), "") for of in told}
    newest = [d.worker for d in job.deaths[-len(replicas) :]]
    if len(marks) == 1 and marks != {""} and not _poisoned(job, newest):
        code = next((w.exited.code for w in job.workers.values() if w.name in newest and w.exited is not None), 1)
        what = "ended alike" if min(marks).startswith("exit code") else "raised the same"
        text = f"every worker {what}\n{_last_words(c, job, newest)}".strip()
        yield JobGivenUp(job.name, code if code > 0 else 1, text)


def _poisoned(job: Job, workers: list[str]) -> bool:
    """These deaths may be the data's fault, which the job wants to go on without, rather than the program's."""
    if not job.spec.skip_poison or not workers:
        return False
    opened = [{(step, number) for name, step, number in job.victims if name == worker} for worker in workers]
    return bool(set.intersection(*opened)) or not set().union(*opened).isdisjoint(job.poison)


def _last_words(c: Context, job: Job, workers: list[str]) -> str:
    """What the newest of these workers left behind, as far as it is known yet."""
    for name in reversed(workers):
        worker = job.workers.get(name)
        if worker is not None and worker.exited is not None:
            return triage.evidence_of(worker.exited)
        if worker is not None and worker.raised is not None:
            return worker.raised.traceback
    known = [i.evidence for i in c.state.open_incidents(job) if i.worker in workers and i.cause != DIED.cause]
    return known[-1] if known else ""


def stopping(c: Context, job: Job) -> Iterator[Decision]:
    """A cancelled job's workers are ended now, a given up job's when they have had time to save.

    Whoever has come too late to be a member is ended when the loop has.
    """
    if job.over or c.state.paused:
        return
    patience = job.give_up_at + c.settings.give_up_seconds
    ends = job.loop_ended_step is not None or job.cancelled or job.give_up is not None
    for worker in job.alive() if ends else ():
        if job.loop_ended_step is not None and _is_too_late(job, worker):
            yield WorkerCondemned(worker.name, "the loop has ended without it", gently=True)
        elif job.cancelled:
            yield WorkerCondemned(worker.name, "the job is cancelled", gently=True)
        elif job.give_up is not None and (c.now >= patience or not worker.trained):
            yield WorkerCondemned(worker.name, "the job is given up", gently=True)


def _is_too_late(job: Job, worker: Worker) -> bool:
    """It never had the state, or is no member; unless its replica is through, and it is only about to say so."""
    through = {w.seat for w in job.workers.values() if w.loop_ended}
    about_to = job.has_member(worker.name) or not through.isdisjoint(seats_beside(job, worker.seat))
    return not (worker.formed and about_to)


def stopping_deadlines(c: Context, job: Job) -> Iterator[float]:
    """When a given up job has had time enough."""
    if job.give_up is not None and not job.over:
        yield job.give_up_at + c.settings.give_up_seconds


def lingering(c: Context, job: Job) -> Iterator[Decision]:
    """A worker that has failed or left and does not end, in a thread or an exit handler of the user's, is ended."""
    if c.state.paused or c.state.observes(job):
        return
    for worker in _lingering(c, job):
        if c.now >= worker.gone_at + c.settings.linger_seconds:
            since = "it has left its job" if worker.phase is WorkerPhase.LEAVING else "its failure"
            yield WorkerOverstayed(worker.name, f"it has not ended {c.settings.linger_seconds:g} s after {since}")


def _lingering(c: Context, job: Job) -> list[Worker]:
    left = [w for w in (*job.gone(), *job.unsettled()) if not w.alive or _has_left(job, w)]
    here = [w for w in left if w.exited is None and not w.overstayed]
    return [w for w in here if c.state.nodes[w.node].phase is not NodePhase.LOST]


def _has_left(job: Job, worker: Worker) -> bool:
    return worker.phase is WorkerPhase.LEAVING and not job.has_member(worker.name)


def lingering_deadlines(c: Context, job: Job) -> Iterator[float]:
    """When a failed worker has had time enough to end."""
    for worker in _lingering(c, job):
        yield worker.gone_at + c.settings.linger_seconds


def ended(c: Context, job: Job) -> Iterator[Decision]:
    """No process is left."""
    if job.over or job.alive() or not all(_accounted_for(c, w) for w in job.workers.values()):
        return
    if any(part.handed for part in job.parts.of.values()):
        return  # they are stored, or given up
    if job.give_up is not None:
        yield JobEnded(job.name, job.give_up[0], job.give_up[1])
    elif job.cancelled:
        yield JobEnded(job.name, EXIT_CANCELLED, "cancelled")
    elif job.loop_ended_step is not None:
        codes = [w.exited.code for w in job.workers.values() if w.loop_ended and w.exited is not None]
        worst = next((code for code in codes if code != 0), 0)
        reason = f"finished after step {job.loop_ended_step}"
        if worst:
            reason = f"{reason}, but a worker then ended with {worst}"
        yield JobEnded(job.name, worst if worst >= 0 else 128 - worst, reason)
    elif job.seats and {w.seat for w in job.workers.values() if w.ended_well and not w.retiring} >= set(job.seats):
        yield JobEnded(job.name, 0, "every process has ended well")


def _accounted_for(c: Context, worker: Worker) -> bool:
    """It has ended, or is on a node that is out of reach and given up."""
    if worker.exited is not None:
        return True
    return c.state.nodes[worker.node].phase in (NodePhase.LOST, NodePhase.ISOLATED) and not worker.alive
