"""What the coordinator knows.  Written only by `record`, read by everything else.

The whole of it can be dumped into a snapshot of the journal and loaded again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from unicorn_mgr.coordinator.backups import Backups
from unicorn_mgr.coordinator.checkpoints import Checkpoint, Parts
from unicorn_mgr.coordinator.counters import Counters
from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.recall import Recall
from unicorn_mgr.effects.coordinator import PlanReady
from unicorn_mgr.messages import Exited, Mistake, Raised, Ready, Resumed, Sample
from unicorn_mgr.model import Epoch, JobSpec, Slot, WorkerName


class NodePhase(enum.StrEnum):
    """What a node is good for."""

    UP = "up"
    SILENT = "silent"
    LOST = "lost"
    ISOLATED = "isolated"
    QUARANTINED = "quarantined"
    """In reach, and lost too often lately to be used."""
    DRAINING = "draining"
    DRAINED = "drained"


class WorkerPhase(enum.StrEnum):
    """A worker's life.  It only moves forward."""

    ORDERED = "ordered"
    STARTED = "started"
    ATTACHED = "attached"
    READY = "ready"
    MEMBER = "member"
    LEAVING = "leaving"
    ENDED = "ended"
    """Its loop has ended; the user's code after it may still run."""
    GONE = "gone"
    """It does not count any more: dying, dead, condemned, or on a lost node."""


class JobPhase(enum.StrEnum):
    """A job's life."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(slots=True)
class Node:
    """A machine with an agent."""

    name: str
    incarnation: str = ""
    slots: tuple[Slot, ...] = ()
    address: str = ""
    phase: NodePhase = NodePhase.UP
    reason: str = ""
    silent_at: float = 0.0
    draining: bool = False
    """An operator wants it empty, whatever else happens to it."""
    losses: list[float] = field(default_factory=list)
    """When it was lost, newest last; verdicts that turned out to be false are not among them."""
    quarantine: str = ""
    """Why it is not to be used for a while, whatever else happens to it."""
    quarantined_at: float = 0.0
    quarantine_seconds: float = 0.0
    """Of its newest quarantine, which may be over."""
    drills: bool = False
    domain: str = ""
    """What fails as one with it, as its agent says; empty: it fails alone."""
    copies_port: int = 0
    """Where other agents leave copies of snapshots; 0: nowhere."""
    processes: dict[int, list[str]] = field(default_factory=dict)
    """By slot, the workers on it that have not ended, in the order in which they came."""

    speed: float = 1.0
    """Of its slots, as a share of what they should do, as an operator says."""
    good: tuple[int, ...] = ()
    """Slots that may be used, if an operator has said which; empty: all."""

    @property
    def offered(self) -> tuple[int, ...]:
        """Slots that may be used, rising."""
        return tuple(sorted(s.index for s in self.slots if not self.good or s.index in self.good))

    @property
    def usable(self) -> bool:
        """New workers may be put here."""
        return self.phase is NodePhase.UP

    @property
    def counts(self) -> bool:
        """Plans count on it: also while it is silent, as long as what runs there is not given up."""
        return self.phase in (NodePhase.UP, NodePhase.SILENT) and not self.draining and not self.quarantine

    @property
    def quarantined_until(self) -> float:
        """End of its newest quarantine."""
        return self.quarantined_at + self.quarantine_seconds


@dataclass(slots=True)
class Worker:
    """A process of a job, from its order until it is dismissed."""

    name: str
    job: str
    seat: int
    node: str
    slot: int
    ordered_at: float
    start: int = 0
    """Which start of its gang it belongs to."""
    phase: WorkerPhase = WorkerPhase.ORDERED
    pid: int = 0
    started_at: float = 0.0
    """When its process was first told of, or its node was heard again."""
    ready: Ready | None = None
    ready_at: float = 0.0
    loop_ended: bool = False
    was_member: bool = False
    formed: bool = False
    """It has been in the group of an epoch: before that it can't have the job's state."""
    trained: bool = False
    """It has reached the head of a training loop."""
    gone_at: float = 0.0
    gone_reason: str = ""
    exited: Exited | None = None
    """Proof that the process is no more."""
    ended_well: bool = False
    """It came to its end as it should."""
    raised: Raised | None = None
    mistake: Mistake | None = None
    condemned: bool = False
    retiring: bool = False
    """It was told to leave: its slot is another's."""
    overstayed: bool = False
    """It was told to end, because it had not by itself."""
    fresh_start: bool = False
    """It asked to be started afresh: nobody's fault."""
    cut_off: bool = False
    """It has failed because it could not reach another of its replica, which may turn out to be the cause."""
    incident: str = ""
    accounted: bool = False
    """Its exit stands in the incident."""

    @property
    def alive(self) -> bool:
        """It counts."""
        return self.phase is not WorkerPhase.GONE


