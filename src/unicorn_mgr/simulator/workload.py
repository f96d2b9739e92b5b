"""What a simulated job does, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """A training job, seen from outside: all times in seconds on a slot of speed 1."""

    steps: int
    micro_batches: int
    """A step, over all members."""
    micro_batch_seconds: float = 0.05
    reduce_seconds: float = 0.01
    """Between the last backward and the reduced gradient."""
    update_seconds: float = 0.01
    """The optimizer's."""
    buckets: int = 2
    """That gradients are reduced in."""
    spawn_seconds: float = 0.05
    """From the order to the process."""
    attach_seconds: float = 0.5
    """From there until the script has called attach()."""
    build_seconds: float = 1.0
    """Building and rehearsing the model."""
    form_seconds: float = 0.02
    """Connecting the members of an epoch."""
    bucket_seconds: float = 0.02
    """Bringing reduced buckets from one member to another."""
    state_seconds: float = 0.2
    """Bringing the whole state from one member to another."""
    restore_seconds: float = 1.0
    """Reading the whole state from storage."""
    store_seconds: float = 1.0
    """Writing it there."""
    exit_seconds: float = 0.1
    """From the end of the loop to that of the process."""
