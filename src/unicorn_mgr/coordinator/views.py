"""What people see of the state."""

from __future__ import annotations

import dataclasses

from unicorn_mgr import __version__
from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.record_incidents import seconds_of
from unicorn_mgr.coordinator.standstills import costs_of
from unicorn_mgr.coordinator.state import (
    ClusterState,
    Job,
    JobPhase,
    Node,
    NodePhase,
    Planning,
    Worker,
    WorkerPhase,
)
from unicorn_mgr.coordinator.transfers import bandwidths
from unicorn_mgr.effects.coordinator import PlanReady
from unicorn_mgr.messages import (
    ClusterView,
    IncidentView,
    JobView,
    NodeView,
    PartView,
    PlanView,
    Sample,
    SkippedMicroBatch,
    WorkerView,
)
from unicorn_mgr.phases import Phase
from unicorn_mgr.planner.problem import Plan

ENDED_JOBS_SHOWN = 100
INCIDENTS_SHOWN = 500


def cluster_view(
    state: ClusterState, live: Liveness, now: float, cluster: str, metrics: str, drills: bool
) -> ClusterView:
    """Everything at one moment."""
    ended = [j for j in state.jobs.values() if j.over]
    hidden = {j.name for j in ended[: max(0, len(ended) - ENDED_JOBS_SHOWN)]}
    incidents = list(state.incidents.values())[-INCIDENTS_SHOWN:]
    return ClusterView(
        cluster=cluster,
        term=state.term,
        paused=state.paused,
        observe=state.observe,
        nodes=tuple(node_view(state, live, n, now) for _, n in sorted(state.nodes.items())),
        jobs=tuple(job_view(state, live, j, now) for _, j in sorted(state.jobs.items()) if j.name not in hidden),
        incidents=tuple(incident_view(i, now) for i in incidents),
        version=__version__,
        alarm=state.breaker,
        metrics_address=metrics,
        drills=drills,
        settings=live.settings.model_dump(),
        plan=_newest_plan(state.planning),
    )


def plan_view(plan: Plan | PlanReady, number: int = 0, asked_because: str = "", *, answered: bool = True) -> PlanView:
    """A plan's certificate; without a number it is an imagined one's."""
    return PlanView(
        number=number,
        asked_because=asked_because,
        answered=answered,
        value=plan.value,
        bound=plan.bound,
        proven=plan.proven,
        solver=plan.solver,
        rung=plan.rung,
        seconds=plan.seconds,
        note=plan.note,
    )


def _newest_plan(planning: Planning) -> PlanView | None:
    newest = planning.plan
    return plan_view(newest, newest.number, planning.reason, answered=planning.answered) if newest else None


def node_view(state: ClusterState, live: Liveness, node: Node, now: float) -> NodeView:
    """One machine."""
    here = state.on_node(node.name)
    silent = now - live.beats.get(node.name, now) if node.phase in (NodePhase.SILENT, NodePhase.LOST) else 0.0
    return NodeView(
        node=node.name,
        state=node.phase.value,
        address=node.address,
        slots=len(node.offered),
        slots_used=len(node.processes),
        silent_seconds=silent,
        reason=node.reason or _degraded(node),
        workers=tuple(w.name for w in here),
        quarantine_seconds=max(0.0, node.quarantined_until - now) if node.quarantine else 0.0,
        domain=node.domain,
        speed=node.speed,
    )


def _degraded(node: Node) -> str:
    """What an operator has said of it."""
    idle = sorted({s.index for s in node.slots}.difference(node.offered))
    told = [f"speed {node.speed:g}"] if node.speed < 1 else []
    told += [f"without slot{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"] if idle else []
    return f"degraded by an operator: {', '.join(told)}" if told else ""


def _backed_up(live: Liveness, job: Job) -> int:
    """The newest step of which all parts have their copies."""
    told = (live.samples[w.name][1].backed_up for w in job.living_members() if w.name in live.samples)
    return max([job.backups.step, *map(job.backups.counting, told)]) if job.backups.sources else -1