@dataclass(slots=True)
class Transition:
    """The move of a job to its newest epoch."""

    epoch: Epoch
    granted_at: float
    kind: str = ""
    """Shrink, grow or start, if it is one of these."""
    formed_at: float = 0.0
    resumed: dict[str, Resumed] = field(default_factory=dict)
    unreachable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Who could not reach whom."""
    unreachable_at: float = 0.0
    stale: bool = False
    """Granted under an earlier term: it is begun anew."""


@dataclass(slots=True)
class Inquiry:
    """Readings of all members' rings, because somebody makes no progress."""

    number: int
    opened_at: float
    readings: list[tuple[float, tuple[Sample, ...]]] = field(default_factory=list)


@dataclass(slots=True)
class Sentence:
    """A worker that will be condemned as soon as its stacks are taken, or a deadline passes."""

    worker: str
    reason: str
    at: float
    stacks: bool = False


@dataclass(slots=True)
class Suspension:
    """A job is on its way out of all its slots."""

    reason: str
    ordered_at: float
    stored_step: int | None = None
    """Its members stand still after this step, and their state is in storage."""
    done: bool = False
    """Nobody has to go on: the processes end."""


@dataclass(slots=True)
class Death:
    """One entry of the restart budget, and of the search for poison."""

    at: float
    worker: str
    node: str
    cause: str
    signature: str
    """Type and place of the exception, empty for other deaths."""
    of_member: bool = False
    """It had joined before it died."""


