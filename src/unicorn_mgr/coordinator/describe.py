"""Events in words, one line each, for people who follow or replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import Mistake, Raised, Resumed, Sample, SnapshotsStopped, Suspended, Symptom
from unicorn_mgr.model import said
from unicorn_mgr.phases import Phase
from unicorn_mgr.planner.reasons import slots as slots_of

SYMPTOM_CHARACTERS_MAX = 160


def describe(event: e.Event) -> str:
    """What happened in one line, for a person who knows the vocabulary."""
    first, *rest = _words(event).strip().splitlines() or [""]
    return f"{first} [...] {rest[-1].strip()}" if rest else first


def without_secrets(event: e.Event) -> e.Event:
    """The event as it may be shown: the values of a job's environment stay in the journal."""
    if isinstance(event, e.JobSubmitted):
        hidden = dict.fromkeys(event.spec.environment, "...")
        return dataclasses.replace(event, spec=dataclasses.replace(event.spec, environment=hidden))
    return event


def _words(event: e.Event) -> str:
    plain = f"{type(event).__name__} {_brief(event)}"
    return (
        _of_cluster(event) or _of_worker(event) or _of_job(event) or _of_copies(event) or _of_incident(event) or plain
    )


def _of_cluster(event: e.Event) -> str:
    match event:
        case e.TermStarted(term):
            return f"the coordinator has started, term {term}"
        case e.NodeAttached(node, _, slots, address):
            place = f"{address}, in {event.domain}" if event.domain else address
            return f"node {node} attached with {slots_of(len(slots))} at {place}"
        case e.NodeSilent(node, seconds):
            return f"node {node} has been silent for {seconds:.1f} s"
        case e.NodeHeard(node):
            return f"node {node} is heard again"
        case e.NodeLost(node, reason):
            return f"node {node} is lost: {reason}"
        case e.NodeIsolated(node, reason):
            return f"node {node} is isolated: {reason}"
        case e.NodeDrained(_, node):
            return f"node {node} is to be drained"
        case e.NodeUndrained(_, node):
            return f"node {node} is given back"
        case e.NodeDegraded(_, node, speed, slots):
            which = f"slots {', '.join(map(str, slots))}" if slots else "all its slots"
            return f"node {node} is to be counted on for {which} at speed {speed:g}"
        case e.NodeQuarantined(node, seconds, reason):
            return f"node {node} is quarantined for {seconds:.0f} s: {reason}"
        case e.NodeTrusted(node):
            return f"node {node} may be used again: its quarantine is over"
        case e.NodeEmptied(node):
            return f"node {node} is empty: safe to power off"
        case e.BreakerTripped(silent, nodes):
            return f"{silent} of {nodes} nodes fell silent at once: verdicts are frozen"
        case e.BreakerReset():
            return "enough nodes are heard again"
        case e.PlanWanted(number, _, reason):
            return f"plan {number} is asked for: {reason}"
        case e.PlanReady():
            return (
                f"plan {event.number} by {event.rung or event.solver} in {event.seconds:.3f} s, {_certificate(event)}"
            )
        case e.PauseSet(_, paused):
            return "all actions are paused" if paused else "actions are resumed"
        case e.ObserveSet(_, job, observe):
            return f"observe mode is {'on' if observe else 'off'} for {f'job {job}' if job else 'all jobs'}"
        case _:
            return ""


def _certificate(plan: e.PlanReady) -> str:
    if plan.proven:
        return "proven best"
    if plan.bound <= 0:
        return f"not certified: {plan.note}"
    return f"at most {max(0.0, 1 - plan.value / plan.bound):.2%} short of the best: {plan.note}"


