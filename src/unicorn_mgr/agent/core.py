"""The agent's core: what is true on this node, and what follows from it.

Pure: events in, actions out.  It decides little, since the coordinator decides; it keeps the
truth about each worker, so that it can be told in full whenever a coordinator asks again,
and it refuses what is out of date.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import assert_never

from unicorn_mgr.agent.detectors.stall import StallDetector
from unicorn_mgr.effects.agent import (
    Adopted,
    AgentAction,
    AgentEvent,
    BackupOver,
    CoordinatorSaid,
    CutOff,
    DisownCopies,
    DropCopies,
    Dying,
    Fetch,
    Fetched,
    Forget,
    Freeze,
    Gather,
    Gone,
    Kill,
    LineLost,
    LinkLost,
    LinkOpened,
    Lot,
    NotSpawned,
    Recalled,
    Release,
    Report,
    Sampled,
    SendBackup,
    Spawn,
    Spawned,
    Strike,
    Sweep,
    Tell,
    Thaw,
    TimePassed,
    WorkerSaid,
)
from unicorn_mgr.messages import (
    Attach,
    BackUp,
    BackupEnded,
    CheckpointComplete,
    CheckpointFailed,
    CheckpointHanded,
    CheckpointPublished,
    CheckpointWritten,
    Directive,
    Errand,
    Exited,
    Fact,
    ForgetCopies,
    ForgetWorker,
    Formed,
    FormerPart,
    FreshStart,
    GiveUp,
    Granted,
    Hello,
    Leaving,
    LiveJobs,
    LoopEnded,
    Mistake,
    PieceWanted,
    Published,
    Raised,
    Ready,
    Resumed,
    Retire,
    SnapshotFetched,
    SnapshotTaken,
    SnapshotWanted,
    StartWorker,
    StopWorker,
    Suspended,
    Symptom,
    Synced,
    ToAgent,
    Unreachable,
    WorkerAttached,
    WorkerDirective,
    WorkerDying,
    WorkerFact,
    WorkerStarted,
    WorkerTruth,
)
from unicorn_mgr.model import Drill, StatePart, WorkerName, said
from unicorn_mgr.phases import Limits

ESCAPE_SECONDS = 1.0
"""A worker whose socket has ended and that still runs after this has left us, and is killed."""

FREEZE_SHARE = 2 / 3
"""Of `fence_seconds`: an agent cut off for longer stops its workers, before others take over."""


_KEPT: tuple[type[Directive], ...] = (Granted, Formed, Retire, GiveUp, CheckpointComplete)
"""Directives that a worker is told again, newest of each kind and in this order, whenever it attaches.

