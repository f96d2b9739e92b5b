"""Nobody makes progress: who is waited for?

Agents report workers whose ring stands still for longer than its place allows.  Then the rings of all
members and newcomers are read, twice, a second apart: before a kill there is always a second
reading.  The member that is furthest behind and does not itself wait for others is the
culprit.  If there is none the link is: the same members are regrouped once, then a node that
most others can't reach is isolated, or who is furthest behind is restarted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from unicorn_mgr.coordinator import triage
from unicorn_mgr.coordinator.record_workers import LINK_VERDICT
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.escalation import retry_failed
from unicorn_mgr.coordinator.rules.incidents import incident_id, open_symptom
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import Job, NodePhase, Transition, Worker, WorkerPhase
from unicorn_mgr.effects.coordinator import (
    Decision,
    EpochGranted,
    IncidentEscalated,
    IncidentNoted,
    IncidentOpened,
    InquiryClosed,
    InquiryOpened,
    WorkerCondemned,
)
from unicorn_mgr.messages import Sample
from unicorn_mgr.model import Epoch, JobSpec, Severity
from unicorn_mgr.phases import WAITS_FOR_OTHERS, Limits, Phase

# -- inquiries ------------------------------------------------------------------------------


def inquired(c: Context, job: Job) -> Iterator[Decision]:
    """Open an inquiry, and close it when both readings are there."""
    if job.over or job.sentence is not None or not (job.living_members() or job.newcomers()):
        return
    if job.inquiry is None:
        if any(c.now >= due for due in _inquiries_due(c, job)) and not c.state.paused:
            yield InquiryOpened(job.name, job.inquiries + 1)
        return
    inquiry = job.inquiry
    if len(inquiry.readings) >= 2:
        newcomers = {w.name for w in job.newcomers()}
        first, second = (samples for _, samples in inquiry.readings[:2])
        verdict, culprit = judge(first, second, limits_of(c, job), newcomers, job.epoch.number)
        yield InquiryClosed(job.name, inquiry.number, verdict, culprit)
    elif c.now >= inquiry.opened_at + c.settings.second_reading_seconds + 2 * c.settings.reading_timeout_seconds:
        yield InquiryClosed(job.name, inquiry.number, "not all agents answered")


def inquiry_deadlines(c: Context, job: Job) -> Iterator[float]:
    """When readings have been waited for long enough, and when to look again."""
    if job.inquiry is not None:
        s = c.settings
        yield job.inquiry.opened_at + s.second_reading_seconds + 2 * s.reading_timeout_seconds
    else:
        yield from _inquiries_due(c, job)
    if job.sentence is not None:
        yield job.sentence.at + c.settings.evidence_seconds_max


def _inquiries_due(c: Context, job: Job) -> Iterator[float]:
    """When to look who is waited for: somebody is quiet, or nobody says why a membership is not answered."""
    if job.quiet is not None:
        yield job.next_inquiry_at
    t = job.transition
    if t is not None and not t.formed_at and not t.stale:
        limits = limits_of(c, job)
        patience = max(limits.stall_seconds, limits.stall_factor * job.step_seconds)
        yield max(t.granted_at, job.next_inquiry_at) + patience


def limits_of(c: Context, job: Job) -> Limits:
    """How long this job's workers may be quiet."""
    return limits_of_spec(job.spec, c.settings)


def limits_of_spec(spec: JobSpec, settings: Settings) -> Limits:
    """The job's own limits, the cluster's where it has none."""
    return Limits(
        spec.stall_seconds or settings.stall_seconds,
        spec.stall_factor or settings.stall_factor,
        spec.user_seconds or settings.user_seconds,
    )


def judge(
    first: tuple[Sample, ...],
    second: tuple[Sample, ...],
    limits: Limits,
    newcomers: Collection[str] = (),
    granted: int = 0,
) -> tuple[str, str]:
    """What two readings of a job's members and newcomers say: the verdict, and the culprit if there is one.

    A member's position is (epoch, step, collectives launched).  Those at the lowest position
    hold the others up; the culprit is one of them that does not wait for others itself.
    Nobody that trains waits for a newcomer, so one is the culprit only where no member is, by its own limit.
    `granted` is the number of an epoch that was granted long ago: whoever still waits for it is deaf.
    """
    before = {s.worker: s.counter for s in first}
    moved = {s.worker for s in second if before.get(s.worker) != s.counter}
    verdict, culprit = _judge_members(tuple(s for s in second if s.worker not in newcomers), moved, limits, granted)
    if culprit:
        return verdict, culprit
    for sample in second:
        stands = sample.worker in newcomers and sample.worker not in moved
        limit = limits.of(sample.phase, sample.step_seconds, sample.stopped)
        if stands and Phase(sample.phase) not in WAITS_FOR_OTHERS and sample.quiet_seconds >= limit:
            place = "is stopped" if sample.stopped else f"stands in {Phase(sample.phase).name.lower()}"
            text = f"{sample.worker} {place} for {sample.quiet_seconds:.1f} s and is no member yet"
            return f"{text} (more than {limit:g} s)", sample.worker
    return verdict, culprit


