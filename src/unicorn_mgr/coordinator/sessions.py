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
from unicorn_mgr.coordinator.hearing import Ears, Frozen, believable
from unicorn_mgr.coordinator.logbook import LogBook
from unicorn_mgr.coordinator.rules.replicas import replica_size
from unicorn_mgr.messages import (
    AgentMessage,
    CoordinatorMessage,
    Hello,
    LogChunk,
    Reading,
    Refused,
    SnapshotChunk,
    SnapshotRequest,
    StoreCall,
    ToAgent,
    Welcome,
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
        self._ears = Ears(lambda: driver.core.state, driver.liveness, driver.publish, self.send)
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
        for fact in self._ears.hello(hello, driver.now()):
            await driver.tell(fact)
        self._logs.remind(lambda body: session.say(term, body))

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
        match body:
            case Reading(request, samples):
                driver.reading(session.node, request, believable(samples))
            case LogChunk():
                self._logs.hear(session.node, body)
            case StoreCall():
                if not self._ears.is_stranger(session.node, body):
                    self._store_call(session, body)
            case Hello():
                log.warning("a message is not believed", node=session.node, kind=type(body).__name__)
            case _:
                try:
                    for fact in self._ears.heard(session.node, body, driver.now()):
                        await driver.tell(fact)
                except Frozen:  # attached anew it says what is true there, and is told what still counts
                    session.end()

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
