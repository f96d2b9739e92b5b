"""The agent as a process: link, hub, hands and core in one task group."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import grpc
import structlog

from unicorn_mgr import __version__, messages
from unicorn_mgr.agent import cutoff, logs
from unicorn_mgr.agent.backups import Backups
from unicorn_mgr.agent.core import AgentCore
from unicorn_mgr.agent.elsewhere import Elsewhere
from unicorn_mgr.agent.gates import Gates
from unicorn_mgr.agent.host import Host, HostConfig
from unicorn_mgr.agent.hub import Hub
from unicorn_mgr.agent.link import Link, LinkRefused
from unicorn_mgr.agent.processes import stacks_of
from unicorn_mgr.agent.snapshots import SnapshotError, folder_of, unpack
from unicorn_mgr.agent.templates import socket_of
from unicorn_mgr.effects.agent import (
    AgentAction,
    AgentEvent,
    CoordinatorSaid,
    CutOff,
    DisownCopies,
    DropCopies,
    Fetch,
    Forget,
    Freeze,
    Gather,
    Kill,
    LinkLost,
    LinkOpened,
    NotSpawned,
    Recalled,
    Release,
    Report,
    Sampled,
    SendBackup,
    Spawn,
    Strike,
    Sweep,
    Tell,
    Thaw,
    TimePassed,
)
from unicorn_mgr.messages import (
    AgentMessage,
    Beat,
    CollectEvidence,
    Evidence,
    Hello,
    LogChunk,
    NodeDrill,
    Reading,
    ReadNow,
    StartWorker,
    StoreAnswer,
    StoreCall,
    WatchLogs,
    Welcome,
)
from unicorn_mgr.model import SOCKET_PATH_BYTES_MAX, Slot
from unicorn_mgr.tls import CredentialsError, channel_credentials, is_loopback

SAMPLE_SECONDS = 0.5
LOG_SECONDS = 0.2
FETCH_AGAIN_SECONDS = 1.0

log = structlog.get_logger()


class AgentError(Exception):
    """The agent can't start or go on.  The message is one line and names the fix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """Where an agent lives."""

    coordinator: str
    """HOST:PORT."""
    node: str
    slots: tuple[Slot, ...]
    data: Path
    """Logs and submitted files."""
    socket: Path
    """Where workers find this agent."""
    templates: Path
    """Sockets of templates; agents of one machine may share it."""
    address: str = ""
    """Where workers of other nodes reach this node; empty: the address that reaches the coordinator."""
    tls: Path | None = None
    drills: bool = False
    domain: str = ""
    """What fails as one with this node; empty: nobody has said."""
    snapshot_bytes: int = 0
    """Memory that snapshots of its workers' state may take; each slot has an equal share."""


