"""How long moving a job's state takes: bytes that its workers have told, over what transfers have shown.

Each worker that took its state from somewhere has told how many bytes in how many seconds, and each that
stored its part, too.  The bandwidth of a source is the median of the newest of these, of all jobs: networks and
disks belong to the cluster.  Small transfers say more of the way there than of its width, and are not counted.

Figures are rounded to quarters of a doubling: that is finer than they are known, and a cluster's problem
stays the same object from one transfer to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

from unicorn_mgr.coordinator.state import ClusterState, Job
from unicorn_mgr.messages import CheckpointWritten, Resumed
from unicorn_mgr.model import WorkerName
from unicorn_mgr.profiles.shape import OPTIMIZER_BYTES, WEIGHT_BYTES

WINDOW = 16
"""Newest samples that count."""

BYTES_MIN = 32 << 20
"""Of a transfer that says something of bandwidth."""

USUAL = {"live": 1e9, "memory": 4e9, "peer": 1e9, "storage": 5e8, "store": 5e8}
"""Bytes a second of one worker, by source, before anything was moved; `store`: into storage.

Usual of 10 to 25 Gbit/s a worker, of copies within a node's memory, and of storage that many share.
"""

STEPS_A_DOUBLING = 4

Bandwidths = Mapping[str, float]
"""Bytes a second, by source."""


def bandwidths(state: ClusterState) -> Bandwidths:
    """As they have shown, as far as they have."""
    return {source: _rounded(median(state.transfers.get(source) or (usual,))) for source, usual in USUAL.items()}


def _rounded(rate: float) -> float:
    return math.exp2(round(math.log2(rate) * STEPS_A_DOUBLING) / STEPS_A_DOUBLING)


def heed_resumed(state: ClusterState, job: Job, told: Mapping[str, Resumed]) -> None:
    """Members have come to the end of a move: where state has come from, and how much they have."""
    for resumed in told.values():
        _sample(state, resumed.source, resumed.state_bytes, resumed.restore_seconds)
    size = max(1, math.prod(job.spec.replica.values()))
    parts: dict[int, int] = {}
    for name, resumed in told.items():
        position = WorkerName.parse(name).seat % size
        parts[position] = max(parts.get(position, 0), resumed.held_bytes)
    if len(parts) == size and all(parts.values()):
        job.copy_bytes = sum(parts.values())


def heed_written(state: ClusterState, part: CheckpointWritten) -> None:
    """A worker has stored its part."""
    _sample(state, "store", part.size_bytes, part.write_seconds)


def _sample(state: ClusterState, source: str, size_bytes: int, seconds: float) -> None:
    if source in USUAL and size_bytes >= BYTES_MIN and seconds > 0:
        state.transfers[source] = [*state.transfers.get(source, []), size_bytes / seconds][-WINDOW:]


def seconds_of(job: Job, rates: Bandwidths, sources: Iterable[str]) -> float:
    """For one worker's part of the state, to be moved from each of these."""
    return sum(worker_bytes(job) / rates[source] for source in sources)


def worker_bytes(job: Job) -> float:
    """Of state on each worker: as they have told, else by the model's parameters; 0 if nobody knows."""
    model = job.spec.model
    described = model.parameters * (WEIGHT_BYTES + OPTIMIZER_BYTES) if model is not None else 0.0
    return (job.copy_bytes or described) / max(1, job.spec.replica_size)


def nearest(job: Job) -> tuple[str, ...]:
    """Where a job that nobody trains any more gets its state from: a copy on another node, storage, its nodes' memory.

    Nowhere, if there is none: then it begins anew.
    """
    if job.backups.sources:
        return ("peer",)
    if job.spec.checkpoint_url:
        return ("storage",)
    return ("memory",) if job.spec.snapshot_budget > 0 else ()
