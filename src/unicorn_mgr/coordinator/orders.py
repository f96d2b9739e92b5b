"""Decisions into actions: what is said to whom, once a decision is durable.

Every action here can be derived again from the state: what an agent missed because its
stream was broken is said when it attaches (`resync`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence

from unicorn_mgr.coordinator.rules.replicas import replica_size, seats_beside, whole
from unicorn_mgr.coordinator.rules.stalls import limits_of_spec
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job, Node, NodePhase, Worker, WorkerPhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import (
    Attached,
    Axis,
    BackUp,
    CheckpointComplete,
    CheckpointHanded,
    CheckpointWritten,
    ChecksumsDiffer,
    Directive,
    ForgetCopies,
    ForgetWorker,
    FormerPart,
    GiveUp,
    Granted,
    Holder,
    LiveJobs,
    NodeDrill,
    Poison,
    Retire,
    StartWorker,
    StopWorker,
    Synced,
    WorkerDirective,
)
from unicorn_mgr.model import AXES, Drill, Epoch, Lineage, StatePart, WorkerName
from unicorn_mgr.tokens import token

LOG_BYTES_MAX = 64 << 20
"""A worker's log keeps its newest so many bytes."""


NOT_THERE = (NodePhase.LOST, NodePhase.ISOLATED)
"""Nobody is sent to nodes in these phases."""


