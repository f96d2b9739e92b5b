"""When a job gets a new membership, and who is in it.

There is one transition, for faults and joins: the new epoch has the members that are left,
in their old order, and behind them the workers that have become ready.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.escalation import retry_failed
from unicorn_mgr.coordinator.rules.incidents import incident_id, open_symptom
from unicorn_mgr.coordinator.rules.preparation import holders
from unicorn_mgr.coordinator.rules.replicas import whole
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import Job, JobPhase, Node, NodePhase, Worker, WorkerPhase
from unicorn_mgr.coordinator.triage import COMMUNICATION
from unicorn_mgr.effects.coordinator import (
    Decision,
    EpochGranted,
    IncidentNoted,
    IncidentOpened,
    LifeEnded,
    TransitionEnded,
)
from unicorn_mgr.model import Epoch

_COMING = frozenset({WorkerPhase.ORDERED, WorkerPhase.STARTED, WorkerPhase.ATTACHED})


def transition_ended(c: Context, job: Job) -> Iterator[Decision]:
    """All members have finished a step in the newest epoch, or have come to the end."""
    del c
    t = job.transition
    if t is None or t.stale:
        return
    waiting = [w for w in job.living_members() if w.phase is not WorkerPhase.ENDED and w.name not in t.resumed]
    if not waiting and job.living_members():
        yield TransitionEnded(job.name, t.epoch)


def life_ended(c: Context, job: Job) -> Iterator[Decision]:
    """No member is left that has the job's state."""
    if not job.members or job.running or job.loop_ended_step is not None or _held_back(c, job):
        return
    unknown = _may_train_on(c, job, _members(job))
    if job.give_up is None and not job.cancelled and not job.over and not unknown:
        yield LifeEnded(job.name, f"no member of epoch {job.epoch} is left")


def _end_known(c: Context, worker: Worker) -> bool:
    """The process has ended, or its node is given up and has had the time to freeze it: it may only be cut off."""
    return worker.exited is not None or c.now >= _fenced_at(c.settings, c.state.nodes[worker.node])


def _fenced_at(settings: Settings, node: Node) -> float:
    """When an agent that hears no coordinator has stopped its workers for good, should it live."""
    given_up = node.phase in (NodePhase.LOST, NodePhase.ISOLATED)
    return node.silent_at - settings.lease_seconds + settings.fence_seconds if given_up else math.inf


def granted(c: Context, job: Job) -> Iterator[Decision]:
    """The membership has changed, or has to be formed again."""
    if c.state.paused or job.over or job.give_up is not None or job.cancelled:
        return
    if job.suspension is not None and job.suspension.done:
        return
    if not job.members:
        yield from _first(c, job)
        return
    lost = job.lost_members()
    if lost and c.now < min(w.gone_at for w in lost) + c.settings.death_batch_seconds:
        return
    if not (lost or _symptom_due(c, job)) and not _change_due(c, job):
        return
    if (lost or _symptom_due(c, job)) and c.state.observes(job):
        yield from _would_have(c, job, lost)
        return
    yield from _next(c, job, lost)


def _next(c: Context, job: Job, lost: list[Worker]) -> Iterator[Decision]:
    leaving, ended = _leaving(job), job.ended_members()
    leave = {w.name for w in (*leaving, *ended)}
    stay = whole(job, [w for w in job.living_members() if w.name not in leave])
    if job.loop_ended_step is not None:  # nobody is left who could hand it the state
        stay = [w for w in stay if w.formed]
    if not stay:  # whoever was about to leave is the last to have the state: it goes on until others have it
        stay = [w for w in job.living_members() if w.phase is WorkerPhase.LEAVING]
    joiners = _joiners(c, job) if _may_join(c, job) else []
    if not stay or _state_is_cut_off(c, job, stay):
        return
    reasons = [f"without {w.name}: {w.gone_reason}" for w in lost]
    reasons += [f"without {w.name}: it leaves" for w in leaving if w not in stay]
    reasons += [f"without {w.name}: it has come to the end" for w in ended]
    reasons += [f"with {w.name}" for w in joiners]
    if _suspension_due(job):
        reasons.append(f"to stand still: {job.suspension.reason}" if job.suspension is not None else "to go on")
    regrouped_for = ""
    if _symptom_due(c, job) and not lost:
        incident = open_symptom(c, job)
        if incident is None:
            yield _symptom_incident(c, job)
            return
        if job.regrouped_for == incident.id:
            yield from retry_failed(incident, job.workers.get(_reporter(job), stay[0]), job.symptom)
            return
        regrouped_for = incident.id
        reasons.append(f"same members again: {job.symptom}")
    if job.transition is not None and job.transition.stale:
        reasons.append("the coordinator has started anew in the middle of a transition")
    yield _grant(c, job, [*stay, *joiners], "; ".join(reasons), regrouped_for)


def _state_is_cut_off(c: Context, job: Job, stay: list[Worker]) -> bool:
    """Only members out of reach can have the job's state, and they may train on until they are fenced."""
    if any(w.formed for w in stay):
        return False
    return bool(_may_train_on(c, job, [w for w in _members(job) if w.formed and not w.alive]))


def _may_train_on(c: Context, job: Job, members: list[Worker]) -> list[Worker]:
    """Those that may only be cut off; but what is left of a replica that has lost a worker goes nowhere."""
    return whole(job, [w for w in members if not _end_known(c, w)])


