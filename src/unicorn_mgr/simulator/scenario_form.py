"""What a scenario file may say: its fields, as people are told them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from unicorn_mgr.forms import STRICT, Count, Model, Rate
from unicorn_mgr.simulator.scenario import Kind

Size = Annotated[int, Field(ge=1, le=1_000_000)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class _Strict(BaseModel):
    model_config = STRICT


class Repair(_Strict):
    """How long it takes until a node that was lost, or is slow, is as before."""

    kind: Literal["fixed", "exponential", "lognormal", "never"]
    """How it is distributed."""
    hours: Amount | None = None
    """The mean; of fixed: each."""
    sigma: Rate | None = None
    """Of lognormal: the standard deviation of the logarithm; 1 if not given."""


class Cause(_Strict):
    """One of several causes that a model of faults draws from."""

    cause: str
    """As reports name it."""
    kind: Kind
    """What it does to the cluster."""
    share: Rate = 1.0
    """Among the causes of the list, in any unit: counts will do."""
    slowness: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Of slow: a step takes so many times longer."""
    repair: Repair | None = None
    """In place of what is said further out."""


class Burst(_Strict):
    """Each of the faults hits several nodes at once."""

    nodes: Annotated[int, Field(ge=2)]
    """As many, or as many as are up there."""
    within: Literal["domain", "cluster"] = "domain"
    """Nodes of one rack or switch (`domain_nodes`), or any."""


class Offenders(_Strict):
    """Some nodes break again and again."""

    nodes: Share
    """Share of the nodes, ..."""
    faults: Share
    """... that this share of the faults hits."""


class Faults(_Strict):
    """A model of faults: how often, what, whom.  Exactly one of `per_day`, `times` and `trace`."""

    per_day: Amount | None = None
    """Faults a day in the whole cluster, at random (a Poisson process)."""
    times: Annotated[int, Field(ge=0)] | None = None
    """Exactly so many, anywhere in the scenario."""
    trace: str | None = None
    """A CSV of faults that have happened; beside this file if it is relative.  Its columns: at, and any of cause, kind,
    nodes, slot, repair_hours, slowness, count.  `at` is in seconds, or a date (and time); its lines are in order."""
    spread_hours: Amount = 0.0
    """Of a trace that knows only the day: each fault is at any moment within so long from `at`."""
    cause: str = ""
    """As reports name it."""
    kind: Kind | None = None
    """node: it is gone until it is repaired; process: one ends; hang: one stands still; link: a connection breaks;
    slow: a node computes more slowly until it is repaired."""
    slowness: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Of slow: a step takes so many times longer."""
    mix: list[Cause] = []
    """In place of `cause` and `kind`: each of the faults is one of these."""
    burst: Burst | None = None
    """Of several nodes at once; one each, if not given."""
    offenders: Offenders | None = None
    """Nodes that are hit more than others; all alike, if not given."""
    repair: Repair | None = None
    """In place of the scenario's."""


class Job(_Strict):
    """A job.  Sizes are in slots.  Exactly one of `model`, `throughput` and `flops_per_slot`."""

    name: Name
    """Of letters, digits, dots, dashes and underscores."""
    count: Annotated[int, Field(ge=1, le=1_000)] = 1
    """So many alike, named NAME-1, NAME-2, ..."""
    weight: Rate = 1.0
    """Its worth against other jobs."""
    min: Count | None = None
    """Fewest slots it can train with; what its model needs, or the smallest of `throughput`, if not given."""
    max: Count | None = None
    """Most slots it can use; as many as there are and its batch keeps busy, if not given."""
    replica: Count | None = None
    """Slots that hold one copy of its state; it has whole ones only.  As its model is split, or 1, if not given."""
    model: Model | None = None
    """What its throughput can be predicted from."""
    throughput: dict[Count, Rate] = {}
    """FLOP/s by number of slots, of all of them together."""
    flops_per_slot: Rate | None = None
    """FLOP/s of every slot that has something to do: as many replicas as the micro-batches keep busy."""
    micro_batches: Count | None = None
    """Of one step; as its model has, or 512, if not given."""
    step_flops: Rate | None = None
    """FLOP of one step; as its model has, or a minute's at its largest size, if not given."""
    state_gb: Rate | None = None
    """One copy of parameters and optimizer; 14 bytes a parameter of its model, or 1, if not given."""
    checkpoint_minutes: Rate = 30.0
    """Between two checkpoints in storage."""


class ScenarioFile(_Strict):
    """A cluster, its jobs, and how its machines fail."""

    name: Name
    """Of letters, digits, dots, dashes and underscores; what is drawn depends on it."""
    about: str = ""
    """What it is, for people."""
    source: str = ""
    """Where its figures come from."""
    nodes: Size
    """Machines."""
    slots: Size
    """Of each node."""
    gpus_per_slot: Size = 1
    """A slot may stand for several GPUs: that of a whole machine makes large clusters small."""
    days: Annotated[float, Field(gt=0, le=3_650)]
    """How long it lasts."""
    domain_nodes: Annotated[int, Field(ge=0)] = 0
    """Nodes of a rack or switch, which come one after another; 0: none share one."""
    spares: Annotated[int, Field(ge=0)] = 0
    """Nodes that a policy of fixed spares keeps out of the jobs."""
    jobs: Annotated[list[Job], Field(min_length=1)]
    """All from the beginning to the end."""
    faults: list[Faults] = []
    """Any number of models, all at once."""
    repair: Repair | None = None
    """Of all nodes that are lost or slow, unless something else is said there."""
    figures: dict[str, float] = {}
    """Published ones, that results are put beside."""
