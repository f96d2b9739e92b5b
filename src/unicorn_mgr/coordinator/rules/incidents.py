"""Failures become incidents: opened at the first sign, refined when more is known, closed at full speed."""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator import triage
from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.record_incidents import FIRST_SIGN
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.standstills import FROM_NOBODY
from unicorn_mgr.coordinator.state import Job, JobPhase, NodePhase, Worker
from unicorn_mgr.effects.coordinator import (
    Decision,
    IncidentClosed,
    IncidentExplained,
    IncidentOpened,
    IncidentRefined,
)
from unicorn_mgr.messages import Exited
from unicorn_mgr.model import Severity

DIED = triage.Finding("process_died", Severity.SEV2, triage.SUPERVISION)
"""The kernel tears it down; why is known when it is gone."""

SYMPTOMS = frozenset({triage.COMMUNICATION.cause, triage.UNREACHABLE.cause, triage.LINK.cause})
"""Failed links: whoever is found gone meanwhile is their cause."""


def incident_id(c: Context, ahead: int = 0) -> str:
    """The next incident's name."""
    return f"inc-{c.state.incident_count + 1 + ahead}"


def deaths(c: Context, job: Job) -> Iterator[Decision]:
    """A worker is gone that should not be."""
    for worker in sorted(job.gone(), key=lambda w: w.name):
        if failed(job, worker) and not worker.incident:
            opened = _opened(c, job, worker)
            symptom = _first_sign(c, job, worker)
            yield opened if symptom is None else explained(symptom, opened)
            return
        if worker.incident in c.state.incidents and worker.exited is not None and not worker.accounted:
            yield _refined(c.state.incidents[worker.incident], worker.exited)
            return


def unreadable(c: Context, job: Job) -> Iterator[Decision]:
    """The newest checkpoint was complete, and could not be read when the job came back without any failure."""
    t, newest = job.transition, job.checkpoint
    if t is None or t.stale or newest is None or c.state.open_incidents(job):
        return
    restored = [r.restored_step for r in t.resumed.values() if r.source in FROM_NOBODY]
    if restored and min(restored) < newest.step:
        found = triage.UNREADABLE
        evidence = (
            f"the checkpoint of step {newest.step} in {newest.url} could not be read, so the job goes on after "
            f"step {min(restored)}; the worker that read it has written why"
        )
        yield IncidentOpened(
            incident_id(c),
            job.name,
            "",
            "",
            found.cause,
            found.severity,
            found.method,
            evidence,
            occurred_before_seconds=max(0.0, c.now - t.granted_at),
        )


def _first_sign(c: Context, job: Job, worker: Worker) -> Incident | None:
    """The incident that was opened for what others have felt of this worker's end."""
    return felt(c, job, worker) or (unexplained(c, job) if job.has_member(worker.name) else None)


def felt(c: Context, job: Job, worker: Worker) -> Incident | None:
    """What one of its replica has run into because of this worker's end, and could not go on."""
    heralds = {w.incident for w in job.lost_beside(worker) if w.cut_off}
    return next((i for i in c.state.open_incidents(job) if i.id in heralds), None)


def open_symptom(c: Context, job: Job) -> Incident | None:
    """A failed link from which the job has not recovered yet, and that has an answer left."""
    return next(
        (
            i
            for i in c.state.open_incidents(job)
            if i.cause in SYMPTOMS and i.severity != Severity.SEV1 and i.resumed_at is None
        ),
        None,
    )


def unexplained(c: Context, job: Job) -> Incident | None:
    """A failed link that may turn out to have a cause."""
    found = open_symptom(c, job)
    return None if found is None or found.would_have else found


def explained(symptom: Incident, by: IncidentOpened) -> IncidentExplained:
    """Two incidents are one: the later is the cause of the earlier."""
    return IncidentExplained(symptom.id, by.node, by.worker, by.cause, by.severity, by.detected_by, by.evidence)


