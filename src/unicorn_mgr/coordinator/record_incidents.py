"""Facts about incidents into state."""

from __future__ import annotations

from typing import assert_never

from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.record_workers import excuse
from unicorn_mgr.coordinator.state import ClusterState, Job
from unicorn_mgr.coordinator.triage import CHECKSUMS, UNREADABLE
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch

RECOVERY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the recovery histograms, seconds."""

FIRST_SIGN = "\nfirst sign: "
"""In the evidence of an incident that began as somebody else's symptom."""

INCIDENTS_KEPT = 2_000
"""Closed incidents beyond this many are left to the journal."""

IncidentEvent = (
    e.IncidentOpened
    | e.IncidentRefined
    | e.IncidentExplained
    | e.IncidentEscalated
    | e.IncidentNoted
    | e.IncidentClosed
)


def record(state: ClusterState, event: IncidentEvent, now: float) -> None:
    """Write one fact about an incident."""
    match event:
        case e.IncidentOpened():
            _opened(state, event, now)
        case e.IncidentRefined(name):
            incident = state.incidents[name]
            for worker in state.jobs[incident.job].workers.values() if incident.job in state.jobs else ():
                worker.accounted = worker.accounted or (worker.incident == name and worker.exited is not None)
            count(state, incident.cause, incident.severity, -1)
            incident.cause, incident.severity = event.cause, event.severity
            incident.detected_by = event.detected_by
            incident.evidence = event.evidence
            count(state, incident.cause, incident.severity, 1)
            tell(incident, now, f"cause: {event.cause}, {event.severity}")
        case e.IncidentExplained():
            _explained(state, event, now)
        case e.IncidentEscalated(name, severity, reason):
            incident = state.incidents[name]
            count(state, incident.cause, incident.severity, -1)
            incident.severity = severity
            incident.node = event.node or incident.node
            count(state, incident.cause, incident.severity, 1)
            incident.escalations.append(severity)
            tell(incident, now, f"escalated to {severity}: {reason}")
        case e.IncidentNoted(name, text):
            tell(state.incidents[name], now, text)
        case e.IncidentClosed(name, how):
            incident = state.incidents[name]
            incident.closed_at = now
            if incident.job in state.jobs:
                state.jobs[incident.job].incidents.remove(name)
            else:
                state.node_incidents.remove(name)
            tell(incident, now, f"closed: {how}")
            for phase, seconds in seconds_of(incident, now).items():
                _observe(state, phase, seconds)
            _forget_old(state)
        case _:
            assert_never(event)


def _opened(state: ClusterState, event: e.IncidentOpened, now: float) -> None:
    state.incident_count += 1
    job = state.jobs.get(event.job)
    incident = Incident(
        id=event.incident,
        job=event.job,
        node=event.node,
        worker=event.worker,
        cause=event.cause,
        severity=event.severity,
        detected_by=event.detected_by,
        evidence=event.evidence,
        opened_at=now,
        opened_wall=state.wall(now),
        occurred_at=now - event.occurred_before_seconds,
        of_member=job is not None and event.worker in job.members,
        epoch_before=job.epoch if job is not None else Epoch(),
        would_have=event.would_have,
    )
    state.incidents[event.incident] = incident
    count(state, event.cause, event.severity, 1)
    who = event.worker or (f"node {event.node}" if event.node else f"job {event.job}")
    tell(incident, now, f"{who}: {event.cause}, detected by {event.detected_by}")
    if job is None:
        state.node_incidents.append(incident.id)
        return
    job.incidents.append(incident.id)
    job.incidents_seen += 1
    if event.cause == CHECKSUMS.cause and not event.worker:
        job.checksums_differ = None
    if event.cause == UNREADABLE.cause and job.transition is not None:
        # It shows only in the move that it was needed for.
        incident.granted_at, incident.epoch_after = job.transition.granted_at, job.epoch
    if job.down_since is None and job.running:
        job.down_since = incident.occurred_at
    _name_workers(job, incident)


def _explained(state: ClusterState, event: e.IncidentExplained, now: float) -> None:
    incident = state.incidents[event.incident]
    count(state, incident.cause, incident.severity, -1)
    incident.node, incident.worker, incident.cause = event.node, event.worker, event.cause
    incident.severity, incident.detected_by = event.severity, event.detected_by
    incident.evidence = f"{event.evidence}{FIRST_SIGN}{incident.evidence}"
    explains = state.jobs[incident.job].workers.get(event.worker)
    incident.of_member = explains is not None and explains.was_member
    count(state, incident.cause, incident.severity, 1)
    tell(incident, now, f"explained by {event.worker or event.node}: {event.cause}, {event.severity}")
    for worker in state.jobs[incident.job].workers.values():
        if worker.incident == incident.id:
            worker.incident = ""
            if worker.cut_off:
                excuse(state.jobs[incident.job], worker)
    _name_workers(state.jobs[incident.job], incident)


def _name_workers(job: Job, incident: Incident) -> None:
    """Workers whose end belongs to this incident: the one it names, or all of the node it names."""
    for worker in job.workers.values():
        of_node = not incident.worker and worker.node == incident.node and not worker.incident
        if worker.name == incident.worker or of_node:
            worker.incident = incident.id
            worker.accounted = worker.exited is not None


def tell(incident: Incident, now: float, text: str) -> None:
    """One more line of its story, with seconds since it was opened."""
    incident.story.append(f"+{now - incident.opened_at:.3f} s  {text}")


def count(state: ClusterState, cause: str, severity: str, change: int) -> None:
    """Incidents by cause and severity, as the metrics show them."""
    counts = state.counters.incidents
    key = f"{cause}|{severity}"
    counts[key] = counts.get(key, 0) + change
    if counts[key] <= 0:
        del counts[key]


def seconds_of(incident: Incident, now: float) -> dict[str, float]:
    """Seconds per phase of recovery.

    detect: failure to first sign; settle: first sign to the new epoch; fence: until every
    member has published; regroup: until the group is built; restore: moving state; recompute:
    until the hit step is finished on all; resize: until full size; total: failure to the hit
    step's end; added: what the worst member lost against the step it expected.
    """
    found = {"detect": incident.opened_at - incident.occurred_at}
    if incident.granted_at is not None:
        found["settle"] = max(0.0, incident.granted_at - incident.opened_at)
    if incident.formed_at is not None and incident.granted_at is not None:
        found["fence"] = max(0.0, incident.formed_at - incident.granted_at)
    found.update({k: v for k, v in sorted(incident.worker_seconds.items()) if k != "fence"})
    if incident.resumed_at is not None:
        found["total"] = incident.resumed_at - incident.occurred_at
        found["resize"] = max(0.0, (incident.closed_at or now) - incident.resumed_at)
    return {k: round(v, 6) for k, v in found.items()}


def _observe(state: ClusterState, phase: str, seconds: float) -> None:
    row = state.counters.phase_seconds.setdefault(phase, [0.0] * (len(RECOVERY_BUCKETS) + 2))
    for i, bound in enumerate(RECOVERY_BUCKETS):
        row[i] += seconds <= bound
    row[-2] += 1
    row[-1] += seconds


def _forget_old(state: ClusterState) -> None:
    closed = [i for i in state.incidents.values() if not i.open]
    for incident in closed[: max(0, len(closed) - INCIDENTS_KEPT)]:
        del state.incidents[incident.id]