def _of_worker(event: e.Event) -> str:
    match event:
        case e.WorkerOrdered(worker, node, slot):
            return f"{worker} is started on {node}, slot {slot}: {event.reason}"
        case e.WorkerStarted(worker, pid):
            return f"{worker} has started, pid {pid}"
        case e.WorkerAttached(worker):
            return f"{worker} has called attach()"
        case e.WorkerTold(worker, Mistake() as mistake):
            return f"{worker}: a mistake of the user's: {mistake}"
        case e.WorkerTold(worker, Raised(kind, message)):
            return f"{worker} raised {kind}: {message}"
        case e.WorkerTold(worker, Symptom(_, error)):
            return f"{worker} has a failed connection: {error[:SYMPTOM_CHARACTERS_MAX]}"
        case e.WorkerTold(worker, Resumed() as resumed):
            return f"{worker} goes on {_resumed(resumed)}"
        case e.WorkerTold(worker, Suspended(_, step)):
            return f"{worker} stands still with all others, and has stored the state after step {step}"
        case e.WorkerTold(worker, SnapshotsStopped(step, reason)):
            return f"{worker} takes no snapshots in memory from step {step} on: {reason}"
        case e.WorkerTold(worker, fact):
            return f"{worker}: {type(fact).__name__} {_brief(fact)}"
        case e.WorkerQuiet(sample, limit):
            return f"{sample.worker} makes no progress for more than {limit:.1f} s, in step {sample.step}"
        case e.EvidenceTaken(worker, _, tool):
            return f"{worker}: stacks taken by {tool}"
        case e.WorkerDying(worker, witness):
            return f"{worker} is dying ({witness})"
        case e.WorkerExited(exited):
            how = f"signal {-exited.code}" if exited.code < 0 else f"code {exited.code}"
            return f"{exited.worker} ended by {how}"
        case e.WorkerCondemned(worker, reason):
            return f"{worker} is ended: {reason}"
        case e.RetirementOrdered(worker, reason):
            return f"{worker} is to leave: {reason}"
        case e.WorkerDismissed(worker, _):
            return f"{worker} is forgotten"
        case e.WorkerOverstayed(worker, reason):
            return f"{worker} does not end by itself, so it is ended: {reason}"
        case e.DrillOrdered(_, _, worker, drill):
            return f"a drill: {drill.fault} for {worker}" + (f" in step {drill.step}" if drill.step >= 0 else "")
        case _:
            return ""


def _resumed(resumed: Resumed) -> str:
    parts = [f"in epoch {resumed.epoch} with step {resumed.step}"]
    if resumed.recomputed:
        parts.append(f"micro-batches {', '.join(map(str, resumed.recomputed))} recomputed")
    if resumed.source not in ("", "own"):
        parts.append(f"state from {resumed.source}")
    if not resumed.exact:
        parts.append("not exact")
    phases = ("fence", "regroup", "restore", "recompute", "added")
    parts += [f"{phase} {getattr(resumed, f'{phase}_seconds'):.3f} s" for phase in phases]
    return ", ".join(parts)


def _span(least: int, most: int) -> str:
    return slots_of(least) if least == most else f"{least} to {slots_of(most)}"


def _of_copies(event: e.Event) -> str:
    match event:
        case e.BackupsPlaced(job, _, _, peers):
            to = ", ".join(dict.fromkeys(node for node, _ in peers.values())) or "nowhere"
            return f"job {job}: snapshots are copied to {to}" + (f": {event.reason}" if event.reason else "")
        case e.CopiesReleased(job, copies):
            nodes = ", ".join(dict.fromkeys(node for _, _, node in copies))
            return f"job {job}: copies of its snapshots on {nodes} are obsolete"
        case _:
            return ""


