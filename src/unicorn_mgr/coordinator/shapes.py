"""The shapes of a job's replicas: it has one at a time, and its spec says which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from unicorn_mgr.model import JobSpec


def in_shape(spec: JobSpec, axes: Mapping[str, int]) -> JobSpec:
    """The job with its replicas split along these axes."""
    return replace(spec, replica=dict(axes), replica_size=math.prod(axes.values()))


def in_each_shape(spec: JobSpec) -> Sequence[JobSpec]:
    """The job in each of its shapes, as it prefers them."""
    return [in_shape(spec, shape.axes) for shape in spec.shapes] or [spec]