def job_view(state: ClusterState, live: Liveness, job: Job, now: float) -> JobView:
    """One job."""
    committed, seconds = progress(live, job)
    reason = job.end_reason or (job.give_up[1] if job.give_up else _why(job))
    return JobView(
        job=job.name,
        state="running" if _runs_as_gang(job) else job.phase.value,
        size=len(job.living_members()) if not job.gang else len(job.alive()),
        size_wanted=len(job.seats),
        size_min=job.spec.size_min,
        size_max=job.spec.size_max,
        step=committed,
        epoch=job.epoch,
        weight=job.spec.weight,
        restarts=job.restarts,
        ettr=ettr(job, now),
        reason=reason,
        exit_code=job.exit_code,
        observe=state.observes(job),
        checkpoint_step=job.checkpoint.step if job.checkpoint is not None else -1,
        checkpoint_url=job.spec.checkpoint_url,
        checkpoint_at=state.wall(job.checkpoint.at) if job.checkpoint is not None else 0.0,
        checkpoint_error=job.checkpoint_error,
        parts=tuple(_part_view(job, name, now) for name in sorted(job.parts.of)),
        backed_up_step=_backed_up(live, job),
        backup_note=job.backups.reason,
        workers=tuple(_worker_view(live, job, w) for w in job.alive()),
        step_seconds=seconds,
        incidents=job.incidents_seen,
        started_at=state.wall(job.started_at) if job.started_at else 0.0,
        ended_at=state.wall(job.ended_at) if job.ended_at else 0.0,
        command=" ".join(job.spec.command),
        skipped=tuple(SkippedMicroBatch(step, number) for step, number in job.poison),
        replica=dict(job.spec.replica),
        standstill_seconds=dataclasses.asdict(costs_of(job, bandwidths(state))),
    )


def _part_view(job: Job, worker: str, now: float) -> PartView:
    part, node = job.parts.of[worker], job.workers[worker].node
    return PartView(worker, node, part.mark.step, job.parts.state(worker, job.checkpoint), now - part.since)


def progress(live: Liveness, job: Job) -> tuple[int, float]:
    """The last step that is committed, and seconds of a typical one, by the newest heartbeats."""
    samples = [live.samples[w.name][1] for w in job.alive() if w.name in live.samples]
    committed = max([job.committed, *(s.committed for s in samples)])
    return committed, max((s.step_seconds for s in samples), default=job.step_seconds)


def _why(job: Job) -> str:
    """Why it has what it has."""
    if job.suspension is not None:
        return f"gives its slots up as soon as its state is stored: {job.suspension.reason}"
    stored = ""
    if job.phase is JobPhase.WAITING and job.life > 0 and job.checkpoint is not None:
        stored = f"its state after step {job.checkpoint.step} is stored"
    return "; ".join(filter(None, (job.seats_reason, stored, job.due_prospect)))


def _runs_as_gang(job: Job) -> bool:
    """No process has called attach(), and all that there are to be have started."""
    there = {w.seat for w in job.workers.values() if w.phase is WorkerPhase.STARTED or w.ended_well}
    return job.gang and job.phase is JobPhase.STARTING and bool(job.seats) and there >= job.seats.keys()


def ettr(job: Job, now: float) -> float:
    """Productive training time over wall-clock time since the first step (ByteRobust, section 2)."""
    if not job.started_at:
        return 1.0
    wall = (job.ended_at or now) - job.started_at
    lost = job.lost_seconds + (now - job.down_since if job.down_since is not None else 0.0)
    return max(0.0, 1.0 - lost / wall) if wall > 0 else 1.0


def _worker_view(live: Liveness, job: Job, worker: Worker) -> WorkerView:
    sample = live.samples.get(worker.name, (0.0, Sample()))[1]
    return WorkerView(
        worker=worker.name,
        node=worker.node,
        slot=worker.slot,
        state=worker.phase.value,
        pid=worker.pid,
        step=sample.step,
        phase=Phase(sample.phase).name.lower(),
        member=worker.name in job.members and worker.phase is not WorkerPhase.GONE,
    )


def incident_view(incident: Incident, now: float) -> IncidentView:
    """One failure."""
    return IncidentView(
        id=incident.id,
        job=incident.job,
        node=incident.node,
        worker=incident.worker,
        cause=incident.cause,
        severity=incident.severity,
        detected_by=incident.detected_by,
        evidence=incident.evidence,
        opened_at=incident.opened_wall,
        closed_at=incident.opened_wall + incident.closed_at - incident.opened_at if incident.closed_at else 0.0,
        seconds=seconds_of(incident, now),
        epoch_before=str(incident.epoch_before),
        epoch_after=str(incident.epoch_after) if incident.epoch_after is not None else "",
        steps_lost=incident.steps_lost,
        micro_batches_recomputed=incident.micro_batches_recomputed,
        story=tuple(incident.story),
        state="open" if incident.open else "closed",
        would_have=incident.would_have,
        source=next((s.source for s in incident.sources if s.source != "live"), "live" if incident.sources else ""),
        sources=incident.sources,
    )
