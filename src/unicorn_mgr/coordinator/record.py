"""Facts into state: the only module that writes `ClusterState`.

Every function here says what a fact changes, and nothing follows from it yet: that is
`rules`.  A replay of the journal is this module and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from unicorn_mgr.coordinator import record_incidents, record_jobs, record_workers
from unicorn_mgr.coordinator.settings import LOSSES_KEPT
from unicorn_mgr.coordinator.state import ClusterState, Node, NodePhase
from unicorn_mgr.effects import coordinator as e

REQUESTS_MAX = 10_000
"""Answers kept for repeated calls."""


_NodeEvent = (
    e.NodeAttached
    | e.NodeSilent
    | e.NodeHeard
    | e.NodeDrained
    | e.NodeUndrained
    | e.NodeDegraded
    | e.NodeLost
    | e.NodeIsolated
    | e.NodeQuarantined
    | e.NodeTrusted
    | e.NodeEmptied
)


def record(state: ClusterState, event: e.Event, now: float) -> None:
    """Write one fact or decision into the state."""
    if isinstance(event, _NodeEvent):
        _node(state, event, now)
    elif isinstance(event, record_incidents.IncidentEvent):
        record_incidents.record(state, event, now)
    elif isinstance(event, record_workers.WorkerEvent):
        record_workers.record(state, event, now)
    elif isinstance(event, record_jobs.JobEvent):
        record_jobs.record(state, event, now)
        if isinstance(event, e.JobSubmitted | e.JobCancelled | e.ObserveSet | e.DrillOrdered | e.WishesSet):
            _answered(state, event.request_id, event.job)
    else:
        _cluster(state, event, now)


def _cluster(
    state: ClusterState,
    event: e.TimePassed | e.TermStarted | e.PauseSet | e.BreakerTripped | e.BreakerReset | e.PlanWanted | e.PlanReady,
    now: float,
) -> None:
    match event:
        case e.TimePassed():
            pass
        case e.TermStarted():
            _term_started(state, event, now)
        case e.PauseSet(request, paused):
            state.paused = paused
            _answered(state, request, "paused" if paused else "resumed")
        case e.BreakerTripped(silent, nodes):
            state.breaker = (
                f"{silent} of {nodes} nodes fell silent at once: verdicts are frozen, suspect the coordinator"
            )
        case e.BreakerReset():
            _breaker_reset(state, now)
        case e.PlanWanted(number, situation, reason):
            planning = state.planning
            planning.number, planning.situation, planning.reason = number, situation, reason
        case e.PlanReady():
            # Seats that stay are the job's own, the very same object: to see that they do then costs nothing.
            own = {name: job.seats for name, job in state.jobs.items()}
            seats = {job: own[job] if own.get(job) == mine else mine for job, mine in event.seats.items()}
            state.planning.plan, state.planning.answered_at = replace(event, seats=seats), now
            label = f"{event.rung}|{event.solver}"
            counters = state.counters
            counters.plans[label] = counters.plans.get(label, 0) + 1
            counters.plan_seconds[label] = counters.plan_seconds.get(label, 0.0) + event.seconds
        case _:
            assert_never(event)


def _breaker_reset(state: ClusterState, now: float) -> None:
    """Whoever is silent still may have been cut off with the others: it has its time anew to be heard."""
    state.breaker = ""
    for job in state.jobs.values():
        job.halted = False
    for node in state.nodes.values():
        if node.phase is NodePhase.SILENT:
            node.silent_at = now


def _answered(state: ClusterState, request: str, answer: str) -> None:
    state.requests[request] = answer
    while len(state.requests) > REQUESTS_MAX:
        del state.requests[next(iter(state.requests))]


def _term_started(state: ClusterState, event: e.TermStarted, now: float) -> None:
    state.term, state.term_wall, state.term_at = event.term, event.wall, now
    for job in state.jobs.values():
        if job.transition is not None:
            job.transition.stale = True
        job.inquiry = None
        job.halted = False
        if job.symptom_at is not None:
            job.symptom_at = now
        if job.down_since is not None:
            job.down_since = now  # while the coordinator was away nothing ran against anybody
    state.breaker = ""


def _node(state: ClusterState, event: _NodeEvent, now: float) -> None:
    match event:
        case e.NodeAttached():
            _node_attached(state, event, now)
        case e.NodeSilent(name):
            node = state.nodes[name]
            if node.phase in (NodePhase.UP, NodePhase.DRAINING, NodePhase.QUARANTINED):
                node.phase, node.reason, node.silent_at = NodePhase.SILENT, "its lease has expired", now
        case e.NodeHeard(name):
            node = state.nodes[name]
            if node.phase is NodePhase.SILENT:
                _heard_again(state, node, now)
        case e.NodeDrained(request, name):
            node = state.nodes[name]
            node.draining = True
            if node.phase not in (NodePhase.SILENT, NodePhase.LOST):
                _in_reach(node)
            _answered(state, request, name)
        case e.NodeUndrained(request, name):
            node = state.nodes[name]
            node.draining, node.quarantine, node.quarantine_seconds = False, "", 0.0
            node.losses.clear()  # an operator vouches for it
            if node.phase not in (NodePhase.SILENT, NodePhase.LOST):
                _in_reach(node)
            _answered(state, request, name)
        case e.NodeDegraded():
            _node_degraded(state, event)
        case e.NodeEmptied(name):
            node = state.nodes[name]
            node.phase, node.reason = NodePhase.DRAINED, "empty: safe to power off"
        case e.NodeLost(name, reason):
            _node_given_up(state, name, NodePhase.LOST, reason, now)
            losses = state.nodes[name].losses
            losses.append(now)
            del losses[:-LOSSES_KEPT]
        case e.NodeQuarantined(name, seconds, reason):
            node = state.nodes[name]
            node.quarantine, node.quarantined_at, node.quarantine_seconds = reason, now, seconds
            _in_reach(node)
        case e.NodeTrusted(name):
            node = state.nodes[name]
            node.quarantine = ""
            if node.phase is NodePhase.QUARANTINED:
                _in_reach(node)
        case e.NodeIsolated(name, reason):
            _node_given_up(state, name, NodePhase.ISOLATED, reason, now)
            for incident in state.incidents.values():
                incident.isolated = incident.isolated or (incident.open and incident.node == name)
        case _:
            assert_never(event)


def _in_reach(node: Node) -> None:
    if node.draining:
        node.phase, node.reason = NodePhase.DRAINING, "drained by an operator"
    elif node.quarantine:
        node.phase, node.reason = NodePhase.QUARANTINED, node.quarantine
    else:
        node.phase, node.reason = NodePhase.UP, ""


def _heard_again(state: ClusterState, node: Node, now: float) -> None:
    _in_reach(node)
    for worker in state.on_node(node.name):
        worker.started_at = worker.started_at and now  # it may have called attach() meanwhile, which is told next
        state.jobs[worker.job].halted = False  # told again if it waits for others still


def _node_attached(state: ClusterState, event: e.NodeAttached, now: float) -> None:
    node = state.nodes.setdefault(event.node, Node(event.node))
    if node.phase is NodePhase.LOST and node.incarnation == event.incarnation:
        running = [name for name in event.workers if (w := state.worker(name)) is not None and w.exited is None]
        if running:
            state.counters.false_verdicts += 1
            del node.losses[-1:]
    if node.incarnation != event.incarnation and not event.copies:
        _copies_gone(state, event.node)
    node.incarnation, node.slots, node.address = event.incarnation, event.slots, event.address
    node.drills, node.domain, node.copies_port = event.drills, event.domain, event.copies_port
    if node.phase in (NodePhase.SILENT, NodePhase.LOST):
        _heard_again(state, node, now)
    for worker in state.on_node(event.node):
        if worker.name not in event.workers:
            record_workers.vanished(state, worker, now)
    _parts_gone(state, event)


def _parts_gone(state: ClusterState, event: e.NodeAttached) -> None:
    """What workers had left of checkpoints that the agent knows nothing of any more."""
    for job in state.jobs.values():
        for name in [n for n in job.parts.of if job.workers[n].node == event.node and n not in event.workers]:
            del job.parts.of[name]


def _copies_gone(state: ClusterState, node: str) -> None:
    for job in state.jobs.values():
        job.backups.lose(node)


def _node_degraded(state: ClusterState, event: e.NodeDegraded) -> None:
    node = state.nodes[event.node]
    node.speed, node.good = event.speed, event.slots
    for name in sorted({w.job for w in state.on_node(event.node)}):
        record_jobs.forget_pace(state.jobs[name])
    _answered(state, event.request_id, event.node)


def _node_given_up(state: ClusterState, name: str, phase: NodePhase, reason: str, now: float) -> None:
    node = state.nodes[name]
    if node.phase is not NodePhase.SILENT:  # what its agent is told may not reach it any more
        node.silent_at = now
    node.phase, node.reason = phase, reason
    if phase is NodePhase.LOST:
        _copies_gone(state, name)
    for job in state.jobs.values():
        job.warm = [n for n in job.warm if n != name]
    for worker in state.on_node(name):
        # Its end is the node's: however it comes about, it is no incident of its own.
        worker.condemned = worker.condemned or worker.alive
        record_workers.gone(state, worker, f"node {name}: {reason}", now)
