"""`attach()`: how a training script becomes part of a job, or a world of one without an agent."""

from __future__ import annotations

import math
import mmap
import os
import secrets
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch

from unicorn_mgr.messages import Attached, Mistake, Raised, Ready, Suspended
from unicorn_mgr.model import STAGE_AXIS, Mark, WorkerName
from unicorn_mgr.phases import Phase
from unicorn_mgr.ring import SIZE_BYTES, RingWriter
from unicorn_mgr.worker.buckets import BUCKET_BYTES
from unicorn_mgr.worker.causes import message_of
from unicorn_mgr.worker.checks import SettingError, check_metrics, check_model, check_number, check_split, check_state
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.engine import Engine
from unicorn_mgr.worker.errands import Errands
from unicorn_mgr.worker.fingerprint import fingerprint, of_replica
from unicorn_mgr.worker.link import Link
from unicorn_mgr.worker.loop import LoopSettings
from unicorn_mgr.worker.membership import Alone, Clustered, Membership
from unicorn_mgr.worker.memory import COPIES, Files, Memory, Nearest, WithMemory, inherited
from unicorn_mgr.worker.pipeline import Pipeline, Stage
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.sharding import sum_gradients
from unicorn_mgr.worker.siblings import Siblings, Single
from unicorn_mgr.worker.state import Progress, Stateful
from unicorn_mgr.worker.training import Checkpoints, Training, as_list

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from unicorn_mgr.worker.checkpoint import Checkpointer
    from unicorn_mgr.worker.handover import Handover
    from unicorn_mgr.worker.mesh import Inside

SOCKET = "UNICORN_AGENT"
WORKER = "UNICORN_WORKER"
TOKEN = "UNICORN_TOKEN"  # noqa: S105 - the name of a variable, not a secret
RING = "UNICORN_RING_FD"


def attach() -> Job:
    """Become a worker of the job this process was started for.

    Without an agent (the script was started by hand) the job is a world of one, and the same
    script trains alone.
    """
    path = os.environ.get(SOCKET)
    if path is None:
        return Job(None, RingWriter(bytearray(SIZE_BYTES)), Attached(job="alone"))
    memory = mmap.mmap(int(os.environ[RING]), SIZE_BYTES)
    link = Link(Path(path), os.environ[WORKER], os.environ[TOKEN])
    return Job(link, RingWriter(memory), link.open())


