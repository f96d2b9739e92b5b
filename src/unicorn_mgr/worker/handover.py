"""A worker's end of handing its part of a checkpoint over: then it is stored, whatever becomes of the worker.

The memory is the template's, as that of snapshots is, and holds one part as a snapshot does: sealed, with checksums.
The worker rings its template, which forks a porter: a process that reads the part and stores it (`porter`).  So the
loop waits for the copy alone, as ever, and storing neither takes the training process's interpreter nor ends with it.

While the seal is there the part is on its way and nobody writes over it; the template breaks it when the porter is
done.  Parts count against the node's memory for snapshots, and make way for those: if there is not room for one
beside the two buffers, or the part of an earlier worker of the slot is still on its way, the worker stores from its
own memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any

from unicorn_mgr.seal import WHOLE, Torn, find
from unicorn_mgr.worker import berths
from unicorn_mgr.worker.snapshot import Buffer, Draft
from unicorn_mgr.worker.state import Packed

STORED, SUPERSEDED = berths.ANSWERS[berths.STORED], berths.ANSWERS[berths.SUPERSEDED]

ANSWER_BYTES_MAX = 64 << 10


class Handover:
    """One worker's."""

    def __init__(self, file: int, line: socket.socket, bytes_max: int, copies: int) -> None:
        self._buffer = Buffer(file)
        self._line = line
        self._bytes_max = bytes_max
        self._copies = copies
        """Of the state that are in this memory besides."""
        self._ended = False

    @staticmethod
    def inherited(said: dict[str, Any], bytes_max: int, copies: int) -> Handover | None:
        """As the template has left it open; None if it can't carry anything."""
        if "part" not in said:
            return None
        return Handover(said["part"], socket.socket(fileno=said["bell"]), bytes_max, copies)

    def take(self, draft: Draft) -> tuple[Packed | None, str]:
        """Copy the state, or say why not."""
        needed = (self._copies + 1) * draft.size_bytes
        if self._ended:
            return None, "the process that would do it can't reach the storage, or is gone"
        if needed > self._bytes_max:
            return None, f"{needed} bytes are needed for that, and a slot of this node may have {self._bytes_max}"
        try:
            if find(self._buffer.file) is not None:
                return None, "what an earlier worker has left is still on its way"
            self._buffer.make_room(draft)
        except Torn:
            return None, "what an earlier worker has left is still on its way, and damaged"
        except OSError as failed:
            return None, f"there are no {draft.size_bytes} bytes for that: {failed.strerror}"
        return self._buffer.write(draft, lambda: None), ""

    def commit(self) -> None:
        """The step can't be lost by a fault any more."""
        self._buffer.commit()

    def hand(self, order: dict[str, Any]) -> str:
        """Seal what was taken, have it stored, and wait; how it ended, anything but ours if it is to be done here."""
        self._buffer.seal()
        try:
            self._line.send(json.dumps(order).encode())
            said = self._line.recv(ANSWER_BYTES_MAX).decode()
        except OSError as failed:
            said = str(failed)
        if said not in (STORED, SUPERSEDED):
            self._ended = True
            with contextlib.suppress(OSError):
                os.pwrite(
                    self._buffer.file, bytes(len(WHOLE)), 0
                )  # if the template is gone nobody else breaks the seal
        return said or "the template has died"
