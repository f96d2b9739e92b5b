"""What agents say, as facts for the core.

Pure, like the core: the server gives it what has come over a stream, the simulator what has come in virtual
time, and both tell the core the facts that it makes of that, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.state import ClusterState, NodePhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import (
    Beat,
    Evidence,
    Exited,
    ForgetWorker,
    Hello,
    Published,
    Sample,
    StopWorker,
    StoreCall,
    ToAgent,
    WorkerAttached,
    WorkerDying,
    WorkerFact,
    WorkerQuiet,
    WorkerStarted,
    WorkerTruth,
)
from unicorn_mgr.phases import Phase

News = Beat | WorkerFact | WorkerStarted | WorkerAttached | WorkerDying | Exited | WorkerQuiet | Evidence
"""What an agent says of its node."""

_PLACES = frozenset(map(int, Phase))


class Frozen(Exception):
    """A node that was given up beats again: it has only been frozen, and has to attach anew."""


@dataclass(slots=True)
class Ears:
    """Hears the agents of one cluster."""

    state: Callable[[], ClusterState]
    liveness: Liveness
    publish: Callable[[str, Published], e.GroupFormed | None]
    """A member has published; the fact to tell if everybody has now."""
    answer: Callable[[str, ToAgent], None]
    """Says something to the agent of a node."""

    def hello(self, hello: Hello, now: float) -> Iterator[e.Fact]:
        """An agent is here, and says all that is true of its node."""
        self.liveness.beat(hello.node, (), now)
        yield e.NodeAttached(
            hello.node,
            hello.incarnation,
            hello.slots,
            hello.address,
            tuple(sorted(w.worker for w in hello.workers)),
            {w.worker: w.epoch for w in hello.workers if w.epoch is not None},
            hello.drills,
            hello.domain,
            hello.copies_port,
            hello.copies,
        )
        for truth in hello.workers:
            yield from self._truth(hello.node, truth)

    def _truth(self, node: str, truth: WorkerTruth) -> Iterator[e.Fact]:
        """What is true of a worker, as the facts it would have been told by."""
        name = truth.worker
        if self._is_stranger(node, name):
            return
        if truth.pid:
            yield e.WorkerStarted(name, truth.pid)
        if truth.attached:
            yield e.WorkerAttached(name)
        told = (truth.ready, truth.resumed, truth.symptom, truth.unreachable, truth.leaving, truth.loop_ended)
        stored = (truth.handed, truth.written, truth.checkpoint_published, truth.checkpoint_failed)
        for fact in (*told, *stored, truth.suspended, truth.mistake, truth.fresh_start):
            if fact is not None:
                yield e.WorkerTold(name, fact)
        if truth.published is not None:
            yield from self._published(name, truth.published)
        if truth.dying:
            yield e.WorkerDying(name, "told again")
        if truth.exited is not None:
            yield from self._exited(node, truth.exited)

    def heard(self, node: str, body: News, now: float) -> Iterator[e.Fact]:
        """A message of an attached agent.  Raises `Frozen`."""
        if self._is_stranger(node, told_of(body)):
            return
        match body:
            case Beat() if self._is_lost(node):
                raise Frozen
            case Beat(_, samples):
                self.liveness.beat(node, believable(samples), now)
            case WorkerFact(worker, Published() as note):
                yield from self._published(worker, note)
            case WorkerFact(worker, fact):
                assert not isinstance(fact, Published)
                yield e.WorkerTold(worker, fact)
            case WorkerStarted(worker, pid):
                yield e.WorkerStarted(worker, pid)
            case WorkerAttached(worker):
                yield e.WorkerAttached(worker)
            case WorkerDying(worker, witness, last):
                yield e.WorkerDying(worker, witness, last)
            case Exited():
                yield from self._exited(node, body)
            case WorkerQuiet(sample, limit) if believable((sample,)):
                yield e.WorkerQuiet(sample, limit)
            case Evidence(worker, _, stacks, tool):
                yield e.EvidenceTaken(worker, stacks, tool)

    def is_stranger(self, node: str, body: object) -> bool:
        """Whether a message tells of a process that is not the core's of that name."""
        return self._is_stranger(node, told_of(body))

    def _is_lost(self, node: str) -> bool:
        found = self.state().nodes.get(node)
        return found is not None and found.phase is NodePhase.LOST

    def _is_stranger(self, node: str, name: str) -> bool:
        """A process of an earlier job of the same name, left over on this node: it is stopped, and not believed."""
        worker = self.state().worker(name)
        if worker is None or worker.node == node:
            return False
        self.answer(node, StopWorker(name, f"the worker of this name is on node {worker.node}"))
        self.answer(node, ForgetWorker(name))
        return True

    def _published(self, worker: str, note: Published) -> Iterator[e.Fact]:
        formed = self.publish(worker, note)
        if formed is not None:
            yield formed

    def _exited(self, node: str, exited: Exited) -> Iterator[e.Fact]:
        self.liveness.forget(exited.worker)
        if self.state().worker(exited.worker) is None:
            self.answer(node, ForgetWorker(exited.worker))
        else:
            yield e.WorkerExited(exited)


def believable(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Those that stand at a place which there is: a worker may have scribbled over its ring."""
    return tuple(s for s in samples if s.phase in _PLACES)


def told_of(body: object) -> str:
    """The worker that a message tells news of; output may as well be an earlier one's."""
    match body:
        case WorkerFact() | WorkerStarted() | WorkerAttached() | WorkerDying() | Exited() | Evidence() | StoreCall():
            return body.worker
        case WorkerQuiet(sample):
            return sample.worker
        case _:
            return ""
