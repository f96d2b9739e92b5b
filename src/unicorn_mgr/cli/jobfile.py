"""Job files: what `unicorn run` takes as options, and what the planner may know beside, in YAML."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, ValidationError

from unicorn_mgr.cli.common import Problem
from unicorn_mgr.cli.run import passed_environment
from unicorn_mgr.forms import STRICT, Count, Model, Rate, field_of, worded
from unicorn_mgr.model import SNAPSHOT_BUDGET, JobSpec, ModelDescription, ReplicaShape

BYTES_MAX = 1 << 20
DEADLINE = "2040-01-31T18:00:00+01:00"
"""How one is written."""

SHAPES = {
    "command": "a list, a word an item, e.g. [python, train.py]",
    "env": "names and values, e.g. {DATA: /data}",
    "sizes": "a list of numbers of slots, e.g. [8, 16]",
    "replica": "axes and how many workers along each, e.g. {shard: 4}",
    "shapes": "a list of what replica may be, e.g. [{shard: 4}, {shard: 2}]",
    "throughput": "slots and FLOP/s, e.g. {8: 3.2e15}",
    "model": "fields and values; `unicorn schema` prints which",
    "checkpoint": "fields and values, e.g. {url: checkpoints, every: 100}",
}
"""What is wanted where a value is of another kind."""


class _Strict(BaseModel):
    model_config = STRICT


class Checkpoint(_Strict):
    """Where and how often the job's state is stored."""

    url: str
    """A directory, or any fsspec URL; each worker of a `replica` stores its part there."""
    every: Annotated[int, Field(ge=0)] = 0
    """Steps between two."""
    keep: Count = 3
    """How many are kept."""


def _to_come(deadline: datetime) -> datetime:
    if deadline <= datetime.now(UTC):
        raise ValueError("it has passed")
    return deadline


Axis = Literal["pipeline", "shard", "tensor"]


class JobFile(_Strict):
    """A job."""

    name: str
    """Unique among running ones."""
    command: Annotated[list[str], Field(min_length=1)]
    """What every worker runs, a word an item."""
    env: dict[str, str] = {}
    """Environment variables, beside those that `unicorn run` passes on."""
    workdir: str = ""
    """Where it runs; beside this file if it is relative or not given."""
    weight: Rate = 1.0
    """Its worth against other jobs."""
    priority: int = 0
    """Who gets its minimum first when not all can; higher is first."""
    min: Count | None = None
    """Fewest slots it can train with; the smallest of `sizes`, or 1, if not given."""
    max: Count | None = None
    """Most slots it can use; the largest of `sizes`, or as min, if not given."""
    sizes: list[Count] = []
    """Only these numbers of slots; empty: all between min and max."""
    replica: dict[Axis, Count] = {}
    """Of a job that attaches: the axes along which a copy of its model is split over workers, e.g. {shard: 4}."""
    shapes: list[dict[Axis, Count]] = []
    """In place of `replica`: ways to split a copy, the best first; another is taken where there is no room for one."""
    replica_size: Count | None = None
    """Slots that hold one copy of the state, where `replica` does not say; a job has whole ones only."""
    replica_within: Literal["node", "domain"] = "node"
    """What a replica must not reach beyond."""
    domains: Count = 2
    """Failure domains over which it is spread at least, where it can be."""
    model: Model | None = None
    """What its throughput can be predicted from."""
    throughput: dict[Count, Rate] = {}
    """FLOP/s by number of slots, if you know it better."""
    throughput_min: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """FLOP/s that it needs as its least share."""
    deadline: Annotated[AwareDatetime, AfterValidator(_to_come)] | None = None
    """When all its steps are to be done: date and time with zone, e.g. 2040-01-31T18:00:00+01:00."""
    steps: Count | None = None
    """As many as its training loop makes in all; for the deadline."""
    checkpoint: Checkpoint | None = None
    snapshot_budget: Annotated[float, Field(ge=0, allow_inf_nan=False)] = SNAPSHOT_BUDGET
    """Share of the step time that snapshots of the state in memory may take; 0: none are made."""
    observe: bool = False
    """Detect failures of this job, never act."""
    skip_poison: bool = False
    """Go on without a micro-batch that kills workers."""
    inexact: bool = False
    """Its data can't be addressed by number."""


def read_job(path: Path) -> JobSpec:
    """The job of a file.  Raises `Problem`."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise Problem(f"job file: {path}: larger than {BYTES_MAX} bytes; is it one?")
        content = yaml.safe_load(path.read_text())
    except OSError as wrong:
        raise Problem(f"job file: {path}: {wrong.strerror}") from wrong
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise Problem(f"job file: {path}: not YAML: {' '.join(str(wrong).split())}") from wrong
    if not isinstance(content, dict):
        raise Problem(f"job file: {path}: want fields and values; `unicorn schema` prints which")
    try:
        return _spec(JobFile.model_validate(content), path.resolve().parent)
    except ValidationError as wrong:
        raise Problem(_first(wrong, path)) from wrong


def _first(wrong: ValidationError, path: Path) -> str:
    """The first mistake, in a line."""
    found = wrong.errors()[0]
    field = field_of(found)
    if found["type"] == "extra_forbidden":
        return f"{field}: {path}: there is no such field; `unicorn schema` prints all"
    if found["type"] == "missing":
        return f"{field}: {path}: missing; `unicorn schema` says what it is"
    if field == "deadline":
        return f"deadline: {found['input']}: want a date and time to come, with zone, e.g. {DEADLINE} ({path})"
    return f"{field}: {worded(found, SHAPES)} ({path})"


def _spec(job: JobFile, folder: Path) -> JobSpec:
    checkpoint = job.checkpoint
    least = job.min or min(job.sizes, default=1)
    url = checkpoint.url if checkpoint is not None else ""
    if job.shapes and job.replica:
        raise Problem("replica: want none beside shapes: the first of these is what the job begins with")
    shapes = [{str(axis): size for axis, size in axes.items()} for axes in job.shapes or [job.replica]]
    return JobSpec(
        name=job.name,
        command=tuple(job.command),
        environment={**passed_environment(os.environ, []), **job.env},
        directory=str((folder / Path(job.workdir).expanduser()).resolve()),
        size_min=least,
        size_max=job.max or max(job.sizes, default=least),
        weight=job.weight,
        priority=job.priority,
        sizes=tuple(job.sizes),
        replica=shapes[0],
        replica_size=job.replica_size or math.prod(shapes[0].values()),
        shapes=tuple(map(ReplicaShape, shapes)) if job.shapes else (),
        replica_within=job.replica_within,
        domains=job.domains,
        throughput=dict(job.throughput),
        throughput_min=job.throughput_min,
        deadline=job.deadline.timestamp() if job.deadline is not None else 0.0,
        steps=job.steps or 0,
        model=ModelDescription(**job.model.known()) if job.model is not None else None,
        checkpoint_url=url if "://" in url or not url else str((folder / url).resolve()),
        checkpoint_every_steps=checkpoint.every if checkpoint is not None else 0,
        checkpoint_keep=checkpoint.keep if checkpoint is not None else 3,
        snapshot_budget=job.snapshot_budget,
        observe=job.observe,
        skip_poison=job.skip_poison,
        inexact=job.inexact,
    )
