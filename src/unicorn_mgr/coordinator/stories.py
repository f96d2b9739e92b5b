"""Entries of the journal as stories: of a job, a node, an incident."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unicorn_mgr.coordinator.describe import concerns, describe, without_secrets
from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.state import ClusterState
from unicorn_mgr.coordinator.store import Entry, dump_event
from unicorn_mgr.coordinator.views import incident_view
from unicorn_mgr.messages import EventLine, IncidentStory

STORY_EVENTS_MAX = 2_000
"""Of a long incident the newest so many are told."""

MARGIN_SECONDS = 1.0
"""An incident's story begins this long before the failure, and ends this long after full speed."""


def lines_of(state: ClusterState, entries: Iterable[Entry], job: str, node: str) -> Iterator[EventLine]:
    """What concerns a job or a node; both empty: everything."""
    mine = {i.id for i in state.incidents.values() if (job and i.job == job) or (node and i.node == node)}
    return (_line(entry) for entry in entries if concerns(entry.event, job, node, mine))


def incident_story(incident: Incident, entries: Iterable[Entry], now: float) -> IncidentStory:
    """An incident, and everything that happened around it."""
    since, until = incident.occurred_at - MARGIN_SECONDS, (incident.closed_at or now) + MARGIN_SECONDS
    around = [
        _line(entry)
        for entry in entries
        if since <= entry.at <= until and concerns(entry.event, incident.job, incident.node, (incident.id,))
    ]
    return IncidentStory(incident_view(incident, now), tuple(around[-STORY_EVENTS_MAX:]))


def _line(entry: Entry) -> EventLine:
    kind, body = dump_event(without_secrets(entry.event))
    return EventLine(entry.number, entry.wall, kind, describe(entry.event), body)
