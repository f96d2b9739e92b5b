from unicorn_mgr.wire import common_pb2 as _common_pb2
from unicorn_mgr.wire import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Slot(_message.Message):
    __slots__ = ("index", "device")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    index: int
    device: str
    def __init__(self, index: _Optional[int] = ..., device: _Optional[str] = ...) -> None: ...

class WorkerTruth(_message.Message):
    __slots__ = ("worker", "pid", "attached", "ready", "epoch", "published", "resumed", "loop_ended", "exited", "leaving", "mistake", "fresh_start", "slot", "dying", "symptom", "unreachable", "written", "suspended", "handed", "checkpoint_published", "checkpoint_failed")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    LOOP_ENDED_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    MISTAKE_FIELD_NUMBER: _ClassVar[int]
    FRESH_START_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    DYING_FIELD_NUMBER: _ClassVar[int]
    SYMPTOM_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    HANDED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FAILED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    pid: int
    attached: bool
    ready: _common_pb2.Ready
    epoch: _common_pb2.Epoch
    published: _common_pb2.Published
    resumed: _common_pb2.Resumed
    loop_ended: _common_pb2.LoopEnded
    exited: Exited
    leaving: _common_pb2.Leaving
    mistake: _common_pb2.Mistake
    fresh_start: _common_pb2.FreshStart
    slot: int
    dying: bool
    symptom: _common_pb2.Symptom
    unreachable: _common_pb2.Unreachable
    written: _common_pb2.CheckpointWritten
    suspended: _common_pb2.Suspended
    handed: _common_pb2.CheckpointHanded
    checkpoint_published: _common_pb2.CheckpointPublished
    checkpoint_failed: _common_pb2.CheckpointFailed
    def __init__(self, worker: _Optional[str] = ..., pid: _Optional[int] = ..., attached: bool = ..., ready: _Optional[_Union[_common_pb2.Ready, _Mapping]] = ..., epoch: _Optional[_Union[_common_pb2.Epoch, _Mapping]] = ..., published: _Optional[_Union[_common_pb2.Published, _Mapping]] = ..., resumed: _Optional[_Union[_common_pb2.Resumed, _Mapping]] = ..., loop_ended: _Optional[_Union[_common_pb2.LoopEnded, _Mapping]] = ..., exited: _Optional[_Union[Exited, _Mapping]] = ..., leaving: _Optional[_Union[_common_pb2.Leaving, _Mapping]] = ..., mistake: _Optional[_Union[_common_pb2.Mistake, _Mapping]] = ..., fresh_start: _Optional[_Union[_common_pb2.FreshStart, _Mapping]] = ..., slot: _Optional[int] = ..., dying: bool = ..., symptom: _Optional[_Union[_common_pb2.Symptom, _Mapping]] = ..., unreachable: _Optional[_Union[_common_pb2.Unreachable, _Mapping]] = ..., written: _Optional[_Union[_common_pb2.CheckpointWritten, _Mapping]] = ..., suspended: _Optional[_Union[_common_pb2.Suspended, _Mapping]] = ..., handed: _Optional[_Union[_common_pb2.CheckpointHanded, _Mapping]] = ..., checkpoint_published: _Optional[_Union[_common_pb2.CheckpointPublished, _Mapping]] = ..., checkpoint_failed: _Optional[_Union[_common_pb2.CheckpointFailed, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "node", "incarnation", "cluster", "term", "slots", "address", "workers", "version", "drills", "domain", "copies_port", "copies")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    COPIES_PORT_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    node: str
    incarnation: str
    cluster: str
    term: int
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    address: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerTruth]
    version: str
    drills: bool
    domain: str
    copies_port: int
    copies: int
    def __init__(self, protocol: _Optional[int] = ..., node: _Optional[str] = ..., incarnation: _Optional[str] = ..., cluster: _Optional[str] = ..., term: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ..., address: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerTruth, _Mapping]]] = ..., version: _Optional[str] = ..., drills: bool = ..., domain: _Optional[str] = ..., copies_port: _Optional[int] = ..., copies: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("number", "samples", "logs")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    number: int
    samples: _containers.RepeatedCompositeFieldContainer[_common_pb2.Sample]
    logs: _containers.RepeatedCompositeFieldContainer[JobLog]
    def __init__(self, number: _Optional[int] = ..., samples: _Optional[_Iterable[_Union[_common_pb2.Sample, _Mapping]]] = ..., logs: _Optional[_Iterable[_Union[JobLog, _Mapping]]] = ...) -> None: ...

