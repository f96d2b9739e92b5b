"""An answer that did not help is followed by the next: retry in place, restart the process, isolate the node.

Each at most once per incident, and each with its reason: SEV3, SEV2, SEV1.
"""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator import triage
from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.incidents import SYMPTOMS
from unicorn_mgr.coordinator.rules.replicas import seats_beside
from unicorn_mgr.coordinator.state import Job, Worker
from unicorn_mgr.effects.coordinator import Decision, IncidentEscalated, WorkerCondemned
from unicorn_mgr.model import Severity, WorkerName

RESTART_FAILURES = 2
"""Replacements in a row that fail on one node before the node is isolated: one may have been killed by chance."""


def retry_failed(incident: Incident, suspect: Worker, why: str) -> Iterator[Decision]:
    """The same members were regrouped, and have failed again."""
    if incident.severity == Severity.SEV3:
        reason = f"{why} after a reattempt: {suspect.name} is restarted"
        yield IncidentEscalated(incident.id, Severity.SEV2, reason, suspect.node)
        yield WorkerCondemned(suspect.name, f"{incident.id}: {why} after a reattempt")
    elif incident.severity == Severity.SEV2:
        reason = f"{why} after a restart: node {suspect.node} is isolated"
        yield IncidentEscalated(incident.id, Severity.SEV1, reason, suspect.node)


def process_ended(c: Context, job: Job) -> Iterator[Decision]:
    """Nothing can be retried in a process that has ended."""
    if c.state.paused or c.state.observes(job):
        return
    for incident in c.state.open_incidents(job):
        worker = job.workers.get(incident.worker)
        if incident.severity == Severity.SEV3 and incident.cause not in SYMPTOMS and worker and worker.exited:
            yield IncidentEscalated(incident.id, Severity.SEV2, f"{worker.name} has ended: its process is restarted")
            return


def replacements_failed(c: Context, job: Job) -> Iterator[Decision]:
    """While the others train, replacements fail on one node before they can join: the node is the next suspect."""
    if c.state.paused or c.state.observes(job) or not job.running:
        return
    for incident in c.state.open_incidents(job):
        if incident.severity != Severity.SEV2 or not incident.of_member or triage.is_users_fault(incident.cause):
            continue
        seats = seats_beside(job, WorkerName.parse(incident.worker).seat)
        failures = [
            d
            for d in job.deaths
            if WorkerName.parse(d.worker).seat in seats
            and d.node == incident.node
            and d.at >= incident.opened_at
            and not (d.of_member or triage.is_users_fault(d.cause))
        ]
        if len(failures) >= RESTART_FAILURES:
            names = " and ".join(d.worker for d in failures)
            yield IncidentEscalated(incident.id, Severity.SEV1, f"{names} failed before they could join")
            return
