"""T(job, x) as the planner is told it: measured while the job runs, over what can be expected of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from unicorn_mgr.coordinator.shapes import in_each_shape
from unicorn_mgr.coordinator.state import Job
from unicorn_mgr.model import DATA_AXES, JobSpec, said
from unicorn_mgr.planner.problem import NOMINAL_FLOPS, Staircase
from unicorn_mgr.profiles.measured import Estimate, departs, restored
from unicorn_mgr.profiles.profile import Entry, Profile, combined, given, overlaid, predicted, proportional
from unicorn_mgr.profiles.shape import ModelShape
from unicorn_mgr.profiles.sizes import Sizes, sizes_of

COUNTLESS = 10**9
"""Micro-batches of a job that has not told how many it has: every size pays."""

PREFERENCE = 0.05
"""Of two shapes that nobody knows to differ in speed, the one that the job names later is taken to be slower by this
share: enough for the other one to be worth a standstill, and too little to leave slots idle for."""


def staircases(job: Job, spec: JobSpec, slots: int, devices: Iterable[str]) -> dict[str, Staircase]:
    """By device type, the sizes up to `slots` at which it runs faster than at any smaller one; in that shape."""
    return dict.fromkeys(devices, _profile(job, spec, slots).rising)


def rising(job: Job, slots: int) -> Staircase:
    """Its sizes of at most so many slots at which it runs faster than at any smaller one, in whatever shape."""
    best: dict[int, Entry] = {}
    for spec in in_each_shape(job.spec) if slots else ():
        for size, entry in _profile(job, spec, slots).entries.items():
            best[size] = max(entry, best.get(size, entry), key=lambda e: e.flops)
    return Profile(best).rising


def rate_at(job: Job, size: int, spec: JobSpec | None = None) -> float:
    """FLOP/s on so many slots, as far as they do anything for it; in that shape, or in whatever is best."""
    stairs = rising(job, size) if spec is None else _profile(job, spec, size).rising if size else ()
    return max((rate for at, rate in stairs if at <= size), default=0.0)


def work_of_step(job: Job) -> float | None:
    """FLOP of a step, in the measure of its throughput; None as long as nobody can tell."""
    measured = _work(job)
    return shape_of(job.spec).flops_per_step if measured is None and job.spec.model is not None else measured


def rated(spec: JobSpec) -> bool:
    """Whether somebody has told its speed, so that its throughput is in real FLOP/s."""
    return spec.model is not None or bool(spec.throughput)


def expected(spec: JobSpec, micro_batches: int, slots: int) -> Profile:
    """Before anything is measured: the user's table, over a prediction from the model.  Raises ProfileError.

    A table knows slots, not shapes: a job of several takes what it says of the sizes that one has, and
    prefers the shape that it names first.
    """
    sizes = sizes_of_job(spec)
    if spec.model is not None:
        base = _predicted(shape_of(spec), sizes, slots)
    else:
        base = _proportional(sizes, micro_batches, slots)
    several = len(spec.shapes) > 1
    table = {size: rate for size, rate in spec.throughput.items() if not several or size in sizes}
    if table:
        base = combined([given(table, sizes, partial=several or spec.model is not None), base])
    if spec.model is not None or not several:
        return base
    later = [shape.axes for shape in spec.shapes].index(spec.replica)
    slower = (1 - PREFERENCE) ** later
    return Profile({size: replace(entry, flops=entry.flops * slower) for size, entry in base.entries.items()})


def sizes_of_job(spec: JobSpec) -> Sizes:
    """Sizes that its spec allows.  Raises ProfileError."""
    limits = Sizes(spec.replica_size or 1, spec.size_min, spec.size_max, spec.sizes or None)
    if spec.model is None:
        return limits
    found = sizes_of(shape_of(spec), limits.minimum, limits.maximum, limits.listed)
    return replace(found, replica=spec.replica_size) if spec.replica else found


def shape_of(spec: JobSpec) -> ModelShape:
    """The model that throughput is predicted from, split as the job's replicas are.  Raises ProfileError."""
    model = spec.model
    assert model is not None, "only of a job that describes it"
    return ModelShape(
        parameters=model.parameters,
        active_parameters=model.active_parameters or None,
        sequence_length=model.sequence_length,
        global_batch=model.global_batch,
        micro_batch=model.micro_batch,
        device=model.device,
        precision=model.precision,
        tensor_parallel=spec.replica.get("tensor", model.tensor_parallel),
        pipeline_parallel=spec.replica.get("pipeline", model.pipeline_parallel),
        sharding="full" if spec.replica.get("shard", 1) > 1 else "optimizer",
        context_parallel=model.context_parallel,
        layers=model.layers or None,
        hidden=model.hidden or None,
    )


@lru_cache(maxsize=1_000)
def _predicted(model: ModelShape, sizes: Sizes, slots: int) -> Profile:
    return predicted(model, sizes, slots)


@lru_cache(maxsize=1_000)
def _proportional(sizes: Sizes, micro_batches: int, slots: int) -> Profile:
    return proportional(micro_batches, sizes, slots, NOMINAL_FLOPS)


def micro_batches(job: Job, spec: JobSpec) -> int:
    """Rounds of a single replica, as its program says; before it has said so each size is taken to pay."""
    width = math.prod(spec.replica.get(axis, 1) for axis in DATA_AXES)
    return -(-job.micro_batches // width) or COUNTLESS


def paces_in(job: Job, spec: JobSpec) -> Mapping[int, float]:
    """Seconds of a step by size, as far as they are known of that shape."""
    return job.paces if spec.replica == job.spec.replica else job.other_paces.get(said(spec.replica), {})


def _profile(job: Job, spec: JobSpec, slots: int) -> Profile:
    """Its own steps show how its speed changes with size and shape; how much work a step is they do not say."""
    base, work = expected(spec, micro_batches(job, spec), slots), _work(job)
    if work is None:
        return base
    known = {size: seconds for size, seconds in sorted(paces_in(job, spec).items()) if base.at(size)}
    return overlaid(Profile({size: Entry(work / seconds, "measured") for size, seconds in known.items()}), base)


def _work(job: Job) -> float | None:
    """Of a step, the same in all shapes: what makes the first figure that was measured the expected one."""
    for spec in in_each_shape(job.spec):
        paces = paces_in(job, spec)
        base = expected(spec, micro_batches(job, spec), max(paces)) if paces else Profile({})
        for size, seconds in paces.items():
            if base.at(size):
                return base.at(size) * seconds
    return None


def departed(job: Job, size: int) -> float | None:
    """Seconds a step takes at this size, if that is surely not what plans count on."""
    estimate = restored(job.measured).step_seconds(size)
    if estimate is None:
        return None
    if size not in job.paces:
        return estimate.value
    counted_on = Profile({size: Entry(1 / job.paces[size], "measured")})
    faster = Estimate(1 / estimate.value, estimate.error)
    return estimate.value if departs(counted_on, size, faster) else None
