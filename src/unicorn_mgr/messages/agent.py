"""Between the agent of a node and the coordinator: `proto/unicorn/v1/agent.proto`."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.messages.common import (
    CheckpointFailed,
    CheckpointHanded,
    CheckpointPublished,
    CheckpointWritten,
    FreshStart,
    Leaving,
    LoopEnded,
    Mistake,
    Published,
    Raised,
    Ready,
    Resumed,
    Sample,
    Suspended,
    Symptom,
    Unreachable,
)
from unicorn_mgr.messages.worker import Attached, Directive, Fact
from unicorn_mgr.model import PROTOCOL, Drill, Epoch, Slot


@dataclass(frozen=True, slots=True)
class Exited:
    worker: str = ""
    code: int = 0
    raised: Raised | None = None
    stacks: str = ""
    last: Sample | None = None
    witness: str = ""


@dataclass(frozen=True, slots=True)
class WorkerTruth:
    worker: str = ""
    pid: int = 0
    attached: bool = False
    ready: Ready | None = None
    epoch: Epoch | None = None
    published: Published | None = None
    resumed: Resumed | None = None
    loop_ended: LoopEnded | None = None
    exited: Exited | None = None
    leaving: Leaving | None = None
    mistake: Mistake | None = None
    fresh_start: FreshStart | None = None
    slot: int = 0
    dying: bool = False
    symptom: Symptom | None = None
    unreachable: Unreachable | None = None
    written: CheckpointWritten | None = None
    suspended: Suspended | None = None
    handed: CheckpointHanded | None = None
    checkpoint_published: CheckpointPublished | None = None
    checkpoint_failed: CheckpointFailed | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    protocol: int = PROTOCOL
    node: str = ""
    incarnation: str = ""
    cluster: str = ""
    term: int = 0
    slots: tuple[Slot, ...] = ()
    address: str = ""
    workers: tuple[WorkerTruth, ...] = ()
    version: str = ""
    drills: bool = False
    domain: str = ""
    copies_port: int = 0
    copies: int = 0


@dataclass(frozen=True, slots=True)
class JobLog:
    worker: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    number: int = 0
    samples: tuple[Sample, ...] = ()
    logs: tuple[JobLog, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    worker: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class WorkerAttached:
    worker: str = ""


@dataclass(frozen=True, slots=True)
class WorkerDying:
    worker: str = ""
    witness: str = ""
    last: Sample | None = None


@dataclass(frozen=True, slots=True)
class WorkerQuiet:
    sample: Sample = field(default_factory=Sample)
    limit_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerFact:
    worker: str
    body: Fact


@dataclass(frozen=True, slots=True)
class Reading:
    request: str = ""
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    worker: str = ""
    request: str = ""
    stacks: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True)
class LogChunk:
    watch: str = ""
    worker: str = ""
    data: bytes = b""
    offset: int = 0
    end: bool = False


@dataclass(frozen=True, slots=True)
class StoreCall:
    id: int = 0
    worker: str = ""
    operation: str = ""
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    amount: int = 0
    hung_up: bool = False


@dataclass(frozen=True, slots=True)
class AgentMessage:
    body: (
        Hello
        | Beat
        | WorkerStarted
        | WorkerAttached
        | WorkerDying
        | Exited
        | WorkerQuiet
        | WorkerFact
        | Reading
        | Evidence
        | LogChunk
        | StoreCall
    )


@dataclass(frozen=True, slots=True)
class Welcome:
    cluster: str = ""
    term: int = 0
    beat_seconds: float = 1.0
    lease_seconds: float = 2.5
    fence_seconds: float = 120.0
    copies_key: str = ""
    backup_bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    node: str = ""
    address: str = ""
    port: int = 0
    token: str = ""


@dataclass(frozen=True, slots=True)
class FormerPart:
    shape: str = ""
    position: int = 0
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class StartWorker:
    worker: str = ""
    job: str = ""
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    snapshot: str = ""
    slot: int = 0
    local_slots: tuple[int, ...] = ()
    rank: int = 0
    world_size: int = 1
    restarts: int = 0
    stall_seconds: float = 10.0
    user_seconds: float = 600.0
    stall_factor: float = 3.0
    drills: tuple[Drill, ...] = ()
    log_bytes_max: int = 0
    welcome: Attached = field(default_factory=Attached)
    holders: tuple[Holder, ...] = ()
    former: tuple[FormerPart, ...] = ()


@dataclass(frozen=True, slots=True)
class StopWorker:
    worker: str = ""
    reason: str = ""
    gently: bool = False


@dataclass(frozen=True, slots=True)
class ForgetWorker:
    worker: str = ""


@dataclass(frozen=True, slots=True)
class WorkerDirective:
    worker: str
    body: Directive


@dataclass(frozen=True, slots=True)
class ReadNow:
    request: str = ""
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectEvidence:
    request: str = ""
    worker: str = ""


@dataclass(frozen=True, slots=True)
class WatchLogs:
    watch: str = ""
    job: str = ""
    from_start: bool = False
    stop: bool = False
    until_now: bool = False
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class NodeDrill:
    worker: str = ""
    step: int = -1


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    id: int = 0
    worker: str = ""
    values: tuple[bytes, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class Synced:
    pass


@dataclass(frozen=True, slots=True)
class LiveJobs:
    job_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackUp:
    worker: str = ""
    to: Holder = field(default_factory=Holder)
    alone: bool = False


@dataclass(frozen=True, slots=True)
class ForgetCopies:
    job_id: str = ""
    position: int = 0
    shape: str = ""
    worker: str = ""


ToAgent = (
    Welcome
    | Refused
    | StartWorker
    | StopWorker
    | ForgetWorker
    | WorkerDirective
    | ReadNow
    | CollectEvidence
    | WatchLogs
    | NodeDrill
    | StoreAnswer
    | Synced
    | LiveJobs
    | BackUp
    | ForgetCopies
)


@dataclass(frozen=True, slots=True)
class CoordinatorMessage:
    term: int
    body: ToAgent


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    digest: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    data: bytes = b""