def _judge_members(second: tuple[Sample, ...], moved: set[str], limits: Limits, granted: int) -> tuple[str, str]:
    if not second:
        return "nobody could be read", ""
    went_on = sorted(s.worker for s in second if s.worker in moved)
    if went_on:
        return f"progress: {', '.join(went_on[:3])} went on", ""
    lowest = min(_position(s) for s in second)
    behind = [s for s in second if _position(s) == lowest and (s.stopped or Phase(s.phase) not in WAITS_FOR_OTHERS)]
    stopped = [s for s in second if s.stopped]
    step_seconds = max(s.step_seconds for s in second)
    for sample in stopped or behind:
        limit = limits.of(sample.phase, sample.step_seconds or step_seconds, sample.stopped)
        if sample.quiet_seconds >= limit:
            what = "is stopped" if sample.stopped else f"stands in {Phase(sample.phase).name.lower()}"
            return (
                f"{sample.worker} {what} in step {sample.step} for {sample.quiet_seconds:.1f} s",
                sample.worker,
            )
    if stopped or behind:
        patient = (stopped or behind)[0]
        return (
            f"waiting for {patient.worker}, which may take longer in {Phase(patient.phase).name.lower()}",
            "",
        )
    deaf = [s for s in second if s.phase == Phase.WAITING and s.epoch < granted]
    if deaf:
        name = deaf[0].worker
        return f"{name} waits for a membership, and has not answered the one that it was granted", name
    return LINK_VERDICT, ""


def _position(s: Sample) -> tuple[int, int, int]:
    return (s.epoch, s.step, s.sequence)


# -- sentences ------------------------------------------------------------------------------


def sentenced(c: Context, job: Job) -> Iterator[Decision]:
    """A culprit is an incident at once; it is killed when its stacks are taken."""
    sentence = job.sentence
    if sentence is None:
        return
    worker = job.workers.get(sentence.worker)
    if worker is None or not worker.alive:
        return
    if not worker.incident:
        sample = next((s for s in job.last_reading if s.worker == worker.name), Sample())
        found = triage.STOPPED if sample.stopped else triage.TASK_HANG
        evidence = f"{sentence.reason}\n{readings_as_text(job.last_reading)}"
        yield _opened(c, job, worker, found, evidence, sample.quiet_seconds)
        return
    if c.state.paused:
        return
    if c.state.observes(job):
        yield from _note_once(c, worker.incident, f"would have killed {worker.name}")
    elif sentence.stacks or c.now >= sentence.at + c.settings.evidence_seconds_max:
        yield WorkerCondemned(worker.name, sentence.reason)


def _opened(
    c: Context, job: Job, worker: Worker, found: triage.Finding, evidence: str, seconds: float = 0.0
) -> IncidentOpened:
    """An incident of a worker, whose fault has been there for so long."""
    return IncidentOpened(
        incident_id(c),
        job.name,
        worker.node,
        worker.name,
        found.cause,
        found.severity,
        found.method,
        evidence,
        seconds,
        c.state.observes(job),
    )


def unattached(c: Context, job: Job) -> Iterator[Decision]:
    """A process that never calls attach() has no ring to read; where others of its job have called it, it hangs."""
    if job.over or job.gang or c.state.paused:
        return
    for worker, due in _attach_due(c, job):
        if c.now < due or c.state.nodes[worker.node].phase is NodePhase.SILENT:
            continue
        text = f"{worker.name} has not called attach() for {c.now - worker.started_at:.0f} s"
        if not worker.incident:
            yield _opened(c, job, worker, triage.TASK_HANG, text)
            return
        if c.state.observes(job):
            yield from _note_once(c, worker.incident, f"would have killed {worker.name}")
        else:
            yield WorkerCondemned(worker.name, text)


def attach_deadlines(c: Context, job: Job) -> Iterator[float]:
    """When a process should have called attach()."""
    if not job.gang:
        yield from (due for _, due in _attach_due(c, job))


def _attach_due(c: Context, job: Job) -> Iterator[tuple[Worker, float]]:
    patience = limits_of(c, job).user_seconds
    return ((w, w.started_at + patience) for w in job.unsettled() if w.phase is WorkerPhase.STARTED)


def readings_as_text(samples: tuple[Sample, ...]) -> str:
    """One line a member, for the incident's evidence."""
    return "\n".join(
        f"{s.worker}: epoch {s.epoch}, step {s.step}, {s.sequence} collectives launched, "
        f"{Phase(s.phase).name.lower()}{' (stopped)' if s.stopped else ''}, quiet for {s.quiet_seconds:.1f} s"
        for s in sorted(samples, key=lambda s: s.worker)
    )


