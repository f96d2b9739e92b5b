"""Snapshots from the memory of one node to that of another: the bytes, and what is said around them.

One TCP connection an errand.  The caller says in a line of JSON what it wants, and shows its token; the other answers
by a line.  `push` leaves a copy at the pace that is set, and goes on where an earlier attempt was cut off.  `pull`
brings chunks of one, of which others may bring chunks, too, as fast as it goes; `pick` pieces of one, and no byte more.
`look` asks what there is.  Each chunk has a checksum.

All of this blocks, in threads of its own: never in the agent's event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import structlog

from unicorn_mgr import pieces, tokens
from unicorn_mgr.agent.copies import Copies, Disowned, NoRoom
from unicorn_mgr.agent.gates import Gates
from unicorn_mgr.agent.stripes import CHUNK_BYTES, Stripes
from unicorn_mgr.effects.agent import SendBackup
from unicorn_mgr.messages import Holder
from unicorn_mgr.model import Epoch, Lineage, Mark, Run, StatePart
from unicorn_mgr.seal import SEAL, Snapshot
from unicorn_mgr.tls import Role, role_of

LINE_BYTES_MAX = 64 << 10
CONNECT_SECONDS = 3.0
SILENT_SECONDS = 10.0
"""Without a byte for this long the other side is taken for gone."""
STALLED_SECONDS = 3.0
"""The same while a snapshot comes that a worker waits for."""
VISITORS_MAX = 64
ACCEPT_AGAIN_SECONDS = 0.1
ASKED_MAX = 2
"""Chunks that one holder is asked for at once."""
PARTS_MAX, RUNS_MAX = 200, 1000
"""In one line."""

_LENGTH = struct.Struct("<I")
_CHUNK = struct.Struct("<II")
"""Bytes, and their checksum."""
_WANTED = struct.Struct("<QI")
"""Where a chunk begins, and its bytes; none: that was all."""

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

    def __init__(self, node: str, secure: Callable[[bool], ssl.SSLContext] | None, gates: Gates | None = None) -> None:
        self._node = node
        self._gates = gates if gates is not None else Gates()
        self._secure = secure
        self.pace = Pace()

    def push(self, order: SendBackup, head: Snapshot, file: int, stop: threading.Event) -> None:
        """Leave a copy of a worker's snapshot, as ordered.  Raises `Denied`, and `OSError`."""
        asked = {"op": "push", "mark": _plain(head.mark), "checksum": head.checksum, "size": head.end}
        asked |= {"base": _plain(order.base), "source": order.worker}
        with self._call(order.to, order.part, asked) as (line, answer), _room(head.end) as buffer:
            at = int(answer["at"])
            while at < head.end:
                with buffer[: head.end - at] as chunk:
                    if stop.wait(self.pace.seconds_for(len(chunk))):
                        raise Denied("it is not wanted any more")
                    if os.preadv(file, [chunk], at) < len(chunk):
                        raise OSError("it is cut short")
                    line.sendall(_CHUNK.pack(len(chunk), zlib.crc32(chunk)))
                    self._gates.reach("push")
                    line.sendall(chunk)
                    at += len(chunk)
            _answer(line)

    def pull(self, holder: Holder, part: StatePart, mark: Mark, stripes: Stripes) -> None:
        """Bring chunks of a snapshot from there, as long as there are any.  Raises `Denied`, `OSError`."""
        with self._call(holder, part, {"op": "pull", "mark": _plain(mark)}) as (line, answer):
            seal = str(answer["seal"])
            if not stripes.agrees(seal, int(answer["size"])):
                raise Denied("it has another one of this step")
            line.settimeout(STALLED_SECONDS)
            asked: deque[int] = deque()
            try:
                with memoryview(bytearray(CHUNK_BYTES)) as buffer:
                    for at, chunk in self._chunks(line, stripes, seal, asked, buffer):
                        stripes.put(seal, at, chunk, holder.node)
            finally:
                stripes.give_back(seal, asked)
            with contextlib.suppress(OSError):  # it may be gone, now that it has given everything
                line.sendall(_WANTED.pack(0, 0))

    def _chunks(
        self, line: socket.socket, stripes: Stripes, seal: str, asked: deque[int], buffer: memoryview
    ) -> Iterator[tuple[int, memoryview]]:
        """As they come, each until the next is looked at; of `asked` none has been dealt with."""
        while True:
            # The next one is asked for before this has come, so that the line is never idle.
            while len(asked) < ASKED_MAX and (at := stripes.take(seal, wait=not asked)) is not None:
                asked.append(at)
                line.sendall(_WANTED.pack(at, stripes.length(at)))
            if not asked:
                return
            length, checksum = _CHUNK.unpack(_read(line, _CHUNK.size))
            self._gates.reach("pull")
            if length != stripes.length(asked[0]):
                raise ValueError(f"a chunk of {length} bytes")
            with buffer[:length] as chunk:
                _read_into(line, chunk)
                if zlib.crc32(chunk) != checksum:
                    raise ValueError("a chunk has another checksum")
                yield asked[0], chunk
            asked.popleft()

    def pick(
        self,
        holder: Holder,
        part: StatePart,
        mark: Mark,
        fingerprint: int,
        runs: Sequence[Run],
        into: memoryview,
        come: pieces.Come,
        stop: threading.Event,
    ) -> None:
        """Bring pieces of a snapshot from there, one behind the other, going on from what has come before.

        The snapshot is the one with this fingerprint, if that is not 0.  Raises `Denied`, and `OSError`.
        """
        end = 0
        for first in range(0, len(runs), RUNS_MAX):
            some = runs[first : first + RUNS_MAX]
            begin, end = end, end + pieces.size_of(some)
            if come.at < end:
                asked = {"op": "pick", "mark": _plain(mark), "fingerprint": fingerprint, "skip": come.at - begin}
                asked["runs"] = [(run.at, run.length, run.count, run.stride) for run in some]
                with self._call(holder, part, asked) as (line, _):
                    line.settimeout(STALLED_SECONDS)
                    while come.at < end:
                        if stop.is_set():
                            raise Denied("it is not wanted any more")
                        with into[come.at : end] as room:
                            come.at += _chunk(line, room, denied=True)

    def look(self, several: Sequence[tuple[StatePart, Holder]]) -> list[list[Sight]]:
        """The snapshots of each of some parts of a job, at most `PARTS_MAX`, that are at one node."""
        part, holder = several[0]
        asked = [(part.shape, part.position, holder.token) for part, holder in several]
        with self._call(holder, part, {"op": "look", "parts": asked}) as (_, answer):
            return [
                [Sight(_mark(mark), bool(committed), int(size)) for mark, committed, size in of_part]
                for of_part in answer["found"]
            ]

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


