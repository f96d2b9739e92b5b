"""A checkpoint is complete when the coordinator says so, and only then published."""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.replicas import whole
from unicorn_mgr.coordinator.state import Job
from unicorn_mgr.effects.coordinator import CheckpointCommitted, Decision


def committed(c: Context, job: Job) -> Iterator[Decision]:
    """All parts of a step are in storage, written by workers of one replica that count."""
    del c
    known = [worker for name in job.written if (worker := job.workers.get(name)) is not None]
    writers = whole(job, [w for w in known if w.alive or job.give_up is not None])
    if not writers:
        return
    written, done = job.written[writers[0].name], job.checkpoint
    if done is None or (done.lineage.order, done.step) < (written.lineage.order, written.step):
        names = tuple(w.name for w in writers)
        yield CheckpointCommitted(job.name, written.step, written.lineage, written.url, names)