# -- the link -------------------------------------------------------------------------------


def links(c: Context, job: Job) -> Iterator[Decision]:
    """A stall without a culprit, or members that can't reach each other."""
    if job.over or c.state.paused or not job.living_members() or job.lost_members():
        return
    t = job.transition
    cut_off = t is not None and bool(t.unreachable) and c.now >= t.unreachable_at + c.settings.settle_seconds
    if not (job.link_stalled or cut_off):
        return
    incident = open_symptom(c, job)
    if incident is None:
        found = triage.UNREACHABLE if cut_off else triage.LINK
        evidence = _unreachable_text(t) if cut_off and t is not None else readings_as_text(job.last_reading)
        worker = sorted(t.unreachable)[0] if cut_off and t is not None else ""
        yield IncidentOpened(
            incident_id(c),
            job.name,
            job.workers[worker].node if worker else "",
            worker,
            found.cause,
            found.severity,
            found.method,
            evidence,
            would_have=c.state.observes(job),
        )
        return
    if c.state.observes(job):
        yield from _note_once(c, incident.id, "would have regrouped the same members")
        return
    if job.regrouped_for != incident.id:
        members = tuple(w.name for w in job.living_members())
        if members:
            yield IncidentNoted(incident.id, "reattempt: the same members are regrouped")
            epoch = Epoch(c.state.term, job.epoch.number + 1)
            why, suspends = f"the same members again: {incident.cause}", job.suspension is not None
            yield EpochGranted(job.name, epoch, members, why, incident.id, suspends)
        return
    node, why = most_named(c, job, t) if cut_off and t is not None else ("", "")
    if node:
        yield IncidentEscalated(incident.id, Severity.SEV1, why, node)
    else:
        yield from retry_failed(incident, _suspect(job), f"{incident.cause} again")


def _suspect(job: Job) -> Worker:
    """Nobody is named: then of those that are furthest behind the one that came last, since without it all went well.

    Where a replica of several workers waits for itself all its workers are behind the others.
    """
    readings = job.last_reading if job.link_stalled else ()
    lowest = min(map(_position, readings), default=None)
    behind = {s.worker for s in readings if _position(s) == lowest}
    members = job.living_members()
    return ([w for w in members if w.name in behind] or members)[-1]


def most_named(c: Context, job: Job, t: Transition) -> tuple[str, str]:
    """The node that most others can't reach; on a tie the one whose loss costs less."""
    votes: Counter[str] = Counter()
    for reporter, named in sorted(t.unreachable.items()):
        for other in named:
            if (
                reporter in job.workers
                and other in job.workers
                and job.workers[other].node != job.workers[reporter].node
            ):
                votes[job.workers[other].node] += 1
    if not votes:
        return "", ""

    def cost(node: str) -> float:
        return sum(c.state.jobs[w.job].spec.weight for w in c.state.on_node(node) if w.alive)

    usable = [n for n in votes if c.state.nodes[n].phase not in (NodePhase.LOST, NodePhase.ISOLATED)]
    if not usable:
        return "", ""
    node = min(usable, key=lambda n: (-votes[n], cost(n), n))
    return node, f"node {node} is named unreachable {votes[node]} times"


def _unreachable_text(t: Transition) -> str:
    return "\n".join(
        f"{who} can't reach {', '.join(named) or '(no one in particular)'}"
        for who, named in sorted(t.unreachable.items())
    )


def link_deadlines(c: Context, job: Job) -> Iterator[float]:
    """When reports of unreachable members have settled."""
    if job.transition is not None and job.transition.unreachable:
        yield job.transition.unreachable_at + c.settings.settle_seconds


def _note_once(c: Context, incident: str, text: str) -> Iterator[Decision]:
    if not any(text in line for line in c.state.incidents[incident].story):
        yield IncidentNoted(incident, text)


# -- checksums ------------------------------------------------------------------------------


def checksums(c: Context, job: Job) -> Iterator[Decision]:
    """Replicas differ: the minority is restarted from the majority."""
    if job.checksums_differ is None or job.over or c.state.paused:
        return
    step, minority = job.checksums_differ
    if not minority:
        found = triage.CHECKSUMS
        text = f"replicas differ at the head of step {step}, and there is no majority"
        yield IncidentOpened(incident_id(c), job.name, "", "", found.cause, found.severity, found.method, text)
        return
    for name in minority:
        worker = job.workers.get(name)
        if worker is None or not worker.alive:
            continue
        if not worker.incident:
            text = f"its parameters differ from the majority's at the head of step {step}"
            yield _opened(c, job, worker, triage.CHECKSUMS, text)
            return
        if c.state.observes(job):
            yield from _note_once(c, worker.incident, f"would have restarted {name}")
        else:
            yield WorkerCondemned(name, "its parameters differ from the majority's")