class Sight(NamedTuple):
    """A snapshot that a node has."""

    mark: Mark
    committed: bool
    """It is known to be."""
    head_bytes: int
    """What comes before its tensors."""


class Pier:
    """Where the ferries of other agents land.  `key` makes the tokens that are let in; empty: nobody is."""

    def __init__(
        self, copies: Copies, secure: Callable[[bool], ssl.SSLContext] | None, gates: Gates | None = None
    ) -> None:
        self.key = ""
        self._gates = gates if gates is not None else Gates()
        self._copies = copies
        self._secure = secure
        self._listener: socket.socket | None = None
        self._places = threading.Semaphore(VISITORS_MAX)
        self._closed = threading.Event()

    def open(self, address: str, port: int = 0) -> int:
        """Listen on this port, or any; returns which."""
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(found[0], socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
            listener.listen(VISITORS_MAX)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        threading.Thread(target=self._listen, args=(listener,), name="unicorn-pier", daemon=True).start()
        return int(listener.getsockname()[1])

    def close(self) -> None:
        """Nobody lands any more."""
        self._closed.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # whoever waits in accept would hold the port
            self._listener.close()

    def _listen(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            self._places.acquire()
            try:
                line, _ = listener.accept()
            except OSError as failed:  # its visitor is gone again, or this agent has too many files open for now
                self._places.release()
                log.debug("a visiting agent was not let in", why=str(failed))
                self._closed.wait(ACCEPT_AGAIN_SECONDS)
                continue
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
            case "pick":
                self._hand_out_pieces(line, part, asked)
            case "look":
                by = str(asked["by"])
                several = [(StatePart(part.job_id, str(s), int(p)), str(shown)) for s, p, shown in asked["parts"]]
                found = [self._seen(of) if tokens.lets_in(shown, self.key, of, by) else [] for of, shown in several]
                _say(line, {"found": found})
            case other:
                _say(line, {"denied": f"{other}: nobody here knows what that is"})

    def _seen(self, part: StatePart) -> list[tuple[list[int], bool, int]]:
        return [(_plain(head.mark), head.committed, head.body_at) for head in self._copies.look(part)]

    def _receive(self, line: socket.socket, part: StatePart, asked: dict[str, Any]) -> None:
        mark, base = _mark(asked["mark"]), _mark(asked["base"])
        copy, file = self._copies.begin(
            part, mark, int(asked["checksum"]), int(asked["size"]), base, str(asked["source"])
        )
        try:
            at = copy.received
            _say(line, {"at": at})
            with _room(copy.size) as buffer:
                while at < copy.size:
                    self._gates.reach("receive")
                    with buffer[: copy.size - at] as room:
                        length = _chunk(line, room)
                    with buffer[:length] as chunk:
                        if os.pwrite(file, chunk, at) != length:
                            raise OSError("there is no memory for it")
                    at += length
                    copy.received = max(copy.received, at)
        finally:
            os.close(file)
        why = self._copies.check(copy)
        _say(line, {"denied": why} if why else {"kept": True})

    def _hand_out(self, line: socket.socket, part: StatePart, asked: dict[str, Any]) -> None:
        found = self._copies.open(part, _mark(asked["mark"]))
        if found is None:
            _say(line, {"denied": "it is not here any more"})
            return
        file, head = found
        try:
            seal = os.pread(file, SEAL.size, 0)
            if SEAL.unpack(seal)[-1] != head.checksum:
                raise Denied("it has been written over meanwhile")
            _say(line, {"size": head.end, "seal": seal.hex()})
            with _room(head.end) as buffer:
                _send_chunks(line, file, head.end, seal, buffer, self._gates)
        finally:
            os.close(file)

    def _hand_out_pieces(self, line: socket.socket, part: StatePart, asked: dict[str, Any]) -> None:
        found, fingerprint = self._copies.open(part, _mark(asked["mark"])), int(asked["fingerprint"])
        if found is None:
            _say(line, {"denied": "it is not here any more"})
            return
        file, head = found
        try:
            runs = [Run(*map(int, run)) for run in asked["runs"]]
            if fingerprint not in (0, head.fingerprint) or not pieces.fit(runs, head.end):
                _say(line, {"denied": "there is another one here"})
                return
            _say(line, {"size": pieces.size_of(runs)})
            for data in pieces.Source(file, head).read(runs, int(asked["skip"]), CHUNK_BYTES):
                line.sendall(_CHUNK.pack(len(data), zlib.crc32(data)))
                line.sendall(data)
        except pieces.Lost as why:
            line.sendall(_CHUNK.pack(0, 0))
            _say(line, {"denied": str(why)})
        finally:
            os.close(file)


def _chunk(line: socket.socket, room: memoryview, *, denied: bool = False) -> int:
    """The next chunk into the beginning of `room`; returns how long it is.  `denied`: there may be none, and why."""
    length, checksum = _CHUNK.unpack(_read(line, _CHUNK.size))
    if length == 0 and denied:
        _answer(line)
    if not 0 < length <= min(CHUNK_BYTES, len(room)):
        raise ValueError(f"a chunk of {length} bytes")
    with room[:length] as chunk:
        _read_into(line, chunk)
        if zlib.crc32(chunk) != checksum:
            raise ValueError("a chunk has another checksum")
    return int(length)


def _send_chunks(line: socket.socket, file: int, end: int, seal: bytes, buffer: memoryview, gates: Gates) -> None:
    """As they are asked for.  Read, not mapped: a template may give an own snapshot up at any moment."""
    while True:
        at, length = _WANTED.unpack(_read(line, _WANTED.size))
        if length == 0:
            return
        if at + length > end or length > len(buffer):
            raise ValueError(f"{length} bytes from {at} on")
        with buffer[:length] as chunk:
            read = os.preadv(file, [chunk], at)
            if read < length or os.pread(file, SEAL.size, 0) != seal:  # broken before anything is written over
                raise Denied("it has been given up meanwhile")
            line.sendall(_CHUNK.pack(length, zlib.crc32(chunk)))
            gates.reach("hand-out")
            line.sendall(chunk)


def _room(size: int) -> memoryview:
    """For one chunk after the other.  Not a map: to make one of many pages keeps all other threads waiting."""
    return memoryview(bytearray(min(CHUNK_BYTES, size)))


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