class AgentService:
    """Everything an agent runs."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        address = config.address or address_towards(config.coordinator)
        _check_credentials(config)
        self._core = AgentCore(
            Hello(
                node=config.node,
                incarnation=secrets.token_hex(8),
                slots=config.slots,
                address=address,
                version=__version__,
                drills=config.drills,
                domain=config.domain,
            )
        )
        for option, socket_path in (("data", config.socket), ("templates", socket_of(config.templates, ""))):
            if len(os.fsencode(socket_path)) > SOCKET_PATH_BYTES_MAX:
                folder = socket_path.parent
                raise AgentError(f"{option}: {folder}: its path is too long for a socket; choose a shorter --{option}")
        host_config = HostConfig(
            node=config.node,
            slots=config.slots,
            address=address,
            data=config.data,
            socket=config.socket,
            templates=config.templates,
        )
        gates = Gates(config.data / "gates" if config.drills else None)
        self._backups = Backups(config.node, config.tls, config.snapshot_bytes, self._emit, gates)
        self._elsewhere = Elsewhere(self._backups)
        self._host = Host(host_config, self._emit, self._call_store, self._backups.copies)
        self._hub = Hub(config.socket, self._host, self._emit, self._prepared)
        self._link = Link(
            config.coordinator,
            config.tls,
            self._say_hello,
            self._welcomed,
            self._heard,
            lambda answered: self._emit(LinkLost(answered)),
        )
        self._beat_seconds = 1.0
        self._beats = 0
        self._kept: CutOff | None = self._core.cut_off
        self._unsent_calls: list[StoreCall] = []
        self._followers: dict[str, logs.Follower] = {}
        self._punched: dict[str, int] = {}
        self._node_drill: NodeDrill | None = None
        self._deadline_changed = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until told to stop.  Workers outlive this."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        self._config.data.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._claimed = claim(self._config.data)
        self._core.hello = replace(self._core.hello, copies_port=self._open_pier())
        before = cutoff.recall(self._config.data)
        await self._host.start()
        self._kept = before
        if before is not None and self._host.processes:
            self._emit(Recalled(before))
        await self._hub.open()
        ready()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for work in (
                    self._link.run(),
                    self._beat(),
                    self._watch_rings(),
                    self._timer(),
                    self._tend_logs(),
                ):
                    self._begin(work)
                await self._stop.wait()
                for task in self._running:
                    task.cancel()
        except* LinkRefused as refused:
            raise AgentError(str(refused.exceptions[0])) from None
        finally:
            self._backups.close()
            await self._hub.close()
            await self._host.close()

    def _open_pier(self) -> int:
        return self._backups.open(self._host.config.address, self._config.data / "copies.port")

    def _say_hello(self, cluster: str, term: int) -> Hello:
        return replace(self._core.say_hello(cluster, term), copies=self._backups.copies.count())

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    # -- the core ------------------------------------------------------------------------

    def _emit(self, event: AgentEvent) -> None:
        actions = self._core.handle(event, time.monotonic())
        if self._core.cut_off.frozen:  # before they are frozen, but after they are thawed: the next may have to do it
            self._keep_cut_off()
        for action in actions:
            self._perform(action)
        self._keep_cut_off()
        self._deadline_changed.set()

    def _keep_cut_off(self) -> None:
        if self._core.cut_off != self._kept:
            self._kept = self._core.cut_off
            cutoff.keep(self._config.data, self._kept)

    def _perform(self, action: AgentAction) -> None:
        match action:
            case Report(body):
                self._link.say(AgentMessage(body))
            case Tell(worker, body):
                self._hub.tell(worker, self._completed(worker, body))
                if isinstance(body, messages.CheckpointComplete):
                    self._host.complete(worker, body)
            case Spawn(order):
                self._begin(self._spawn(order))
            case Kill(worker, reason, gently):
                log.info("ending a worker", worker=worker, reason=reason)
                self._host.kill(worker, gently)
            case Sweep(worker):
                self._host.sweep(worker)
            case Forget(worker):
                self._host.forget(worker)
                self._backups.end(worker)
                self._elsewhere.forget(worker)
            case Release(job_ids):
                self._host.release(job_ids)
                self._backups.copies.release(job_ids)
            case SendBackup():
                self._backups.send(action)
            case Fetch(worker, part, mark, buffer, holders):
                self._backups.fetch(worker, part, mark, buffer, holders)
            case Gather():
                self._backups.gather(action)
            case DropCopies(part):
                self._backups.copies.forget(part)
            case DisownCopies(job_id, worker):
                self._backups.copies.disown(job_id, worker)
            case Strike(worker, fault):
                if self._config.drills:
                    self._host.strike(worker, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            case Freeze():
                log.error("cut off from the coordinator for too long: workers are frozen")
                self._host.signal_all(signal.SIGSTOP)
            case Thaw():
                log.info("workers run on")
                self._host.signal_all(signal.SIGCONT)

    def _completed(
        self, worker: str, body: messages.Directive | messages.ErrandDone
    ) -> messages.Directive | messages.ErrandDone:
        """The agent alone knows where its workers listen, how much memory they may have, and what others have."""
        if isinstance(body, messages.Attached):
            share = self._config.snapshot_bytes // max(len(self._config.slots), 1)
            body = replace(body, address=self._host.config.address, snapshot_bytes=share)
            return self._elsewhere.tell(worker, body)
        return body

    async def _spawn(self, order: StartWorker) -> None:
        folder: Path | None = None
        if order.snapshot:
            folder = folder_of(self._config.data, order.snapshot)
            if not folder.exists():
                try:
                    archive = await self._fetch_snapshot(order.snapshot)
                    folder = await asyncio.to_thread(unpack, self._config.data, order.snapshot, archive)
                except (SnapshotError, CredentialsError, OSError) as failed:
                    self._emit(NotSpawned(order.worker, str(failed)))
                    return
        await self._elsewhere.look(order)
        self._host.spawn(order, folder)

    async def _prepared(self, worker: str) -> None:
        """Until all is known that a worker is told when it attaches."""
        await self._host.started(worker)
        process = self._host.processes.get(worker)
        if process is not None:
            await self._elsewhere.look(process.order)

    async def _fetch_snapshot(self, digest: str) -> bytes:
        """As often as the coordinator is away.  Raises `SnapshotError`."""
        while True:
            try:
                return await self._link.fetch_snapshot(digest)
            except grpc.aio.AioRpcError as failed:
                if failed.code() is not grpc.StatusCode.UNAVAILABLE:
                    why = f"{failed.code().name.lower()}: {' '.join((failed.details() or '').split())[:200]}"
                    raise SnapshotError(f"snapshot: {digest}: it can't be fetched: {why}") from failed
            await asyncio.sleep(FETCH_AGAIN_SECONDS)

    async def _timer(self) -> None:
        while True:
            deadline = self._core.next_deadline()
            self._deadline_changed.clear()
            try:
                async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    await self._deadline_changed.wait()
            except TimeoutError:
                self._emit(TimePassed())

    # -- the coordinator -----------------------------------------------------------------

    async def _heard(self, body: messages.ToAgent) -> None:
        match body:
            case ReadNow(request, workers):
                samples = tuple(s for s in self._host.samples() if s.worker in workers)
                self._link.say(AgentMessage(Reading(request, samples)))
            case CollectEvidence(request, worker):
                self._begin(self._collect_evidence(request, worker))
            case WatchLogs():
                self._watch_logs(body)
            case NodeDrill():
                self._node_drill = body
                self._lose_node_if_due()
            case StoreAnswer():
                front = self._host.stores.get(body.worker)
                if front is not None:
                    front.answer(body)
            case Welcome():
                pass
            case _:
                self._emit(CoordinatorSaid(body))

    def _welcomed(self, welcome: Welcome) -> None:
        self._beat_seconds = welcome.beat_seconds
        self._backups.welcomed(welcome)
        self._emit(LinkOpened(welcome))
        unsent, self._unsent_calls = self._unsent_calls, []
        for call in unsent:
            self._call_store(call)

    def _call_store(self, call: StoreCall) -> None:
        """Kept while the coordinator is away: nobody would ask again, and a worker waits for the answer."""
        if not self._link.say(AgentMessage(call)):
            self._unsent_calls.append(call)

    async def _collect_evidence(self, request: str, worker: str) -> None:
        process = self._host.processes.get(worker)
        stacks, tool = await stacks_of(process) if process is not None and not process.ended else ("", "none")
        self._link.say(AgentMessage(Evidence(worker, request, stacks, tool)))

    def _lose_node_if_due(self) -> None:
        """A drill: this node dies, with everything on it."""
        drill = self._node_drill
        if drill is None or not self._config.drills:
            return
        reached = any(s.worker == drill.worker and s.step >= drill.step for s in self._host.samples())
        if drill.step < 0 or reached:
            for worker in list(self._host.processes):
                self._host.kill(worker, gently=False)
            os._exit(DRILL_EXIT_CODE)

    # -- regular work --------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            self._beats += 1
            self._link.say(AgentMessage(Beat(self._beats, self._host.samples())))
            self._backups.copies.tidy()
            await asyncio.sleep(self._beat_seconds)

    async def _watch_rings(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._emit(Sampled(self._host.samples()))
            self._lose_node_if_due()

    async def _tend_logs(self) -> None:
        while True:
            await asyncio.sleep(LOG_SECONDS)
            self._punched = {
                worker: logs.bound(process.log, process.order.log_bytes_max, self._punched.get(worker, 0))
                for worker, process in self._host.processes.items()
            }
            for follower in list(self._followers.values()):
                self._feed(follower)

    def _feed(self, follower: logs.Follower) -> None:
        """Send what is new, unless the link is busy: then it is read later, from where it was left."""
        if not self._link.takes_output:
            return
        for chunk in follower.turn():
            self._link.say(AgentMessage(chunk))
        if follower.finished:
            self._link.say(AgentMessage(LogChunk(follower.watch, end=True)))
            del self._followers[follower.watch]

    def _watch_logs(self, asked: WatchLogs) -> None:
        if asked.stop:
            self._followers.pop(asked.watch, None)
            return
        follower = self._followers.get(asked.watch)
        if follower is None:  # asked again after the stream was cut it goes on from its place
            folder = logs.folder_of(self._config.data, asked.job)
            follower = logs.Follower(asked.watch, asked.job, asked.job_id, folder)
            self._followers[asked.watch] = follower
            if not asked.from_start:
                follower.skip()
        if asked.until_now:
            follower.stop_here()


DRILL_EXIT_CODE = 86


def _check_credentials(config: AgentConfig) -> None:
    """Before anything is touched: what is wrong now would be wrong at every attempt."""
    if config.tls is None:
        if not is_loopback(config.coordinator):
            fix = "off loopback a coordinator is only reached with --tls FOLDER"
            raise AgentError(f"coordinator: {config.coordinator}: {fix}")
        return
    try:
        channel_credentials(config.tls)
    except CredentialsError as wrong:
        raise AgentError(str(wrong)) from wrong


def claim(data: Path) -> BinaryIO:
    """Hold an agent's folder, so that no second one takes its workers.  Raises `AgentError`."""
    lock = (data / "agent.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise AgentError(f"data: {data}: another agent runs on it; give --data another folder") from None
    return lock


def address_towards(coordinator: str) -> str:
    """The address of this machine that reaches HOST:PORT; nothing is sent."""
    host, _, port = coordinator.rpartition(":")
    try:
        family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family[0], socket.SOCK_DGRAM) as probe:
            probe.connect(family[4])
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as failed:
        why = getattr(failed, "strerror", None) or str(failed)
        raise AgentError(f"coordinator: {coordinator}: {why}; want HOST:PORT") from failed
