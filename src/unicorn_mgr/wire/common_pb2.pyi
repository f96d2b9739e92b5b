from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Epoch(_message.Message):
    __slots__ = ("term", "number")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    term: int
    number: int
    def __init__(self, term: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Holdings(_message.Message):
    __slots__ = ("applied", "held", "reduced", "kept", "snapshots", "committed", "stored", "elsewhere")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REDUCED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    applied: int
    held: _containers.RepeatedScalarFieldContainer[int]
    reduced: _containers.RepeatedScalarFieldContainer[bool]
    kept: _containers.RepeatedScalarFieldContainer[bool]
    snapshots: _containers.RepeatedCompositeFieldContainer[Mark]
    committed: _containers.RepeatedCompositeFieldContainer[Mark]
    stored: Mark
    elsewhere: _containers.RepeatedCompositeFieldContainer[Mark]
    def __init__(self, applied: _Optional[int] = ..., held: _Optional[_Iterable[int]] = ..., reduced: _Optional[_Iterable[bool]] = ..., kept: _Optional[_Iterable[bool]] = ..., snapshots: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., committed: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., stored: _Optional[_Union[Mark, _Mapping]] = ..., elsewhere: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("at", "length", "count", "stride")
    AT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    at: int
    length: int
    count: int
    stride: int
    def __init__(self, at: _Optional[int] = ..., length: _Optional[int] = ..., count: _Optional[int] = ..., stride: _Optional[int] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("step", "lineage")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    step: int
    lineage: Lineage
    def __init__(self, step: _Optional[int] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("epoch", "address", "host", "port", "data_port", "holdings", "worker")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    epoch: Epoch
    address: bytes
    host: str
    port: int
    data_port: int
    holdings: Holdings
    worker: str
    def __init__(self, epoch: _Optional[_Union[Epoch, _Mapping]] = ..., address: _Optional[bytes] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., data_port: _Optional[int] = ..., holdings: _Optional[_Union[Holdings, _Mapping]] = ..., worker: _Optional[str] = ...) -> None: ...

class Unreachable(_message.Message):
    __slots__ = ("epoch", "workers", "error")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    epoch: Epoch
    workers: _containers.RepeatedScalarFieldContainer[str]
    error: str
    def __init__(self, epoch: _Optional[_Union[Epoch, _Mapping]] = ..., workers: _Optional[_Iterable[str]] = ..., error: _Optional[str] = ...) -> None: ...

class Symptom(_message.Message):
    __slots__ = ("epoch", "error")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    epoch: Epoch
    error: str
    def __init__(self, epoch: _Optional[_Union[Epoch, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("fingerprint", "rehearsed")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    REHEARSED_FIELD_NUMBER: _ClassVar[int]
    fingerprint: _containers.ScalarMap[str, str]
    rehearsed: bool
    def __init__(self, fingerprint: _Optional[_Mapping[str, str]] = ..., rehearsed: bool = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("epoch", "step", "source", "restored_step", "recomputed", "fence_seconds", "regroup_seconds", "restore_seconds", "recompute_seconds", "added_seconds", "state_bytes", "voided", "exact", "held_bytes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RESTORED_STEP_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    FENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REGROUP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ADDED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VOIDED_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    epoch: Epoch
    step: int
    source: str
    restored_step: int
    recomputed: _containers.RepeatedScalarFieldContainer[int]
    fence_seconds: float
    regroup_seconds: float
    restore_seconds: float
    recompute_seconds: float
    added_seconds: float
    state_bytes: int
    voided: str
    exact: bool
    held_bytes: int
    def __init__(self, epoch: _Optional[_Union[Epoch, _Mapping]] = ..., step: _Optional[int] = ..., source: _Optional[str] = ..., restored_step: _Optional[int] = ..., recomputed: _Optional[_Iterable[int]] = ..., fence_seconds: _Optional[float] = ..., regroup_seconds: _Optional[float] = ..., restore_seconds: _Optional[float] = ..., recompute_seconds: _Optional[float] = ..., added_seconds: _Optional[float] = ..., state_bytes: _Optional[int] = ..., voided: _Optional[str] = ..., exact: bool = ..., held_bytes: _Optional[int] = ...) -> None: ...

class LoopEnded(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class Raised(_message.Message):
    __slots__ = ("type", "message", "traceback", "step", "micro_batch")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    traceback: str
    step: int
    micro_batch: int
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., step: _Optional[int] = ..., micro_batch: _Optional[int] = ...) -> None: ...

class Mistake(_message.Message):
    __slots__ = ("field", "value", "fix")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    field: str
    value: str
    fix: str
    def __init__(self, field: _Optional[str] = ..., value: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class FreshStart(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Lineage(_message.Message):
    __slots__ = ("generation", "epoch")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation: int
    epoch: Epoch
    def __init__(self, generation: _Optional[int] = ..., epoch: _Optional[_Union[Epoch, _Mapping]] = ...) -> None: ...

class CheckpointWritten(_message.Message):
    __slots__ = ("step", "lineage", "url", "size_bytes", "blocked_seconds", "write_seconds", "handed")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HANDED_FIELD_NUMBER: _ClassVar[int]
    step: int
    lineage: Lineage
    url: str
    size_bytes: int
    blocked_seconds: float
    write_seconds: float
    handed: bool
    def __init__(self, step: _Optional[int] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ..., url: _Optional[str] = ..., size_bytes: _Optional[int] = ..., blocked_seconds: _Optional[float] = ..., write_seconds: _Optional[float] = ..., handed: bool = ...) -> None: ...

class CheckpointHanded(_message.Message):
    __slots__ = ("step", "lineage", "url")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    step: int
    lineage: Lineage
    url: str
    def __init__(self, step: _Optional[int] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ..., url: _Optional[str] = ...) -> None: ...

class SnapshotsStopped(_message.Message):
    __slots__ = ("step", "reason")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    step: int
    reason: str
    def __init__(self, step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CheckpointFailed(_message.Message):
    __slots__ = ("step", "error", "superseded")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    step: int
    error: str
    superseded: bool
    def __init__(self, step: _Optional[int] = ..., error: _Optional[str] = ..., superseded: bool = ...) -> None: ...

class CheckpointPublished(_message.Message):
    __slots__ = ("step", "url")
    STEP_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    step: int
    url: str
    def __init__(self, step: _Optional[int] = ..., url: _Optional[str] = ...) -> None: ...

class Suspended(_message.Message):
    __slots__ = ("epoch", "step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: Epoch
    step: int
    def __init__(self, epoch: _Optional[_Union[Epoch, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class ChecksumsDiffer(_message.Message):
    __slots__ = ("epoch", "step", "minority")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MINORITY_FIELD_NUMBER: _ClassVar[int]
    epoch: Epoch
    step: int
    minority: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[_Union[Epoch, _Mapping]] = ..., step: _Optional[int] = ..., minority: _Optional[_Iterable[str]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("worker", "counter", "epoch", "step", "committed", "micro_batch", "phase", "sequence", "quiet_seconds", "step_seconds", "stopped", "backed_up")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    QUIET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    BACKED_UP_FIELD_NUMBER: _ClassVar[int]
    worker: str
    counter: int
    epoch: int
    step: int
    committed: int
    micro_batch: int
    phase: int
    sequence: int
    quiet_seconds: float
    step_seconds: float
    stopped: bool
    backed_up: int
    def __init__(self, worker: _Optional[str] = ..., counter: _Optional[int] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., committed: _Optional[int] = ..., micro_batch: _Optional[int] = ..., phase: _Optional[int] = ..., sequence: _Optional[int] = ..., quiet_seconds: _Optional[float] = ..., step_seconds: _Optional[float] = ..., stopped: bool = ..., backed_up: _Optional[int] = ...) -> None: ...

class Drill(_message.Message):
    __slots__ = ("fault", "step", "phase", "seconds")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    fault: str
    step: int
    phase: str
    seconds: float
    def __init__(self, fault: _Optional[str] = ..., step: _Optional[int] = ..., phase: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...
