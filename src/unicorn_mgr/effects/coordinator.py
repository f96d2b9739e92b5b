"""Events and actions of the coordinator's core.

Facts come from outside.  Decisions are made by the core and are facts from then on: they
are journaled together with the fact that caused them, before any action leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.messages import (
    CheckpointFailed,
    CheckpointPublished,
    CheckpointWritten,
    ChecksumsDiffer,
    EventLine,
    Exited,
    FreshStart,
    Leaving,
    LoopEnded,
    Mistake,
    Raised,
    Ready,
    Resumed,
    Sample,
    Symptom,
    ToAgent,
    Unreachable,
)
from unicorn_mgr.model import Drill, Epoch, JobSpec, Lineage, Slot

# -- facts: the coordinator itself ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TermStarted:
    """A coordinator process has begun.  `wall` is seconds since 1970, for people."""

    term: int
    wall: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A deadline has come.  Not journaled: what follows from it is."""


# -- facts: nodes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeAttached:
    """An agent has said hello; its workers' facts follow as events of their own."""

    node: str
    incarnation: str
    slots: tuple[Slot, ...]
    address: str
    workers: tuple[str, ...]
    """Those the agent knows, ended ones too."""
    epochs: dict[str, Epoch] = field(default_factory=dict)
    """Per worker, the newest epoch that has been handed to it."""
    drills: bool = False


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """A node's lease has expired."""

    node: str
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class NodeHeard:
    """A silent node has been heard again, on the same stream."""

    node: str


@dataclass(frozen=True, slots=True)
class JobHalted:
    """Every member that is heard waits for those on silent nodes, for longer than a step can take."""

    job: str
    halted_seconds: float


# -- facts: workers -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The process exists."""

    worker: str
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerAttached:
    """The script has called attach()."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerDying:
    """The process will never run again."""

    worker: str
    witness: str
    last: Sample | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The process has ended."""

    exited: Exited


@dataclass(frozen=True, slots=True)
class WorkerQuiet:
    """A worker makes no progress."""

    sample: Sample
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class WorkerTold:
    """A worker has told something of itself."""

    worker: str
    fact: (
        Ready
        | Symptom
        | Unreachable
        | Resumed
        | LoopEnded
        | Leaving
        | Raised
        | Mistake
        | FreshStart
        | CheckpointWritten
        | CheckpointFailed
        | CheckpointPublished
        | ChecksumsDiffer
    )


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """Every member of an epoch has published."""

    job: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """Where a job is: told every ten seconds and when it matters."""

    job: str
    committed: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class ReadingTaken:
    """All samples of a reading that was asked for."""

    job: str
    number: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class EvidenceTaken:
    """Stacks of a worker under suspicion."""

    worker: str
    stacks: str
    tool: str


# -- facts: what people want ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A researcher has submitted a job, and it was accepted."""

    request_id: str
    job: str
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """Somebody wants a job to end."""

    request_id: str
    job: str


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """An operator wants a node to be emptied."""

    request_id: str
    node: str


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    """An operator gives a drained or isolated node back."""

    request_id: str
    node: str


@dataclass(frozen=True, slots=True)
class PauseSet:
    """An operator has stopped or allowed all actions."""

    request_id: str
    paused: bool


@dataclass(frozen=True, slots=True)
class ObserveSet:
    """An operator has switched observe mode, for a job or (empty) for all."""

    request_id: str
    job: str
    observe: bool


@dataclass(frozen=True, slots=True)
class DrillOrdered:
    """Somebody injects a fault."""

    request_id: str
    job: str
    worker: str
    drill: Drill


# -- decisions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotsAssigned:
    """A plan, applied to one job: seat -> (node, slot)."""

    job: str
    seats: dict[int, tuple[str, int]]
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerOrdered:
    """A process is to be started."""

    worker: str
    node: str
    slot: int
    rank: int
    world_size: int
    restarts: int
    local_slots: tuple[int, ...]
    job_running: bool
    job_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerCondemned:
    """A process is to be ended; from now on it does not count."""

    worker: str
    reason: str
    gently: bool = False


@dataclass(frozen=True, slots=True)
class WorkerDismissed:
    """An ended process has been accounted for and is forgotten."""

    worker: str
    node: str


@dataclass(frozen=True, slots=True)
class RetirementOrdered:
    """A worker is to leave after its next step."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class EpochGranted:
    """A membership."""

    job: str
    epoch: Epoch
    members: tuple[str, ...]
    reason: str
    regrouped_for: str = ""
    """The incident that this membership, the same as before, is the reattempt for."""


@dataclass(frozen=True, slots=True)
class TransitionEnded:
    """All members of the newest epoch have finished a step in it, or reached the end."""

    job: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LifeEnded:
    """No member of a job is left: it begins anew from storage, or from the start."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class InquiryOpened:
    """Somebody makes no progress: read all members' rings, twice."""

    job: str
    number: int


