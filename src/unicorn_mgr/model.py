"""The vocabulary: identifiers and values that every part of the system shares.

Nothing here does anything; nothing here knows of a clock, a network or a disk.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

PROTOCOL = 1
"""Version of the wire.  A message of a newer one is refused with both numbers."""

SOCKET_PATH_BYTES_MAX = 107
"""A unix socket's path, without the zero that ends it (unix(7), sun_path)."""

INITIAL = -1
"""`Holdings.applied` of a worker that has the job's initial state and no step yet."""

NO_STATE = -2
"""`Holdings.applied` of a worker that has no state of the job: a new or a torn one."""


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One membership of a job.  `term` rises durably whenever a coordinator starts."""

    term: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.term}.{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class WorkerName:
    """A process of a job: which of the job's seats it fills, and the how-manieth to do so.

    Written `job/seat.incarnation`, for example `gpt/2.1`: the second process on seat 2.
    """

    job: str
    seat: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.job}/{self.seat}.{self.incarnation}"

    @staticmethod
    @lru_cache(maxsize=100_000)
    def parse(text: str) -> WorkerName:
        """Inverse of `str`; raises ValueError for anything else."""
        job, slash, rest = text.rpartition("/")
        seat, dot, incarnation = rest.partition(".")
        if not (slash and dot and job and seat.isdecimal() and incarnation.isdecimal()):
            raise ValueError(f"not a worker's name: {text!r} (want job/seat.incarnation)")
        return WorkerName(job, int(seat), int(incarnation))


class Severity(enum.StrEnum):
    """What it takes to heal (Unicron, section 4); each escalates to the next when it fails."""

    SEV3 = "SEV3"
    """Retry in place: the processes stay."""
    SEV2 = "SEV2"
    """Restart the process."""
    SEV1 = "SEV1"
    """Isolate the node and plan anew."""

    @property
    def worse(self) -> Severity | None:
        """The next severity, None after the last."""
        return {Severity.SEV3: Severity.SEV2, Severity.SEV2: Severity.SEV1}.get(self)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one member has of the step that is open for it (`applied + 1`)."""

    applied: int = NO_STATE
    """The last step this member has applied; `INITIAL` before the first, `NO_STATE` without any."""
    held: tuple[int, ...] = ()
    """Micro-batches of the open step whose gradients are in the local buffers."""
    reduced: tuple[bool, ...] = ()
    """Per bucket of the open step: seen complete, the sum over all members is here."""
    kept: tuple[bool, ...] = ()
    """Per bucket of step `applied`: the reduced sum is still here."""
    snapshots: tuple[Mark, ...] = ()
    """Of a member without state: whole snapshots of the job's state in memory that it can read."""
    committed: tuple[Mark, ...] = ()
    """Those of its snapshots that are known to be of a committed step."""
    stored: Mark | None = None
    """The newest state in storage, as far as it knows; None if it has state itself."""
    elsewhere: tuple[Mark, ...] = ()
    """Snapshots that it can't read here, and that its agent can bring from other nodes."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Who may publish checkpoints: a newer lineage has replaced an older one for good."""

    generation: int = 0
    """Rises when a job takes over a checkpoint directory of another job or cluster."""
    epoch: Epoch = field(default_factory=Epoch)

    def __str__(self) -> str:
        return f"{self.generation}-{self.epoch}"

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts lineages from old to new."""
        return (self.generation, self.epoch.term, self.epoch.number)


@dataclass(frozen=True, slots=True)
class Mark:
    """Which state of a job is stored somewhere."""

    step: int = INITIAL
    """The last one that is applied in it."""
    lineage: Lineage = field(default_factory=Lineage)
    """In which it was stored."""

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sorts states from old to new: one of a newer lineage has replaced all of older ones."""
        return (*self.lineage.order, self.step)


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a file: `count` stretches of as many, each `stride` behind the one before."""

    at: int = 0
    length: int = 0
    count: int = 1
    stride: int = 0

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return self.length * self.count


@dataclass(frozen=True, slots=True)
class Slot:
    """One device a worker can use."""

    index: int = 0
    device: str = "cpu"


FAULTS = ("kill", "stop", "exception", "hang", "slow", "exit", "gate", "lose-node")
"""What a drill can do; `gate` stops a worker at a place until a test lets it go on."""

PLACES = (
    "head",  # at the head of the loop, between steps
    "compute",  # a micro-batch has been yielded and its forward is about to run
    "backward",  # its forward has run
    "computed",  # its backward has returned
    "before_reduce",  # all micro-batches are done, nothing is launched yet
    "in_reduce",  # all buckets are launched
    "first_bucket",  # the first bucket has been seen complete, the last has not been launched
    "reduced",  # all buckets are complete, the user's update is next
    "optimizer",  # inside the user's update, before the optimizer's step
    "publish",  # a new epoch has been heard, holdings are not yet published
    "constructor",  # inside the group's constructor, address published
    "gather",  # holdings are published
    "deal",  # everybody's holdings are known
    "recompute",  # a dealt micro-batch has been yielded
    "send_state",  # state is being sent
    "receive_state",  # state is being received
    "pieces",  # it is known where what another shape has left lies, and nothing of it has come
    "rehearse",  # inside the rehearsal of a joiner
    "ready",  # rehearsed, about to say so
    "closing",  # inside the closing collective
    "memory",  # a part of the state has been copied into memory that outlives the worker
    "snapshot",  # the state has been copied for a checkpoint
    "handed",  # by its porter: a worker's part of a checkpoint is in memory, nothing of it is in storage yet
    "checkpoint",  # the checkpoint's files are written, the word is not yet given
    "publish_checkpoint",  # the word has been heard, the manifest is not yet written
)
"""Where in the training loop a drill can strike."""

PORTER_PLACES = ("handed", "checkpoint", "publish_checkpoint")
"""Places to which not the worker comes, but who stores its part of a checkpoint for it, if anybody does."""


@dataclass(frozen=True, slots=True)
class Drill:
    """A fault for a drill or a test, addressed to a place in the training loop."""

    fault: str = "kill"
    """One of `FAULTS`."""
    step: int = -1
    """The step to strike in, or the first after it that comes to the place; -1: at once."""
    phase: str = ""
    """One of `PLACES`; empty: the first that is come to."""
    seconds: float = 0.0
    """How long a slow step is slowed down."""


@dataclass(frozen=True, slots=True)
class JobDrill:
    """A drill that a job brings with it, for one of its seats."""

    seat: int = 0
    incarnation: int = -1
    """Only this process of the seat; -1: any."""
    drill: Drill = field(default_factory=Drill)


SNAPSHOT_BUDGET = 0.005
"""Share of the step time that snapshots in memory may take, unless a user says otherwise."""

AXES = ("pipeline", "shard", "tensor")
"""Along which a copy of the model may be split over workers; neighbours along the last are closest."""

DATA_AXES = ("shard",)
"""Of these, along which workers compute different micro-batches."""

STAGE_AXIS = "pipeline"
"""Along this one they hold different parameters, and compute each micro-batch one after the other."""


def said(axes: Mapping[str, int]) -> str:
    """The shape of a replica as on the command line, the same for equal ones; empty: it is not split."""
    known = [axis for axis in AXES if axis in axes]
    return ",".join(f"{axis}={axes[axis]}" for axis in [*known, *sorted(axes.keys() - known)])


def axes_of(text: str) -> dict[str, int]:
    """What has been said."""
    return {axis: int(size) for axis, _, size in (word.partition("=") for word in text.split(",") if word)}


@dataclass(frozen=True, slots=True)
class StatePart:
    """What snapshots of one worker's state are of."""

    job_id: str
    """Of this submission of the job."""
    shape: str
    """Of its replica, as it is `said`: those of another shape have other parts."""
    position: int
    """In its replica."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a job's throughput can be predicted from; 0 where it is not known."""

    parameters: float = 0.0
    sequence_length: int = 0
    global_batch: int = 0
    """Sequences a step."""
    micro_batch: int = 1
    device: str = ""
    precision: str = "bf16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    layers: int = 0
    hidden: int = 0
    active_parameters: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplicaShape:
    """A way of splitting a copy of a model over workers."""

    axes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a researcher asks for."""

    name: str = ""
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    snapshot: str = ""
    """Digest of the submitted files; empty: the command runs on the files as they are."""
    size_min: int = 1
    size_max: int = 1
    weight: float = 1.0
    checkpoint_url: str = ""
    checkpoint_every_steps: int = 0
    checkpoint_keep: int = 3
    snapshot_budget: float = 0.0
    """Share of the step time that snapshots in memory may take; 0: none are made."""
    observe: bool = False
    """Detect, never act."""
    skip_poison: bool = False
    """Go on without a micro-batch that kills its workers, instead of ending the job."""
    inexact: bool = False
    """The data source can't be addressed by number: recomputed numbers get other samples."""
    stall_seconds: float = 0.0
    """Least time without progress that counts as a stall; 0 here and below: the cluster's default."""
    stall_factor: float = 0.0
    """A stall lasts at least this many times the mean step."""
    user_seconds: float = 0.0
    """The same limit for the user's code between steps."""
    restarts_max: int = 0
    """Processes restarted within the budget's window before the job is given up."""
    poison_deaths: int = 0
    """Workers that die on a micro-batch before it is not dealt again."""
    drills: tuple[JobDrill, ...] = ()
    priority: int = 0
    """Who gets its minimum first when not all can; higher is first."""
    replica_size: int = 0
    """Slots that hold one copy of the state; a job has whole ones only; 0: one."""
    replica: dict[str, int] = field(default_factory=dict)
    """Of a job that attaches: the axes of `AXES` along which a copy is split over workers; empty: it is not."""
    replica_within: str = ""
    """What a replica must not reach beyond: node, or domain; empty: node."""
    domains: int = 0
    """Failure domains over which it is spread at least, where it can be; 0: two."""
    sizes: tuple[int, ...] = ()
    """Only these; empty: all from `size_min` to `size_max`."""
    throughput: dict[int, float] = field(default_factory=dict)
    """FLOP/s by number of slots, as the user knows it."""
    throughput_min: float = 0.0
    """FLOP/s that it needs as its least share."""
    deadline: float = 0.0
    """Seconds since 1970 by which `steps` are to be done; 0: none."""
    steps: int = 0
    """As many as its training loop makes in all."""
    model: ModelDescription | None = None
    shapes: tuple[ReplicaShape, ...] = ()
    """Any of which `replica` may be while the job runs, the best first; empty: it stays as it is."""