def failed(job: Job, worker: Worker) -> bool:
    """It is gone, and nobody wanted that."""
    if worker.alive or worker.ended_well or worker.fresh_start or worker.condemned:
        return False
    return not (job.cancelled or job.give_up is not None)


def _opened(c: Context, job: Job, worker: Worker) -> IncidentOpened:
    if worker.exited is not None:
        finding, evidence = triage.of_exit(worker.exited), triage.evidence_of(worker.exited)
    elif worker.raised is not None:
        finding, evidence = triage.of_exception(worker.raised), worker.raised.traceback
    else:
        finding, evidence = DIED, worker.gone_reason
    return IncidentOpened(
        incident=incident_id(c),
        job=job.name,
        node=worker.node,
        worker=worker.name,
        cause=finding.cause,
        severity=finding.severity,
        detected_by=finding.method,
        evidence=evidence,
        occurred_before_seconds=max(0.0, c.now - worker.gone_at),
        would_have=c.state.observes(job),
    )


def _refined(incident: Incident, exited: Exited) -> IncidentRefined:
    told = triage.evidence_of(exited)
    if incident.cause == DIED.cause:
        finding = triage.of_exit(exited)
        _, first_sign, rest = incident.evidence.partition(FIRST_SIGN)
        return IncidentRefined(
            incident.id, finding.cause, finding.severity, finding.method, f"{told}{first_sign}{rest}"
        )
    evidence = f"{incident.evidence}\n{told}" if told not in incident.evidence else incident.evidence
    return IncidentRefined(incident.id, incident.cause, incident.severity, incident.detected_by, evidence)


def closings(c: Context, job: Job) -> Iterator[Decision]:
    """Full speed again, or as full as can be."""
    for incident in c.state.open_incidents(job):
        how = _closed_how(c, job, incident)
        if how:
            yield IncidentClosed(incident.id, how)
            return


def _persists(c: Context, job: Job, incident: Incident) -> bool:
    """Nothing is done about it, so it is there until it goes by itself."""
    if incident.cause == triage.LINK.cause:
        return job.link_stalled
    if incident.cause == triage.COMMUNICATION.cause:
        return job.symptom_at is not None
    if incident.cause == triage.LOST_CONNECTION.cause:
        return not c.state.nodes[incident.node].usable
    return False


def node_closings(c: Context) -> Iterator[Decision]:
    """A lost node that no job was hurt by is back."""
    for name in c.state.node_incidents:
        node = c.state.nodes.get(c.state.incidents[name].node)
        if node is not None and node.phase is NodePhase.QUARANTINED:
            yield IncidentClosed(name, f"the node is back, and quarantined: {node.reason}")
            return
        if node is not None and node.usable:
            yield IncidentClosed(name, "the node is in use again")
            return


def _closed_how(c: Context, job: Job, incident: Incident) -> str:
    if job.over:
        return f"the job has ended: {job.end_reason}"
    if job.suspension is not None and job.suspension.done:
        return f"the job is suspended: its state after step {job.suspension.stored_step} is in storage"
    if incident.would_have and not c.state.observes(job):
        return "observe mode has ended"
    if incident.would_have and _persists(c, job, incident):
        return ""
    if job.transition is not None or job.phase is JobPhase.STARTING:
        return ""
    if job.gang:
        full = len(job.alive()) == len(job.seats) > 0
        return f"all {len(job.seats)} processes run again" if full else ""
    if job.phase is JobPhase.ENDING and incident.resumed_at is not None:
        return "the loop has ended"
    if incident.granted_at is not None and incident.resumed_at is None and incident.epoch_after is not None:
        return ""
    members = len(job.living_members())
    dead = [m for m in job.members if not job.workers[m].alive and not job.workers[m].ended_well]
    if dead or (incident.granted_at is None and job.has_member(incident.worker)):
        return ""
    if members >= len(job.seats) and not job.unsettled() and members > 0:
        wanted = job.spec.size_max
        return f"full size again: {members}" if members >= wanted else f"{members} of {wanted}: {job.seats_reason}"
    return ""
