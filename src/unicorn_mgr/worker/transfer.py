"""Handing state and buckets from member to member, over sockets of our own.

The taker pulls: it connects to the donor's published port, shows the epoch's secret, names
what it wants and receives it.  The donor's main thread offers things for one epoch and
waits until every taker has them; its buffers must not change before.  When a newer epoch is
heard the donor withdraws its offers *first*: it shuts the connections down and only then
lets anything be modified.  A taker accepts what came only with the donor's last word behind
it, which is never sent after a withdrawal; so nobody can take a mixture for a state.

A donor's port also answers probes: can this member be reached at all?
"""

from __future__ import annotations

import contextlib
import hmac
import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from unicorn_mgr.model import Epoch
from unicorn_mgr.worker.groups import Wake

_SIZE = struct.Struct("<Q")
_LAST_WORD = b"that is all"
_TAKEN = b"\x01"
_LINE_BYTES_MAX = 4096
_CHUNK_BYTES = 1 << 20
_WAKE_BYTES = 32 << 20
CONNECT_SECONDS = 5.0

Key = str


@dataclass(eq=False)
class Offer:
    """Something one or more members may take in an epoch."""

    header: bytes
    body: Sequence[memoryview]
    takers: int
    taken: int = 0


@dataclass(eq=False)
class _Stall:
    """Everything on offer in one epoch."""

    epoch: Epoch
    secret: str
    offers: dict[Key, Offer] = field(default_factory=dict)
    lines: list[socket.socket] = field(default_factory=list)


