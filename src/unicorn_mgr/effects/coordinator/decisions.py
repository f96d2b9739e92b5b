"""Decisions: made by the coordinator's core, and facts from then on.

They are journaled together with the fact that caused them, before any action leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

from unicorn_mgr.model import Epoch, Lineage


@dataclass(frozen=True, slots=True)
class PlanWanted:
    """Slots or wishes are not those that the newest plan was made for: ask for one that is."""

    number: int
    situation: str
    reason: str


@dataclass(frozen=True, slots=True)
class PaceChanged:
    """A job's steps take surely longer or shorter at a size than plans count on."""

    job: str
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DeadlineReckoned:
    """The fewest slots on which a job keeps its deadline; 0: it can't be kept, or nobody can tell."""

    job: str
    slots: int
    prospect: str


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
    yields: bool = False
    """Nothing is wrong with it: its slot is another's now."""


@dataclass(frozen=True, slots=True)
class WorkerDismissed:
    """An ended process has been accounted for and is forgotten."""

    worker: str
    node: str


@dataclass(frozen=True, slots=True)
class WorkerOverstayed:
    """A worker that does not count any more has not ended by itself: it is ended."""

    worker: str
    reason: str


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
    suspends: bool = False
    """Its members finish the open step, store the state, and stand still."""


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
class NodeQuarantined:
    """A node that was lost too often is not used for a while; what runs there goes on."""

    node: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class NodeTrusted:
    """A quarantine is over: the node may be used again."""

    node: str


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
class SuspensionOrdered:
    """A running job is to have no slots: it stores its state, and gives them up when that is in storage."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class SuspensionWithdrawn:
    """The state of a job can't be stored: it keeps its slots and goes on."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobSuspended:
    """The state after this step is in storage, and nothing newer is anywhere: the processes may end."""

    job: str
    step: int


@dataclass(frozen=True, slots=True)
class ShapeChanged:
    """A job that waits splits its model otherwise from now on: so there may be room for it."""

    job: str
    axes: dict[str, int]
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """All parts of a checkpoint are in storage: it may be published."""

    job: str
    step: int
    lineage: Lineage
    url: str
    writers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartGivenUp:
    """What a worker has left of a checkpoint is not waited for any longer, and may be lost."""

    job: str
    worker: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class BackupsPlaced:
    """Which workers have their snapshots copied, and which nodes keep the copies."""

    job: str
    epoch: Epoch
    """The membership that they are placed for."""
    sources: dict[int, str]
    """By position, the worker whose snapshots are copied."""
    peers: dict[int, tuple[str, int]]
    """By position, the node that keeps its copy, and the port there; none for those of which no other node can."""
    released: tuple[str, ...]
    """Workers whose snapshots are not copied any more."""
    keepers: int
    """Nodes that there were to choose from."""
    reason: str
    """Why it is not as safe as it could be; empty: it is."""


@dataclass(frozen=True, slots=True)
class CopiesReleased:
    """All parts have newer copies elsewhere: those that are left from before are obsolete."""

    job: str
    copies: tuple[tuple[str, int, str], ...]
    """(shape of the replica, position, node)"""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """No process of a job is left."""

    job: str
    exit_code: int
    reason: str


Decision = (
    PlanWanted
    | PaceChanged
    | DeadlineReckoned
    | SlotsAssigned
    | WorkerOrdered
    | WorkerCondemned
    | WorkerDismissed
    | WorkerOverstayed
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
    | NodeQuarantined
    | NodeTrusted
    | NodeEmptied
    | BreakerTripped
    | BreakerReset
    | SeatBarred
    | PoisonFound
    | JobGivenUp
    | SuspensionOrdered
    | SuspensionWithdrawn
    | JobSuspended
    | ShapeChanged
    | CheckpointCommitted
    | PartGivenUp
    | BackupsPlaced
    | CopiesReleased
    | JobEnded
)
