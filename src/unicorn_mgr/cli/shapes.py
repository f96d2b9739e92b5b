"""What `--json` prints: the keys of docs/json.md, which stay.

Times are seconds since 1970, durations seconds; what does not apply is null, never a number
that means nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from unicorn_mgr.messages import (
    ClusterView,
    EventLine,
    IncidentStory,
    IncidentView,
    JobView,
    NodeView,
    PlanView,
    WhatIfAnswer,
    WorkerView,
)
from unicorn_mgr.planner.problem import NOMINAL_FLOPS

Shape = dict[str, Any]


def of_cluster(view: ClusterView) -> Shape:
    """`unicorn status --json`: jobs that have not ended, incidents that are open."""
    return {
        "cluster": view.cluster,
        "version": view.version,
        "term": view.term,
        "paused": view.paused,
        "observe": view.observe,
        "alarm": view.alarm or None,
        "drills": view.drills,
        "metrics_address": view.metrics_address or None,
        "nodes": [of_node(n) for n in view.nodes],
        "jobs": [of_job(j) for j in view.jobs if j.state != "ended"],
        "incidents": [of_incident(i) for i in view.incidents if i.state == "open"],
    }


def of_plan(view: ClusterView) -> Shape:
    """`unicorn plan --json`."""
    return {
        "jobs": [
            {
                "job": j.job,
                "state": j.state,
                "weight": j.weight,
                "size": j.size,
                "size_wanted": j.size_wanted,
                "size_min": j.size_min,
                "size_max": j.size_max,
                "reason": j.reason,
            }
            for j in view.jobs
            if j.state != "ended"
        ],
        "plan": _certificate(view.plan),
    }


def of_what_if(answer: WhatIfAnswer) -> Shape:
    """`unicorn plan --what-if CHANGE --json`."""
    return {
        "jobs": [
            {
                "job": j.job,
                "size_before": j.size_before,
                "size_after": j.size_after,
                "weighted_flops_before": j.flops_before if j.rated else None,
                "weighted_flops_after": j.flops_after if j.rated else None,
                "weighted_slots_before": None if j.rated else j.flops_before / NOMINAL_FLOPS,
                "weighted_slots_after": None if j.rated else j.flops_after / NOMINAL_FLOPS,
                "replica_after": j.replica_after or None,
                "standstill_seconds": j.standstill_seconds,
                "reason": j.reason,
            }
            for j in answer.jobs
        ],
        "plan": _certificate(answer.plan),
    }


def _certificate(plan: PlanView | None) -> Shape | None:
    if plan is None:
        return None
    certified = plan.bound > 0
    return {
        "number": plan.number or None,
        "asked_because": plan.asked_because or None,
        "answered": plan.answered,
        "value": plan.value if certified else None,
        "upper_bound": plan.bound if certified else None,
        "gap": max(0.0, 1 - plan.value / plan.bound) if certified else None,
        "proven": plan.proven,
        "solver": plan.solver,
        "rung": plan.rung,
        "seconds": plan.seconds,
        "note": plan.note or None,
    }


def of_node(node: NodeView) -> Shape:
    """One item of `unicorn nodes --json`."""
    return {
        "node": node.node,
        "state": node.state,
        "address": node.address,
        "domain": node.domain or None,
        "slots": node.slots,
        "slots_used": node.slots_used,
        "speed": node.speed,
        "silent_seconds": node.silent_seconds,
        "quarantine_seconds": node.quarantine_seconds,
        "reason": node.reason,
        "workers": list(node.workers),
    }


def of_job(job: JobView) -> Shape:
    """One item of `unicorn jobs --json`."""
    ended = job.state == "ended"
    return {
        "job": job.job,
        "state": job.state,
        "command": job.command,
        "weight": job.weight,
        "size": job.size,
        "size_wanted": job.size_wanted,
        "size_min": job.size_min,
        "size_max": job.size_max,
        "replica": job.replica or None,
        "standstill_seconds": job.standstill_seconds,
        "epoch": str(job.epoch) if job.epoch.number else None,
        "step": _known(job.step),
        "step_seconds": job.step_seconds or None,
        "ettr": job.ettr if job.started_at else None,
        "restarts": job.restarts,
        "incidents": job.incidents,
        "observe": job.observe,
        "checkpoint_step": _known(job.checkpoint_step),
        "checkpoint_url": job.checkpoint_url or None,
        "checkpoint_at": job.checkpoint_at or None,
        "checkpoint_error": job.checkpoint_error or None,
        "parts": [
            {"worker": p.worker, "node": p.node, "step": p.step, "state": p.state, "seconds": p.seconds}
            for p in job.parts
        ],
        "backed_up_step": _known(job.backed_up_step),
        "backup_note": job.backup_note or None,
        "started_at": job.started_at or None,
        "ended_at": job.ended_at or None,
        "exit_code": job.exit_code if ended else None,
        "reason": job.reason,
        "skipped": [{"step": s.step, "micro_batch": s.number} for s in job.skipped],
        "workers": [of_worker(w) for w in job.workers],
    }


def of_worker(worker: WorkerView) -> Shape:
    """One item of a job's `workers`."""
    return {
        "worker": worker.worker,
        "node": worker.node,
        "slot": worker.slot,
        "pid": worker.pid or None,
        "state": worker.state,
        "member": worker.member,
        "step": _known(worker.step),
        "phase": worker.phase,
    }


