"""Facts: what the coordinator's core is told from outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.messages import (
    Exited,
    LastingFact,
    Sample,
)
from unicorn_mgr.model import Drill, Epoch, JobSpec, Slot

# -- the coordinator itself -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TermStarted:
    """A coordinator process has begun.  `wall` is seconds since 1970, for people."""

    term: int
    wall: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A deadline has come.  Not journaled: what follows from it is."""


# -- nodes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeAttached:
    """An agent has said hello; its workers' facts follow as events of their own."""

    node: str
    incarnation: str
    slots: tuple[Slot, ...]
    address: str
    workers: tuple[str, ...]
    """Those the agent knows, ended ones too."""
    epochs: dict[str, Epoch] = field(default_factory=dict)
    """Per worker, the newest epoch that has been handed to it."""
    drills: bool = False
    domain: str = ""
    """What fails as one with it; empty: nobody has said."""
    copies_port: int = 0
    """Where other agents leave copies of snapshots; 0: nowhere."""
    copies: int = 0
    """It has of other nodes' snapshots: all that it had before, or, if its machine or container was new, none."""


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """A node's lease has expired."""

    node: str
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class NodeHeard:
    """A silent node has been heard again, on the same stream."""

    node: str


@dataclass(frozen=True, slots=True)
class JobHalted:
    """Every member that is heard waits for those on silent nodes, for longer than a step can take."""

    job: str
    halted_seconds: float


# -- workers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The process exists."""

    worker: str
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerAttached:
    """The script has called attach()."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerDying:
    """The process will never run again."""

    worker: str
    witness: str
    last: Sample | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The process has ended."""

    exited: Exited


@dataclass(frozen=True, slots=True)
class WorkerQuiet:
    """A worker makes no progress."""

    sample: Sample
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class WorkerTold:
    """A worker has told something of itself."""

    worker: str
    fact: LastingFact


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """Every member of an epoch has published."""

    job: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """Where a job is: told every ten seconds and when it matters."""

    job: str
    committed: int
    step_seconds: float
    backed_up: int = -1
    """The last step of which all parts have a copy on a second node, as far as one can."""


@dataclass(frozen=True, slots=True)
class ReadingTaken:
    """All samples of a reading that was asked for."""

    job: str
    number: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class EvidenceTaken:
    """Stacks of a worker under suspicion."""

    worker: str
    stacks: str
    tool: str


@dataclass(frozen=True, slots=True)
class PlanReady:
    """The planner has answered.  A time limit makes that nondeterministic, so all of it is journaled."""

    number: int
    """Of the question."""
    seats: dict[str, dict[int, tuple[str, int]]]
    """Per job, seat -> (node, slot)."""
    reasons: dict[str, str]
    value: float = 0.0
    """Weighted FLOP over the horizon."""
    bound: float = 0.0
    """No plan is worth more."""
    proven: bool = False
    solver: str = ""
    rung: str = ""
    seconds: float = 0.0
    note: str = ""
    shapes: dict[str, str] = field(default_factory=dict)
    """By job the shape for which its seats are, where that is not the one it had."""


# -- what people want -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A researcher has submitted a job, and it was accepted."""

    request_id: str
    job: str
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """Somebody wants a job to end."""

    request_id: str
    job: str


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """An operator wants a node to be emptied."""

    request_id: str
    node: str


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    """An operator gives a drained, quarantined or isolated node back."""

    request_id: str
    node: str


@dataclass(frozen=True, slots=True)
class NodeDegraded:
    """An operator says what may be counted on of a node; speed 1 and all slots: it is as it should be."""

    request_id: str
    node: str
    speed: float
    """Of its slots, as a share of what they should do."""
    slots: tuple[int, ...]
    """Those that may be used; empty: all."""


@dataclass(frozen=True, slots=True)
class WishesSet:
    """A job wants something else from now on."""

    request_id: str
    job: str
    weight: float
    priority: int
    size_min: int
    size_max: int


@dataclass(frozen=True, slots=True)
class PauseSet:
    """An operator has stopped or allowed all actions."""

    request_id: str
    paused: bool


@dataclass(frozen=True, slots=True)
class ObserveSet:
    """An operator has switched observe mode, for a job or (empty) for all."""

    request_id: str
    job: str
    observe: bool


@dataclass(frozen=True, slots=True)
class DrillOrdered:
    """Somebody injects a fault."""

    request_id: str
    job: str
    worker: str
    drill: Drill


Fact = (
    TermStarted
    | TimePassed
    | NodeAttached
    | NodeSilent
    | NodeHeard
    | JobHalted
    | WorkerStarted
    | WorkerAttached
    | WorkerDying
    | WorkerExited
    | WorkerQuiet
    | WorkerTold
    | GroupFormed
    | JobProgressed
    | ReadingTaken
    | EvidenceTaken
    | PlanReady
    | JobSubmitted
    | JobCancelled
    | NodeDrained
    | NodeUndrained
    | NodeDegraded
    | PauseSet
    | WishesSet
    | ObserveSet
    | DrillOrdered
)
