"""Agents: one bidirectional stream each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

import grpc
import structlog

from unicorn_mgr.codec import encode
from unicorn_mgr.coordinator.admission import NAME
from unicorn_mgr.coordinator.authority import Authority
from unicorn_mgr.coordinator.driver import Driver
from unicorn_mgr.coordinator.logbook import LogBook
from unicorn_mgr.coordinator.rules.replicas import replica_size
from unicorn_mgr.coordinator.state import NodePhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import (
    AgentMessage,
    Beat,
    CoordinatorMessage,
    Evidence,
    Exited,
    ForgetWorker,
    Hello,
    LogChunk,
    Published,
    Reading,
    Refused,
    Sample,
    SnapshotChunk,
    SnapshotRequest,
    StopWorker,
    StoreCall,
    ToAgent,
    Welcome,
    WorkerAttached,
    WorkerDying,
    WorkerFact,
    WorkerQuiet,
    WorkerStarted,
    WorkerTruth,
)
from unicorn_mgr.model import PROTOCOL
from unicorn_mgr.phases import Phase
from unicorn_mgr.tls import Role

OUTBOX_MAX = 20_000
"""An agent that is this far behind is cut off; it attaches again and is told what is true."""

SNAPSHOT_CHUNK_BYTES = 1 << 20

_PLACES = frozenset(map(int, Phase))

log = structlog.get_logger()


@dataclass(eq=False)
class Session:
    """One attached agent."""

    node: str
    incarnation: str
    outbox: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(OUTBOX_MAX))

    def say(self, term: int, body: ToAgent) -> None:
        """Queue a message; a full queue ends the session."""
        try:
            self.outbox.put_nowait(encode(CoordinatorMessage(term, body)))
        except asyncio.QueueFull:
            log.error("agent too far behind: its stream is cut", node=self.node)
            self.end()

    def end(self) -> None:
        """No more messages."""
        while self.outbox.full():
            self.outbox.get_nowait()
        self.outbox.put_nowait(None)


class Agents:
    """The agent side of the server."""

    def __init__(self, driver: Driver, logs: LogBook, authority: Authority) -> None:
        self._driver = driver
        self._logs = logs
        self._authority = authority
        self.sessions: dict[str, Session] = {}
        self.outdated: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def send(self, node: str, body: ToAgent) -> None:
        """Say something to a node's agent; it is lost if the agent is away, and said again when it attaches."""
        session = self.sessions.get(node)
        if session is not None:
            session.say(self._driver.core.state.term, body)

    def send_all(self, body: ToAgent) -> None:
        """Say something to every attached agent."""
        for node in list(self.sessions):
            self.send(node, body)

    # -- the stream ----------------------------------------------------------------------

    async def attach(
        self, said: AsyncIterator[AgentMessage], context: grpc.aio.ServicerContext[AgentMessage, bytes]
    ) -> AsyncGenerator[bytes, None]:
        """One agent's stream, from its hello to its end."""
        await self._authority.require(context, Role.AGENT)
        first = await anext(aiter(said), None)
        hello = first.body if first is not None else None
        if not isinstance(hello, Hello):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "hello: an agent says hello first")
        refusal = await self._refusal(hello)
        if refusal is not None:
            yield encode(CoordinatorMessage(self._driver.core.state.term, refusal))
            return
        session = self._open(hello)
        listener = asyncio.create_task(self._listen(session, said))
        try:
            await self._greet(session, hello)
            while (data := await session.outbox.get()) is not None:
                yield data
        finally:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener
            if self.sessions.get(session.node) is session:
                del self.sessions[session.node]
            log.info("agent detached", node=session.node)

    async def _refusal(self, hello: Hello) -> Refused | None:
        """Why this agent may not attach."""
        if hello.protocol != PROTOCOL:
            newer = "coordinator" if hello.protocol > PROTOCOL else "agent"
            return Refused(f"protocol: {hello.protocol}: this coordinator speaks {PROTOCOL}; update the {newer}", True)
        if not NAME.fullmatch(hello.node):
            return Refused(f"node: {hello.node!r}: want 1 to 63 letters, digits, - and _", True)
        if hello.domain and not NAME.fullmatch(hello.domain):
            return Refused(f"domain: {hello.domain!r}: want 1 to 63 letters, digits, - and _", True)
        if hello.cluster and hello.cluster != self._driver.store.cluster:
            return Refused(
                f"cluster: {hello.cluster}: this coordinator is of cluster {self._driver.store.cluster}", True
            )
        if hello.term > self._driver.core.state.term:
            why = f"agent {hello.node} has obeyed term {hello.term}, newer than {self._driver.core.state.term}"
            if not self.outdated.done():
                self.outdated.set_result(why)
            return Refused(f"term: {why}")
        present = self.sessions.get(hello.node)
        if present is not None and present.incarnation != hello.incarnation and await self._still_beats(present):
            return Refused(f"node: {hello.node}: another agent of this name is attached; choose another --node", True)
        return None

    async def _still_beats(self, session: Session) -> bool:
        """An agent of the same name is attached: is it alive, or has its stream only not ended yet?"""
        before = self._driver.liveness.beats.get(session.node, 0.0)
        await asyncio.sleep(1.5 * self._driver.settings.beat_seconds)
        beaten = self._driver.liveness.beats.get(session.node, 0.0) > before
        return beaten and self.sessions.get(session.node) is session

    def _open(self, hello: Hello) -> Session:
        before = self.sessions.get(hello.node)
        if before is not None:
            before.end()
        session = self.sessions[hello.node] = Session(hello.node, hello.incarnation)
        return session

    async def _greet(self, session: Session, hello: Hello) -> None:
        driver, s = self._driver, self._driver.settings
        term = driver.core.state.term
        session.say(
            term,
            Welcome(
                driver.store.cluster,
                term,
                s.beat_seconds,
                s.lease_seconds,
                s.fence_seconds,
                driver.core.orders.copies_key(hello.node),
                s.backup_bytes_per_second,
            ),
        )
        driver.liveness.beat(hello.node, (), driver.now())
        epochs = {w.worker: w.epoch for w in hello.workers if w.epoch is not None}
        known = tuple(sorted(w.worker for w in hello.workers))
        await driver.tell(
            e.NodeAttached(
                hello.node,
                hello.incarnation,
                hello.slots,
                hello.address,
                known,
                epochs,
                hello.drills,
                hello.domain,
                hello.copies_port,
            )
        )
        for truth in hello.workers:
            await self._tell_truth(session, truth)
        self._logs.remind(lambda body: session.say(term, body))

    async def _tell_truth(self, session: Session, truth: WorkerTruth) -> None:
        """What is true of a worker, as the facts it would have been told by."""
        name, driver = truth.worker, self._driver
        if self._is_stranger(session, name):
            return
        if truth.pid:
            await driver.tell(e.WorkerStarted(name, truth.pid))
        if truth.attached:
            await driver.tell(e.WorkerAttached(name))
        told = (truth.ready, truth.resumed, truth.symptom, truth.unreachable, truth.leaving, truth.loop_ended)
        for fact in (*told, truth.written, truth.suspended, truth.mistake, truth.fresh_start):
            if fact is not None:
                await driver.tell(e.WorkerTold(name, fact))
        if truth.published is not None:
            await self._published(name, truth.published)
        if truth.dying:
            await driver.tell(e.WorkerDying(name, "told again"))
        if truth.exited is not None:
            await self._exited(session, truth.exited)

    # -- messages ------------------------------------------------------------------------

    async def _listen(self, session: Session, said: AsyncIterator[AgentMessage]) -> None:
        try:
            async for message in said:
                await self._hear(session, message)
        except grpc.aio.AioRpcError as failed:
            log.debug("stream broke", node=session.node, why=str(failed.code()))
        finally:
            session.end()

    async def _hear(self, session: Session, message: AgentMessage) -> None:
        driver, body = self._driver, message.body
        if self._is_stranger(session, _told_of(body)):
            return
        match body:
            case Beat() if self._is_lost(session.node):
                # It was only frozen.  Attached anew it says what is true there, and is told what still counts.
                session.end()
            case Beat(_, samples):
                driver.liveness.beat(session.node, _believable(samples), driver.now())
            case WorkerFact(worker, Published() as note):
                await self._published(worker, note)
            case WorkerFact(worker, fact):
                assert not isinstance(fact, Published)
                await driver.tell(e.WorkerTold(worker, fact))
            case WorkerStarted(worker, pid):
                await driver.tell(e.WorkerStarted(worker, pid))
            case WorkerAttached(worker):
                await driver.tell(e.WorkerAttached(worker))
            case WorkerDying(worker, witness, last):
                await driver.tell(e.WorkerDying(worker, witness, last))
            case Exited():
                await self._exited(session, body)
            case WorkerQuiet(sample, limit) if _believable((sample,)):
                await driver.tell(e.WorkerQuiet(sample, limit))
            case Reading(request, samples):
                driver.reading(session.node, request, _believable(samples))
            case Evidence(worker, _, stacks, tool):
                await driver.tell(e.EvidenceTaken(worker, stacks, tool))
            case LogChunk():
                self._logs.hear(session.node, body)
            case StoreCall():
                self._store_call(session, body)
            case Hello() | WorkerQuiet():
                log.warning("a message is not believed", node=session.node, kind=type(body).__name__)

    def _is_lost(self, node: str) -> bool:
        found = self._driver.core.state.nodes.get(node)
        return found is not None and found.phase is NodePhase.LOST

    def _is_stranger(self, session: Session, name: str) -> bool:
        """A process of an earlier job of the same name, left over on this node: it is stopped, and not believed."""
        worker = self._driver.core.state.worker(name)
        if worker is None or worker.node == session.node:
            return False
        term = self._driver.core.state.term
        session.say(term, StopWorker(name, f"the worker of this name is on node {worker.node}"))
        session.say(term, ForgetWorker(name))
        return True

    async def _published(self, worker: str, note: Published) -> None:
        formed = self._driver.publish(worker, note)
        if formed is not None:
            await self._driver.tell(formed)

    async def _exited(self, session: Session, exited: Exited) -> None:
        self._driver.liveness.forget(exited.worker)
        if self._driver.core.state.worker(exited.worker) is None:
            session.say(self._driver.core.state.term, ForgetWorker(exited.worker))
        else:
            await self._driver.tell(e.WorkerExited(exited))

    def _store_call(self, session: Session, call: StoreCall) -> None:
        worker = self._driver.core.state.worker(call.worker)
        if worker is None:
            return
        job = self._driver.core.state.jobs[worker.job]
        replica = worker.seat // replica_size(job) if job.spec.replica else 0
        if not job.spec.replica and worker.start != job.gang_restarts:
            return  # one kept by its agent while we were away, perhaps: it is not meant for those who began anew
        answers = self._driver.stores.call(job.name, worker.start, session.node, call, replica)
        for node, answer in answers:
            self.send(node, answer)

    # -- submitted files -----------------------------------------------------------------

    async def fetch_snapshot(
        self, asked: SnapshotRequest, context: grpc.aio.ServicerContext[SnapshotRequest, bytes]
    ) -> AsyncGenerator[bytes, None]:
        """The archive of a submitted working directory, in pieces."""
        await self._authority.require(context, Role.AGENT)
        data = await asyncio.to_thread(self._driver.store.file, asked.digest)
        if data is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"snapshot: {asked.digest}: not here")
        for at in range(0, len(data), SNAPSHOT_CHUNK_BYTES):
            yield encode(SnapshotChunk(data[at : at + SNAPSHOT_CHUNK_BYTES]))


def _believable(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Those that stand at a place which there is: a worker may have scribbled over its ring."""
    return tuple(s for s in samples if s.phase in _PLACES)


def _told_of(body: object) -> str:
    """The worker that a message tells news of; output may as well be an earlier one's."""
    match body:
        case WorkerFact() | WorkerStarted() | WorkerAttached() | WorkerDying() | Exited() | Evidence() | StoreCall():
            return body.worker
        case WorkerQuiet(sample):
            return sample.worker
        case _:
            return ""