def of_incident(incident: IncidentView) -> Shape:
    """One item of `unicorn incidents --json`."""
    return {
        "id": incident.id,
        "state": incident.state,
        "job": incident.job or None,
        "node": incident.node or None,
        "worker": incident.worker or None,
        "cause": incident.cause,
        "severity": incident.severity,
        "detected_by": incident.detected_by,
        "evidence": incident.evidence,
        "opened_at": incident.opened_at,
        "closed_at": incident.closed_at or None,
        "seconds": dict(sorted(incident.seconds.items())),
        "epoch_before": incident.epoch_before if incident.job else None,
        "epoch_after": incident.epoch_after or None,
        "steps_lost": incident.steps_lost,
        "micro_batches_recomputed": incident.micro_batches_recomputed,
        "source": incident.source or None,
        "sources": [asdict(source) for source in incident.sources],
        "would_have": incident.would_have,
        "story": list(incident.story),
    }


def of_story(story: IncidentStory) -> Shape:
    """`unicorn incident ID --json`: the incident, and the events around it."""
    return {**of_incident(story.incident), "events": [of_event(e) for e in story.events]}


def of_event(line: EventLine) -> Shape:
    """One line of `unicorn events --json`."""
    return {
        "number": line.number,
        "at": line.at,
        "kind": line.kind,
        "text": line.text,
        "event": _body(line.kind, line.json),
    }


def of_settings(running: dict[str, float]) -> list[Shape]:
    """`unicorn settings --json`; `running` is empty if no coordinator was asked."""
    from unicorn_mgr.coordinator.settings import Settings  # noqa: PLC0415 - pydantic takes longer than the rest

    return [
        {
            "name": name,
            "value": type(field.default)(running[name]) if name in running else None,
            "default": field.default,
            "meaning": (field.description or "").strip(),
        }
        for name, field in Settings.model_fields.items()
    ]


def of_journal(view: ClusterView, path: str, entries: int, last: int) -> Shape:
    """`unicorn replay --json` without a selection: everything the journal tells, closed incidents too."""
    return {
        **of_cluster(view),
        "jobs": [of_job(j) for j in view.jobs],
        "incidents": [of_incident(i) for i in view.incidents],
        "journal": path,
        "entries": entries,
        "last_entry": last,
    }


def _body(kind: str, text: str) -> Any:
    if kind.startswith("WorkerTold/"):
        worker, fact = json.loads(text)
        return {"worker": worker, "fact": json.loads(fact)}
    return json.loads(text)


def _known(number: int) -> int | None:
    """Steps before the first are negative inside and null outside."""
    return number if number >= 0 else None
