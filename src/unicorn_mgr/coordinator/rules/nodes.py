"""Nodes that fall silent, are lost, isolated, quarantined, drained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unicorn_mgr.coordinator import triage
from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.rules import Context, checkpoints
from unicorn_mgr.coordinator.rules.incidents import explained, felt, incident_id, unexplained
from unicorn_mgr.coordinator.state import ClusterState, Job, Node, NodePhase, WorkerPhase
from unicorn_mgr.effects.coordinator import (
    BreakerReset,
    BreakerTripped,
    Decision,
    IncidentNoted,
    IncidentOpened,
    NodeEmptied,
    NodeIsolated,
    NodeLost,
    NodeQuarantined,
    NodeTrusted,
)
from unicorn_mgr.model import Severity

BREAKER_WINDOW_LEASES = 1.0


def breaker(c: Context) -> Iterator[Decision]:
    """A coordinator that hears nobody suspects itself, not the world."""
    watched = (NodePhase.UP, NodePhase.SILENT, NodePhase.DRAINING, NodePhase.QUARANTINED)
    counted = [n for n in c.state.nodes.values() if n.phase in watched]
    silent = [n for n in counted if n.phase is NodePhase.SILENT]
    together = [n for n in silent if c.now - n.silent_at <= c.settings.lease_seconds * BREAKER_WINDOW_LEASES]
    if not c.state.breaker:
        many = len(together) >= c.settings.breaker_nodes_min
        if many and len(together) > c.settings.breaker_share * len(counted):
            yield BreakerTripped(len(together), len(counted))
    elif len(silent) <= c.settings.breaker_share * len(counted) or len(silent) < c.settings.breaker_nodes_min:
        yield BreakerReset()


def lost(c: Context) -> Iterator[Decision]:
    """A silent node is lost when its jobs stop too, or when its silence outlasts the limit."""
    if c.state.breaker or c.state.paused:
        return
    for node in _sorted(n for n in c.state.nodes.values() if n.phase is NodePhase.SILENT):
        reason = _why_lost(c, node)
        if not reason:
            continue
        observed = [j for j in _jobs_on(c.state, node) if c.state.observes(j)]
        # A node with an observed job on it is not given up: that is no failure of the others there.
        told = observed or _jobs_on(c.state, node)
        hurt = [j for j in told if not _has_incident(c.state, j, node)]
        silent = c.now - node.silent_at + c.settings.lease_seconds
        if hurt:
            opened = _opened(c, node, hurt[0].name, reason, silent, would_have=c.state.observes(hurt[0]))
            symptom = _felt(c, hurt[0], node) or unexplained(c, hurt[0])
            yield opened if symptom is None else explained(symptom, opened)
            return
        if observed or (c.state.observe and node.reason == reason):
            continue
        if not _jobs_on(c.state, node) and not _has_node_incident(c.state, node):
            opened = _opened(c, node, "", reason, silent, would_have=c.state.observe)
            symptoms = (_felt(c, job, node) for job in c.state.jobs.values() if not job.over)
            symptom = next((symptom for symptom in symptoms if symptom is not None), None)
            yield opened if symptom is None else explained(symptom, opened)
            return
        if not c.state.observe:
            yield NodeLost(node.name, reason)
            return


def _sorted(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda n: n.name)


def _opened(c: Context, node: Node, job: str, reason: str, silent_seconds: float, would_have: bool) -> IncidentOpened:
    found = triage.LOST_CONNECTION
    return IncidentOpened(
        incident_id(c),
        job,
        node.name,
        "",
        found.cause,
        found.severity,
        found.method,
        f"node {node.name}: {reason}",
        silent_seconds,
        would_have,
    )


def _why_lost(c: Context, node: Node) -> str:
    silent = c.now - node.silent_at + c.settings.lease_seconds
    jobs = _jobs_on(c.state, node)
    halted = [j.name for j in jobs if j.halted]
    if halted:
        return f"silent, and job {halted[0]} waits for its workers"
    for job in jobs:
        elsewhere = [w for w in job.living_members() if c.state.nodes[w.node].phase is not NodePhase.SILENT]
        if not elsewhere and silent >= c.settings.fence_seconds > 0:
            return f"silent for {silent:.0f} s, with every member of job {job.name} out of reach"
    if not jobs and silent >= c.settings.silence_seconds_max:
        return f"silent for {silent:.0f} s"
    return ""


def lost_deadlines(c: Context) -> Iterator[float]:
    """When silence alone is enough."""
    for node in c.state.nodes.values():
        if node.phase is NodePhase.SILENT:
            limit = c.settings.fence_seconds if _jobs_on(c.state, node) else c.settings.silence_seconds_max
            at = node.silent_at - c.settings.lease_seconds + limit
            if limit > 0 and at > c.now:
                yield at


def isolated(c: Context) -> Iterator[Decision]:
    """An incident of the highest severity takes its node out of use."""
    if c.state.paused:
        return
    for job in c.state.jobs.values():
        for incident in c.state.open_incidents(job):
            node = c.state.nodes.get(incident.node)
            ours = incident.severity == Severity.SEV1 and incident.detected_by != triage.NODE_HEALTH
            if not ours or incident.isolated or node is None or node.phase in (NodePhase.ISOLATED, NodePhase.LOST):
                continue
            reason = f"{incident.cause} ({incident.id})"
            if incident.would_have:
                text = f"would have isolated node {node.name}"
                if not any(text in line for line in incident.story):
                    yield IncidentNoted(incident.id, text)
                    return
                continue
            yield NodeIsolated(node.name, reason)
            return


def quarantined(c: Context) -> Iterator[Decision]:
    """A node that keeps getting lost is back: it is not used for a while, and for longer each time."""
    for node in _sorted(n for n in c.state.nodes.values() if n.losses):
        back = node.phase in (NodePhase.UP, NodePhase.QUARANTINED)
        # Whatever counts there has not been lost with it, and goes on.
        if back and _flaps(c, node) and not any(w.alive for w in c.state.on_node(node.name)):
            times, window = c.settings.flap_losses, c.settings.flap_window_seconds
            reason = f"lost {times} times within {window:.0f} s"
            yield NodeQuarantined(node.name, _quarantine_seconds(c, node), reason)
            return


def _flaps(c: Context, node: Node) -> bool:
    """Its newest losses came too close together, and no quarantine has followed them yet."""
    losses = node.losses[-c.settings.flap_losses :]
    if c.settings.quarantine_seconds <= 0 or len(losses) < c.settings.flap_losses:
        return False
    return losses[-1] > node.quarantined_at and losses[-1] - losses[0] <= c.settings.flap_window_seconds


def _quarantine_seconds(c: Context, node: Node) -> float:
    """Twice the one before, unless the node has been good for a whole window since."""
    good_since = c.now - node.quarantined_until
    doubled = 2 * node.quarantine_seconds if good_since <= c.settings.flap_window_seconds else 0.0
    return min(max(doubled, c.settings.quarantine_seconds), c.settings.quarantine_seconds_max)


def trusted(c: Context) -> Iterator[Decision]:
    """A quarantine has lasted long enough."""
    for node in _sorted(n for n in c.state.nodes.values() if n.quarantine):
        if c.now >= node.quarantined_until:
            yield NodeTrusted(node.name)
            return


def quarantine_deadlines(c: Context) -> Iterator[float]:
    """When quarantines are over."""
    yield from (n.quarantined_until for n in c.state.nodes.values() if n.quarantine)


def drained(c: Context) -> Iterator[Decision]:
    """A draining node whose last process has ended, and stored what it has left, is safe to power off."""
    for node in _sorted(n for n in c.state.nodes.values() if n.phase is NodePhase.DRAINING):
        if not c.state.on_node(node.name) and not checkpoints.are_on(c, node.name):
            yield NodeEmptied(node.name)
            return


def _jobs_on(state: ClusterState, node: Node) -> list[Job]:
    """Jobs that have workers on the node which count."""
    held = {w.job for w in state.on_node(node.name) if w.phase not in (WorkerPhase.GONE, WorkerPhase.ENDED)}
    return [state.jobs[name] for name in sorted(held)]


def _felt(c: Context, job: Job, node: Node) -> Incident | None:
    """What others have run into because of its end, of whose replicas it had a worker."""
    there = [w for w in job.workers.values() if w.node == node.name and w.exited is None]
    return next((symptom for w in there if (symptom := felt(c, job, w)) is not None), None)


def _has_incident(state: ClusterState, job: Job, node: Node) -> bool:
    return any(
        i.node == node.name and i.cause == triage.LOST_CONNECTION.cause and not i.worker
        for i in state.open_incidents(job)
    )


def _has_node_incident(state: ClusterState, node: Node) -> bool:
    alone = any(state.incidents[name].node == node.name for name in state.node_incidents)
    return alone or any(_has_incident(state, job, node) for job in state.jobs.values())
