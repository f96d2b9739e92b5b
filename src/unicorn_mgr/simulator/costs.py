"""What things cost, as ranges with their sources: frozen in `costs.yaml`, the same for every scenario and policy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

import yaml

LEVELS = ("low", "mid", "high")
"""Ends and middle of all ranges: low is the favourable end, for ours and for all others alike."""


@dataclass(frozen=True, slots=True)
class Costs:
    """One point of the ranges.  Seconds, bytes a second, shares."""

    # Ours: what `python -m benchmarks` measures, and what published figures add to it on GPUs.
    exit_seen_seconds: float
    """From the end of a process until the coordinator knows of it."""
    regroup_seconds: float
    """From there until survivors compute again: the part that does not grow with their number."""
    regroup_seconds_per_doubling: float
    """What each doubling of the members adds to that."""
    communicator_seconds_per_thousand: float
    """Of NCCL's bootstrap, for each thousand GPUs that are connected anew."""
    process_start_seconds: float
    """Of a worker whose program is warm on its node: process, CUDA context, model, first compilation."""
    cold_start_seconds: float
    """What is added on a node that has not run the job yet: image, libraries, data loaders."""
    state_bytes_per_second: float
    """Of live state from one worker's GPUs to another's, per GPU."""
    storage_bytes_per_second: float
    """Of a checkpoint from storage, per GPU."""
    hang_seconds: float
    """From a stall that is noticed until its culprit is named."""

    # Others'.
    timeout_seconds: float
    """Of a framework's collectives: until then nobody knows that a process is gone or stands still."""
    node_loss_seen_seconds: float
    """Until a cluster manager notices that a node is gone."""
    fast_detection_seconds: float
    """Of a system that watches processes, for what the framework only sees by its timeout."""
    queue_seconds: float
    """To be submitted and scheduled again."""
    setup_seconds: float
    """Environment, processes, CUDA and communicators of a whole job."""
    standby_seconds: float
    """Until a warm standby has taken the place of a node."""
    elastic_stall_seconds: float
    """Of a job whose replicas go on without the one that is hit."""
    elastic_rejoin_seconds: float
    """Of the whole job when a replica joins again."""


@cache
def ranges() -> dict[str, dict[str, Any]]:
    """The file as it is: by field low, mid, high, unit and source."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((resources.files(__package__) / "costs.yaml").read_text())
    return found


def load(level: str = "mid") -> Costs:
    """All costs at that level.  Raises KeyError of a level that isn't one of `LEVELS`."""
    if level not in LEVELS:
        raise KeyError(level)
    return Costs(**{field.name: float(ranges()[field.name][level]) for field in fields(Costs)})
