"""Between a training process and the agent of its node: `proto/unicorn/v1/worker.proto`."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.messages.common import (
    CheckpointFailed,
    CheckpointHanded,
    CheckpointPublished,
    CheckpointWritten,
    ChecksumsDiffer,
    FreshStart,
    Leaving,
    LoopEnded,
    Mistake,
    Published,
    Raised,
    Ready,
    Resumed,
    SnapshotsStopped,
    Suspended,
    Symptom,
    Unreachable,
)
from unicorn_mgr.model import PROTOCOL, Drill, Epoch, Lineage, Mark, Run


@dataclass(frozen=True, slots=True)
class Attach:
    protocol: int = PROTOCOL
    worker: str = ""
    token: str = ""
    pid: int = 0


LastingFact = (
    Ready
    | Unreachable
    | Symptom
    | Resumed
    | LoopEnded
    | Leaving
    | Raised
    | Mistake
    | FreshStart
    | CheckpointHanded
    | CheckpointWritten
    | CheckpointFailed
    | CheckpointPublished
    | ChecksumsDiffer
    | Suspended
    | SnapshotsStopped
)
"""What a worker tells of itself and the journal keeps."""

Fact = LastingFact | Published
"""What a worker tells of itself; the agent passes it on unread."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    mark: Mark = field(default_factory=Mark)
    base: Mark = field(default_factory=Mark)


@dataclass(frozen=True, slots=True)
class PieceWanted:
    shape: str = ""
    position: int = 0
    fingerprint: int = 0
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotWanted:
    mark: Mark = field(default_factory=Mark)
    buffer: int = 0
    pieces: tuple[PieceWanted, ...] = ()
    at: int = 0


Errand = SnapshotTaken | SnapshotWanted
"""What a worker asks of its agent; nobody else hears of it."""


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    body: Attach | Fact | Errand


@dataclass(frozen=True, slots=True)
class Axis:
    name: str = ""
    size: int = 1


@dataclass(frozen=True, slots=True)
class FormerSnapshot:
    shape: str = ""
    position: int = 0
    mark: Mark = field(default_factory=Mark)
    committed: bool = False
    head_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Attached:
    job: str = ""
    address: str = ""
    job_running: bool = False
    job_step: int = 0
    checkpoint_url: str = ""
    checkpoint_every_steps: int = 0
    checkpoint_keep: int = 3
    size_max: int = 1
    skip_poison: bool = False
    drills: tuple[Drill, ...] = ()
    refused: str = ""
    exact: bool = True
    job_id: str = ""
    checkpoint_step: int = -1
    replica: tuple[Axis, ...] = ()
    snapshot_budget: float = 0.0
    snapshot_bytes: int = 0
    checkpoint_lineage: Lineage = field(default_factory=Lineage)
    elsewhere: tuple[Mark, ...] = ()
    elsewhere_committed: tuple[Mark, ...] = ()
    former: tuple[FormerSnapshot, ...] = ()
    reshapes: bool = False


@dataclass(frozen=True, slots=True)
class Poison:
    step: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Granted:
    epoch: Epoch = field(default_factory=Epoch)
    members: tuple[str, ...] = ()
    poison: tuple[Poison, ...] = ()
    secret: str = ""
    suspends: bool = False
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Formed:
    epoch: Epoch = field(default_factory=Epoch)
    members: tuple[Published, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    step: int = 0
    lineage: Lineage = field(default_factory=Lineage)


@dataclass(frozen=True, slots=True)
class Retire:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str = ""
    save: bool = False


Directive = Granted | Formed | CheckpointComplete | Retire | GiveUp | Drill | Attached
"""What a worker is told; the agent passes it on unread."""


@dataclass(frozen=True, slots=True)
class BackupEnded:
    mark: Mark = field(default_factory=Mark)
    kept: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotFetched:
    mark: Mark = field(default_factory=Mark)
    failed: str = ""


ErrandDone = BackupEnded | SnapshotFetched
"""What the agent itself tells a worker that has asked it for something."""


@dataclass(frozen=True, slots=True)
class ToWorker:
    body: Directive | ErrandDone
