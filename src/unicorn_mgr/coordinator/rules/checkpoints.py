"""A checkpoint is complete when the coordinator says so, and only then published."""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import Job
from unicorn_mgr.effects.coordinator import CheckpointCommitted, Decision


def committed(c: Context, job: Job) -> Iterator[Decision]:
    """All shards of a step are in storage, written by members that count."""
    del c
    written = job.written
    if written is None:
        return
    worker = job.workers.get(job.written_by)
    if worker is None or not (worker.alive or job.give_up is not None):
        return
    done = job.checkpoint
    if done is None or (done.lineage.order, done.step) < (written.lineage.order, written.step):
        yield CheckpointCommitted(job.name, written.step, written.lineage, written.url, worker.name)
