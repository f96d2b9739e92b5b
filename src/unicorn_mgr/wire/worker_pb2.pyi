from unicorn_mgr.wire import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Attach(_message.Message):
    __slots__ = ("protocol", "worker", "token", "pid")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker: str
    token: str
    pid: int
    def __init__(self, protocol: _Optional[int] = ..., worker: _Optional[str] = ..., token: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("attach", "ready", "published", "unreachable", "symptom", "resumed", "loop_ended", "leaving", "raised", "mistake", "fresh_start", "checkpoint_written", "checkpoint_failed", "checkpoint_published", "checksums_differ", "suspended", "snapshots_stopped", "snapshot_taken", "snapshot_wanted", "checkpoint_handed")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
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
    SNAPSHOT_TAKEN_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_WANTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_HANDED_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
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
    snapshot_taken: SnapshotTaken
    snapshot_wanted: SnapshotWanted
    checkpoint_handed: _common_pb2.CheckpointHanded
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., ready: _Optional[_Union[_common_pb2.Ready, _Mapping]] = ..., published: _Optional[_Union[_common_pb2.Published, _Mapping]] = ..., unreachable: _Optional[_Union[_common_pb2.Unreachable, _Mapping]] = ..., symptom: _Optional[_Union[_common_pb2.Symptom, _Mapping]] = ..., resumed: _Optional[_Union[_common_pb2.Resumed, _Mapping]] = ..., loop_ended: _Optional[_Union[_common_pb2.LoopEnded, _Mapping]] = ..., leaving: _Optional[_Union[_common_pb2.Leaving, _Mapping]] = ..., raised: _Optional[_Union[_common_pb2.Raised, _Mapping]] = ..., mistake: _Optional[_Union[_common_pb2.Mistake, _Mapping]] = ..., fresh_start: _Optional[_Union[_common_pb2.FreshStart, _Mapping]] = ..., checkpoint_written: _Optional[_Union[_common_pb2.CheckpointWritten, _Mapping]] = ..., checkpoint_failed: _Optional[_Union[_common_pb2.CheckpointFailed, _Mapping]] = ..., checkpoint_published: _Optional[_Union[_common_pb2.CheckpointPublished, _Mapping]] = ..., checksums_differ: _Optional[_Union[_common_pb2.ChecksumsDiffer, _Mapping]] = ..., suspended: _Optional[_Union[_common_pb2.Suspended, _Mapping]] = ..., snapshots_stopped: _Optional[_Union[_common_pb2.SnapshotsStopped, _Mapping]] = ..., snapshot_taken: _Optional[_Union[SnapshotTaken, _Mapping]] = ..., snapshot_wanted: _Optional[_Union[SnapshotWanted, _Mapping]] = ..., checkpoint_handed: _Optional[_Union[_common_pb2.CheckpointHanded, _Mapping]] = ...) -> None: ...

class SnapshotTaken(_message.Message):
    __slots__ = ("mark", "base")
    MARK_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    mark: _common_pb2.Mark
    base: _common_pb2.Mark
    def __init__(self, mark: _Optional[_Union[_common_pb2.Mark, _Mapping]] = ..., base: _Optional[_Union[_common_pb2.Mark, _Mapping]] = ...) -> None: ...

class SnapshotWanted(_message.Message):
    __slots__ = ("mark", "buffer", "pieces", "at")
    MARK_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    mark: _common_pb2.Mark
    buffer: int
    pieces: _containers.RepeatedCompositeFieldContainer[PieceWanted]
    at: int
    def __init__(self, mark: _Optional[_Union[_common_pb2.Mark, _Mapping]] = ..., buffer: _Optional[int] = ..., pieces: _Optional[_Iterable[_Union[PieceWanted, _Mapping]]] = ..., at: _Optional[int] = ...) -> None: ...

