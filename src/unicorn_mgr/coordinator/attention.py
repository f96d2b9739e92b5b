"""Which jobs to look at after an event, and when to look at each again though nothing has happened.

A cluster may have a hundred jobs with hundreds of workers each, and an incident is a dozen events: what
concerns one job must not cost a look at all.  That nothing is overlooked is checked after every event of
every test of the core: no rule has anything to say of any job, and no deadline comes earlier than is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unicorn_mgr.coordinator.outlook import Outlook, job_of, wants_slots, worker_of
from unicorn_mgr.coordinator.state import ClusterState, Job
from unicorn_mgr.effects import coordinator as e


def concerned(state: ClusterState, outlook: Outlook, event: e.Event) -> set[str]:
    """Jobs that an event may lead to a decision about."""
    job, worker, node = job_of(event), worker_of(event), getattr(event, "node", "")
    incident = state.incidents.get(getattr(event, "incident", ""))
    if worker:
        return {job} | _beside(state, worker, ended=isinstance(event, e.WorkerExited))
    if incident is not None and not job:
        job = incident.job
    if job or node or incident is not None:
        return {job} | (outlook.jobs_on(node) | _unsafe(state) if node else set())
    if isinstance(event, e.PlanWanted):
        return set()
    if isinstance(event, e.PlanReady):
        return {j.name for j in state.jobs.values() if wants_slots(j) and (_lacks_workers(j) or _may_change_shape(j))}
    return set(state.jobs)


def _unsafe(state: ClusterState) -> set[str]:
    """Jobs the copies of whose snapshots could lie better if there were other nodes."""
    return {job.name for job in state.jobs.values() if job.backups.reason and not job.over}


def _beside(state: ClusterState, name: str, *, ended: bool) -> set[str]:
    """Jobs with a process on a worker's slot, and, if it has left that now, whoever was given it."""
    worker = state.worker(name)
    if worker is None:
        return set()
    place = (worker.node, worker.slot)
    beside = {w.job for w in state.on_slot(*place)}
    if ended:
        beside |= {job.name for job in state.jobs.values() if not job.over and place in job.seats.values()}
    return beside


def _lacks_workers(job: Job) -> bool:
    return len(job.seats) > sum(w.alive for w in job.workers.values())


def _may_change_shape(job: Job) -> bool:
    return not job.seats and len(job.spec.shapes) > 1


class Agenda:
    """When each job is to be looked at again, as of the last look."""

    def __init__(self, deadlines: Callable[[Job, float], Iterable[float]]) -> None:
        self._deadlines = deadlines
        self._next: dict[str, float] = {}

    def clear(self) -> None:
        """Nothing is known of any job."""
        self._next.clear()

    def looked_at(self, state: ClusterState, jobs: Iterable[str], now: float) -> None:
        """Nothing more is to be decided about these at this moment."""
        for name in jobs:
            job = state.jobs.get(name)
            if job is None or job.over:
                self._next.pop(name, None)
            else:
                self._next[name] = min((at for at in self._deadlines(job, now) if at > now), default=float("inf"))

    def due(self, state: ClusterState, now: float) -> set[str]:
        """Jobs whose time has come, and those that nobody has looked at yet."""
        never = float("-inf")
        return {name for name, job in state.jobs.items() if not job.over and self._next.get(name, never) <= now}

    def first(self, state: ClusterState, now: float) -> float:
        """When the first job is due; infinite if none will be."""
        unknown = {name for name, job in state.jobs.items() if not job.over}.difference(self._next)
        self.looked_at(state, unknown, now)
        return max(now, min(self._next.values(), default=float("inf")))
