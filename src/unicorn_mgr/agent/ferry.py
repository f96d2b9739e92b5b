"""Snapshots from the memory of one node to that of another: the bytes, and what is said around them.

One TCP connection an errand.  The caller says in a line of JSON what it wants, and shows its token; the other answers
by a line.  `push` leaves a copy, in chunks with a checksum each, at the pace that is set; `pull` takes one, as fast
as it goes; `look` asks what there is.  Both go on where an earlier attempt at the same snapshot was cut off.

All of this blocks, in threads of its own: never in the agent's event loop.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import structlog

from unicorn_mgr import tokens
from unicorn_mgr.agent.copies import Copies, Disowned, NoRoom
from unicorn_mgr.effects.agent import SendBackup
from unicorn_mgr.messages import Holder
from unicorn_mgr.model import Epoch, Lineage, Mark, StatePart
from unicorn_mgr.seal import Snapshot
from unicorn_mgr.tls import Role, role_of

CHUNK_BYTES = 4 << 20
LINE_BYTES_MAX = 64 << 10
CONNECT_SECONDS = 3.0
SILENT_SECONDS = 10.0
"""Without a byte for this long the other side is taken for gone."""
STALLED_SECONDS = 3.0
"""The same while a snapshot comes that a worker waits for."""
VISITORS_MAX = 64

_LENGTH = struct.Struct("<I")
_CHUNK = struct.Struct("<II")
"""Bytes, and their checksum."""

log = structlog.get_logger()


class Denied(Exception):
    """The other side does not want to, or can't."""


class Pace:
    """Bytes a second that all errands of an agent may send together; 0: any number."""

    def __init__(self) -> None:
        self.bytes_per_second = 0.0
        self._lock = threading.Lock()
        self._free_at = 0.0

    def seconds_for(self, size: int) -> float:
        """How long to wait before so many bytes."""
        if self.bytes_per_second <= 0:
            return 0.0
        with self._lock:
            now = time.monotonic()
            wait = max(0.0, self._free_at - now)
            self._free_at = max(self._free_at, now) + size / self.bytes_per_second
            return wait


class Ferry:
    """The errands of one agent.  `secure` makes the contexts of both sides of a connection; None: in the clear."""

    def __init__(self, node: str, secure: Callable[[bool], ssl.SSLContext] | None) -> None:
        self._node = node
        self._secure = secure
        self.pace = Pace()

    def push(self, order: SendBackup, head: Snapshot, file: int, stop: threading.Event) -> None:
        """Leave a copy of a worker's snapshot, as ordered.  Raises `Denied`, and `OSError`."""
        asked = {"op": "push", "mark": _plain(head.mark), "checksum": head.checksum, "size": head.end}
        asked |= {"base": _plain(order.base), "source": order.worker}
        with self._call(order.to, order.part, asked) as (line, answer), _mapped(file, head.end) as memory:
            at = int(answer["at"])
            with memoryview(memory) as whole:
                while at < head.end:
                    with whole[at : at + CHUNK_BYTES] as chunk:
                        if stop.wait(self.pace.seconds_for(len(chunk))):
                            raise Denied("it is not wanted any more")
                        line.sendall(_CHUNK.pack(len(chunk), zlib.crc32(chunk)))
                        line.sendall(chunk)
                        at += len(chunk)
            _answer(line)

    def pull(
        self, holder: Holder, part: StatePart, mark: Mark, file: int, come: Partial, stop: threading.Event
    ) -> None:
        """Bring a snapshot from there into a file, going on from what has come before.  Raises `Denied`, `OSError`."""
        asked = {"op": "pull", "mark": _plain(mark), "at": come.at, "checksum": come.checksum}
        with self._call(holder, part, asked) as (line, answer):
            come.at, come.checksum, come.size = int(answer["at"]), int(answer["checksum"]), int(answer["size"])
            line.settimeout(STALLED_SECONDS)
            os.posix_fallocate(file, 0, come.size)
            with _mapped(file, come.size) as memory, memoryview(memory) as whole:
                while come.at < come.size:
                    if stop.is_set():
                        raise Denied("it is not wanted any more")
                    with whole[come.at : come.at + CHUNK_BYTES] as chunk:
                        got = line.recv_into(chunk)
                    if got == 0:
                        raise ConnectionError(f"node {holder.node} has ended the connection")
                    come.at += got

    def look(self, holder: Holder, part: StatePart) -> list[tuple[Mark, bool]]:
        """The snapshots of a part that are there, and whether each is known to be committed."""
        with self._call(holder, part, {"op": "look"}) as (_, answer):
            return [(_mark(mark), bool(committed)) for mark, committed in answer["found"]]

    @contextlib.contextmanager
    def _call(
        self, holder: Holder, part: StatePart, asked: dict[str, Any]
    ) -> Iterator[tuple[socket.socket, dict[str, Any]]]:
        line = socket.create_connection((holder.address, holder.port), CONNECT_SECONDS)
        try:
            line.settimeout(SILENT_SECONDS)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secure is not None:
                line = self._secure(False).wrap_socket(line)
                _check_role(line)
            about = {**asdict(part), "by": self._node, "token": holder.token}
            _say(line, {**about, **asked})
            yield line, _answer(line)
        except (ssl.SSLError, ValueError, KeyError, TypeError) as wrong:
            raise Denied(f"node {holder.node}: {wrong}") from wrong
        finally:
            line.close()


class Partial:
    """As much of a snapshot as has come."""

    def __init__(self) -> None:
        self.at = 0
        self.checksum = 0
        self.size = 0