class PieceWanted(_message.Message):
    __slots__ = ("shape", "position", "fingerprint", "runs")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    shape: str
    position: int
    fingerprint: int
    runs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Run]
    def __init__(self, shape: _Optional[str] = ..., position: _Optional[int] = ..., fingerprint: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[_common_pb2.Run, _Mapping]]] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("job", "address", "job_running", "job_step", "checkpoint_url", "checkpoint_every_steps", "checkpoint_keep", "size_max", "skip_poison", "drills", "refused", "exact", "job_id", "checkpoint_step", "replica", "snapshot_budget", "snapshot_bytes", "checkpoint_lineage", "elsewhere", "elsewhere_committed", "former", "reshapes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOB_RUNNING_FIELD_NUMBER: _ClassVar[int]
    JOB_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_KEEP_FIELD_NUMBER: _ClassVar[int]
    SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    SKIP_POISON_FIELD_NUMBER: _ClassVar[int]
    DRILLS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BUDGET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_LINEAGE_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    RESHAPES_FIELD_NUMBER: _ClassVar[int]
    job: str
    address: str
    job_running: bool
    job_step: int
    checkpoint_url: str
    checkpoint_every_steps: int
    checkpoint_keep: int
    size_max: int
    skip_poison: bool
    drills: _containers.RepeatedCompositeFieldContainer[_common_pb2.Drill]
    refused: str
    exact: bool
    job_id: str
    checkpoint_step: int
    replica: _containers.RepeatedCompositeFieldContainer[Axis]
    snapshot_budget: float
    snapshot_bytes: int
    checkpoint_lineage: _common_pb2.Lineage
    elsewhere: _containers.RepeatedCompositeFieldContainer[_common_pb2.Mark]
    elsewhere_committed: _containers.RepeatedCompositeFieldContainer[_common_pb2.Mark]
    former: _containers.RepeatedCompositeFieldContainer[FormerSnapshot]
    reshapes: bool
    def __init__(self, job: _Optional[str] = ..., address: _Optional[str] = ..., job_running: bool = ..., job_step: _Optional[int] = ..., checkpoint_url: _Optional[str] = ..., checkpoint_every_steps: _Optional[int] = ..., checkpoint_keep: _Optional[int] = ..., size_max: _Optional[int] = ..., skip_poison: bool = ..., drills: _Optional[_Iterable[_Union[_common_pb2.Drill, _Mapping]]] = ..., refused: _Optional[str] = ..., exact: bool = ..., job_id: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., replica: _Optional[_Iterable[_Union[Axis, _Mapping]]] = ..., snapshot_budget: _Optional[float] = ..., snapshot_bytes: _Optional[int] = ..., checkpoint_lineage: _Optional[_Union[_common_pb2.Lineage, _Mapping]] = ..., elsewhere: _Optional[_Iterable[_Union[_common_pb2.Mark, _Mapping]]] = ..., elsewhere_committed: _Optional[_Iterable[_Union[_common_pb2.Mark, _Mapping]]] = ..., former: _Optional[_Iterable[_Union[FormerSnapshot, _Mapping]]] = ..., reshapes: bool = ...) -> None: ...

class FormerSnapshot(_message.Message):
    __slots__ = ("shape", "position", "mark", "committed", "head_bytes")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    HEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    shape: str
    position: int
    mark: _common_pb2.Mark
    committed: bool
    head_bytes: int
    def __init__(self, shape: _Optional[str] = ..., position: _Optional[int] = ..., mark: _Optional[_Union[_common_pb2.Mark, _Mapping]] = ..., committed: bool = ..., head_bytes: _Optional[int] = ...) -> None: ...

class BackupEnded(_message.Message):
    __slots__ = ("mark", "kept")
    MARK_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    mark: _common_pb2.Mark
    kept: bool
    def __init__(self, mark: _Optional[_Union[_common_pb2.Mark, _Mapping]] = ..., kept: bool = ...) -> None: ...

class SnapshotFetched(_message.Message):
    __slots__ = ("mark", "failed")
    MARK_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    mark: _common_pb2.Mark
    failed: str
    def __init__(self, mark: _Optional[_Union[_common_pb2.Mark, _Mapping]] = ..., failed: _Optional[str] = ...) -> None: ...

class Axis(_message.Message):
    __slots__ = ("name", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("epoch", "members", "poison", "secret", "suspends", "left")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POISON_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SUSPENDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    epoch: _common_pb2.Epoch
    members: _containers.RepeatedScalarFieldContainer[str]
    poison: _containers.RepeatedCompositeFieldContainer[Poison]
    secret: str
    suspends: bool
    left: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[_Union[_common_pb2.Epoch, _Mapping]] = ..., members: _Optional[_Iterable[str]] = ..., poison: _Optional[_Iterable[_Union[Poison, _Mapping]]] = ..., secret: _Optional[str] = ..., suspends: bool = ..., left: _Optional[_Iterable[str]] = ...) -> None: ...

class Poison(_message.Message):
    __slots__ = ("step", "number")
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    step: int
    number: int
    def __init__(self, step: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Formed(_message.Message):
    __slots__ = ("epoch", "members")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    epoch: _common_pb2.Epoch
    members: _containers.RepeatedCompositeFieldContainer[_common_pb2.Published]
    def __init__(self, epoch: _Optional[_Union[_common_pb2.Epoch, _Mapping]] = ..., members: _Optional[_Iterable[_Union[_common_pb2.Published, _Mapping]]] = ...) -> None: ...

class CheckpointComplete(_message.Message):
    __slots__ = ("step", "lineage")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    step: int
    lineage: _common_pb2.Lineage
    def __init__(self, step: _Optional[int] = ..., lineage: _Optional[_Union[_common_pb2.Lineage, _Mapping]] = ...) -> None: ...

class Retire(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class GiveUp(_message.Message):
    __slots__ = ("reason", "save")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    save: bool
    def __init__(self, reason: _Optional[str] = ..., save: bool = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("attached", "granted", "formed", "checkpoint_complete", "retire", "give_up", "drill", "backup_ended", "snapshot_fetched")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    FORMED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_FIELD_NUMBER: _ClassVar[int]
    DRILL_FIELD_NUMBER: _ClassVar[int]
    BACKUP_ENDED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FETCHED_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    granted: Granted
    formed: Formed
    checkpoint_complete: CheckpointComplete
    retire: Retire
    give_up: GiveUp
    drill: _common_pb2.Drill
    backup_ended: BackupEnded
    snapshot_fetched: SnapshotFetched
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., formed: _Optional[_Union[Formed, _Mapping]] = ..., checkpoint_complete: _Optional[_Union[CheckpointComplete, _Mapping]] = ..., retire: _Optional[_Union[Retire, _Mapping]] = ..., give_up: _Optional[_Union[GiveUp, _Mapping]] = ..., drill: _Optional[_Union[_common_pb2.Drill, _Mapping]] = ..., backup_ended: _Optional[_Union[BackupEnded, _Mapping]] = ..., snapshot_fetched: _Optional[_Union[SnapshotFetched, _Mapping]] = ...) -> None: ...