class Orders:
    """Makes actions.  `secret` is the cluster's: members of an epoch know each other by what is derived from it."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        self._settings = settings
        self._secret = secret

    def of(self, state: ClusterState, event: e.Event) -> Iterator[e.Action]:
        """The actions of one event, in the state after it."""
        match event:
            case e.WorkerOrdered():
                worker = state.worker(event.worker)
                if worker is not None:
                    yield e.SendToAgent(event.node, self._start(state, event))
            case e.WorkerCondemned(name, reason, gently):
                worker = state.worker(name)
                if worker is not None:
                    yield e.SendToAgent(worker.node, StopWorker(name, reason, gently))
            case e.WorkerDismissed(name, node):
                yield e.SendToAgent(node, ForgetWorker(name))
            case e.NodeIsolated(node, reason):
                # Its agent may well be in reach: what runs there holds slots and would wait for ever.
                for worker in state.on_node(node):
                    yield e.SendToAgent(node, StopWorker(worker.name, f"node {node} is isolated: {reason}"))
            case e.WorkerOverstayed(name, reason):
                worker = state.worker(name)
                if worker is not None:
                    yield e.SendToAgent(worker.node, StopWorker(name, reason))
            case e.RetirementOrdered(name, reason):
                yield from self._directive(state, name, Retire(reason))
            case e.EpochGranted():
                yield from self._granted(state, event)
            case e.JobGivenUp(name, _, reason):
                for worker in state.jobs[name].alive():
                    yield from self._directive(state, worker.name, self._give_up(state.jobs[name], worker, reason))
            case e.CheckpointCommitted(name, step, lineage, _, writers):
                # All members are told: whoever writes next knows which steps are due.
                members = [w.name for w in state.jobs[name].living_members()]
                parts = state.jobs[name].parts
                for told in dict.fromkeys((*members, *writers, *parts.of, *parts.disowned)):
                    yield from self._completed(state, told, CheckpointComplete(step, lineage))
            case e.WorkerTold():
                yield from self._answer(state, event)
            case e.BackupsPlaced() | e.CopiesReleased():
                yield from self._back_up(state, event)
            case e.PlanWanted(number):
                yield e.SolvePlan(number)
            case e.InquiryOpened(name, number):
                yield e.TakeReadings(name, number, _watched_by_node(state, state.jobs[name]))
            case e.InquiryClosed(_, _, _, culprit) if culprit:
                worker = state.worker(culprit)
                if worker is not None:
                    yield e.TakeEvidence(worker.node, culprit)
            case e.DrillOrdered(_, _, name, drill):
                yield from self._drill(state, name, drill)
            case e.NodeAttached():
                yield from self.resync(state, event)
            case e.JobEnded(name):
                yield e.ForgetJob(name)
                for node in state.nodes:
                    yield e.SendToAgent(node, self._live_jobs(state))
            case _:
                pass

    # -- epochs --------------------------------------------------------------------------

    def grant(self, job: Job) -> Granted:
        """The newest membership, as it is told."""
        poison = tuple(Poison(step, number) for step, number in job.skipped)
        secret = self._derived(f"{job.name} {job.epoch}")
        return Granted(job.epoch, job.members, poison, secret, job.standing, job.left)

    def job_id(self, job: Job) -> str:
        """Tells a job from an earlier one of its name."""
        return self._derived(f"{job.name} submitted at {job.submitted_at}")[:16]

    def _derived(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def _granted(self, state: ClusterState, event: e.EpochGranted) -> Iterator[e.Action]:
        job = state.jobs[event.job]
        yield e.OpenRendezvous(job.name, event.epoch, event.members)
        granted = self.grant(job)
        leaving = [w.name for w in job.alive() if w.phase is WorkerPhase.LEAVING]
        for name in (*event.members, *leaving):
            yield from self._directive(state, name, granted)

    def _directive(self, state: ClusterState, name: str, body: Directive) -> Iterator[e.Action]:
        worker = state.worker(name)
        if worker is not None and worker.exited is None:
            yield e.SendToAgent(worker.node, WorkerDirective(name, body))

    def _answer(self, state: ClusterState, event: e.WorkerTold) -> Iterator[e.Action]:
        worker = state.worker(event.worker)
        if worker is None:
            return
        match event.fact:
            case (CheckpointHanded() | CheckpointWritten()) as part:
                yield from self._complete_already(state, worker, part)
            case ChecksumsDiffer(_, _, minority):
                yield from self._disown(state.jobs[worker.job], minority)
            case _:
                pass

    def _completed(self, state: ClusterState, name: str, word: CheckpointComplete) -> Iterator[e.Action]:
        """Also to whoever stores what a worker has left that is no more."""
        worker = state.worker(name)
        if worker is not None:
            yield e.SendToAgent(worker.node, WorkerDirective(name, word))

    def _complete_already(
        self, state: ClusterState, worker: Worker, written: CheckpointHanded | CheckpointWritten
    ) -> Iterator[e.Action]:
        """A writer that tells again of a complete checkpoint, or of one overtaken, has missed the word."""
        done = state.jobs[worker.job].checkpoint
        if done is not None and (done.lineage.order, done.step) >= (written.lineage.order, written.step):
            yield from self._completed(state, worker.name, CheckpointComplete(done.step, done.lineage))

    # -- snapshots in memory -------------------------------------------------------------

    def copies_key(self, node: str) -> str:
        """Whoever may leave or take copies of snapshots on a node has a token that is made with it."""
        return self._derived(f"copies on {node}")

    def _holder(self, node: Node, part: StatePart, by: str) -> Holder:
        shown = token(self.copies_key(node.name), part, by)
        return Holder(node.name, node.address, node.copies_port, shown)

    def _part(self, job: Job, position: int) -> StatePart:
        return StatePart(self.job_id(job), job.backups.shape, position)

    def _back_up(self, state: ClusterState, event: e.BackupsPlaced | e.CopiesReleased) -> Iterator[e.Action]:
        job = state.jobs[event.job]
        if isinstance(event, e.CopiesReleased):
            for shape, position, node in event.copies:
                yield e.SendToAgent(node, ForgetCopies(self.job_id(job), position, shape))
            return
        for position, name in event.sources.items():
            worker = job.workers[name]
            yield e.SendToAgent(worker.node, self._copied_to(state, job, worker, position))
        for name in event.released:
            gone = state.worker(name)
            if gone is not None:
                yield e.SendToAgent(gone.node, BackUp(name))

    def _disown(self, job: Job, workers: Sequence[str], *nodes: str) -> Iterator[e.Action]:
        """Whoever may be asked for snapshots of the job has none of theirs, or one of these nodes."""
        for node in nodes or job.backups.nodes():
            for worker in workers:
                yield e.SendToAgent(node, ForgetCopies(self.job_id(job), worker=worker))

    def _copied_to(self, state: ClusterState, job: Job, worker: Worker, position: int) -> BackUp:
        if position not in job.backups.peers:
            return BackUp(worker.name, alone=True)
        peer, _ = job.backups.peers[position]
        return BackUp(worker.name, self._holder(state.nodes[peer], self._part(job, position), worker.node))

    def _holders(self, state: ClusterState, job: Job, event: e.WorkerOrdered) -> tuple[Holder, ...]:
        """Who may have what a worker could begin with, if nobody has any state."""
        if event.job_running or job.spec.snapshot_budget <= 0:
            return ()
        position = WorkerName.parse(event.worker).seat % replica_size(job)
        return self._nearest_first(state, job, self._part(job, position), event.node)

    def _former(self, state: ClusterState, job: Job, event: e.WorkerOrdered) -> tuple[FormerPart, ...]:
        """The same of all parts that workers of other shapes had: a worker of this one needs something of several."""
        if event.job_running or job.spec.snapshot_budget <= 0:
            return ()
        parts = sorted({(of, p) for of, p, _ in job.backups.older if of != job.backups.shape})
        found = (
            FormerPart(of, p, self._nearest_first(state, job, StatePart(self.job_id(job), of, p), event.node))
            for of, p in parts
        )
        return tuple(part for part in found if part.holders)

    def _nearest_first(self, state: ClusterState, job: Job, part: StatePart, to: str) -> tuple[Holder, ...]:
        """Nodes that may have a part: the one that it is to come to, those in its failure domain, and others."""
        nodes = [state.nodes[name] for name in job.backups.nodes_with(part.shape, part.position)]
        found = [node for node in nodes if node.phase not in NOT_THERE and node.copies_port]
        found.sort(key=lambda node: (node.name != to, node.domain != state.nodes[to].domain))
        return tuple(self._holder(node, part, to) for node in found)

    # -- starting ------------------------------------------------------------------------

    def _start(self, state: ClusterState, event: e.WorkerOrdered) -> StartWorker:
        name = WorkerName.parse(event.worker)
        job = state.jobs[name.job]
        spec, limits = job.spec, limits_of_spec(job.spec, self._settings)
        drills = tuple(
            d.drill
            for d in spec.drills
            if d.seat == name.seat and d.incarnation in (-1, name.incarnation) and d.drill.fault
        )
        return StartWorker(
            worker=event.worker,
            job=job.name,
            command=spec.command,
            environment=spec.environment,
            directory=spec.directory,
            snapshot=spec.snapshot,
            slot=event.slot,
            local_slots=event.local_slots,
            rank=event.rank,
            world_size=event.world_size,
            restarts=event.restarts,
            stall_seconds=limits.stall_seconds,
            user_seconds=limits.user_seconds,
            stall_factor=limits.stall_factor,
            log_bytes_max=LOG_BYTES_MAX,
            welcome=Attached(
                job=job.name,
                job_running=event.job_running,
                job_step=event.job_step,
                checkpoint_url=spec.checkpoint_url,
                checkpoint_every_steps=spec.checkpoint_every_steps,
                checkpoint_keep=spec.checkpoint_keep,
                size_max=spec.size_max,
                skip_poison=spec.skip_poison,
                drills=drills,
                exact=not spec.inexact,
                job_id=self.job_id(job),
                checkpoint_step=job.checkpoint.step if job.checkpoint is not None else -1,
                checkpoint_lineage=job.checkpoint.lineage if job.checkpoint is not None else Lineage(),
                snapshot_budget=spec.snapshot_budget,
                reshapes=len(spec.shapes) > 1,
                replica=tuple(Axis(name, spec.replica[name]) for name in AXES if name in spec.replica),
            ),
            holders=self._holders(state, job, event),
            former=self._former(state, job, event),
        )

    def _drill(self, state: ClusterState, name: str, drill: Drill) -> Iterator[e.Action]:
        worker = state.worker(name)
        if worker is None:
            return
        if drill.fault == "lose-node":
            yield e.SendToAgent(worker.node, NodeDrill(name, drill.step))
        else:
            yield e.SendToAgent(worker.node, WorkerDirective(name, drill))

    # -- an agent is back ----------------------------------------------------------------

    def resync(self, state: ClusterState, event: e.NodeAttached) -> Iterator[e.Action]:
        """Everything this agent must know and may have missed."""
        known = set(event.workers)
        for name in sorted(known):
            worker = state.worker(name)
            elsewhere = worker is not None and worker.node != event.node
            if worker is None or elsewhere or (not worker.alive and worker.exited is None):
                yield e.SendToAgent(event.node, StopWorker(name, "it does not count any more"))
        for worker in state.on_node(event.node):
            if worker.alive and worker.name in known:
                yield from self._remind(state, worker, event.epochs.get(worker.name, Epoch()))
        for job in state.jobs.values():
            if job.backups.disowned and not job.over and event.node in job.backups.nodes():
                yield from self._disown(job, job.backups.disowned, event.node)
        yield e.SendToAgent(event.node, self._live_jobs(state))
        yield e.SendToAgent(event.node, Synced())

    def _live_jobs(self, state: ClusterState) -> LiveJobs:
        return LiveJobs(tuple(self.job_id(job) for job in state.jobs.values() if not job.over))

    def _remind(self, state: ClusterState, worker: Worker, told: Epoch) -> Iterator[e.Action]:
        job = state.jobs[worker.job]
        if worker.name in job.members and told < job.epoch:
            yield from self._directive(state, worker.name, self.grant(job))
        if job.checkpoint is not None and worker.name in job.members:
            yield from self._directive(
                state, worker.name, CheckpointComplete(job.checkpoint.step, job.checkpoint.lineage)
            )
        position = worker.seat % replica_size(job)
        if job.backups.sources.get(position) == worker.name:
            yield e.SendToAgent(worker.node, self._copied_to(state, job, worker, position))
        if worker.retiring:
            yield from self._directive(state, worker.name, Retire("asked before"))
        if job.give_up is not None:
            yield from self._directive(state, worker.name, self._give_up(job, worker, job.give_up[1]))

    def _give_up(self, job: Job, worker: Worker, reason: str) -> GiveUp:
        """The first living replica saves what all have."""
        replicas = whole(job, job.living_members())
        save = worker in replicas and worker.seat in seats_beside(job, replicas[0].seat)
        return GiveUp(reason, save)


def _watched_by_node(state: ClusterState, job: Job) -> dict[str, tuple[str, ...]]:
    """A newcomer that can't be read keeps nobody from a verdict about the members."""
    newcomers = [w for w in job.newcomers() if state.nodes[w.node].phase is not NodePhase.SILENT]
    found: dict[str, list[str]] = {}
    for worker in (*job.living_members(), *newcomers):
        found.setdefault(worker.node, []).append(worker.name)
    return {node: tuple(names) for node, names in sorted(found.items())}