class Job:
    """The job this process belongs to.  A context manager; made by `attach`."""

    def __init__(self, link: Link | None, ring: RingWriter, welcome: Attached) -> None:
        self.name: str = welcome.job
        self._link = link
        self._ring = ring
        self._welcome = welcome
        self._drills = Drills(welcome.drills)
        self._training: Training | None = None
        self._axes = {axis.name: axis.size for axis in welcome.replica}
        self._inside: Inside | None = None
        self._membership: Membership
        if link is None:
            self._membership = Alone()
        else:
            link.drills = self._drills.armed
            replica = math.prod(self._axes.values())
            self._membership = Clustered(link, welcome.address, ring, self._drills, replica)
        ring.write(Phase.USER)

    @property
    def is_leader(self) -> bool:
        """True on exactly one member: for printing and the like.  It may change at a fault."""
        formation = self._membership.formation
        return (
            formation is not None and formation.rank == 0 and (self._inside is None or self._inside.place.position == 0)
        )

    @property
    def size(self) -> int:
        """How many workers train at present; 0 before this one is a member."""
        formation = self._membership.formation
        return len(formation.members) if formation is not None else 0

    @property
    def rank(self) -> int:
        """This worker's place among them, -1 before it is one.  Data belongs to numbers, not to ranks."""
        formation = self._membership.formation
        return formation.rank if formation is not None else -1

    def replica_mesh(self, *names: str) -> DeviceMesh | None:
        """The device mesh of this worker's replica, or of the named axes of it.

        None where a replica is a single worker, as without an agent: the same script then trains without.
        Torch's process group is set up by this, with the replica as its world.  All workers of a replica
        call this with the same names, in the order pipeline, shard, tensor.  Raises `SettingError` for an axis that
        the job's replicas do not have.
        """
        if not self._axes:
            return None
        return self._replica().mesh(names)

    def per_worker(self, count: int, axis: str) -> int:
        """How many of `count` things, attention heads say, each worker of a replica has along an axis.

        All of them where replicas are not split along it, as without an agent.  Raises `SettingError` if not all
        workers can have as many.
        """
        size = self._axes.get(axis, 1)
        if count % size:
            fitting = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
            raise SettingError(
                f"per_worker: {count} can't be shared evenly by {size} workers along {axis}: choose --replica "
                f"{axis}= one of {fitting}"
            )
        return count // size

    def _siblings(self) -> Siblings:
        return self._replica() if self._axes else Single()

    def _replica(self) -> Inside:
        if self._inside is None:
            # A job whose replicas are single workers need not load all of torch.distributed.
            from unicorn_mgr.worker.mesh import Inside  # noqa: PLC0415 - see above

            assert self._link is not None
            seat = WorkerName.parse(self._link.worker).seat
            self._inside = Inside(self._axes, seat % math.prod(self._axes.values()), self._membership)
        return self._inside

    def train(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        micro_batches: int,
        state: Mapping[str, Stateful] | None = None,
        *,
        stages: Stage | Sequence[Stage] = (),
        metrics: Sequence[str] = (),
        seed: int = 0,
        exact: bool = True,
        overlap: bool = True,
        verify_every: int = 100,
        bucket_bytes: int = BUCKET_BYTES,
        checkpoint: str = "",
        checkpoint_every: int = 0,
        checkpoint_keep: int = 3,
    ) -> Training:
        """Set up the training loop of this job; once per process.

        `micro_batches` make up one step, on however many workers.  Everything in `state`
        (schedulers, scalers, averages: what has `state_dict` and `load_state_dict`) travels
        with the parameters.  `metrics` names what `step.backward` is given beside the loss.
        `seed` seeds the generators of each micro-batch.  Every `verify_every` steps (0: never)
        the replicas compare checksums.  `exact=False` allows sources without numbers.

        `stages` are the `torch.distributed.pipelining.PipelineStage`s that this worker computes, where the model
        is a pipeline; `model` is then what they hold, and `step.shares` gives their schedule its micro-batches.

        `checkpoint` is a directory or fsspec URL; the state is stored there every
        `checkpoint_every` steps (0: only at the end), the newest `checkpoint_keep` are kept.
        What the job was submitted with goes before.
        """
        if self._training is not None:
            raise SettingError("train: this job has a training loop already")
        check_number("train: micro_batches", micro_batches, 1)
        check_number("train: seed", seed)
        check_number("train: verify_every", verify_every, 0)
        check_number("train: bucket_bytes", bucket_bytes, 1)
        check_number("train: checkpoint_every", checkpoint_every, 0)
        check_number("train: checkpoint_keep", checkpoint_keep, 1)
        check_metrics(metrics)
        check_state(state or {})
        check_model(model, as_list(optimizer), self._axes.get(STAGE_AXIS, 1))
        check_split(model, self._axes)
        sum_gradients(model)
        siblings = self._siblings()
        pipeline = Pipeline(stages, model, siblings.place)
        seats = max(self._welcome.size_max, 1)
        replica = Replica(model, as_list(optimizer), state or {}, metrics, seats, bucket_bytes, siblings)
        settings = LoopSettings(micro_batches, seed, verify_every, exact and self._welcome.exact, overlap)
        checkpointer = self._checkpointer(checkpoint, checkpoint_every, checkpoint_keep)
        self._training = self._set_up(replica, settings, metrics, checkpointer, pipeline)
        return self._training

    def _set_up(
        self,
        replica: Replica,
        settings: LoopSettings,
        metrics: Sequence[str],
        checkpointer: Checkpointer | None,
        pipeline: Pipeline,
    ) -> Training:
        """The loop, with whatever keeps its state."""
        welcome = self._welcome
        siblings = self._siblings()
        stores: Checkpoints = _NoCheckpoints()
        find, stored = _nothing_stored, Mark()
        keepers: list[Checkpointer | Memory] = []
        memory = None
        if checkpointer is not None:
            find, stored = checkpointer.find, Mark(welcome.checkpoint_step, welcome.checkpoint_lineage)
            stores = _ToStorage(checkpointer)
            keepers.append(checkpointer)
        if self._link is not None and welcome.snapshot_budget > 0:
            errands = Errands(self._link, self._ring, welcome, self._membership)
            memory = Memory(welcome, Files.inherited(), siblings, self._drills, errands)
            stores = WithMemory(memory, stores)
            keepers.append(memory)
        nearest = Nearest(memory, find, stored, siblings)
        engine = Engine(self._membership, replica, settings, self._ring, self._drills, nearest, siblings)

        def committed(step: int) -> None:
            for keeper in keepers:
                keeper.committed(step)

        def disowned() -> None:
            if memory is not None:
                memory.disown(engine)

        engine.on_commit, engine.on_disowned = committed, disowned
        engine.opened.tells = pipeline.tells
        return Training(engine, _Entry(self, engine, metrics, keepers), stores, pipeline)

    def _checkpointer(self, url: str, every: int, keep: int) -> Checkpointer | None:
        welcome = self._welcome
        if welcome.checkpoint_url:
            url, every, keep = welcome.checkpoint_url, welcome.checkpoint_every_steps, welcome.checkpoint_keep
        if not url:
            return None
        # A job without checkpoints need not load torch.distributed.checkpoint.
        from unicorn_mgr.worker.checkpoint import Checkpointer, CheckpointSettings  # noqa: PLC0415 - see above
        from unicorn_mgr.worker.storage import StorageError  # noqa: PLC0415 - see above

        settings = CheckpointSettings(url, every, keep, welcome.job_id or secrets.token_hex(8), welcome.checkpoint_step)
        try:
            found = Checkpointer(
                settings,
                self._membership.tell,
                self._drills,
                alone=self._link is None,
                wake=self._membership.wake,
                siblings=self._siblings(),
                handover=self._handover(),
            )
        except StorageError as wrong:
            raise SettingError(f"train: checkpoint: {url}: {wrong}") from None
        if self._link is not None:
            self._link.on_complete = found.completed
        return found

    def _handover(self) -> Handover | None:
        """Where parts of checkpoints may be left for another process to store."""
        if self._link is None:
            return None
        from unicorn_mgr.worker.handover import Handover  # noqa: PLC0415 - as of the checkpointer

        copies = COPIES if self._welcome.snapshot_budget > 0 else 0
        return Handover.inherited(inherited(), self._welcome.snapshot_bytes, copies)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(raised, SettingError):
            self._membership.tell(Mistake("script", fix=str(raised)))  # no restart can cure it
        elif raised is not None and not isinstance(raised, SystemExit):
            self._membership.tell(raised_fact(raised, trace, self._ring))
        elif raised is None and self._training is not None and self._training.entered and not self._training.ended:
            sys.stderr.write("unicorn: the training loop was left early; training.stop() ends it everywhere\n")