def _members(job: Job) -> list[Worker]:
    """Of the newest epoch, those that are gone among them."""
    return job.known_members()


def _grant(c: Context, job: Job, members: list[Worker], reason: str, regrouped_for: str = "") -> EpochGranted:
    epoch = Epoch(c.state.term, job.epoch.number + 1)
    suspends = job.suspension is not None
    return EpochGranted(job.name, epoch, tuple(w.name for w in members), reason, regrouped_for, suspends)


def _reporter(job: Job) -> str:
    """The member that told the symptom."""
    return job.symptom.partition(": ")[0]


def _first(c: Context, job: Job) -> Iterator[Decision]:
    """A life begins when every seat's worker is ready, or enough have waited long enough."""
    ready = _joiners(c, job)
    if not ready or len(job.seats) + len(job.barred) < job.spec.size_min:
        return  # who has lost slots before it began waits for what the planner says
    here = {w.name for w in ready}
    coming = [w for w in job.unsettled() if w.phase in _COMING or (w.phase is WorkerPhase.READY and w.name not in here)]
    unfilled = set(job.seats) - {w.seat for w in job.alive()} - set(job.barred)
    patient = c.now < _first_ready_at(ready) + c.settings.start_grace_seconds
    if (coming or unfilled) and (patient or len(ready) < job.spec.size_min):
        return
    if len(ready) >= min(job.spec.size_min, max(1, len(job.seats) - len(job.barred))):
        yield _grant(c, job, ready, f"begins with {len(ready)} workers")


def _first_ready_at(ready: list[Worker]) -> float:
    return min(w.ready_at for w in ready)


def _symptom_due(c: Context, job: Job) -> bool:
    return job.symptom_at is not None and c.now >= job.symptom_at + c.settings.settle_seconds


def _change_due(c: Context, job: Job) -> bool:
    """Without any failure: somebody joins or leaves, all are to stand still, or a transition was cut short.

    By our restart, or because a member had come to its end when it was granted: that will never publish.
    """
    if job.transition is not None:
        return job.transition.stale or (not job.transition.formed_at and bool(job.ended_members()))
    if _suspension_due(job):
        return True
    return bool(_leaving(job)) or (_may_join(c, job) and bool(_joiners(c, job)))


def _leaving(job: Job) -> list[Worker]:
    """Members that have left; of a replica of several, once all have."""
    return whole(job, [w for w in job.living_members() if w.phase is WorkerPhase.LEAVING])


def _suspension_due(job: Job) -> bool:
    """The members are to stand still and were not told so, or the other way round."""
    return job.phase is not JobPhase.ENDING and (job.suspension is not None) != job.standing


def _joiners(c: Context, job: Job) -> list[Worker]:
    """Workers that are ready, and whose slot is theirs."""
    ready = [w for w in job.unsettled() if w.phase is WorkerPhase.READY and w.ready is not None and not w.retiring]
    return whole(job, [w for w in ready if not holders(c.state, w)])


def _may_join(c: Context, job: Job) -> bool:
    """Nobody is admitted at the end, or to stand still; and whoever is about to be ready is waited for, a little."""
    if job.loop_ended_step is not None or job.phase is JobPhase.ENDING or job.suspension is not None:
        return False
    ready = _joiners(c, job)
    about = [w for w in job.unsettled() if w.phase is WorkerPhase.ATTACHED and not holders(c.state, w)]
    return bool(ready) and (not about or c.now >= _first_ready_at(ready) + c.settings.join_batch_seconds)


def _held_back(c: Context, job: Job) -> bool:
    return c.state.paused or c.state.observes(job)


def _symptom_incident(c: Context, job: Job) -> IncidentOpened:
    assert job.symptom_at is not None
    worker = _reporter(job)
    node = job.workers[worker].node if worker in job.workers else ""
    found = COMMUNICATION
    return IncidentOpened(
        incident_id(c),
        job.name,
        node,
        worker,
        found.cause,
        found.severity,
        found.method,
        job.symptom,
        c.now - job.symptom_at,
        would_have=c.state.observes(job),
    )


def _would_have(c: Context, job: Job, lost: list[Worker]) -> Iterator[Decision]:
    """Observe mode: say once what would have been done."""
    if not lost and open_symptom(c, job) is None:
        yield _symptom_incident(c, job)
        return
    names = ", ".join(w.name for w in lost) or "the same members"
    text = f"would have granted a new epoch without {names}" if lost else "would have regrouped the same members"
    for incident in c.state.open_incidents(job):
        if incident.would_have and not any(text in line for line in incident.story):
            yield IncidentNoted(incident.id, text)
            return


def deadlines(c: Context, job: Job) -> Iterator[float]:
    """When waiting is over."""
    s = c.settings
    for worker in job.lost_members():
        yield worker.gone_at + s.death_batch_seconds
    cut_off = [w for w in _members(job) if not w.alive and w.exited is None]
    yield from (at for w in cut_off if (at := _fenced_at(s, c.state.nodes[w.node])) < math.inf)
    if job.symptom_at is not None:
        yield job.symptom_at + s.settle_seconds
    ready = _joiners(c, job)
    if ready:
        yield _first_ready_at(ready) + (s.join_batch_seconds if job.members else s.start_grace_seconds)