class JobLog(_message.Message):
    __slots__ = ("worker", "size_bytes")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    size_bytes: int
    def __init__(self, worker: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class WorkerStarted(_message.Message):
    __slots__ = ("worker", "pid")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    worker: str
    pid: int
    def __init__(self, worker: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class WorkerAttached(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class WorkerDying(_message.Message):
    __slots__ = ("worker", "witness", "last")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    worker: str
    witness: str
    last: _common_pb2.Sample
    def __init__(self, worker: _Optional[str] = ..., witness: _Optional[str] = ..., last: _Optional[_Union[_common_pb2.Sample, _Mapping]] = ...) -> None: ...

class Exited(_message.Message):
    __slots__ = ("worker", "code", "raised", "stacks", "last", "witness")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    code: int
    raised: _common_pb2.Raised
    stacks: str
    last: _common_pb2.Sample
    witness: str
    def __init__(self, worker: _Optional[str] = ..., code: _Optional[int] = ..., raised: _Optional[_Union[_common_pb2.Raised, _Mapping]] = ..., stacks: _Optional[str] = ..., last: _Optional[_Union[_common_pb2.Sample, _Mapping]] = ..., witness: _Optional[str] = ...) -> None: ...

class WorkerQuiet(_message.Message):
    __slots__ = ("sample", "limit_seconds")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sample: _common_pb2.Sample
    limit_seconds: float
    def __init__(self, sample: _Optional[_Union[_common_pb2.Sample, _Mapping]] = ..., limit_seconds: _Optional[float] = ...) -> None: ...

class WorkerFact(_message.Message):
    __slots__ = ("worker", "ready", "published", "unreachable", "symptom", "resumed", "loop_ended", "leaving", "raised", "mistake", "fresh_start", "checkpoint_written", "checkpoint_failed", "checkpoint_published", "checksums_differ", "suspended", "snapshots_stopped", "checkpoint_handed")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    SYMPTOM_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    LOOP_ENDED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    MISTAKE_FIELD_NUMBER: _ClassVar[int]
    FRESH_START_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FAILED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_DIFFER_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_STOPPED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_HANDED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    ready: _common_pb2.Ready
    published: _common_pb2.Published
    unreachable: _common_pb2.Unreachable
    symptom: _common_pb2.Symptom
    resumed: _common_pb2.Resumed
    loop_ended: _common_pb2.LoopEnded
    leaving: _common_pb2.Leaving
    raised: _common_pb2.Raised
    mistake: _common_pb2.Mistake
    fresh_start: _common_pb2.FreshStart
    checkpoint_written: _common_pb2.CheckpointWritten
    checkpoint_failed: _common_pb2.CheckpointFailed
    checkpoint_published: _common_pb2.CheckpointPublished
    checksums_differ: _common_pb2.ChecksumsDiffer
    suspended: _common_pb2.Suspended
    snapshots_stopped: _common_pb2.SnapshotsStopped
    checkpoint_handed: _common_pb2.CheckpointHanded
    def __init__(self, worker: _Optional[str] = ..., ready: _Optional[_Union[_common_pb2.Ready, _Mapping]] = ..., published: _Optional[_Union[_common_pb2.Published, _Mapping]] = ..., unreachable: _Optional[_Union[_common_pb2.Unreachable, _Mapping]] = ..., symptom: _Optional[_Union[_common_pb2.Symptom, _Mapping]] = ..., resumed: _Optional[_Union[_common_pb2.Resumed, _Mapping]] = ..., loop_ended: _Optional[_Union[_common_pb2.LoopEnded, _Mapping]] = ..., leaving: _Optional[_Union[_common_pb2.Leaving, _Mapping]] = ..., raised: _Optional[_Union[_common_pb2.Raised, _Mapping]] = ..., mistake: _Optional[_Union[_common_pb2.Mistake, _Mapping]] = ..., fresh_start: _Optional[_Union[_common_pb2.FreshStart, _Mapping]] = ..., checkpoint_written: _Optional[_Union[_common_pb2.CheckpointWritten, _Mapping]] = ..., checkpoint_failed: _Optional[_Union[_common_pb2.CheckpointFailed, _Mapping]] = ..., checkpoint_published: _Optional[_Union[_common_pb2.CheckpointPublished, _Mapping]] = ..., checksums_differ: _Optional[_Union[_common_pb2.ChecksumsDiffer, _Mapping]] = ..., suspended: _Optional[_Union[_common_pb2.Suspended, _Mapping]] = ..., snapshots_stopped: _Optional[_Union[_common_pb2.SnapshotsStopped, _Mapping]] = ..., checkpoint_handed: _Optional[_Union[_common_pb2.CheckpointHanded, _Mapping]] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("request", "samples")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    request: str
    samples: _containers.RepeatedCompositeFieldContainer[_common_pb2.Sample]
    def __init__(self, request: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[_common_pb2.Sample, _Mapping]]] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("worker", "request", "stacks", "tool")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    worker: str
    request: str
    stacks: str
    tool: str
    def __init__(self, worker: _Optional[str] = ..., request: _Optional[str] = ..., stacks: _Optional[str] = ..., tool: _Optional[str] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("watch", "worker", "data", "offset", "end")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    watch: str
    worker: str
    data: bytes
    offset: int
    end: bool
    def __init__(self, watch: _Optional[str] = ..., worker: _Optional[str] = ..., data: _Optional[bytes] = ..., offset: _Optional[int] = ..., end: bool = ...) -> None: ...

class StoreCall(_message.Message):
    __slots__ = ("id", "worker", "operation", "keys", "values", "amount", "hung_up")
    ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    HUNG_UP_FIELD_NUMBER: _ClassVar[int]
    id: int
    worker: str
    operation: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    amount: int
    hung_up: bool
    def __init__(self, id: _Optional[int] = ..., worker: _Optional[str] = ..., operation: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[bytes]] = ..., amount: _Optional[int] = ..., hung_up: bool = ...) -> None: ...

class StoreAnswer(_message.Message):
    __slots__ = ("id", "worker", "values", "number")
    ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    id: int
    worker: str
    values: _containers.RepeatedScalarFieldContainer[bytes]
    number: int
    def __init__(self, id: _Optional[int] = ..., worker: _Optional[str] = ..., values: _Optional[_Iterable[bytes]] = ..., number: _Optional[int] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("hello", "beat", "worker_started", "worker_attached", "worker_dying", "exited", "worker_quiet", "worker_fact", "reading", "evidence", "log_chunk", "store_call")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    WORKER_STARTED_FIELD_NUMBER: _ClassVar[int]
    WORKER_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    WORKER_DYING_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    WORKER_QUIET_FIELD_NUMBER: _ClassVar[int]
    WORKER_FACT_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    LOG_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STORE_CALL_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    beat: Beat
    worker_started: WorkerStarted
    worker_attached: WorkerAttached
    worker_dying: WorkerDying
    exited: Exited
    worker_quiet: WorkerQuiet
    worker_fact: WorkerFact
    reading: Reading
    evidence: Evidence
    log_chunk: LogChunk
    store_call: StoreCall
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., worker_started: _Optional[_Union[WorkerStarted, _Mapping]] = ..., worker_attached: _Optional[_Union[WorkerAttached, _Mapping]] = ..., worker_dying: _Optional[_Union[WorkerDying, _Mapping]] = ..., exited: _Optional[_Union[Exited, _Mapping]] = ..., worker_quiet: _Optional[_Union[WorkerQuiet, _Mapping]] = ..., worker_fact: _Optional[_Union[WorkerFact, _Mapping]] = ..., reading: _Optional[_Union[Reading, _Mapping]] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., log_chunk: _Optional[_Union[LogChunk, _Mapping]] = ..., store_call: _Optional[_Union[StoreCall, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("cluster", "term", "beat_seconds", "lease_seconds", "fence_seconds", "copies_key", "backup_bytes_per_second")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    BEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COPIES_KEY_FIELD_NUMBER: _ClassVar[int]
    BACKUP_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    term: int
    beat_seconds: float
    lease_seconds: float
    fence_seconds: float
    copies_key: str
    backup_bytes_per_second: float
    def __init__(self, cluster: _Optional[str] = ..., term: _Optional[int] = ..., beat_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., fence_seconds: _Optional[float] = ..., copies_key: _Optional[str] = ..., backup_bytes_per_second: _Optional[float] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("node", "address", "port", "token")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    port: int
    token: str
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    final: bool
    def __init__(self, reason: _Optional[str] = ..., final: bool = ...) -> None: ...

class StartWorker(_message.Message):
    __slots__ = ("worker", "job", "command", "environment", "directory", "snapshot", "slot", "local_slots", "rank", "world_size", "restarts", "stall_seconds", "user_seconds", "stall_factor", "drills", "log_bytes_max", "welcome", "holders", "former")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STALL_FACTOR_FIELD_NUMBER: _ClassVar[int]
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    job: str
    command: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    directory: str
    snapshot: str
    slot: int
    local_slots: _containers.RepeatedScalarFieldContainer[int]
    rank: int
    world_size: int
    restarts: int
    stall_seconds: float
    user_seconds: float
    stall_factor: float
    drills: _containers.RepeatedCompositeFieldContainer[_common_pb2.Drill]
    log_bytes_max: int
    welcome: _worker_pb2.Attached
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    former: _containers.RepeatedCompositeFieldContainer[FormerPart]
    def __init__(self, worker: _Optional[str] = ..., job: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., directory: _Optional[str] = ..., snapshot: _Optional[str] = ..., slot: _Optional[int] = ..., local_slots: _Optional[_Iterable[int]] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., restarts: _Optional[int] = ..., stall_seconds: _Optional[float] = ..., user_seconds: _Optional[float] = ..., stall_factor: _Optional[float] = ..., drills: _Optional[_Iterable[_Union[_common_pb2.Drill, _Mapping]]] = ..., log_bytes_max: _Optional[int] = ..., welcome: _Optional[_Union[_worker_pb2.Attached, _Mapping]] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., former: _Optional[_Iterable[_Union[FormerPart, _Mapping]]] = ...) -> None: ...

class FormerPart(_message.Message):
    __slots__ = ("shape", "position", "holders")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    shape: str
    position: int
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    def __init__(self, shape: _Optional[str] = ..., position: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ...) -> None: ...

class BackUp(_message.Message):
    __slots__ = ("worker", "to", "alone")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    to: Holder
    alone: bool
    def __init__(self, worker: _Optional[str] = ..., to: _Optional[_Union[Holder, _Mapping]] = ..., alone: bool = ...) -> None: ...

class ForgetCopies(_message.Message):
    __slots__ = ("job_id", "position", "shape", "worker")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    position: int
    shape: str
    worker: str
    def __init__(self, job_id: _Optional[str] = ..., position: _Optional[int] = ..., shape: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class StopWorker(_message.Message):
    __slots__ = ("worker", "reason", "gently")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GENTLY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    reason: str
    gently: bool
    def __init__(self, worker: _Optional[str] = ..., reason: _Optional[str] = ..., gently: bool = ...) -> None: ...

class ForgetWorker(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class WorkerDirective(_message.Message):
    __slots__ = ("worker", "granted", "formed", "checkpoint_complete", "retire", "give_up", "drill", "attached")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    FORMED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_FIELD_NUMBER: _ClassVar[int]
    DRILL_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    granted: _worker_pb2.Granted
    formed: _worker_pb2.Formed
    checkpoint_complete: _worker_pb2.CheckpointComplete
    retire: _worker_pb2.Retire
    give_up: _worker_pb2.GiveUp
    drill: _common_pb2.Drill
    attached: _worker_pb2.Attached
    def __init__(self, worker: _Optional[str] = ..., granted: _Optional[_Union[_worker_pb2.Granted, _Mapping]] = ..., formed: _Optional[_Union[_worker_pb2.Formed, _Mapping]] = ..., checkpoint_complete: _Optional[_Union[_worker_pb2.CheckpointComplete, _Mapping]] = ..., retire: _Optional[_Union[_worker_pb2.Retire, _Mapping]] = ..., give_up: _Optional[_Union[_worker_pb2.GiveUp, _Mapping]] = ..., drill: _Optional[_Union[_common_pb2.Drill, _Mapping]] = ..., attached: _Optional[_Union[_worker_pb2.Attached, _Mapping]] = ...) -> None: ...

class ReadNow(_message.Message):
    __slots__ = ("request", "workers")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    request: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ...) -> None: ...

class CollectEvidence(_message.Message):
    __slots__ = ("request", "worker")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    request: str
    worker: str
    def __init__(self, request: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class WatchLogs(_message.Message):
    __slots__ = ("watch", "job", "from_start", "stop", "until_now", "job_id")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FROM_START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    UNTIL_NOW_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    watch: str
    job: str
    from_start: bool
    stop: bool
    until_now: bool
    job_id: str
    def __init__(self, watch: _Optional[str] = ..., job: _Optional[str] = ..., from_start: bool = ..., stop: bool = ..., until_now: bool = ..., job_id: _Optional[str] = ...) -> None: ...

class NodeDrill(_message.Message):
    __slots__ = ("worker", "step")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    worker: str
    step: int
    def __init__(self, worker: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("term", "welcome", "refused", "start_worker", "stop_worker", "forget_worker", "worker_directive", "read_now", "collect_evidence", "watch_logs", "node_drill", "store_answer", "synced", "live_jobs", "back_up", "forget_copies")
    TERM_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    START_WORKER_FIELD_NUMBER: _ClassVar[int]
    STOP_WORKER_FIELD_NUMBER: _ClassVar[int]
    FORGET_WORKER_FIELD_NUMBER: _ClassVar[int]
    WORKER_DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    READ_NOW_FIELD_NUMBER: _ClassVar[int]
    COLLECT_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    WATCH_LOGS_FIELD_NUMBER: _ClassVar[int]
    NODE_DRILL_FIELD_NUMBER: _ClassVar[int]
    STORE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    LIVE_JOBS_FIELD_NUMBER: _ClassVar[int]
    BACK_UP_FIELD_NUMBER: _ClassVar[int]
    FORGET_COPIES_FIELD_NUMBER: _ClassVar[int]
    term: int
    welcome: Welcome
    refused: Refused
    start_worker: StartWorker
    stop_worker: StopWorker
    forget_worker: ForgetWorker
    worker_directive: WorkerDirective
    read_now: ReadNow
    collect_evidence: CollectEvidence
    watch_logs: WatchLogs
    node_drill: NodeDrill
    store_answer: StoreAnswer
    synced: Synced
    live_jobs: LiveJobs
    back_up: BackUp
    forget_copies: ForgetCopies
    def __init__(self, term: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., start_worker: _Optional[_Union[StartWorker, _Mapping]] = ..., stop_worker: _Optional[_Union[StopWorker, _Mapping]] = ..., forget_worker: _Optional[_Union[ForgetWorker, _Mapping]] = ..., worker_directive: _Optional[_Union[WorkerDirective, _Mapping]] = ..., read_now: _Optional[_Union[ReadNow, _Mapping]] = ..., collect_evidence: _Optional[_Union[CollectEvidence, _Mapping]] = ..., watch_logs: _Optional[_Union[WatchLogs, _Mapping]] = ..., node_drill: _Optional[_Union[NodeDrill, _Mapping]] = ..., store_answer: _Optional[_Union[StoreAnswer, _Mapping]] = ..., synced: _Optional[_Union[Synced, _Mapping]] = ..., live_jobs: _Optional[_Union[LiveJobs, _Mapping]] = ..., back_up: _Optional[_Union[BackUp, _Mapping]] = ..., forget_copies: _Optional[_Union[ForgetCopies, _Mapping]] = ...) -> None: ...

class Synced(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LiveJobs(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
