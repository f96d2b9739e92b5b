"""An agent's part in keeping its workers' snapshots on second nodes, and in bringing them back.

A snapshot that a worker tells of is copied aside at once, since the worker writes over it two snapshots later; what
takes long, sending it, needs nothing of the worker any more.  Whatever fails is tried again, until it has gone on for
so long that a newer snapshot is worth more.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from unicorn_mgr import pieces, seal
from unicorn_mgr.agent.copies import Copies, NoRoom
from unicorn_mgr.agent.ferry import PARTS_MAX, Denied, Ferry, Pier, Sight
from unicorn_mgr.agent.gates import Gates
from unicorn_mgr.agent.stripes import Stripes
from unicorn_mgr.effects.agent import AgentEvent, BackupOver, Fetched, Gather, Lot, SendBackup
from unicorn_mgr.messages import Holder, Welcome
from unicorn_mgr.model import Mark, StatePart
from unicorn_mgr.tls import CredentialsError, agent_context

SEAL_SECONDS = 2.0
"""A committed snapshot is sealed after this, or has been written over."""
POLL_SECONDS = 0.005
RETRY_SECONDS = 0.2
RETRY_SECONDS_MAX = 5.0
SEND_SECONDS = 30.0
"""After this much time without success a newer snapshot is worth more."""
LOOK_SECONDS = 2.0
"""Nodes that have not answered by then are taken to have nothing."""
PICKS_MAX = 4
"""Parts of which pieces come to one worker at the same time."""
ATTEMPTS = 3
"""To bring a snapshot from the nodes that have it."""
FETCHERS_MAX = 8
"""Nodes from which it is brought at once: the nearest of them."""

T = TypeVar("T")
Found = dict[Mark, Sight]
"""Snapshots that there are."""

log = structlog.get_logger()


class Backups:
    """The errands of one agent, and what lies here."""

    def __init__(
        self,
        node: str,
        tls: Path | None,
        bytes_max: int,
        emit: Callable[[AgentEvent], None],
        gates: Gates | None = None,
    ) -> None:
        secure = partial(agent_context, tls) if tls is not None else None
        self.copies = Copies(bytes_max)
        self._node = node
        self._ferry = Ferry(node, secure, gates)
        self._pier = Pier(self.copies, secure, gates)
        self._emit = emit
        self._sending: dict[str, tuple[SendBackup, threading.Event]] = {}
        self._fetching: dict[str, threading.Event] = {}
        """By worker, what ends the last fetch that it has asked this agent for."""
        self._closing = threading.Event()

    def open(self, address: str, memory: Path) -> int:
        """Let other agents land; returns the port, 0 if none can.

        It is the one in `memory`, if that is free: who has been told of it finds this agent where one before it was.
        """
        before = _port_in(memory)
        if before:
            with contextlib.suppress(OSError):
                return self._pier.open(address, before)
        try:
            port = self._pier.open(address)
            memory.write_text(str(port))
        except OSError as failed:
            log.warning("no copies of snapshots are kept here for other nodes", address=address, why=str(failed))
            return 0
        return port

    def close(self) -> None:
        """End what is under way."""
        self._closing.set()
        self._pier.close()
        for stop in (*self._fetching.values(), *(stop for _, stop in self._sending.values())):
            stop.set()

    def welcomed(self, welcome: Welcome) -> None:
        """What the coordinator has set."""
        self._pier.key = welcome.copies_key
        self._ferry.pace.bytes_per_second = welcome.backup_bytes_per_second

    # -- to a second node ----------------------------------------------------------------

    def send(self, order: SendBackup) -> None:
        """Copy a worker's snapshot; `BackupOver` follows, unless another order comes before."""
        before, stop = self._sending.get(order.worker, (None, threading.Event()))
        if before == order:
            return
        stop.set()
        self._sending.pop(order.worker, None)
        if order.to.node:
            stop = threading.Event()
            self._sending[order.worker] = (order, stop)
            self._in_thread(lambda: self._send(order, stop), partial(self._sent, order))

    def end(self, worker: str) -> None:
        """The worker is no more."""
        _, stop = self._sending.pop(worker, (None, threading.Event()))
        stop.set()
        self._fetching.pop(worker, stop).set()
        self.copies.end_own(worker)

    def _sent(self, order: SendBackup, kept: bool) -> None:
        if self._sending.get(order.worker, (None,))[0] is order:
            del self._sending[order.worker]
            self._emit(BackupOver(order.worker, order.mark, kept))

    def _send(self, order: SendBackup, stop: threading.Event) -> bool:
        """In a thread: whether all of it is there."""
        files = self.copies.own_files(order.worker)
        try:
            found = _await_whole(files, order.mark, stop)
            if found is None:
                return False
            file, head = found
            with self.copies.staging(head.end) as staged:
                return _copied(file, staged, head) and self._push(order, head, staged, stop)
        except (NoRoom, OSError) as why:
            log.warning("a snapshot is not copied to another node", worker=order.worker, why=str(why))
            stop.wait(SEND_SECONDS)
            return False
        finally:
            for file in files:
                os.close(file)

    def _push(self, order: SendBackup, head: seal.Snapshot, file: int, stop: threading.Event) -> bool:
        deadline, pause, told = time.monotonic() + SEND_SECONDS, RETRY_SECONDS, ""
        while not stop.is_set():
            try:
                self._ferry.push(order, head, file, stop)
            except (Denied, OSError, CredentialsError) as failed:
                if str(failed) != told and not stop.is_set():
                    told = str(failed)
                    log.warning("a snapshot can't be copied", worker=order.worker, to=order.to.node, why=told)
                if time.monotonic() > deadline:
                    return False
                stop.wait(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            else:
                return True
        return False

    # -- from another node ---------------------------------------------------------------

    async def look(self, part: StatePart, holders: Sequence[Holder]) -> Found:
        """The snapshots of a part that other nodes have; those of nodes that do not answer soon are not waited for."""
        return (await self.survey({part: holders}))[part]

    async def survey(self, holders: Mapping[StatePart, Sequence[Holder]]) -> dict[StatePart, Found]:
        """The same of several parts of a job: each node is asked for all of them at once."""
        loop = asyncio.get_running_loop()
        by_node: dict[Holder, list[tuple[StatePart, Holder]]] = defaultdict(list)
        for part, several in holders.items():
            for holder in several:
                by_node[replace(holder, token="")].append((part, holder))
        asked: list[asyncio.Future[list[tuple[StatePart, Sight]]]] = []
        for node, questions in by_node.items():
            for first in range(0, len(questions), PARTS_MAX):
                answer: asyncio.Future[list[tuple[StatePart, Sight]]] = loop.create_future()
                asked.append(answer)
                some = questions[first : first + PARTS_MAX]
                self._in_thread(partial(self._survey, node.node, some), partial(_set, answer))
        found: dict[StatePart, Found] = {part: {} for part in holders}
        done = (await asyncio.wait(asked, timeout=LOOK_SECONDS))[0] if asked else ()
        for part, seen in [of for answer in done for of in answer.result()]:
            if seen.mark not in found[part] or seen.committed:
                found[part][seen.mark] = seen
        return found

    def _survey(self, node: str, questions: Sequence[tuple[StatePart, Holder]]) -> list[tuple[StatePart, Sight]]:
        if node == self._node:  # before the coordinator has said by what others are let in
            heads = [(part, head) for part, _ in questions for head in self.copies.look(part)]
            return [(part, Sight(head.mark, head.committed, head.body_at)) for part, head in heads]
        try:
            answers = self._ferry.look(questions)
        except (Denied, OSError, CredentialsError) as failed:
            log.info("a node does not say which snapshots it has", node=node, why=str(failed))
            return []
        return [(part, seen) for (part, _), of_part in zip(questions, answers, strict=False) for seen in of_part]

    def fetch(self, worker: str, part: StatePart, mark: Mark, buffer: int, holders: Sequence[Holder]) -> None:
        """Bring a snapshot into a worker's own memory; `Fetched` follows, once for each.  No mark: stop that.

        If it was an agent before this one that has begun it, that is over, and `Fetched` of no mark follows.
        """
        if mark != Mark():
            self._begin_fetching(worker, mark, partial(self._fetch, worker, part, mark, buffer, holders))
        elif worker in self._fetching:
            self._fetching[worker].set()
        else:
            self._emit(Fetched(worker, mark, "nothing is under way"))

    def _begin_fetching(self, worker: str, mark: Mark, work: Callable[[threading.Event], str]) -> None:
        if worker in self._fetching:
            self._fetching[worker].set()
        stop = self._fetching[worker] = threading.Event()
        self._in_thread(lambda: work(stop), lambda failed: self._emit(Fetched(worker, mark, failed)))

    def _fetch(
        self, worker: str, part: StatePart, mark: Mark, buffer: int, holders: Sequence[Holder], stop: threading.Event
    ) -> str:
        """In a thread: why it is not there, empty if it is."""
        files = self.copies.own_files(worker)
        if buffer >= len(files):
            return "there is no memory for it"
        failed, began = "no node has it", time.monotonic()
        stripes = Stripes(files[buffer], stop)
        try:
            for _ in range(ATTEMPTS):
                before = dict(stripes.came)
                failed = self._fetch_from_all(worker, part, mark, holders[:FETCHERS_MAX], stripes) or failed
                if stop.is_set():
                    return "it is not wanted any more"
                if stripes.complete and _is_whole(files[buffer], mark):
                    seconds, came = round(time.monotonic() - began, 3), dict(sorted(stripes.came.items()))
                    log.info("a snapshot has come", worker=worker, seconds=seconds, bytes=stripes.size, by_node=came)
                    return ""
                if stripes.complete or stripes.came == before:
                    stripes.give_up(damaged=stripes.complete)
            return failed
        finally:
            stripes.close()
            for file in files:
                os.close(file)

    def _fetch_from_all(
        self, worker: str, part: StatePart, mark: Mark, holders: Sequence[Holder], stripes: Stripes
    ) -> str:
        """Until all has come, or nobody has any more of it; then why."""
        failed: list[str] = []
        ended: list[Holder] = []

        def fetch(holder: Holder) -> None:
            try:
                self._ferry.pull(holder, part, mark, stripes)
            except (Denied, OSError, CredentialsError) as why:
                failed.append(f"{holder.node}: {why}")
                log.info("chunks of a snapshot can't be fetched", worker=worker, why=failed[-1])
            finally:
                ended.append(holder)
                stripes.wake()

        for holder in holders:
            threading.Thread(target=fetch, args=(holder,), name="unicorn-fetch", daemon=True).start()
        stripes.wait(lambda: len(ended) < len(holders))
        return failed[-1] if failed else ""

    def gather(self, order: Gather) -> None:
        """Bring pieces of several snapshots into a worker's own memory; `Fetched` follows."""
        self._begin_fetching(order.worker, order.mark, partial(self._gather, order))

    def _gather(self, order: Gather, stop: threading.Event) -> str:
        """In a thread: why they are not there, empty if they are."""
        files, began = self.copies.own_files(order.worker), time.monotonic()
        sizes = [pieces.size_of(lot.runs) for lot in order.lots]
        end = order.at + sum(sizes)
        try:
            os.posix_fallocate(files[order.buffer], 0, end)
            with mmap.mmap(files[order.buffer], end) as memory, memoryview(memory) as whole, _Threads() as threads:
                at, asked = order.at, []
                for lot, size in zip(order.lots, sizes, strict=True):
                    asked.append(threads.submit(self._pick, order, lot, whole[at : at + size], stop))
                    at += size
                failed = next((why for why in [of.result() for of in asked] if why), "")
        except (OSError, IndexError) as why:
            return f"no memory for {end} bytes: {why}"
        finally:
            for file in files:
                os.close(file)
        seconds = round(time.monotonic() - began, 3)
        told = {"worker": order.worker, "step": order.mark.step, "bytes": sum(sizes), "seconds": seconds}
        log.info("pieces of snapshots can't be fetched" if failed else "pieces of snapshots have come", **told)
        return failed

    def _pick(self, order: Gather, lot: Lot, into: memoryview, stop: threading.Event) -> str:
        """What is wanted of one part, from the nearest node that has it; why not, if it has not come."""
        failed, come = f"no node has part {lot.part.position}", pieces.Come()
        with into:
            for holder in [holder for _ in range(ATTEMPTS) for holder in lot.holders]:
                if stop.is_set():
                    return "it is not wanted any more"
                try:
                    self._ferry.pick(holder, lot.part, order.mark, lot.fingerprint, lot.runs, into, come, stop)
                except (Denied, OSError, CredentialsError) as why:
                    failed = f"{holder.node}: {why}"
                    log.info("a piece of a snapshot can't be fetched", worker=order.worker, why=failed)
                else:
                    return ""
        return failed

    def _in_thread(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """`done` is called in the event loop; not if that has ended: the process does not wait for these threads."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            found = work()
            with contextlib.suppress(RuntimeError):
                if not self._closing.is_set():
                    loop.call_soon_threadsafe(done, found)

        threading.Thread(target=run, name="unicorn-ferry", daemon=True).start()


_Threads = partial(ThreadPoolExecutor, PICKS_MAX, "unicorn-ferry")


def _set(answer: asyncio.Future[T], found: T) -> None:
    if not answer.done():
        answer.set_result(found)


def _await_whole(files: Sequence[int], mark: Mark, stop: threading.Event) -> tuple[int, seal.Snapshot] | None:
    """The file with that snapshot, as soon as its writer has sealed it; None if it has been written over."""
    deadline = time.monotonic() + SEAL_SECONDS
    while time.monotonic() < deadline:
        for file in files:
            with contextlib.suppress(seal.Torn):
                head = seal.find(file)
                if head is not None and head.mark == mark and head.committed:
                    return file, head
        if stop.wait(POLL_SECONDS):
            break
    return None


def _port_in(memory: Path) -> int:
    try:
        port = int(memory.read_text())
    except (OSError, ValueError):  # there is none, or none that can be read: any will do
        return 0
    return port if 0 < port < 1 << 16 else 0


def _is_whole(file: int, mark: Mark) -> bool:
    with contextlib.suppress(seal.Torn):
        head = seal.find(file)
        return head is not None and head.mark == mark
    return False


def _copied(file: int, to: int, head: seal.Snapshot) -> bool:
    """Copy it aside; false if its writer has begun to write over it meanwhile."""
    os.posix_fallocate(to, 0, head.end)
    done = 0
    while done < head.end:
        count = os.sendfile(to, file, done, head.end - done)
        if count == 0:
            return False
        done += count
    with contextlib.suppress(seal.Torn):
        now = seal.find(file)
        return now is not None and (now.mark, now.checksum) == (head.mark, head.checksum)
    return False