def raised_fact(raised: BaseException, trace: TracebackType | None, ring: RingWriter) -> Raised:
    """An exception as it is reported."""
    text = "".join(traceback.format_exception(type(raised), raised, trace))
    return Raised(type(raised).__qualname__, message_of(raised), text[-16000:], ring.step, ring.micro_batch)


def _nothing_stored(replica: Replica) -> tuple[Progress | None, int]:
    """There is no storage."""
    del replica
    return None, 0


class _NoCheckpoints:
    """Nothing is stored."""

    def at_head(self, engine: Engine) -> None:
        """Nothing to do."""

    def at_end(self, engine: Engine) -> None:
        """Nothing to do."""

    def at_standstill(self, engine: Engine) -> None:
        """Whoever asked for it did not know that there is nowhere to store anything."""
        engine.membership.await_news()

    def rescue(self, engine: Engine) -> None:
        """Nothing to do."""


class _ToStorage:
    """The first replica stores, each of its workers its own part."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer

    def at_head(self, engine: Engine) -> None:
        """Every so many steps, all parts of the same one: not all workers have heard the same by now."""
        keeper = self._checkpointer
        if keeper.is_periodic and _stores(engine) and engine.unison.all_have(keeper.is_due(engine.applied)):
            self._take(engine)

    def at_end(self, engine: Engine) -> None:
        """The last step, and nobody leaves before it is stored."""
        if _stores(engine):
            self.rescue(engine)
            if not self._checkpointer.wait_until_idle():
                sys.stderr.write("unicorn: the last checkpoint could not be stored\n")

    def at_standstill(self, engine: Engine) -> None:
        """The first replica stores, and the first of its workers says so when all of it is there."""
        if _stores(engine) and self._bring_to_storage(engine) and engine.place.position == 0:
            engine.membership.tell(Suspended(engine.newest_epoch, engine.applied))
        engine.ring.write(Phase.WAITING)
        engine.membership.await_news()

    def _bring_to_storage(self, engine: Engine) -> bool:
        """False if a newer membership was heard first, or what was stored will never be published."""
        keeper, wait, all_have = self._checkpointer, engine.membership.wait, engine.unison.all_have
        engine.ring.write(Phase.WAITING)
        if all_have(wait(keeper.is_idle)) and not all_have(keeper.is_published(engine.applied)):
            self._take(engine)
            engine.ring.write(Phase.WAITING)
            keeper.committed(engine.applied)
            wait(keeper.is_idle)
        return all_have(keeper.is_published(engine.applied))

    def rescue(self, engine: Engine) -> None:
        """Store what is applied, unless it is stored already."""
        engine.ring.write(Phase.ENDED)  # storing takes as long as it takes
        if self._checkpointer.wait_until_idle() and not self._checkpointer.is_stored(engine.applied):
            self._take(engine)
            engine.ring.write(Phase.ENDED)
            self._checkpointer.committed(engine.applied)
            self._checkpointer.wait_until_idle()

    def _take(self, engine: Engine) -> None:
        engine.ring.write(Phase.SNAPSHOT)
        self._checkpointer.take(engine.packed(), engine.applied, engine.newest_epoch, engine.generation)


def _stores(engine: Engine) -> bool:
    """This worker is of the first replica."""
    formation = engine.membership.formation
    return formation is not None and formation.rank == 0


class _Entry:
    """How this process becomes a member: rehearse if others train already, say so, wait."""

    def __init__(
        self, job: Job, engine: Engine, metrics: Sequence[str], keepers: Sequence[Checkpointer | Memory]
    ) -> None:
        self._job = job
        self._keepers = keepers
        self._engine = engine
        self._metrics = metrics
        self._fingerprint: dict[str, str] = {}
        welcome = job._welcome
        self.rehearsal_step = welcome.job_step if welcome.job_running else None

    def prepare(self, count: int) -> None:
        """The loop begins: take the fingerprint before a rehearsal imports anything more."""
        settings = self._engine.settings
        mine = fingerprint(
            self._engine.replica.state.model, settings.micro_batches, settings.seed, count, self._metrics
        )
        self._fingerprint = of_replica(mine, self._job._siblings())
        for keeper in self._keepers:
            keeper.set_fingerprint(self._fingerprint)

    def enter(self) -> None:
        """Say that this worker is ready, and wait to be admitted."""
        link = self._job._link
        if link is None:
            return
        self._engine.drills.reach("ready", self._engine.step)
        self._job._ring.write(Phase.WAITING)
        link.tell(Ready(self._fingerprint, rehearsed=self.rehearsal_step is not None))
        self._engine.membership.await_news()