class Pier:
    """Where the ferries of other agents land.  `key` makes the tokens that are let in; empty: nobody is."""

    def __init__(self, copies: Copies, secure: Callable[[bool], ssl.SSLContext] | None) -> None:
        self.key = ""
        self._copies = copies
        self._secure = secure
        self._listener: socket.socket | None = None
        self._places = threading.Semaphore(VISITORS_MAX)

    def open(self, address: str) -> int:
        """Listen; returns the port."""
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.socket(found[0], socket.SOCK_STREAM)
        self._listener.bind(found[4])
        self._listener.listen(VISITORS_MAX)
        threading.Thread(target=self._listen, args=(self._listener,), name="unicorn-pier", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Nobody lands any more."""
        if self._listener is not None:
            self._listener.close()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            self._places.acquire()
            try:
                line, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), name="unicorn-visitor", daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        try:
            line.settimeout(SILENT_SECONDS)
            if self._secure is not None:
                line = self._secure(True).wrap_socket(line, server_side=True)
                _check_role(line)
            asked = _hear(line)
            part = StatePart(str(asked["job_id"]), str(asked["shape"]), int(asked["position"]))
            if not tokens.lets_in(str(asked["token"]), self.key, part, str(asked["by"])):
                _say(line, {"denied": "its token is of another part or node"})
                return
            try:
                self._answer(line, part, asked)
            except NoRoom as why:
                _say(line, {"denied": f"no room: {why}"})
            except Disowned as why:
                _say(line, {"denied": str(why)})
        except (OSError, ValueError, KeyError, TypeError, Denied) as failed:
            log.debug("a visiting agent was not served", why=str(failed))
        finally:
            line.close()
            self._places.release()

    def _answer(self, line: socket.socket, part: StatePart, asked: dict[str, Any]) -> None:
        match asked["op"]:
            case "push":
                self._receive(line, part, asked)
            case "pull":
                self._hand_out(line, part, asked)
            case "look":
                found = [(_plain(head.mark), head.committed) for head in self._copies.look(part)]
                _say(line, {"found": found})
            case other:
                _say(line, {"denied": f"{other}: nobody here knows what that is"})

    def _receive(self, line: socket.socket, part: StatePart, asked: dict[str, Any]) -> None:
        mark, base = _mark(asked["mark"]), _mark(asked["base"])
        copy, file = self._copies.begin(
            part, mark, int(asked["checksum"]), int(asked["size"]), base, str(asked["source"])
        )
        try:
            memory = _mapped(file, copy.size)
        finally:
            os.close(file)
        at = copy.received
        _say(line, {"at": at})
        with memory, memoryview(memory) as whole:
            while at < copy.size:
                length, checksum = _CHUNK.unpack(_read(line, _CHUNK.size))
                if not 0 < length <= min(CHUNK_BYTES, copy.size - at):
                    raise ValueError(f"a chunk of {length} bytes")
                with whole[at : at + length] as chunk:
                    _read_into(line, chunk)
                    if zlib.crc32(chunk) != checksum:
                        raise ValueError("a chunk has another checksum")
                at += length
                copy.received = max(copy.received, at)
        why = self._copies.check(copy)
        _say(line, {"denied": why} if why else {"kept": True})

    def _hand_out(self, line: socket.socket, part: StatePart, asked: dict[str, Any]) -> None:
        found = self._copies.open(part, _mark(asked["mark"]))
        if found is None:
            _say(line, {"denied": "it is not here any more"})
            return
        file, head = found
        try:
            at = int(asked["at"]) if int(asked["checksum"]) == head.checksum else 0
            _say(line, {"size": head.end, "checksum": head.checksum, "at": at})
            _send(line, file, at, head.end)
        finally:
            os.close(file)


def _mapped(file: int, size: int) -> mmap.mmap:
    """With all its pages at once: one fault each would take longer than the bytes."""
    return mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _send(line: socket.socket, file: int, at: int, end: int) -> None:
    """What a template gives up meanwhile may be gone at any moment: the kernel says so, reading it here would kill."""
    if isinstance(line, ssl.SSLSocket):
        while data := os.pread(file, min(CHUNK_BYTES, end - at), at):
            line.sendall(data)
            at += len(data)
        return
    with _mapped(file, end) as memory, memoryview(memory) as whole:
        while at < end:
            with whole[at : min(at + CHUNK_BYTES, end)] as chunk:
                line.sendall(chunk)
                at += len(chunk)


def _check_role(line: ssl.SSLSocket) -> None:
    role = role_of(line.getpeercert() or {})
    if role != Role.AGENT:
        raise Denied(f"its certificate is one of role {role or 'none'}, not of an agent")


def _plain(mark: Mark) -> list[int]:
    return [mark.step, mark.lineage.generation, mark.lineage.epoch.term, mark.lineage.epoch.number]


def _mark(plain: Any) -> Mark:
    step, generation, term, number = map(int, plain)
    return Mark(step, Lineage(generation, Epoch(term, number)))


def _say(line: socket.socket, said: dict[str, Any]) -> None:
    data = json.dumps(said).encode()
    line.sendall(_LENGTH.pack(len(data)) + data)


def _hear(line: socket.socket) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_read(line, _LENGTH.size))
    if length > LINE_BYTES_MAX:
        raise ValueError(f"a line of {length} bytes")
    said = json.loads(_read(line, length))
    if not isinstance(said, dict):
        raise TypeError("a line that is no object")
    return said


def _answer(line: socket.socket) -> dict[str, Any]:
    said = _hear(line)
    if "denied" in said:
        raise Denied(str(said["denied"])[:300])
    return said


def _read(line: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    _read_into(line, memoryview(data))
    return bytes(data)


def _read_into(line: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        got = line.recv_into(view[done:])
        if got == 0:
            raise ConnectionError("the other side has ended the connection")
        done += got