@dataclass(slots=True)
class Job(Recall):
    """A training program."""

    name: str
    spec: JobSpec
    submitted_at: float
    phase: JobPhase = JobPhase.WAITING
    workers: dict[str, Worker] = field(default_factory=dict)
    seats: dict[int, tuple[str, int]] = field(default_factory=dict)
    seats_reason: str = ""
    incarnations: dict[int, int] = field(default_factory=dict)
    """Per seat, how many processes it has had."""
    restarts: int = 0
    """Processes started in place of one that failed."""
    warm: list[str] = field(default_factory=list)
    """Nodes that have run a process of it since they were last given up: its program is loaded there."""
    epoch: Epoch = field(default_factory=Epoch)
    members: tuple[str, ...] = ()
    transition: Transition | None = None
    suspension: Suspension | None = None
    left: tuple[str, ...] = ()
    """Who has left as it should since the last transition that ended."""
    standing: bool = False
    """The members of the newest epoch were told to finish the open step and stand still."""
    fingerprint: dict[str, str] | None = None
    fingerprint_of: str = ""
    micro_batches: int = 0
    """As many as make up a step, by the newest program that has said so; 0: none has."""
    barred: dict[int, str] = field(default_factory=dict)
    """Seats that are not filled again, and why."""
    gang: bool = True
    """No process has called attach() yet: it is supervised and restarted as one."""
    trains: bool = False
    """Some process has come to the head of a training loop."""
    gang_restarts: int = 0
    starts_before: int = 0
    """Of replicas of another shape than the present one: a start's number is never used twice."""
    incidents: list[str] = field(default_factory=list)
    """Open ones, oldest first."""
    incidents_seen: int = 0
    deaths: list[Death] = field(default_factory=list)
    """Newest last; old ones are forgotten when the budget's window has passed."""
    victims: list[tuple[str, int, int]] = field(default_factory=list)
    """(worker, step, micro-batch) that was open when a worker died."""
    marks: dict[int, str] = field(default_factory=dict)
    """Per seat, type and place of the exception that ended its last process; since a step was last completed."""
    symptom_at: float | None = None
    symptom: str = ""
    regrouped_for: str = ""
    """The incident for which the same members were regrouped once."""
    quiet: Sample | None = None
    """Somebody makes no progress, and nobody has looked into it yet."""
    inquiry: Inquiry | None = None
    inquiries: int = 0
    next_inquiry_at: float = 0.0
    last_reading: tuple[Sample, ...] = ()
    link_stalled: bool = False
    """An inquiry has found nobody guilty but the link."""
    sentence: Sentence | None = None
    halted: bool = False
    checksums_differ: tuple[int, tuple[str, ...]] | None = None
    committed: int = -1
    step_seconds: float = 0.0
    measured: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of its newest steps, by size, as they would be on nodes that are as they should be."""
    paces: dict[int, float] = field(default_factory=dict)
    """Seconds of a step by size that plans count on, in the order in which they became known."""
    other_paces: dict[str, dict[int, float]] = field(default_factory=dict)
    """The same of shapes that it has had, by how people say them."""
    due_slots: int = 0
    """Fewest that keep its deadline; 0: it has none, or it can't be kept, or nobody can tell."""
    due_prospect: str = ""
    """The same in words."""
    standstills: dict[str, list[float]] = field(default_factory=dict)
    """Seconds that its newest changes have cost, by the kind of the move."""
    copy_bytes: int = 0
    """Of one copy of its state, as the workers of a replica have told last; 0: they have not."""
    parts: Parts = field(default_factory=Parts)
    checkpoint: Checkpoint | None = None
    published_step: int = -1
    checkpoint_error: str = ""
    backups: Backups = field(default_factory=Backups)
    poison: list[tuple[int, int]] = field(default_factory=list)
    """(step, micro-batch) that is not dealt any more from the next epoch on."""
    skipped: list[tuple[int, int]] = field(default_factory=list)
    """Those of the newest epoch: all its members deal alike, whenever they are told."""
    give_up: tuple[int, str] | None = None
    give_up_at: float = 0.0
    cancelled: bool = False
    loop_ended_step: int | None = None
    life: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    exit_code: int = 0
    end_reason: str = ""
    lost_seconds: float = 0.0
    """Wall-clock seconds without progress, for ETTR."""
    down_since: float | None = None
    steps_redone: int = 0
    micro_batches_redone: int = 0
    observe: bool = False

    def warm_up(self, node: str) -> None:
        """Its program is loaded there from now on."""
        if not self.is_among("warm", self.warm, node):
            self.warm.append(node)

    def has_member(self, worker: str) -> bool:
        """Whether it is one of the newest epoch."""
        return self.is_among("members", self.members, worker)

    @property
    def over(self) -> bool:
        """No process of it is left."""
        return self.phase is JobPhase.ENDED

    @property
    def running(self) -> bool:
        """Some member has the job's state."""
        return any(m in self.workers and self.workers[m].alive for m in self.members)

    @property
    def suspendable(self) -> bool:
        """While it runs its state can be put into storage, as far as is known."""
        return bool(self.spec.checkpoint_url) and not self.checkpoint_error

    def follows_failure(self, seat: int) -> bool:
        """The newest process of a seat has ended, neither by plan nor as it should."""
        last = self.workers.get(str(WorkerName(self.name, seat, self.incarnations.get(seat, 0) - 1)))
        return last is not None and not (last.alive or last.ended_well or last.retiring or last.fresh_start)

    def alive(self) -> list[Worker]:
        """Workers that count, by seat."""
        by_seat = lambda w: (w.seat, w.name)  # noqa: E731
        return self.found("alive", lambda: sorted((w for w in self.workers.values() if w.alive), key=by_seat))

    def lost_beside(self, worker: Worker) -> list[Worker]:
        """Of the same start of its replica, where that has several workers: others that should not be gone."""
        size = self.spec.replica_size if self.spec.replica else 1
        gone = [w for w in self.gone() if not (w.ended_well or w.loop_ended)] if size > 1 else []
        return [
            w for w in gone if w.seat // size == worker.seat // size and w.start == worker.start and w is not worker
        ]

    def gone(self) -> list[Worker]:
        """Workers that do not count any more, and are not forgotten yet."""
        return self.found("gone", lambda: [w for w in self.workers.values() if not w.alive])

    def unsettled(self) -> list[Worker]:
        """Workers that count, and are on their way in or out, by seat."""
        return self.found("unsettled", lambda: [w for w in self.alive() if w.phase is not WorkerPhase.MEMBER])

    def ended_members(self) -> list[Worker]:
        """Members of the newest epoch that have come to their end."""
        return self.found("ended", lambda: [w for w in self.known_members() if w.loop_ended or w.ended_well])

    def known_members(self) -> list[Worker]:
        """Members of the newest epoch that have not been dismissed, in its order."""
        return self.found("members", lambda: [w for m in self.members if (w := self.workers.get(m)) is not None])

    def lost_members(self) -> list[Worker]:
        """Members of the newest epoch that are gone without having come to their end."""
        members = self.known_members
        return self.found("lost", lambda: [w for w in members() if not (w.alive or w.ended_well or w.loop_ended)])

    def living_members(self) -> list[Worker]:
        """Members of the newest epoch that count, in its order."""
        return self.found("living", lambda: [w for w in self.known_members() if w.alive])

    def newcomers(self) -> list[Worker]:
        """Processes that run, and are not yet ready to become members."""
        starting = (WorkerPhase.STARTED, WorkerPhase.ATTACHED)
        return self.found("newcomers", lambda: [w for w in self.unsettled() if w.phase in starting])