def _of_job(event: e.Event) -> str:
    match event:
        case e.PaceChanged(job, size, seconds):
            return f"job {job}: a step on {slots_of(size)} takes {seconds:.3g} s; plans count on that from now on"
        case e.DeadlineReckoned(job, _, prospect):
            return f"job {job}: {prospect or 'all that was to be done by its deadline is done'}"
        case e.WishesSet(_, job, weight, priority, size_min, size_max):
            return f"job {job} wants {_span(size_min, size_max)} with weight {weight:g}, priority {priority}"
        case e.JobSubmitted(_, job, spec):
            return f"job {job} submitted: {' '.join(spec.command)} on {_span(spec.size_min, spec.size_max)}"
        case e.SlotsAssigned(job, seats, reason):
            return f"job {job} has {slots_of(len(seats))}: {reason}"
        case e.EpochGranted(job, epoch, members, reason):
            return f"job {job} goes on in epoch {epoch} with {', '.join(members)} ({reason})"
        case e.GroupFormed(job, epoch):
            return f"job {job}: all members of epoch {epoch} have published"
        case e.TransitionEnded(job, epoch):
            return f"job {job}: all members have finished a step in epoch {epoch}"
        case e.JobProgressed(job, committed, seconds):
            return f"job {job} has committed step {committed}, {seconds * 1000:.0f} ms a step"
        case e.InquiryOpened(job, number):
            return f"job {job}: inquiry {number} is opened: all members' rings are read, twice"
        case e.ReadingTaken(job, number, samples):
            places = ", ".join(f"{s.worker} in {Phase(s.phase).name.lower()} of step {s.step}" for s in samples)
            return f"job {job}: a reading for inquiry {number}: {places or 'nobody has answered'}"
        case e.InquiryClosed(job, number, verdict):
            return f"job {job}: inquiry {number} is closed: {verdict}"
        case e.PoisonFound(job, step, number, skip):
            what = "is skipped from now on" if skip else "ends it, as it does not skip such"
            return f"job {job}: micro-batch {number} of step {step}, on which workers have died, {what}"
        case e.JobHalted(job, seconds):
            return f"job {job} has waited {seconds:.1f} s for workers on silent nodes"
        case e.LifeEnded(job, reason):
            return f"job {job} begins anew: {reason}"
        case e.CheckpointCommitted(job, step, _, url):
            return f"job {job}: checkpoint of step {step} is complete in {url}"
        case e.PartGivenUp(job, worker, step, reason):
            return f"job {job}: what {worker} has left of the checkpoint of step {step} is not waited for: {reason}"
        case e.SeatBarred(job, seat, reason):
            return f"job {job}: seat {seat} is not filled again: {reason}"
        case e.JobCancelled(_, job):
            return f"job {job} is cancelled"
        case e.JobGivenUp(job, code, reason):
            return f"job {job} is given up, exit code {code}: {reason}"
        case e.SuspensionOrdered(job, reason):
            return f"job {job} is to store its state and give its slots up: {reason}"
        case e.SuspensionWithdrawn(job, reason):
            return f"job {job} keeps its slots: {reason}"
        case e.JobSuspended(job, step):
            return f"job {job} is suspended: its state after step {step} is in storage"
        case e.ShapeChanged(job, axes, reason):
            return f"job {job} is split as {said(axes)} from now on: {reason}"
        case e.JobEnded(job, code, reason):
            return f"job {job} ended with {code}: {reason}"
        case _:
            return ""


def _of_incident(event: e.Event) -> str:
    match event:
        case e.IncidentOpened():
            who = event.worker or (f"node {event.node}" if event.node else f"job {event.job}")
            return f"{event.incident} opened: {who}, {event.cause}, {event.severity}, by {event.detected_by}"
        case e.IncidentRefined(incident, cause, severity, method):
            return f"{incident} is {cause}, {severity}, by {method}"
        case e.IncidentExplained(incident, node, worker, cause, severity):
            return f"{incident} is explained by {worker or f'node {node}'}: {cause}, {severity}"
        case e.IncidentEscalated(incident, severity, reason):
            return f"{incident} is escalated to {severity}: {reason}"
        case e.IncidentNoted(incident, text):
            return f"{incident}: {text}"
        case e.IncidentClosed(incident, how):
            return f"{incident} closed: {how}"
        case _:
            return ""


def _brief(value: Any) -> str:
    """Fields that say something, shortly; never an environment."""
    parts = []
    for f in dataclasses.fields(value):
        item = getattr(value, f.name)
        if f.name in ("request_id", "environment", "traceback", "fingerprint", "samples") or item in (
            "",
            None,
            (),
            {},
        ):
            continue
        if isinstance(item, Sample):
            item = f"step {item.step}"
        text = str(item)
        parts.append(f"{f.name}={text[:80]}")
    return " ".join(parts)


def concerns(event: e.Event, job: str, node: str, incidents: Collection[str] = ()) -> bool:
    """The event belongs to the story of a job or a node, or of their incidents; both empty: it always does."""
    if not job and not node:
        return True
    values: list[str] = []
    for f in dataclasses.fields(event):
        item = getattr(event, f.name)
        if isinstance(item, str):
            values.append(item)
        elif hasattr(item, "worker"):
            values.append(item.worker)
    if job and any(v == job or v.startswith(f"{job}/") for v in values):
        return True
    return (bool(node) and node in values) or getattr(event, "incident", None) in incidents
