"""Between people's tools and the coordinator: `proto/unicorn/v1/client.proto`."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.model import Drill, Epoch, JobSpec


@dataclass(frozen=True, slots=True)
class SubmitJob:
    request_id: str = ""
    spec: JobSpec = field(default_factory=JobSpec)
    snapshot: bytes = b""


@dataclass(frozen=True, slots=True)
class Submitted:
    job: str = ""


@dataclass(frozen=True, slots=True)
class CancelJob:
    job: str = ""


@dataclass(frozen=True, slots=True)
class DrainNode:
    node: str = ""


@dataclass(frozen=True, slots=True)
class UndrainNode:
    node: str = ""


@dataclass(frozen=True, slots=True)
class DegradeNode:
    node: str = ""
    speed: str = ""
    slots: str = ""


@dataclass(frozen=True, slots=True)
class SetPaused:
    paused: bool = False


@dataclass(frozen=True, slots=True)
class SetObserve:
    job: str = ""
    observe: bool = False


@dataclass(frozen=True, slots=True)
class Inject:
    job: str = ""
    seat: int = 0
    drill: Drill = field(default_factory=Drill)


@dataclass(frozen=True, slots=True)
class SetWishes:
    job: str = ""
    wishes: dict[str, str] = field(default_factory=dict)


Command = CancelJob | DrainNode | UndrainNode | DegradeNode | SetPaused | SetObserve | Inject | SetWishes


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    request_id: str
    body: Command


@dataclass(frozen=True, slots=True)
class CommandDone:
    text: str = ""


@dataclass(frozen=True, slots=True)
class LookRequest:
    pass


@dataclass(frozen=True, slots=True)
class NodeView:
    node: str = ""
    state: str = ""
    address: str = ""
    slots: int = 0
    slots_used: int = 0
    silent_seconds: float = 0.0
    reason: str = ""
    workers: tuple[str, ...] = ()
    quarantine_seconds: float = 0.0
    domain: str = ""
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class WorkerView:
    worker: str = ""
    node: str = ""
    slot: int = 0
    state: str = ""
    pid: int = 0
    step: int = -1
    phase: str = ""
    member: bool = False


@dataclass(frozen=True, slots=True)
class SkippedMicroBatch:
    step: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class PartView:
    worker: str = ""
    node: str = ""
    step: int = 0
    state: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class JobView:
    job: str = ""
    state: str = ""
    size: int = 0
    size_wanted: int = 0
    size_min: int = 0
    size_max: int = 0
    step: int = -1
    epoch: Epoch = field(default_factory=Epoch)
    weight: float = 1.0
    restarts: int = 0
    ettr: float = 1.0
    reason: str = ""
    exit_code: int = 0
    observe: bool = False
    checkpoint_step: int = -1
    checkpoint_url: str = ""
    workers: tuple[WorkerView, ...] = ()
    step_seconds: float = 0.0
    incidents: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    command: str = ""
    skipped: tuple[SkippedMicroBatch, ...] = ()
    replica: dict[str, int] = field(default_factory=dict)
    backed_up_step: int = -1
    backup_note: str = ""
    standstill_seconds: dict[str, float] = field(default_factory=dict)
    checkpoint_at: float = 0.0
    checkpoint_error: str = ""
    parts: tuple[PartView, ...] = ()


@dataclass(frozen=True, slots=True)
class StateSource:
    position: int = 0
    source: str = ""
    workers: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class IncidentView:
    id: str = ""
    job: str = ""
    node: str = ""
    worker: str = ""
    cause: str = ""
    severity: str = ""
    detected_by: str = ""
    evidence: str = ""
    opened_at: float = 0.0
    closed_at: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    epoch_before: str = ""
    epoch_after: str = ""
    steps_lost: int = 0
    micro_batches_recomputed: int = 0
    story: tuple[str, ...] = ()
    state: str = ""
    would_have: bool = False
    source: str = ""
    sources: tuple[StateSource, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanView:
    number: int = 0
    asked_because: str = ""
    answered: bool = False
    value: float = 0.0
    bound: float = 0.0
    proven: bool = False
    solver: str = ""
    rung: str = ""
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster: str = ""
    term: int = 0
    paused: bool = False
    observe: bool = False
    nodes: tuple[NodeView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    incidents: tuple[IncidentView, ...] = ()
    version: str = ""
    alarm: str = ""
    metrics_address: str = ""
    drills: bool = False
    settings: dict[str, float] = field(default_factory=dict)
    plan: PlanView | None = None


@dataclass(frozen=True, slots=True)
class WhatIfRequest:
    changes: tuple[str, ...] = ()
    job: JobSpec | None = None


@dataclass(frozen=True, slots=True)
class PlannedJob:
    job: str = ""
    size_before: int = 0
    size_after: int = 0
    flops_before: float = 0.0
    flops_after: float = 0.0
    standstill_seconds: float = 0.0
    reason: str = ""
    rated: bool = False
    replica_after: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    jobs: tuple[PlannedJob, ...] = ()
    plan: PlanView | None = None


@dataclass(frozen=True, slots=True)
class IncidentRequest:
    id: str = ""


@dataclass(frozen=True, slots=True)
class EventLine:
    number: int = 0
    at: float = 0.0
    kind: str = ""
    text: str = ""
    json: str = ""


@dataclass(frozen=True, slots=True)
class IncidentStory:
    incident: IncidentView = field(default_factory=IncidentView)
    events: tuple[EventLine, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowJobRequest:
    job: str = ""
    logs: bool = False
    from_start: bool = False
    until_now: bool = False


@dataclass(frozen=True, slots=True)
class JobUpdate:
    job: JobView | None = None
    worker: str = ""
    output: bytes = b""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class FollowEventsRequest:
    after: int = 0
    follow: bool = False
    job: str = ""
    node: str = ""
