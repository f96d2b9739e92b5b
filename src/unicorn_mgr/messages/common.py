"""Words that more than one seam uses: `proto/unicorn/v1/common.proto`."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.model import Epoch, Holdings, Lineage


@dataclass(frozen=True, slots=True)
class Ready:
    fingerprint: dict[str, str] = field(default_factory=dict)
    rehearsed: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    epoch: Epoch = field(default_factory=Epoch)
    address: bytes = b""
    host: str = ""
    port: int = 0
    data_port: int = 0
    holdings: Holdings = field(default_factory=Holdings)
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Unreachable:
    epoch: Epoch = field(default_factory=Epoch)
    workers: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Symptom:
    epoch: Epoch = field(default_factory=Epoch)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    epoch: Epoch = field(default_factory=Epoch)
    step: int = 0
    source: str = ""
    restored_step: int = 0
    recomputed: tuple[int, ...] = ()
    """Micro-batches of members that were lost."""
    fence_seconds: float = 0.0
    regroup_seconds: float = 0.0
    restore_seconds: float = 0.0
    recompute_seconds: float = 0.0
    added_seconds: float = 0.0
    state_bytes: int = 0
    voided: str = ""
    exact: bool = True
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoopEnded:
    step: int = 0


@dataclass(frozen=True, slots=True)
class Leaving:
    step: int = 0


@dataclass(frozen=True, slots=True)
class Raised:
    type: str = ""
    message: str = ""
    traceback: str = ""
    step: int = -1
    micro_batch: int = -1


@dataclass(frozen=True, slots=True)
class Mistake:
    field: str = ""
    value: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.value}: {self.fix}" if self.value else f"{self.field}: {self.fix}"


@dataclass(frozen=True, slots=True)
class FreshStart:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    step: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    url: str = ""
    size_bytes: int = 0
    blocked_seconds: float = 0.0
    write_seconds: float = 0.0
    handed: bool = False
    """By a process that outlives the worker: it counts though the worker may be gone."""


@dataclass(frozen=True, slots=True)
class CheckpointHanded:
    step: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    url: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    step: int = 0
    error: str = ""
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointPublished:
    step: int = 0
    url: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotsStopped:
    step: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Suspended:
    epoch: Epoch = field(default_factory=Epoch)
    step: int = 0


@dataclass(frozen=True, slots=True)
class ChecksumsDiffer:
    epoch: Epoch = field(default_factory=Epoch)
    step: int = 0
    minority: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    worker: str = ""
    counter: int = 0
    epoch: int = 0
    step: int = 0
    committed: int = -1
    micro_batch: int = -1
    phase: int = 0
    sequence: int = 0
    quiet_seconds: float = 0.0
    step_seconds: float = 0.0
    stopped: bool = False
    backed_up: int = -1
