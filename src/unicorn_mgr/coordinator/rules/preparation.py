"""A newcomer is prepared while the slot it is to have is still another's.

Its process is started and its model is built and rehearsed beside the worker that is to leave; only when
it is ready does that one let go, and only when that one has ended does it join: a slot never has two
members.  Where the memory of the device does not hold both, a newcomer begins when the other has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import ClusterState, Job, Worker, WorkerPhase
from unicorn_mgr.coordinator.throughput import shape_of
from unicorn_mgr.model import Slot
from unicorn_mgr.planner.problem import Place
from unicorn_mgr.profiles.shape import USABLE_SHARE

_PREPARING = frozenset({WorkerPhase.ORDERED, WorkerPhase.STARTED, WorkerPhase.ATTACHED})


def holders(state: ClusterState, worker: Worker) -> list[Worker]:
    """Processes that were on a worker's slot before it and have not ended."""
    if worker.exited is not None or not state.is_shared(worker.node, worker.slot):
        return []
    return list(itertools.takewhile(lambda w: w is not worker, state.on_slot(worker.node, worker.slot)))


def may_begin(c: Context, job: Job, place: Place) -> bool:
    """A process of the job may be started on a slot: it is free, or soon to be and wide enough for two."""
    here = c.state.on_slot(*place)
    if not here:
        return True
    # A process that never calls attach() begins its work at once.
    if len(here) > 1 or job.gang or not c.settings.prepare_seconds:
        return False
    holder = here[0]
    other = c.state.jobs[holder.job]
    leaves = holder.phase in (WorkerPhase.MEMBER, WorkerPhase.LEAVING)
    return leaves and other is not job and _both_fit(job, other, c.state.nodes[place[0]].slots, place[1])


def _both_fit(job: Job, other: Job, slots: tuple[Slot, ...], index: int) -> bool:
    """Into the memory of their device, as far as is known; beside a processor there is plenty."""
    if any(s.index == index and s.device == "cpu" for s in slots):
        return True
    if job.spec.model is None or other.spec.model is None:
        return False
    shapes = shape_of(job.spec), shape_of(other.spec)
    memory = min(shape.device_type.memory_bytes for shape in shapes)
    return sum(shape.bytes_per_device(1) for shape in shapes) <= USABLE_SHARE * memory


def successor_due_at(c: Context, worker: Worker) -> float:
    """Until when a worker that is to leave keeps its slot for the newcomer that is prepared on it."""
    return max(_preparing_until(c, worker), default=c.now)


def _preparing_until(c: Context, worker: Worker) -> Iterator[float]:
    if not c.state.is_shared(worker.node, worker.slot):
        return
    for other in c.state.on_slot(worker.node, worker.slot):
        if other.job != worker.job and other.phase in _PREPARING and worker in holders(c.state, other):
            yield other.ordered_at + c.settings.prepare_seconds


def deadlines(c: Context, job: Job) -> Iterator[float]:
    """When a newcomer has had its time, and whoever it follows need not wait any longer."""
    for worker in job.alive():
        yield from _preparing_until(c, worker)
