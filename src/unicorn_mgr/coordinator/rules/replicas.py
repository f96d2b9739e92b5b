"""Replicas of several workers: each stands or falls as a whole.

A replica is the seats from `k * size` on, as many as its size; a seat's place among them is its worker's
position.  It is started as one, is a member with all its workers or with none, leaves as one, and when it
loses one the others are ended: they hang in collectives inside it, and come back with it.  Whoever says that
it can't reach the others may be the first to notice that one of them is gone: for a moment that is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.state import Job, Worker, WorkerPhase
from unicorn_mgr.effects.coordinator import Decision, WorkerCondemned
from unicorn_mgr.model import AXES
from unicorn_mgr.planner.problem import Place


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
    whole = set(whole_seats(job, {w.seat for w in found}))
    return [w for w in found if w.seat in whole]


def whole_seats(job: Job, seats: Iterable[int]) -> list[int]:
    """Those of whose replica all seats are among them."""
    given = sorted(seats)
    if replica_size(job) == 1:
        return given
    present = Counter(seat // replica_size(job) for seat in given)
    return [seat for seat in given if present[seat // replica_size(job)] == replica_size(job)]


def broken(c: Context, job: Job) -> Iterator[Decision]:
    """A replica that has lost a worker: the others can't go on, and their state is on other replicas."""
    if replica_size(job) == 1 or job.over or c.state.paused or c.state.observes(job):
        return
    lost: dict[tuple[int, int], Worker] = {}
    for worker in job.gone():
        if not (worker.ended_well or worker.loop_ended) and c.now >= _to_be_blamed_at(c, worker):
            lost.setdefault(_start_of_replica(job, worker), worker)
    for worker in job.alive() if lost else job.unsettled():
        if worker.phase is WorkerPhase.ENDED:
            yield from _stranded(job, worker)
        elif (first := lost.get(_start_of_replica(job, worker))) is not None:
            yield WorkerCondemned(worker.name, f"its replica has lost {first.name}: {first.gone_reason}")


def _start_of_replica(job: Job, worker: Worker) -> tuple[int, int]:
    """Whoever has the same was started to meet."""
    return worker.seat // replica_size(job), worker.start


def _stranded(job: Job, worker: Worker) -> Iterator[Decision]:
    """After the loop each goes on for itself, but not one that waits for a checkpoint which can't be complete."""
    own = job.parts.of.get(worker.name)
    if own is None:
        return
    left = {name for name, part in job.parts.of.items() if part.handed and part.mark == own.mark}
    beside = [w for w in job.workers.values() if w.seat in seats_beside(job, worker.seat) and w.start == worker.start]
    for gone in (w for w in beside if not (w.alive or w.ended_well or w.name in left)):
        why = f"the last checkpoint can't be complete without {gone.name}: {gone.gone_reason}"
        yield WorkerCondemned(worker.name, why)
        return


def _to_be_blamed_at(c: Context, lost: Worker) -> float:
    """Until then its communication error may still be explained by the end of another of its replica."""
    return lost.gone_at + c.settings.settle_seconds if lost.cut_off else lost.gone_at


def deadlines(c: Context, job: Job) -> Iterator[float]:
    """When communication errors inside replicas have settled."""
    yield from (_to_be_blamed_at(c, w) for w in job.workers.values() if w.cut_off)


def near_memory(job: Job, planned: Mapping[int, Place]) -> dict[int, Place]:
    """The places of each new replica, in such an order that workers find their own part in their nodes' memory.

    What is left of several broken replicas may hold every part between them: put together, nothing of the
    state is moved.  Not at the price of taking neighbours apart that the plan has put on one node.
    """
    size, seats = replica_size(job), dict(planned)
    for first in sorted({seat // size * size for seat in planned}) if job.spec.snapshot_budget > 0 else ():
        mine = range(first, first + size)
        places = [planned[seat] for seat in mine if seat in planned]
        present = [job.seats[seat] for seat in mine if seat in job.seats]
        if len(places) == size:
            ordered = present if set(present) == set(places) else _matched(job, places)
            seats |= dict(zip(mine, ordered, strict=True))
    return seats


def _matched(job: Job, places: Sequence[Place]) -> list[Place]:
    """By position, as many as possible where a worker of that position has been."""
    size = len(places)
    been = {(w.node, w.seat % size) for w in job.workers.values()}
    taken: dict[Place, int] = {}

    def takes(position: int, refused: set[Place]) -> bool:
        for place in (places[position], *places):
            if (place[0], position) in been and place not in refused:
                refused.add(place)
                if place not in taken or takes(taken[place], refused):
                    taken[place] = position
                    return True
        return False

    for position in range(size):
        takes(position, set())
    there = {position: place for place, position in taken.items()}
    rest = iter([place for place in places if place not in taken])
    ordered = [there[position] if position in there else next(rest) for position in range(size)]
    return ordered if _together(job, ordered) >= _together(job, places) else list(places)


def _together(job: Job, places: Sequence[Place]) -> int:
    """Neighbours along the innermost axis that are on one node."""
    innermost = [size for name in AXES if (size := job.spec.replica.get(name, 1)) > 1][-1:]
    near = innermost[0] if innermost else 1
    return sum(a[0] == b[0] for i, (a, b) in enumerate(pairwise(places)) if (i + 1) % near)
