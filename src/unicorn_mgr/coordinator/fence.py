"""The door: what is repeated, out of date, or about nobody is dropped here, once, and changes nothing."""

from __future__ import annotations

from unicorn_mgr.coordinator.state import ClusterState, NodePhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import Resumed, Symptom, Unreachable


def admits(state: ClusterState, event: e.Fact) -> bool:
    """Whether the core is to hear of this at all."""
    match event:
        case e.TermStarted(term):
            return term > state.term
        case e.JobSubmitted(request, job):
            return request not in state.requests and (job not in state.jobs or state.jobs[job].over)
        case e.JobCancelled(request, job) | e.DrillOrdered(request, job) | e.WishesSet(request, job):
            return request not in state.requests and _runs(state, job)
        case e.ObserveSet(request, job):
            return request not in state.requests and (not job or _runs(state, job))
        case e.PauseSet(request):
            return request not in state.requests
        case e.NodeDrained(request, node) | e.NodeUndrained(request, node) | e.NodeDegraded(request, node):
            return request not in state.requests and node in state.nodes
        case e.NodeSilent(node) | e.NodeHeard(node):
            return node in state.nodes
        case e.GroupFormed(job, epoch):
            return _runs(state, job) and epoch == state.jobs[job].epoch
        case e.JobHalted(job):
            return _runs(state, job) and not state.jobs[job].halted and _waits_for_silence(state, job)
        case e.JobProgressed(job) | e.ReadingTaken(job):
            return _runs(state, job)
        case e.WorkerTold(worker, (Symptom() | Unreachable() | Resumed()) as fact):
            found = state.worker(worker)
            if found is None:
                return False
            job_of = state.jobs[found.job]
            return job_of.has_member(worker) and fact.epoch == job_of.epoch
        case e.WorkerStarted() | e.WorkerAttached() | e.WorkerDying() | e.WorkerTold() | e.EvidenceTaken():
            return state.worker(event.worker) is not None
        case e.WorkerQuiet(sample):
            return state.worker(sample.worker) is not None
        case e.WorkerExited(exited):
            found = state.worker(exited.worker)
            return found is not None and found.exited is None
        case e.PlanReady(number):
            return number == state.planning.number and not state.planning.answered
        case e.NodeAttached() | e.TimePassed():
            return True


def _runs(state: ClusterState, job: str) -> bool:
    return job in state.jobs and not state.jobs[job].over


def _waits_for_silence(state: ClusterState, job: str) -> bool:
    return any(state.nodes[w.node].phase is NodePhase.SILENT for w in state.jobs[job].living_members())
