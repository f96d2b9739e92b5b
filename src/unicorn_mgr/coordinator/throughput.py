"""T(job, x) as the planner is told it: measured while the job runs, over what can be expected of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from unicorn_mgr.coordinator.state import Job
from unicorn_mgr.model import DATA_AXES, JobSpec, ModelDescription
from unicorn_mgr.planner.problem import NOMINAL_FLOPS, Staircase
from unicorn_mgr.profiles.measured import Estimate, departs, restored
from unicorn_mgr.profiles.profile import Entry, Profile, combined, given, overlaid, predicted, proportional
from unicorn_mgr.profiles.shape import ModelShape
from unicorn_mgr.profiles.sizes import Sizes, sizes_of

COUNTLESS = 10**9
"""Micro-batches of a job that has not told how many it has: every size pays."""


def staircases(job: Job, slots: int, devices: Iterable[str]) -> dict[str, Staircase]:
    """By device type, the sizes up to `slots` at which it runs faster than at any smaller one."""
    base = expected(job.spec, micro_batches(job), slots)
    return dict.fromkeys(devices, _with_measured(base, job).rising)


def rising(job: Job, slots: int) -> Staircase:
    """Its sizes of at most so many slots at which it runs faster than at any smaller one."""
    return _with_measured(expected(job.spec, micro_batches(job), slots), job).rising if slots else ()


def rate_at(job: Job, size: int) -> float:
    """FLOP/s on so many slots, as far as they do anything for it."""
    return max((rate for at, rate in rising(job, size) if at <= size), default=0.0)


def work_of_step(job: Job) -> float | None:
    """FLOP of a step, in the measure of its throughput; None as long as nobody can tell."""
    if job.spec.model is not None and not job.paces:
        return shape_of(job.spec.model).flops_per_step
    return _work(expected(job.spec, micro_batches(job), max(job.paces, default=1)), job)


def rated(spec: JobSpec) -> bool:
    """Whether somebody has told its speed, so that its throughput is in real FLOP/s."""
    return spec.model is not None or bool(spec.throughput)


def expected(spec: JobSpec, micro_batches: int, slots: int) -> Profile:
    """Before anything is measured: the user's table, over a prediction from the model.  Raises ProfileError."""
    sizes = sizes_of_job(spec)
    if spec.model is not None:
        base = _predicted(spec.model, sizes, slots)
    else:
        base = _proportional(sizes, micro_batches, slots)
    if not spec.throughput:
        return base
    return combined([given(spec.throughput, sizes, partial=spec.model is not None), base])


def sizes_of_job(spec: JobSpec) -> Sizes:
    """Sizes that its spec allows.  Raises ProfileError."""
    limits = Sizes(spec.replica_size or 1, spec.size_min, spec.size_max, spec.sizes or None)
    if spec.model is None:
        return limits
    return sizes_of(shape_of(spec.model), limits.minimum, limits.maximum, limits.listed)


def shape_of(model: ModelDescription) -> ModelShape:
    """The model that throughput is predicted from.  Raises ProfileError."""
    return ModelShape(
        parameters=model.parameters,
        active_parameters=model.active_parameters or None,
        sequence_length=model.sequence_length,
        global_batch=model.global_batch,
        micro_batch=model.micro_batch,
        device=model.device,
        precision=model.precision,
        tensor_parallel=model.tensor_parallel,
        pipeline_parallel=model.pipeline_parallel,
        context_parallel=model.context_parallel,
        layers=model.layers or None,
        hidden=model.hidden or None,
    )


@lru_cache(maxsize=1_000)
def _predicted(model: ModelDescription, sizes: Sizes, slots: int) -> Profile:
    return predicted(shape_of(model), sizes, slots)


@lru_cache(maxsize=1_000)
def _proportional(sizes: Sizes, micro_batches: int, slots: int) -> Profile:
    return proportional(micro_batches, sizes, slots, NOMINAL_FLOPS)


def micro_batches(job: Job) -> int:
    """Rounds of a single replica, as its program says; before it has said so each size is taken to pay."""
    width = math.prod(job.spec.replica.get(axis, 1) for axis in DATA_AXES)
    return -(-job.micro_batches // width) or COUNTLESS


def _with_measured(base: Profile, job: Job) -> Profile:
    """Its own steps show how its speed changes with its size; how much work a step is they do not say."""
    known = {size: seconds for size, seconds in sorted(job.paces.items()) if base.at(size)}
    work = _work(base, job)
    if work is None:
        return base
    return overlaid(Profile({size: Entry(work / seconds, "measured") for size, seconds in known.items()}), base)


def _work(base: Profile, job: Job) -> float | None:
    """The work of a step is what makes the first figure that was measured the expected one."""
    return next((base.at(size) * seconds for size, seconds in job.paces.items() if base.at(size)), None)


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
