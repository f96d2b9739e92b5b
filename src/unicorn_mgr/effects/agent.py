"""Events and actions of the agent's core."""

from __future__ import annotations

from dataclasses import dataclass

from unicorn_mgr.messages import (
    Attach,
    Directive,
    Errand,
    ErrandDone,
    Exited,
    Fact,
    Holder,
    Mistake,
    Raised,
    Sample,
    StartWorker,
    ToAgent,
    Welcome,
    WorkerAttached,
    WorkerDying,
    WorkerFact,
    WorkerQuiet,
    WorkerStarted,
)
from unicorn_mgr.model import Mark, Run, StatePart


@dataclass(frozen=True, slots=True)
class CutOff:
    """What an agent's next incarnation must know to go on with the same clock."""

    since: float | None = None
    """Since when no coordinator has been heard and none refused us either."""
    fence_seconds: float = 120.0
    frozen: bool = False
    """Its workers are stopped."""


# -- events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """The coordinator has welcomed this agent."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The stream to the coordinator has ended, or an attempt to open it has failed."""

    answered: bool
    """Something at the coordinator's address refused us: it is down, and we are not cut off."""


@dataclass(frozen=True, slots=True)
class CoordinatorSaid:
    """A directive of the coordinator, of a term that has been checked."""

    body: ToAgent


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    """A worker has told a fact, or attached."""

    worker: str
    body: Attach | Fact | Errand


@dataclass(frozen=True, slots=True)
class Spawned:
    """The process of an ordered worker exists."""

    worker: str
    pid: int


@dataclass(frozen=True, slots=True)
class NotSpawned:
    """The process of an ordered worker could not be made."""

    worker: str
    error: str
    mistake: Mistake | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """A worker of an earlier incarnation of this agent has been found."""

    order: StartWorker
    pid: int


@dataclass(frozen=True, slots=True)
class Dying:
    """The kernel has begun to tear a worker down."""

    worker: str
    witness: str
    last: Sample | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker's process has ended."""

    worker: str
    code: int
    raised: Raised | None
    stacks: str
    last: Sample | None
    witness: str


@dataclass(frozen=True, slots=True)
class LineLost:
    """A worker's socket has ended."""

    worker: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """The rings have been read."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class BackupOver:
    """A snapshot is no longer being copied to another node."""

    worker: str
    mark: Mark
    kept: bool
    """All of it is there."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A snapshot that a worker has wanted has come into its memory, or will not."""

    worker: str
    mark: Mark
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Recalled:
    """An earlier incarnation, whose workers have been adopted, has left word."""

    cut_off: CutOff


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A deadline of the core has come."""


AgentEvent = (
    LinkOpened
    | LinkLost
    | CoordinatorSaid
    | WorkerSaid
    | Spawned
    | NotSpawned
    | Adopted
    | Dying
    | Gone
    | LineLost
    | Sampled
    | BackupOver
    | Fetched
    | Recalled
    | TimePassed
)

# -- actions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Make the process of a worker."""

    order: StartWorker


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker's whole session."""

    worker: str
    reason: str
    gently: bool = False


@dataclass(frozen=True, slots=True)
class Sweep:
    """A worker has ended: end what it has left behind."""

    worker: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Let go of an ended worker's descriptors and exit status."""

    worker: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop all workers: the coordinator may have given their job to others."""


@dataclass(frozen=True, slots=True)
class Thaw:
    """Let the workers run on."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A drill from outside: signal a worker's main process."""

    worker: str
    fault: str
    """kill or stop."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Pass a directive to a worker."""

    worker: str
    body: Directive | ErrandDone


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the coordinator."""

    body: WorkerStarted | WorkerAttached | WorkerDying | Exited | WorkerQuiet | WorkerFact


@dataclass(frozen=True, slots=True)
class Release:
    """Give back the memory with snapshots of all other jobs than these."""

    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendBackup:
    """Copy a worker's snapshot to another node; to nobody if that has no name."""

    worker: str
    part: StatePart
    mark: Mark
    base: Mark
    """All parts of this one are on a second node, as far as is known."""
    to: Holder


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring a snapshot from one of these nodes into a worker's own memory."""

    worker: str
    part: StatePart
    mark: Mark
    buffer: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Lot:
    """Pieces of one snapshot of a part, and who may have it."""

    part: StatePart
    fingerprint: int
    """Of the snapshot; 0: any."""
    runs: tuple[Run, ...]
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """Bring pieces of several parts into a worker's own memory, one behind the other."""

    worker: str
    mark: Mark
    buffer: int
    at: int
    lots: tuple[Lot, ...]


@dataclass(frozen=True, slots=True)
class DropCopies:
    """Copies of this part are kept elsewhere now."""

    part: StatePart


@dataclass(frozen=True, slots=True)
class DisownCopies:
    """There may be no copies of this worker's snapshots."""

    job_id: str
    worker: str


AgentAction = (
    Spawn
    | Kill
    | Sweep
    | Forget
    | Freeze
    | Thaw
    | Strike
    | Tell
    | Report
    | Release
    | SendBackup
    | Fetch
    | Gather
    | DropCopies
    | DisownCopies
)