It may not have been connected when they came; it ignores what it knows.
"""


@dataclass(slots=True)
class _Worker:
    order: StartWorker
    truth: WorkerTruth
    detector: StallDetector
    line_lost_at: float | None = None
    stop: StopWorker | None = None
    told: dict[type[Directive], Directive] = field(default_factory=dict)
    backup: BackUp = field(default_factory=BackUp)
    taken: SnapshotTaken | None = None
    """A snapshot that is to be copied to another node."""


@dataclass(slots=True)
class AgentCore:
    """The state of one node."""

    hello: Hello
    """What never changes while this agent runs; `say_hello` adds the rest."""
    workers: dict[str, _Worker] = field(default_factory=dict)
    cut_off: CutOff = field(default_factory=CutOff)

    def say_hello(self, cluster: str, term: int) -> Hello:
        """Everything that is true here."""
        truths = tuple(w.truth for _, w in sorted(self.workers.items()))
        return replace(self.hello, cluster=cluster, term=term, workers=truths)

    def next_deadline(self) -> float | None:
        """When `TimePassed` is wanted."""
        deadlines = [w.line_lost_at + ESCAPE_SECONDS for w in self.workers.values() if w.line_lost_at is not None]
        freeze = self._freeze_at()
        return min([*deadlines, freeze] if freeze is not None else deadlines, default=None)

    def _freeze_at(self) -> float | None:
        since, fence = self.cut_off.since, self.cut_off.fence_seconds
        if since is None or self.cut_off.frozen or fence <= 0:
            return None
        return since + fence * FREEZE_SHARE

    def handle(self, event: AgentEvent, now: float) -> list[AgentAction]:
        """Record a fact, return what follows."""
        match event:
            case LinkOpened(welcome):
                self.cut_off = replace(self.cut_off, since=None, fence_seconds=welcome.fence_seconds)
                return []
            case LinkLost(answered):
                since = self.cut_off.since
                self.cut_off = replace(self.cut_off, since=None if answered else now if since is None else since)
                return []
            case Recalled(cut_off):
                self.cut_off = cut_off
                return [Freeze()] if cut_off.frozen else []  # it may have died before it could
            case CoordinatorSaid(body):
                return self._obey(body)
            case WorkerSaid(worker, body):
                return self._hear(worker, body)
            case Adopted(order, pid):
                self._add(order, pid)
                return []
            case Sampled(samples):
                suspicions = [
                    self.workers[s.worker].detector.observe(s, now) for s in samples if s.worker in self.workers
                ]
                return [Report(s) for s in suspicions if s is not None]
            case BackupOver(worker, mark, kept):
                found = self.workers.get(worker)
                if found is None or found.taken is None or found.taken.mark != mark:
                    return []
                found.taken = None
                return [Tell(worker, BackupEnded(mark, kept))]
            case Fetched(worker, mark, failed):
                return [Tell(worker, SnapshotFetched(mark, failed))] if worker in self.workers else []
            case Spawned() | NotSpawned() | Dying() | Gone() | LineLost():
                return self._process_changed(event, now)
            case TimePassed():
                return self._time_passed(now)
            case _:
                assert_never(event)

    # -- the coordinator -----------------------------------------------------------------

    def _obey(self, said: ToAgent) -> list[AgentAction]:
        match said:
            case Synced():
                # Only now: workers that have lost their place have been stopped for good before this.
                thaw: list[AgentAction] = [Thaw()] if self.cut_off.frozen else []
                self.cut_off = replace(self.cut_off, frozen=False)
                return thaw
            case StartWorker():
                if said.worker in self.workers:
                    return []
                self._add(said, 0)
                return [Spawn(said)]
            case StopWorker(worker, reason, gently):
                found = self.workers.get(worker)
                if found is None or found.truth.exited is not None:
                    return []
                found.stop = said
                # A process that is only just being made is ended as soon as it is there.
                return [Kill(worker, reason, gently)] if found.truth.pid else []
            case ForgetWorker(worker):
                found = self.workers.get(worker)
                if found is None or found.truth.exited is None:
                    return []
                del self.workers[worker]
                return [Forget(worker)]
            case LiveJobs(job_ids):
                return [Release(job_ids)]
            case BackUp(worker):
                found = self.workers.get(worker)
                if found is None or found.backup == said:
                    return []
                found.backup = said
                return _backed_up(found)
            case ForgetCopies(job_id, worker=worker) if worker:
                return [DisownCopies(job_id, worker)]
            case ForgetCopies(job_id, position, shape):
                return [DropCopies(StatePart(job_id, shape, position))]
            case WorkerDirective(worker, body):
                found = self.workers.get(worker)
                if found is None:
                    return []
                if isinstance(body, Granted):
                    if found.truth.epoch is not None and body.epoch < found.truth.epoch:
                        return []
                    found.truth = replace(found.truth, epoch=body.epoch)
                if isinstance(body, Drill) and body.step < 0 and body.fault in ("kill", "stop"):
                    return [Strike(worker, body.fault)]
                if isinstance(body, _KEPT):
                    found.told[type(body)] = body
                return [Tell(worker, body)]
            case _:
                raise AssertionError(f"the shell answers {type(said).__name__} itself")

    def _add(self, order: StartWorker, pid: int) -> None:
        limits = Limits(order.stall_seconds, order.stall_factor, order.user_seconds)
        truth = WorkerTruth(order.worker, pid, slot=order.slot)
        self.workers[order.worker] = _Worker(order, truth, StallDetector(limits))

    # -- workers -------------------------------------------------------------------------

    def _hear(self, name: str, said: Attach | Fact | Errand) -> list[AgentAction]:
        worker = self.workers.get(name)
        if worker is None:
            return []
        if isinstance(said, SnapshotTaken | SnapshotWanted):
            return _errand(worker, said)
        if isinstance(said, Attach):
            worker.line_lost_at = None
            worker.truth = replace(worker.truth, attached=True)
            told = [worker.told[kind] for kind in _KEPT if kind in worker.told]
            return [*(Tell(name, body) for body in (worker.order.welcome, *told)), Report(WorkerAttached(name))]
        match said:
            case Ready():
                worker.truth = replace(worker.truth, ready=said)
            case Published():
                worker.truth = replace(worker.truth, published=said)
            case Resumed():
                worker.truth = replace(worker.truth, resumed=said)
            case LoopEnded():
                worker.truth = replace(worker.truth, loop_ended=said)
            case Leaving():
                worker.truth = replace(worker.truth, leaving=said)
            case Mistake():
                worker.truth = replace(worker.truth, mistake=said)
            case FreshStart():
                worker.truth = replace(worker.truth, fresh_start=said)
            case Symptom():
                worker.truth = replace(worker.truth, symptom=said)
            case Unreachable():
                worker.truth = replace(worker.truth, unreachable=said)
            case CheckpointHanded():
                worker.truth = replace(worker.truth, handed=said, checkpoint_failed=None)
            case CheckpointWritten():
                worker.truth = replace(worker.truth, written=said, checkpoint_failed=None)
            case CheckpointPublished():
                worker.truth = replace(worker.truth, checkpoint_published=said)
            case CheckpointFailed(superseded=True):
                worker.truth = replace(worker.truth, checkpoint_failed=said)
            case Suspended():
                worker.truth = replace(worker.truth, suspended=said)
            case _:
                pass  # news, and no part of what is true of it
        return [Report(WorkerFact(name, said))]

    def _process_changed(self, event: Spawned | NotSpawned | Dying | Gone | LineLost, now: float) -> list[AgentAction]:
        worker = self.workers.get(event.worker)
        if worker is None or worker.truth.exited is not None:
            return []
        match event:
            case Spawned(name, pid):
                worker.truth = replace(worker.truth, pid=pid)
                stop: list[AgentAction] = [Kill(name, worker.stop.reason)] if worker.stop is not None else []
                return [Report(WorkerStarted(name, pid)), *stop]
            case NotSpawned(name, error, mistake):
                raised = Raised("NotStarted", error)
                worker.truth = replace(worker.truth, mistake=mistake, exited=Exited(name, 127, raised, witness="spawn"))
                told: list[AgentAction] = [Report(WorkerFact(name, mistake))] if mistake is not None else []
                assert worker.truth.exited is not None
                return [*told, Report(worker.truth.exited)]
            case Dying(name, witness, last_sample):
                if worker.truth.dying:
                    return []
                worker.truth = replace(worker.truth, dying=True)
                return [Report(WorkerDying(name, witness, last_sample))]
            case Gone(name, code, raised_at_end, stacks, last, witness):
                exited = Exited(name, code, raised_at_end, stacks, last, witness)
                worker.line_lost_at = None
                worker.truth = replace(worker.truth, exited=exited)
                return [Report(exited), Sweep(name)]
            case LineLost():
                worker.line_lost_at = now
                return []
            case _:
                assert_never(event)

    def _time_passed(self, now: float) -> list[AgentAction]:
        actions: list[AgentAction] = []
        for name, worker in sorted(self.workers.items()):
            if worker.line_lost_at is not None and now >= worker.line_lost_at + ESCAPE_SECONDS:
                worker.line_lost_at = None
                actions.append(Kill(name, "its socket has ended and it still runs"))
        freeze = self._freeze_at()
        if freeze is not None and now >= freeze:
            self.cut_off = replace(self.cut_off, frozen=True)
            actions.append(Freeze())
        return actions


def part_of(order: StartWorker) -> StatePart:
    """What the worker's snapshots are of."""
    axes = {axis.name: axis.size for axis in order.welcome.replica}
    position = WorkerName.parse(order.worker).seat % math.prod(axes.values())
    return StatePart(order.welcome.job_id, said(axes), position)