class Donor:
    """The giving end: one listener per worker, a thread per taker."""

    def __init__(self, host: str, wake: Wake) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self.moved_bytes = 0
        """Handed out so far: how a stall detector tells a long transfer from a hung one."""
        self._stall: _Stall | None = None
        self._listener = socket.create_server((host, 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="unicorn-donor", daemon=True).start()

    def open(self, epoch: Epoch, secret: str) -> None:
        """A new epoch: takers may come, and wait for what is not offered yet."""
        self.withdraw()
        with self._changed:
            self._stall = _Stall(epoch, secret)

    def offer(self, key: Key, offer: Offer) -> None:
        """From now on `key` can be taken, by `offer.takers` members."""
        with self._changed:
            assert self._stall is not None, "an offer outside an epoch"
            self._stall.offers[key] = offer
            self._changed.notify_all()

    def all_taken(self) -> bool:
        """Every offer has reached all its takers."""
        stall = self._stall
        return stall is None or all(o.taken >= o.takers for o in stall.offers.values())

    def clear(self) -> None:
        """Everything has been taken: forget the offers, so that their buffers may change."""
        with self._changed:
            if self._stall is not None:
                self._stall.offers.clear()

    def withdraw(self) -> None:
        """The epoch is over.  When this returns nobody reads the offered buffers any more."""
        with self._changed:
            stall, self._stall = self._stall, None
            self._changed.notify_all()
        if stall is not None:
            for line in stall.lines:
                _hang_up(line)

    def close_in_child(self) -> None:
        """In a forked child of the user's code."""
        self._listener.close()
        if self._stall is not None:
            for line in self._stall.lines:
                line.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), name="unicorn-donor", daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):  # the taker is gone, or its epoch is over: it sees that itself
            line.settimeout(CONNECT_SECONDS)
            asked = _read_request(line)
            if asked is None:
                line.sendall(_LAST_WORD)
                return
            line.settimeout(None)
            stall, offer = self._await_offer(line, *asked)
            if stall is None or offer is None:
                return
            self._send(line, offer)
            while not self._said_last_word(line, stall):
                select.select([], [line], [])
            if line.recv(1) == _TAKEN:
                with self._changed:
                    offer.taken += 1
                    stall.lines.remove(line)
                self._wake()

    def _send(self, line: socket.socket, offer: Offer) -> None:
        line.sendall(_SIZE.pack(len(offer.header)) + offer.header)
        if line.recv(1) != _TAKEN:
            return
        for view in offer.body:
            for at in range(0, len(view), _CHUNK_BYTES):
                part = view[at : at + _CHUNK_BYTES]
                line.sendall(part)
                self.moved_bytes += len(part)
                if self.moved_bytes % _WAKE_BYTES < len(part):
                    self._wake()

    def _said_last_word(self, line: socket.socket, stall: _Stall) -> bool:
        """False if the taker has not read enough for it yet: to wait here would block `withdraw`."""
        with self._changed:
            if self._stall is not stall:
                raise OSError("withdrawn")
            try:
                sent = line.send(_LAST_WORD, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
        if sent < len(_LAST_WORD):
            raise OSError("the last word was cut short")
        return True

    def _await_offer(
        self, line: socket.socket, epoch: Epoch, secret: str, key: Key
    ) -> tuple[_Stall | None, Offer | None]:
        """The offer the taker asks for, once it is there; None if its epoch is not the present one."""
        with self._changed:
            stall = self._stall
            if stall is None or stall.epoch != epoch or not _same(stall.secret, secret):
                return None, None
            stall.lines.append(line)
            self._changed.wait_for(lambda: self._stall is not stall or key in stall.offers)
            return (stall, stall.offers[key]) if self._stall is stall else (None, None)


class Pull:
    """The taking end: one thing from one donor, received in a thread of its own.

    `place` gets the offer's header and returns the buffers to fill; None declines the body.
    """

    def __init__(
        self,
        address: tuple[str, int],
        asked: tuple[Epoch, str, Key],
        place: Callable[[bytes], Sequence[memoryview] | None],
        wake: Wake,
    ) -> None:
        self.done = False
        self.error = ""
        self.moved_bytes = 0
        self._address = address
        self._asked = asked
        self._place = place
        self._wake = wake
        self._line: socket.socket | None = None
        self._cancelled = False
        self._connected = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="unicorn-pull", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop.  When this returns nothing writes to the buffers any more."""
        with self._connected:
            self._cancelled = True
            line = self._line
        if line is None:
            # It may sit in connect for seconds, and touches no buffer when it comes back.
            self.error = self.error or "cancelled"
            return
        _hang_up(line)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._take()
        except Exception as failed:  # noqa: BLE001 - lack of memory, too: whoever waits has to be told of any end
            self.error = f"{self._asked[2]} from {self._address[0]}:{self._address[1]}: {failed}"
        self.done = True
        self._wake()

    def _take(self) -> None:
        epoch, secret, key = self._asked
        with socket.create_connection(self._address, CONNECT_SECONDS) as line:
            line.settimeout(None)
            with self._connected:
                if self._cancelled:
                    raise OSError("cancelled")
                self._line = line
            asked = {"epoch": [epoch.term, epoch.number], "secret": secret, "key": key}
            line.sendall(json.dumps(asked).encode() + b"\n")
            header = _read_exactly(line, _SIZE.unpack(_read_exactly(line, _SIZE.size))[0])
            buffers = self._place(header)
            line.sendall(b"\x00" if buffers is None else _TAKEN)
            for view in buffers or ():
                self._receive(line, view)
            if _read_exactly(line, len(_LAST_WORD)) != _LAST_WORD:
                raise OSError("the donor withdrew its offer")
            line.sendall(_TAKEN)

    def _receive(self, line: socket.socket, view: memoryview) -> None:
        for at in range(0, len(view), _WAKE_BYTES):
            part = view[at : at + _WAKE_BYTES]
            _fill(line, part)
            self.moved_bytes += len(part)
            self._wake()


def answers_probe(address: tuple[str, int], timeout_seconds: float) -> bool:
    """True if a donor answers at `address`."""
    try:
        with socket.create_connection(address, timeout_seconds) as line:
            line.settimeout(timeout_seconds)
            line.sendall(b'{"probe": true}\n')
            return _read_exactly(line, len(_LAST_WORD)) == _LAST_WORD
    except OSError:
        return False


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, not copied."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is a buffer


def _fill(line: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        got = line.recv_into(view[at:])
        if got == 0:
            raise OSError("the donor hung up")
        at += got


def _read_exactly(line: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    _fill(line, memoryview(data))
    return bytes(data)


def _read_request(line: socket.socket) -> tuple[Epoch, str, Key] | None:
    """What a taker wants; None: only to know if somebody is here.  Raises OSError, also for garbage."""
    said = _read_line(line)
    try:
        asked = json.loads(said)
        return None if asked.get("probe") else (Epoch(*asked["epoch"]), str(asked["secret"]), str(asked["key"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as garbage:
        raise OSError("not a request") from garbage


def _same(mine: str, theirs: str) -> bool:
    return hmac.compare_digest(mine.encode(), theirs.encode("utf-8", "replace"))


def _read_line(line: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        got = line.recv(256)
        if not got or len(data) > _LINE_BYTES_MAX:
            raise OSError("not a request")
        data += got
    return data


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