@dataclass(slots=True)
class Planning:
    """Which plan was asked for, and the newest one."""

    number: int = 0
    """Of the newest question."""
    situation: str = ""
    """What it was asked for: a plan for another one is out of date."""
    reason: str = ""
    plan: PlanReady | None = None
    """The newest answer."""
    answered_at: float = 0.0

    @property
    def answered(self) -> bool:
        """The newest question has its answer."""
        return self.plan is not None and self.plan.number == self.number


@dataclass(slots=True)
class ClusterState:
    """Everything."""

    term: int = 0
    term_wall: float = 0.0
    term_at: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    incidents: dict[str, Incident] = field(default_factory=dict)
    node_incidents: list[str] = field(default_factory=list)
    """Open ones of nodes that no job was hurt by."""
    incident_count: int = 0
    requests: dict[str, str] = field(default_factory=dict)
    """Answers to mutating calls, so that a repeated call is done once; newest last."""
    paused: bool = False
    observe: bool = False
    breaker: str = ""
    planning: Planning = field(default_factory=Planning)
    counters: Counters = field(default_factory=Counters)
    transfers: dict[str, list[float]] = field(default_factory=dict)
    """Bytes a second at which workers have moved state last, by source."""

    def wall(self, now: float) -> float:
        """Seconds since 1970 at core time `now`, for people."""
        return self.term_wall + now - self.term_at

    def slowest(self, nodes: Iterable[str]) -> float:
        """Speed of a job that is on these nodes."""
        return min((self.nodes[n].speed for n in nodes), default=1.0)

    def worker(self, name: str) -> Worker | None:
        """A worker that has not been dismissed yet."""
        job = self.jobs.get(name.rpartition("/")[0])
        return job.workers.get(name) if job is not None else None

    def open_incidents(self, job: Job) -> list[Incident]:
        """A job's incidents that are not closed, oldest first."""
        return [self.incidents[name] for name in job.incidents]

    def on_slot(self, node: str, slot: int) -> list[Worker]:
        """Workers of a slot that have not ended, in the order in which they came."""
        names = self.nodes[node].processes.get(slot, ())
        return [w for name in names if (w := self.worker(name)) is not None]

    def is_shared(self, node: str, slot: int) -> bool:
        """Several processes are on a slot."""
        return len(self.nodes[node].processes.get(slot, ())) > 1

    def on_node(self, node: str) -> list[Worker]:
        """Workers of a node that have not ended, sorted by name."""
        names = (name for names in self.nodes[node].processes.values() for name in names)
        return [w for name in sorted(names) if (w := self.worker(name)) is not None]

    def observes(self, job: Job) -> bool:
        """Failures of this job are detected and not acted upon."""
        return self.observe or job.observe