def _errand(worker: _Worker, said: Errand) -> list[AgentAction]:
    order = worker.order
    match said:
        case SnapshotTaken():
            worker.taken = said
            return _backed_up(worker)
        case SnapshotWanted(mark, buffer, pieces, at):
            if pieces:
                return [Gather(order.worker, mark, buffer, at, tuple(_lot(order, piece) for piece in pieces))]
            return [Fetch(order.worker, part_of(order), mark, buffer, order.holders)]
        case _:
            assert_never(said)


def _lot(order: StartWorker, piece: PieceWanted) -> Lot:
    part = StatePart(order.welcome.job_id, piece.shape, piece.position)
    found = next((f for f in order.former if (f.shape, f.position) == (piece.shape, piece.position)), FormerPart())
    return Lot(part, piece.fingerprint, piece.runs, found.holders)


def _backed_up(worker: _Worker) -> list[AgentAction]:
    """As soon as there is a snapshot, and somebody to have a copy of it."""
    if worker.taken is None:
        return []
    order, taken = worker.order, worker.taken
    if worker.backup.alone:
        worker.taken = None
        return [Tell(order.worker, BackupEnded(taken.mark, kept=True))]
    return [SendBackup(order.worker, part_of(order), taken.mark, taken.base, worker.backup.to)]
