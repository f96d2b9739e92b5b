"""The worker's line to the agent of its node: a unix socket and a listener thread.

The listener sets what the main thread waits for and wakes it; the main thread never reads
the socket.  If the agent dies the line is made again as soon as an agent answers, and what
the coordinator must know is told again: the agent keeps nothing that a worker can't repeat.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from unicorn_mgr.codec import WireError, decoder, encode
from unicorn_mgr.messages import (
    Attach,
    Attached,
    BackupEnded,
    CheckpointComplete,
    CheckpointWritten,
    Errand,
    Fact,
    Formed,
    FreshStart,
    GiveUp,
    Granted,
    Leaving,
    LoopEnded,
    Mistake,
    Published,
    Ready,
    Resumed,
    Retire,
    SnapshotFetched,
    SnapshotTaken,
    SnapshotWanted,
    Suspended,
    Symptom,
    ToWorker,
    WorkerMessage,
)
from unicorn_mgr.model import PROTOCOL, Drill, Epoch

RECONNECT_SECONDS = 0.05
"""Between two attempts at the agent's socket: nothing tells when it is there again."""

FRAME_BYTES_MAX = 64 << 20
_LENGTH = struct.Struct("<I")
_decode = decoder(ToWorker)

_REPEATED = (
    Ready,
    Published,
    Symptom,
    Resumed,
    CheckpointWritten,
    Suspended,
    LoopEnded,
    Leaving,
    Mistake,
    FreshStart,
    SnapshotTaken,
    SnapshotWanted,
)
"""Facts that are told again to a new agent, newest of each kind."""


class Refused(RuntimeError):
    """The agent does not let this process attach."""


class Link:
    """What has been heard from the coordinator, and a way to answer.

    Everything below `changed` is written by the listener while it holds `changed`.
    """

    def __init__(self, path: Path, worker: str, token: str) -> None:
        self.worker = worker
        self.changed = threading.Condition()
        self.attached: Attached | None = None
        self.granted: Granted | None = None
        self.excluded: Epoch | None = None
        self.formed: Formed | None = None
        self.retire: Retire | None = None
        self.give_up: GiveUp | None = None
        self.complete: CheckpointComplete | None = None
        self.drills: list[Drill] = []
        self.on_complete: Callable[[CheckpointComplete], None] = lambda _: None
        self.backup_ended: BackupEnded | None = None
        self.snapshot_fetched: SnapshotFetched | None = None
        self._path = path
        self._hello = encode(WorkerMessage(Attach(PROTOCOL, worker, token, os.getpid())))
        self._send_lock = threading.Lock()
        self._repeat: dict[type, bytes] = {}
        self._socket: socket.socket | None = None
        self._closed = False

    def open(self) -> Attached:
        """Connect and be welcomed.  Raises `Refused`."""
        threading.Thread(target=self._listen, name="unicorn-listener", daemon=True).start()
        with self.changed:
            self.changed.wait_for(lambda: self.attached is not None)
            assert self.attached is not None
            if self.attached.refused:
                raise Refused(self.attached.refused)
            return self.attached

    def tell(self, fact: Fact | Errand) -> None:
        """Report a fact; if the agent is away it is told again when one is back."""
        data = encode(WorkerMessage(fact))
        with self._send_lock:
            if isinstance(fact, _REPEATED):
                self._repeat[type(fact)] = data
            self._write(data)

    def tell_no_more(self, kind: type[Errand]) -> None:
        """It has been done: a new agent is not told of it."""
        with self._send_lock:
            self._repeat.pop(kind, None)

    def wake(self) -> None:
        """Something the main thread may wait for has changed."""
        with self.changed:
            self.changed.notify_all()

    def newest(self) -> Epoch:
        """The newest epoch heard of."""
        granted = self.granted
        return granted.epoch if granted is not None else Epoch()

    def close(self) -> None:
        """No more reports."""
        self._closed = True
        with self._send_lock:
            if self._socket is not None:
                self._socket.close()

    def close_in_child(self) -> None:
        """A forked child must not hold the line open after its parent has died."""
        if self._socket is not None:
            os.close(self._socket.detach())

    # -- the listener --------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._closed:
            try:
                line = self._connect()
                while (frame := _read_frame(line)) is not None:
                    self._hear(_decode(frame).body)
            except (OSError, WireError):
                pass  # what was lost is said again on a new line
            time.sleep(RECONNECT_SECONDS)

    def _connect(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.connect(str(self._path))
        with self._send_lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = line
            self._write(self._hello)
            for data in self._repeat.values():
                self._write(data)
        return line

    def _write(self, data: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            # The listener notices the same and connects again; facts that matter are repeated.
            self._socket.close()
            self._socket = None

    def _hear(self, said: object) -> None:
        with self.changed:
            match said:
                case Granted() if said.epoch > self.newest() and self.worker not in said.members:
                    self.excluded = said.epoch
                case Granted() if said.epoch > self.newest():
                    self.granted = said
                case Formed() if self.formed is None or said.epoch >= self.formed.epoch:
                    self.formed = said
                case Attached():
                    self.attached = said
                case Retire():
                    self.retire = said
                case GiveUp():
                    self.give_up = said
                case Drill():
                    self.drills.append(said)
                case CheckpointComplete():
                    self.complete = said
                case BackupEnded():
                    self.backup_ended = said
                case SnapshotFetched():
                    self.snapshot_fetched = said
                case _:
                    return
            self.changed.notify_all()
        if isinstance(said, CheckpointComplete):
            self.on_complete(said)


def _read_frame(line: socket.socket) -> bytes | None:
    head = _read(line, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > FRAME_BYTES_MAX:
        raise WireError(f"a frame of {length} bytes")
    return _read(line, length)


def _read(line: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        got = line.recv(count - len(parts))
        if not got:
            return None
        parts += got
    return bytes(parts)
