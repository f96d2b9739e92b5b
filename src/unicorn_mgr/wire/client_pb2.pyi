from unicorn_mgr.wire import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobSpec(_message.Message):
    __slots__ = ("name", "command", "environment", "directory", "snapshot", "size_min", "size_max", "weight", "checkpoint_url", "checkpoint_every_steps", "checkpoint_keep", "observe", "skip_poison", "inexact", "stall_seconds", "stall_factor", "user_seconds", "restarts_max", "poison_deaths", "drills", "priority", "replica_size", "replica_within", "domains", "sizes", "throughput", "throughput_min", "model", "deadline", "steps", "replica", "snapshot_budget", "shapes")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ThroughputEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    class ReplicaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SIZE_MIN_FIELD_NUMBER: _ClassVar[int]
    SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_KEEP_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_FIELD_NUMBER: _ClassVar[int]
    SKIP_POISON_FIELD_NUMBER: _ClassVar[int]
    INEXACT_FIELD_NUMBER: _ClassVar[int]
    STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALL_FACTOR_FIELD_NUMBER: _ClassVar[int]
    USER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_MAX_FIELD_NUMBER: _ClassVar[int]
    POISON_DEATHS_FIELD_NUMBER: _ClassVar[int]
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SIZE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_WITHIN_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_MIN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BUDGET_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    name: str
    command: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    directory: str
    snapshot: str
    size_min: int
    size_max: int
    weight: float
    checkpoint_url: str
    checkpoint_every_steps: int
    checkpoint_keep: int
    observe: bool
    skip_poison: bool
    inexact: bool
    stall_seconds: float
    stall_factor: float
    user_seconds: float
    restarts_max: int
    poison_deaths: int
    drills: _containers.RepeatedCompositeFieldContainer[JobDrill]
    priority: int
    replica_size: int
    replica_within: str
    domains: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    throughput: _containers.ScalarMap[int, float]
    throughput_min: float
    model: ModelDescription
    deadline: float
    steps: int
    replica: _containers.ScalarMap[str, int]
    snapshot_budget: float
    shapes: _containers.RepeatedCompositeFieldContainer[ReplicaShape]
    def __init__(self, name: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., directory: _Optional[str] = ..., snapshot: _Optional[str] = ..., size_min: _Optional[int] = ..., size_max: _Optional[int] = ..., weight: _Optional[float] = ..., checkpoint_url: _Optional[str] = ..., checkpoint_every_steps: _Optional[int] = ..., checkpoint_keep: _Optional[int] = ..., observe: bool = ..., skip_poison: bool = ..., inexact: bool = ..., stall_seconds: _Optional[float] = ..., stall_factor: _Optional[float] = ..., user_seconds: _Optional[float] = ..., restarts_max: _Optional[int] = ..., poison_deaths: _Optional[int] = ..., drills: _Optional[_Iterable[_Union[JobDrill, _Mapping]]] = ..., priority: _Optional[int] = ..., replica_size: _Optional[int] = ..., replica_within: _Optional[str] = ..., domains: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., throughput: _Optional[_Mapping[int, float]] = ..., throughput_min: _Optional[float] = ..., model: _Optional[_Union[ModelDescription, _Mapping]] = ..., deadline: _Optional[float] = ..., steps: _Optional[int] = ..., replica: _Optional[_Mapping[str, int]] = ..., snapshot_budget: _Optional[float] = ..., shapes: _Optional[_Iterable[_Union[ReplicaShape, _Mapping]]] = ...) -> None: ...

