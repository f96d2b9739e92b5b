"""A checkpoint is complete when the coordinator says so, and only then published.

What counts is that a part is stored, and that whoever is to publish it is there: a process that outlives the worker
that has left the part, or the worker itself.  The end of a job and the drain of a node wait for what is left there,
but not for ever, and what they do not wait for is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from unicorn_mgr.coordinator.checkpoints import Part
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.replicas import whole
from unicorn_mgr.coordinator.state import Job, Node, NodePhase
from unicorn_mgr.effects.coordinator import CheckpointCommitted, Decision, PartGivenUp


def committed(c: Context, job: Job) -> Iterator[Decision]:
    """All parts of a step are in storage, of one replica."""
    del c
    for mark in job.parts.stored():
        if job.checkpoint is not None and mark.order <= job.checkpoint.mark.order:
            return
        stored = [job.workers[name] for name, part in job.parts.of.items() if part.stored and part.mark == mark]
        kept = [w for w in stored if job.parts.of[w.name].handed or w.alive or job.give_up is not None]
        writers = whole(job, kept)
        if writers:
            url = job.parts.of[writers[0].name].url
            yield CheckpointCommitted(job.name, mark.step, mark.lineage, url, tuple(w.name for w in writers))
            return


def given_up(c: Context, job: Job) -> Iterator[Decision]:
    """What holds up the end of a job or the drain of a node does so for a limited time."""
    for name, part in job.parts.of.items():
        node = c.state.nodes[job.workers[name].node]
        if part.handed and (not job.alive() or node.phase is NodePhase.DRAINING):
            why = _why(c, job, node, part)
            if why:
                yield PartGivenUp(job.name, name, part.mark.step, why)


def _why(c: Context, job: Job, node: Node, part: Part) -> str:
    if job.cancelled:
        return "the job is cancelled"
    if node.phase in (NodePhase.LOST, NodePhase.ISOLATED):
        return f"node {node.name} is {node.phase.value}"
    if c.now >= part.since + c.settings.store_seconds:
        return f"it is not stored after {c.settings.store_seconds:g} s"
    return ""


def deadlines(c: Context, job: Job) -> Iterator[float]:
    """When nothing waits for a part any longer."""
    yield from (part.since + c.settings.store_seconds for part in job.parts.of.values() if part.handed)


def are_on(c: Context, node: str) -> bool:
    """Parts are there that are still to be stored."""
    return any(
        part.handed and job.workers[name].node == node
        for job in c.state.jobs.values()
        if not job.over
        for name, part in job.parts.of.items()
    )