@dataclass(frozen=True, slots=True)
class InquiryClosed:
    """What the readings say."""

    job: str
    number: int
    verdict: str
    culprit: str = ""


@dataclass(frozen=True, slots=True)
class IncidentOpened:
    """A failure has shown its first sign."""

    incident: str
    job: str
    node: str
    worker: str
    cause: str
    severity: str
    detected_by: str
    evidence: str
    occurred_before_seconds: float = 0.0
    """How long before this moment the failure itself happened, as far as is known."""
    would_have: bool = False


@dataclass(frozen=True, slots=True)
class IncidentRefined:
    """More is known of a failure's cause."""

    incident: str
    cause: str
    severity: str
    detected_by: str
    evidence: str


@dataclass(frozen=True, slots=True)
class IncidentExplained:
    """What looked like a failed link has a cause: a worker or a node that is gone."""

    incident: str
    node: str
    worker: str
    cause: str
    severity: str
    detected_by: str
    evidence: str


@dataclass(frozen=True, slots=True)
class IncidentEscalated:
    """The first answer to a failure did not help."""

    incident: str
    severity: str
    reason: str
    node: str = ""
    """The node that turned out to be the culprit, if it did."""


@dataclass(frozen=True, slots=True)
class IncidentNoted:
    """One more line of an incident's story."""

    incident: str
    text: str


@dataclass(frozen=True, slots=True)
class IncidentClosed:
    """Full speed again, or as full as it can be."""

    incident: str
    how: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A silent node is given up; its workers don't count any more."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeIsolated:
    """A node is not to be used until somebody gives it back."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeEmptied:
    """The last worker has left a node that is drained: it may be powered off."""

    node: str


@dataclass(frozen=True, slots=True)
class BreakerTripped:
    """Too many nodes are silent at once: the coordinator suspects itself and judges nobody."""

    silent: int
    nodes: int


@dataclass(frozen=True, slots=True)
class BreakerReset:
    """Enough nodes are heard again."""


@dataclass(frozen=True, slots=True)
class SeatBarred:
    """A seat is not filled again: its worker can never join."""

    job: str
    seat: int
    reason: str


@dataclass(frozen=True, slots=True)
class PoisonFound:
    """A micro-batch has killed too many workers."""

    job: str
    step: int
    number: int
    skip: bool


@dataclass(frozen=True, slots=True)
class JobGivenUp:
    """A job can't go on: survivors save what they have and end."""

    job: str
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """All shards of a checkpoint are in storage: it may be published."""

    job: str
    step: int
    lineage: Lineage
    url: str
    worker: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """No process of a job is left."""

    job: str
    exit_code: int
    reason: str


Fact = (
    TermStarted
    | TimePassed
    | NodeAttached
    | NodeSilent
    | NodeHeard
    | JobHalted
    | WorkerStarted
    | WorkerAttached
    | WorkerDying
    | WorkerExited
    | WorkerQuiet
    | WorkerTold
    | GroupFormed
    | JobProgressed
    | ReadingTaken
    | EvidenceTaken
    | JobSubmitted
    | JobCancelled
    | NodeDrained
    | NodeUndrained
    | PauseSet
    | ObserveSet
    | DrillOrdered
)

Decision = (
    SlotsAssigned
    | WorkerOrdered
    | WorkerCondemned
    | WorkerDismissed
    | RetirementOrdered
    | EpochGranted
    | TransitionEnded
    | LifeEnded
    | InquiryOpened
    | InquiryClosed
    | IncidentOpened
    | IncidentRefined
    | IncidentExplained
    | IncidentEscalated
    | IncidentNoted
    | IncidentClosed
    | NodeLost
    | NodeIsolated
    | NodeEmptied
    | BreakerTripped
    | BreakerReset
    | SeatBarred
    | PoisonFound
    | JobGivenUp
    | CheckpointCommitted
    | JobEnded
)

Event = Fact | Decision

# -- actions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendToAgent:
    """Say something to the agent of a node, if it is attached; if not it is said when it is."""

    node: str
    body: ToAgent


@dataclass(frozen=True, slots=True)
class TakeReadings:
    """Read the rings of these workers now, and again later; give the core `ReadingTaken` each time."""

    job: str
    number: int
    workers: dict[str, tuple[str, ...]]
    """Per node."""


@dataclass(frozen=True, slots=True)
class TakeEvidence:
    """Ask for a worker's stacks, and give the core `EvidenceTaken`."""

    node: str
    worker: str


@dataclass(frozen=True, slots=True)
class OpenRendezvous:
    """A new epoch: collect what its members publish."""

    job: str
    epoch: Epoch
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnnounceEvent:
    """Something happened that people follow."""

    line: EventLine


Action = SendToAgent | TakeReadings | TakeEvidence | OpenRendezvous | AnnounceEvent