class ReplicaShape(_message.Message):
    __slots__ = ("axes",)
    class AxesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    AXES_FIELD_NUMBER: _ClassVar[int]
    axes: _containers.ScalarMap[str, int]
    def __init__(self, axes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ModelDescription(_message.Message):
    __slots__ = ("parameters", "sequence_length", "global_batch", "micro_batch", "device", "precision", "tensor_parallel", "pipeline_parallel", "context_parallel", "layers", "hidden", "active_parameters")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: float
    sequence_length: int
    global_batch: int
    micro_batch: int
    device: str
    precision: str
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    layers: int
    hidden: int
    active_parameters: float
    def __init__(self, parameters: _Optional[float] = ..., sequence_length: _Optional[int] = ..., global_batch: _Optional[int] = ..., micro_batch: _Optional[int] = ..., device: _Optional[str] = ..., precision: _Optional[str] = ..., tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., context_parallel: _Optional[int] = ..., layers: _Optional[int] = ..., hidden: _Optional[int] = ..., active_parameters: _Optional[float] = ...) -> None: ...

class JobDrill(_message.Message):
    __slots__ = ("seat", "incarnation", "drill")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DRILL_FIELD_NUMBER: _ClassVar[int]
    seat: int
    incarnation: int
    drill: _common_pb2.Drill
    def __init__(self, seat: _Optional[int] = ..., incarnation: _Optional[int] = ..., drill: _Optional[_Union[_common_pb2.Drill, _Mapping]] = ...) -> None: ...

class SubmitJob(_message.Message):
    __slots__ = ("request_id", "spec", "snapshot")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    spec: JobSpec
    snapshot: bytes
    def __init__(self, request_id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., snapshot: _Optional[bytes] = ...) -> None: ...

class Submitted(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class CancelJob(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class DrainNode(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class UndrainNode(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class DegradeNode(_message.Message):
    __slots__ = ("node", "speed", "slots")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    node: str
    speed: str
    slots: str
    def __init__(self, node: _Optional[str] = ..., speed: _Optional[str] = ..., slots: _Optional[str] = ...) -> None: ...

class SetPaused(_message.Message):
    __slots__ = ("paused",)
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    def __init__(self, paused: bool = ...) -> None: ...

class SetObserve(_message.Message):
    __slots__ = ("job", "observe")
    JOB_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_FIELD_NUMBER: _ClassVar[int]
    job: str
    observe: bool
    def __init__(self, job: _Optional[str] = ..., observe: bool = ...) -> None: ...

class Inject(_message.Message):
    __slots__ = ("job", "seat", "drill")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    DRILL_FIELD_NUMBER: _ClassVar[int]
    job: str
    seat: int
    drill: _common_pb2.Drill
    def __init__(self, job: _Optional[str] = ..., seat: _Optional[int] = ..., drill: _Optional[_Union[_common_pb2.Drill, _Mapping]] = ...) -> None: ...

class SetWishes(_message.Message):
    __slots__ = ("job", "wishes")
    class WishesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    WISHES_FIELD_NUMBER: _ClassVar[int]
    job: str
    wishes: _containers.ScalarMap[str, str]
    def __init__(self, job: _Optional[str] = ..., wishes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class OperatorCommand(_message.Message):
    __slots__ = ("request_id", "cancel_job", "drain_node", "undrain_node", "set_paused", "set_observe", "inject", "set_wishes", "degrade_node")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CANCEL_JOB_FIELD_NUMBER: _ClassVar[int]
    DRAIN_NODE_FIELD_NUMBER: _ClassVar[int]
    UNDRAIN_NODE_FIELD_NUMBER: _ClassVar[int]
    SET_PAUSED_FIELD_NUMBER: _ClassVar[int]
    SET_OBSERVE_FIELD_NUMBER: _ClassVar[int]
    INJECT_FIELD_NUMBER: _ClassVar[int]
    SET_WISHES_FIELD_NUMBER: _ClassVar[int]
    DEGRADE_NODE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    cancel_job: CancelJob
    drain_node: DrainNode
    undrain_node: UndrainNode
    set_paused: SetPaused
    set_observe: SetObserve
    inject: Inject
    set_wishes: SetWishes
    degrade_node: DegradeNode
    def __init__(self, request_id: _Optional[str] = ..., cancel_job: _Optional[_Union[CancelJob, _Mapping]] = ..., drain_node: _Optional[_Union[DrainNode, _Mapping]] = ..., undrain_node: _Optional[_Union[UndrainNode, _Mapping]] = ..., set_paused: _Optional[_Union[SetPaused, _Mapping]] = ..., set_observe: _Optional[_Union[SetObserve, _Mapping]] = ..., inject: _Optional[_Union[Inject, _Mapping]] = ..., set_wishes: _Optional[_Union[SetWishes, _Mapping]] = ..., degrade_node: _Optional[_Union[DegradeNode, _Mapping]] = ...) -> None: ...

class CommandDone(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class LookRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeView(_message.Message):
    __slots__ = ("node", "state", "address", "slots", "slots_used", "silent_seconds", "reason", "workers", "quarantine_seconds", "domain", "speed")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    node: str
    state: str
    address: str
    slots: int
    slots_used: int
    silent_seconds: float
    reason: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    quarantine_seconds: float
    domain: str
    speed: float
    def __init__(self, node: _Optional[str] = ..., state: _Optional[str] = ..., address: _Optional[str] = ..., slots: _Optional[int] = ..., slots_used: _Optional[int] = ..., silent_seconds: _Optional[float] = ..., reason: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ..., quarantine_seconds: _Optional[float] = ..., domain: _Optional[str] = ..., speed: _Optional[float] = ...) -> None: ...

class WorkerView(_message.Message):
    __slots__ = ("worker", "node", "slot", "state", "pid", "step", "phase", "member")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    node: str
    slot: int
    state: str
    pid: int
    step: int
    phase: str
    member: bool
    def __init__(self, worker: _Optional[str] = ..., node: _Optional[str] = ..., slot: _Optional[int] = ..., state: _Optional[str] = ..., pid: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[str] = ..., member: bool = ...) -> None: ...

class JobView(_message.Message):
    __slots__ = ("job", "state", "size", "size_wanted", "size_min", "size_max", "step", "epoch", "weight", "restarts", "ettr", "reason", "exit_code", "observe", "checkpoint_step", "checkpoint_url", "workers", "step_seconds", "incidents", "started_at", "ended_at", "command", "skipped", "replica", "backed_up_step", "backup_note", "standstill_seconds", "checkpoint_at", "checkpoint_error", "parts")
    class ReplicaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StandstillSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SIZE_WANTED_FIELD_NUMBER: _ClassVar[int]
    SIZE_MIN_FIELD_NUMBER: _ClassVar[int]
    SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    ETTR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    BACKED_UP_STEP_FIELD_NUMBER: _ClassVar[int]
    BACKUP_NOTE_FIELD_NUMBER: _ClassVar[int]
    STANDSTILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: str
    size: int
    size_wanted: int
    size_min: int
    size_max: int
    step: int
    epoch: _common_pb2.Epoch
    weight: float
    restarts: int
    ettr: float
    reason: str
    exit_code: int
    observe: bool
    checkpoint_step: int
    checkpoint_url: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerView]
    step_seconds: float
    incidents: int
    started_at: float
    ended_at: float
    command: str
    skipped: _containers.RepeatedCompositeFieldContainer[SkippedMicroBatch]
    replica: _containers.ScalarMap[str, int]
    backed_up_step: int
    backup_note: str
    standstill_seconds: _containers.ScalarMap[str, float]
    checkpoint_at: float
    checkpoint_error: str
    parts: _containers.RepeatedCompositeFieldContainer[PartView]
    def __init__(self, job: _Optional[str] = ..., state: _Optional[str] = ..., size: _Optional[int] = ..., size_wanted: _Optional[int] = ..., size_min: _Optional[int] = ..., size_max: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[_Union[_common_pb2.Epoch, _Mapping]] = ..., weight: _Optional[float] = ..., restarts: _Optional[int] = ..., ettr: _Optional[float] = ..., reason: _Optional[str] = ..., exit_code: _Optional[int] = ..., observe: bool = ..., checkpoint_step: _Optional[int] = ..., checkpoint_url: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerView, _Mapping]]] = ..., step_seconds: _Optional[float] = ..., incidents: _Optional[int] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., command: _Optional[str] = ..., skipped: _Optional[_Iterable[_Union[SkippedMicroBatch, _Mapping]]] = ..., replica: _Optional[_Mapping[str, int]] = ..., backed_up_step: _Optional[int] = ..., backup_note: _Optional[str] = ..., standstill_seconds: _Optional[_Mapping[str, float]] = ..., checkpoint_at: _Optional[float] = ..., checkpoint_error: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[PartView, _Mapping]]] = ...) -> None: ...

class PartView(_message.Message):
    __slots__ = ("worker", "node", "step", "state", "seconds")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    node: str
    step: int
    state: str
    seconds: float
    def __init__(self, worker: _Optional[str] = ..., node: _Optional[str] = ..., step: _Optional[int] = ..., state: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class SkippedMicroBatch(_message.Message):
    __slots__ = ("step", "number")
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    step: int
    number: int
    def __init__(self, step: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class IncidentView(_message.Message):
    __slots__ = ("id", "job", "node", "worker", "cause", "severity", "detected_by", "evidence", "opened_at", "closed_at", "seconds", "epoch_before", "epoch_after", "steps_lost", "micro_batches_recomputed", "story", "state", "would_have", "source", "sources")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    DETECTED_BY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_AT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_AFTER_FIELD_NUMBER: _ClassVar[int]
    STEPS_LOST_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WOULD_HAVE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    id: str
    job: str
    node: str
    worker: str
    cause: str
    severity: str
    detected_by: str
    evidence: str
    opened_at: float
    closed_at: float
    seconds: _containers.ScalarMap[str, float]
    epoch_before: str
    epoch_after: str
    steps_lost: int
    micro_batches_recomputed: int
    story: _containers.RepeatedScalarFieldContainer[str]
    state: str
    would_have: bool
    source: str
    sources: _containers.RepeatedCompositeFieldContainer[StateSource]
    def __init__(self, id: _Optional[str] = ..., job: _Optional[str] = ..., node: _Optional[str] = ..., worker: _Optional[str] = ..., cause: _Optional[str] = ..., severity: _Optional[str] = ..., detected_by: _Optional[str] = ..., evidence: _Optional[str] = ..., opened_at: _Optional[float] = ..., closed_at: _Optional[float] = ..., seconds: _Optional[_Mapping[str, float]] = ..., epoch_before: _Optional[str] = ..., epoch_after: _Optional[str] = ..., steps_lost: _Optional[int] = ..., micro_batches_recomputed: _Optional[int] = ..., story: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., would_have: bool = ..., source: _Optional[str] = ..., sources: _Optional[_Iterable[_Union[StateSource, _Mapping]]] = ...) -> None: ...

class StateSource(_message.Message):
    __slots__ = ("position", "source", "workers", "size_bytes", "seconds")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    position: int
    source: str
    workers: int
    size_bytes: int
    seconds: float
    def __init__(self, position: _Optional[int] = ..., source: _Optional[str] = ..., workers: _Optional[int] = ..., size_bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class ClusterView(_message.Message):
    __slots__ = ("cluster", "term", "paused", "observe", "nodes", "jobs", "incidents", "version", "alarm", "metrics_address", "drills", "settings", "plan")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALARM_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    term: int
    paused: bool
    observe: bool
    nodes: _containers.RepeatedCompositeFieldContainer[NodeView]
    jobs: _containers.RepeatedCompositeFieldContainer[JobView]
    incidents: _containers.RepeatedCompositeFieldContainer[IncidentView]
    version: str
    alarm: str
    metrics_address: str
    drills: bool
    settings: _containers.ScalarMap[str, float]
    plan: PlanView
    def __init__(self, cluster: _Optional[str] = ..., term: _Optional[int] = ..., paused: bool = ..., observe: bool = ..., nodes: _Optional[_Iterable[_Union[NodeView, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobView, _Mapping]]] = ..., incidents: _Optional[_Iterable[_Union[IncidentView, _Mapping]]] = ..., version: _Optional[str] = ..., alarm: _Optional[str] = ..., metrics_address: _Optional[str] = ..., drills: bool = ..., settings: _Optional[_Mapping[str, float]] = ..., plan: _Optional[_Union[PlanView, _Mapping]] = ...) -> None: ...

class PlanView(_message.Message):
    __slots__ = ("number", "asked_because", "answered", "value", "bound", "proven", "solver", "rung", "seconds", "note")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ASKED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    SOLVER_FIELD_NUMBER: _ClassVar[int]
    RUNG_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    number: int
    asked_because: str
    answered: bool
    value: float
    bound: float
    proven: bool
    solver: str
    rung: str
    seconds: float
    note: str
    def __init__(self, number: _Optional[int] = ..., asked_because: _Optional[str] = ..., answered: bool = ..., value: _Optional[float] = ..., bound: _Optional[float] = ..., proven: bool = ..., solver: _Optional[str] = ..., rung: _Optional[str] = ..., seconds: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("changes", "job")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedScalarFieldContainer[str]
    job: JobSpec
    def __init__(self, changes: _Optional[_Iterable[str]] = ..., job: _Optional[_Union[JobSpec, _Mapping]] = ...) -> None: ...

class WhatIfAnswer(_message.Message):
    __slots__ = ("jobs", "plan")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[PlannedJob]
    plan: PlanView
    def __init__(self, jobs: _Optional[_Iterable[_Union[PlannedJob, _Mapping]]] = ..., plan: _Optional[_Union[PlanView, _Mapping]] = ...) -> None: ...

class PlannedJob(_message.Message):
    __slots__ = ("job", "size_before", "size_after", "flops_before", "flops_after", "standstill_seconds", "reason", "rated", "replica_after")
    class ReplicaAfterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SIZE_AFTER_FIELD_NUMBER: _ClassVar[int]
    FLOPS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    FLOPS_AFTER_FIELD_NUMBER: _ClassVar[int]
    STANDSTILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RATED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_AFTER_FIELD_NUMBER: _ClassVar[int]
    job: str
    size_before: int
    size_after: int
    flops_before: float
    flops_after: float
    standstill_seconds: float
    reason: str
    rated: bool
    replica_after: _containers.ScalarMap[str, int]
    def __init__(self, job: _Optional[str] = ..., size_before: _Optional[int] = ..., size_after: _Optional[int] = ..., flops_before: _Optional[float] = ..., flops_after: _Optional[float] = ..., standstill_seconds: _Optional[float] = ..., reason: _Optional[str] = ..., rated: bool = ..., replica_after: _Optional[_Mapping[str, int]] = ...) -> None: ...

class IncidentRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class IncidentStory(_message.Message):
    __slots__ = ("incident", "events")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    incident: IncidentView
    events: _containers.RepeatedCompositeFieldContainer[EventLine]
    def __init__(self, incident: _Optional[_Union[IncidentView, _Mapping]] = ..., events: _Optional[_Iterable[_Union[EventLine, _Mapping]]] = ...) -> None: ...

class FollowJobRequest(_message.Message):
    __slots__ = ("job", "logs", "from_start", "until_now")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    FROM_START_FIELD_NUMBER: _ClassVar[int]
    UNTIL_NOW_FIELD_NUMBER: _ClassVar[int]
    job: str
    logs: bool
    from_start: bool
    until_now: bool
    def __init__(self, job: _Optional[str] = ..., logs: bool = ..., from_start: bool = ..., until_now: bool = ...) -> None: ...

class JobUpdate(_message.Message):
    __slots__ = ("job", "worker", "output", "offset")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    job: JobView
    worker: str
    output: bytes
    offset: int
    def __init__(self, job: _Optional[_Union[JobView, _Mapping]] = ..., worker: _Optional[str] = ..., output: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class FollowEventsRequest(_message.Message):
    __slots__ = ("after", "follow", "job", "node")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    after: int
    follow: bool
    job: str
    node: str
    def __init__(self, after: _Optional[int] = ..., follow: bool = ..., job: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class EventLine(_message.Message):
    __slots__ = ("number", "at", "kind", "text", "json")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    number: int
    at: float
    kind: str
    text: str
    json: str
    def __init__(self, number: _Optional[int] = ..., at: _Optional[float] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...
