"""A snapshot that comes from several nodes at once: one queue of chunks, from which each node's fetcher takes the next.

Whoever is fast brings more, and whoever dies costs the chunks that it was asked for, which others then bring.  What
has come stays, however many attempts it takes.  Nothing is put together of two snapshots: the first node that answers
says by its seal which one it is, and only those that have the very same take part.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection

CHUNK_BYTES = 4 << 20
LOOK_SECONDS = 0.1
"""How soon it is seen that nobody wants it any more."""


class Stripes:
    """What is to come into a file, until `stop`.  For any number of threads."""

    def __init__(self, file: int, stop: threading.Event) -> None:
        self.size = 0
        self.came: dict[str, int] = {}
        """Bytes by node."""
        self._file = file
        self._stop = stop
        self._changed = threading.Condition()
        self._seal = ""
        self._others = False
        self._refused: set[str] = set()
        self._todo: deque[int] = deque()
        self._missing = 0
        self._closed = False

    @property
    def complete(self) -> bool:
        """All has come."""
        return bool(self._seal) and self._missing == 0

    def wait(self, going_on: Callable[[], bool]) -> None:
        """Until all has come, or nobody goes on."""
        with self._changed:
            while not self.complete and not self._stop.is_set() and going_on():
                self._changed.wait(LOOK_SECONDS)

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """When this returns nobody writes into the file any more."""
        with self._changed:
            self._closed = True

    # -- which one -----------------------------------------------------------------------

    def agrees(self, seal: str, size: int) -> bool:
        """A node has the snapshot with this seal: whether that is the one which comes."""
        with self._changed:
            if not self._seal and seal not in self._refused and not self._closed:
                os.pwrite(self._file, bytes(len(seal)), 0)  # what was here is no snapshot from here on
                self._seal, self.size = seal, size
                # The first, which would make it look like a whole one, is asked for last.
                self._todo = deque([*range(CHUNK_BYTES, size, CHUNK_BYTES), 0])
                self._missing = len(self._todo)
            self._others = self._others or (seal != self._seal and seal not in self._refused)
            return seal == self._seal

    def give_up(self, *, damaged: bool) -> None:
        """It is damaged, or nobody brings any more of it: another may come, if there is one."""
        with self._changed:
            if damaged or self._others:
                self._refused.add(self._seal)
                self._seal, self._others, self.came = "", False, {}

    # -- its chunks ----------------------------------------------------------------------

    def take(self, seal: str, *, wait: bool) -> int | None:
        """Where the next chunk begins; None if there is none.  `wait`: until what others were asked for has come."""
        with self._changed:
            while wait and not self._todo and self._missing and not self._over(seal):
                self._changed.wait(LOOK_SECONDS)
            return self._todo.popleft() if self._todo and not self._over(seal) else None

    def length(self, at: int) -> int:
        """Bytes of that chunk."""
        return min(CHUNK_BYTES, self.size - at)

    def put(self, seal: str, at: int, chunk: memoryview, node: str) -> None:
        """It has come from there, and is good."""
        with self._changed:
            if self._over(seal):
                return
            # Not through a map: to touch memory that a template has given up would kill.
            if os.pwrite(self._file, chunk, at) != len(chunk):
                raise OSError("there is no room for it")
            self.came[node] = self.came.get(node, 0) + len(chunk)
            self._missing -= 1
            self._changed.notify_all()

    def give_back(self, seal: str, chunks: Collection[int]) -> None:
        """These have not come: somebody else may bring them."""
        with self._changed:
            if not self._over(seal):
                self._todo.extendleft(chunks)
                self._changed.notify_all()

    def _over(self, seal: str) -> bool:
        return self._closed or self._stop.is_set() or seal != self._seal
