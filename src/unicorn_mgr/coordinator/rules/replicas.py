"""Replicas of several workers: each stands or falls as a whole.

A replica is the seats from `k * size` on, as many as its size; a seat's place among them is its worker's
position.  It is started as one, is a member with all its workers or with none, leaves as one, and when it
loses one the others are ended: they hang in collectives inside it, and come back with it.  Whoever says that
it can't reach the others may be the first to notice that one of them is gone: for a moment that is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import Job, Worker, WorkerPhase
from unicorn_mgr.effects.coordinator import Decision, WorkerCondemned


def replica_size(job: Job) -> int:
    """Workers of one replica."""
    return job.spec.replica_size if job.spec.replica else 1


def seats_beside(job: Job, seat: int) -> range:
    """The seats of its replica."""
    size = replica_size(job)
    return range(seat // size * size, seat // size * size + size)


def whole(job: Job, workers: Iterable[Worker]) -> list[Worker]:
    """Those of whose replica all workers are among them."""
    found = list(workers)
    if replica_size(job) == 1:
        return found
    seats = {w.seat for w in found}
    return [w for w in found if seats.issuperset(seats_beside(job, w.seat))]


def whole_seats(job: Job, seats: Iterable[int]) -> list[int]:
    """Those of whose replica all seats are among them."""
    given = sorted(seats)
    return [seat for seat in given if set(given).issuperset(seats_beside(job, seat))]


def broken(c: Context, job: Job) -> Iterator[Decision]:
    """A replica that has lost a worker: the others can't go on, and their state is on other replicas."""
    if replica_size(job) == 1 or job.over or c.state.paused or c.state.observes(job):
        return
    for worker in job.alive():
        lost = [w for w in job.lost_beside(worker) if c.now >= _to_be_blamed_at(c, w)]
        if lost and worker.phase is not WorkerPhase.ENDED:
            yield WorkerCondemned(worker.name, f"its replica has lost {lost[0].name}: {lost[0].gone_reason}")


def _to_be_blamed_at(c: Context, lost: Worker) -> float:
    """Until then its communication error may still be explained by the end of another of its replica."""
    return lost.gone_at + c.settings.settle_seconds if lost.cut_off else lost.gone_at


def deadlines(c: Context, job: Job) -> Iterator[float]:
    """When communication errors inside replicas have settled."""
    yield from (_to_be_blamed_at(c, w) for w in job.workers.values() if w.cut_off)
