"""Snapshots in the memory of one node: its workers' own, and copies kept for other nodes.

Own ones are written by workers, into memory that the template process keeps; here they are only known of.  Copies
are this agent's: of a part the one that all parts are known to have, and the one that comes.  The next is begun
when no part is on its way any more, so that whatever happens there is a step of which all parts are somewhere.

All together stay below one limit.  Own ones go before copies: what they do not take is for these, and a copy for
which it is too little is refused.  If own ones come to need more, those copies go that have been left alone longest.

Everything here may be called by any thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from unicorn_mgr import seal
from unicorn_mgr.model import Mark, StatePart, said

log = structlog.get_logger()

BLOCK_BYTES = 512
"""What `st_blocks` counts in."""


class NoRoom(Exception):
    """The node has no memory for it."""


class Disowned(Exception):
    """Its worker's state is not what most replicas have."""


@dataclass(eq=False)
class Copy:
    """One snapshot of a part, or as much of it as has come."""

    part: StatePart
    mark: Mark
    checksum: int
    size: int
    file: int
    name: str
    """The worker whose snapshot it is, and what tells it from others."""
    received: int = 0
    """Bytes from its beginning that are known to be good."""
    touched: float = field(default_factory=time.monotonic)

    @property
    def whole(self) -> bool:
        """All of it has come."""
        return self.received == self.size

    @property
    def source(self) -> str:
        """The worker whose snapshot it is."""
        return self.name.partition(" ")[0]

    def is_of(self, mark: Mark, checksum: int, size: int) -> bool:
        """It is a copy of that very snapshot."""
        return (self.mark, self.checksum, self.size) == (mark, checksum, size)


@dataclass(eq=False)
class _Own:
    job_id: str
    files: tuple[int, ...]
    part: tuple[int, ...] = ()
    """Of a checkpoint, on its way to storage: it takes memory, and is nobody's to copy."""
    ended: bool = False


class Keeping(Protocol):
    """Keeps copies for an agent that will come after this one."""

    def keep(self, name: str, file: int) -> None:
        """A copy is whole; the descriptor is for this to close."""

    def drop(self, name: str) -> None:
        """It is not of use any more."""


class Copies:
    """All of them.  `bytes_max` is the limit."""

    def __init__(self, bytes_max: int) -> None:
        self.keeper: Keeping | None = None
        """Without one they go with this agent."""
        self._bytes_max = bytes_max
        self._lock = threading.RLock()
        self._own: dict[str, _Own] = {}
        self._kept: dict[StatePart, list[Copy]] = {}
        self._disowned: dict[str, str] = {}
        """Workers of whose snapshots there may be no copies, and of which job they are."""
        self._staged = 0

    # -- own ones ------------------------------------------------------------------------

    def add_own(self, worker: str, job_id: str, files: tuple[int, ...], part: int = -1) -> None:
        """A worker has memory for its snapshots, perhaps another's of its slot before; it is for this to close."""
        with self._lock:
            same = set(map(_identity, files))
            for name in [n for n, own in self._own.items() if not same.isdisjoint(map(_identity, own.files))]:
                self._let_go(name)
            self._own[worker] = _Own(job_id, files, (part,) if part >= 0 else ())

    def own_files(self, worker: str) -> tuple[int, ...]:
        """Descriptors of a worker's own, for whoever holds on to them; the worker is known."""
        with self._lock:
            return tuple(map(os.dup, self._own[worker].files)) if worker in self._own else ()

    def end_own(self, worker: str) -> None:
        """The worker is gone; what it has left may be asked for until it is given up."""
        with self._lock:
            if worker in self._own:
                self._own[worker].ended = True
        self.tidy()

    # -- copies --------------------------------------------------------------------------

    def begin(self, part: StatePart, mark: Mark, checksum: int, size: int, base: Mark, source: str) -> tuple[Copy, int]:
        """Take up the copy of a worker's snapshot where it was left, or begin it.  Raises `NoRoom` and `Disowned`.

        Of all parts there are copies of `base`.  If nobody knows of which, as when another replica's snapshots are
        copied from now on, it is one of the two oldest.  With the copy comes a descriptor, for the caller to close.
        """
        with self._lock:
            if source in self._disowned:
                raise Disowned(f"{source}: its parameters are not those of most replicas")
            held = self._kept.get(part, [])
            for copy in held:
                if copy.is_of(mark, checksum, size):
                    copy.touched = time.monotonic()
                    return copy, os.dup(copy.file)
            oldest = sorted((c for c in held if c.whole), key=lambda c: c.mark.order)[:2]
            stay = oldest if base == Mark() else [c for c in held if c.mark == base]
            for copy in [c for c in held if c not in stay]:
                self._drop(copy, "")
            if len(stay) > 1 and self._room() < size:
                self._drop(stay[0], "a newer one needs its room")
            self._make_room(size)
            file = os.memfd_create(f"unicorn-copy-{part.job_id}-{part.position}")
            copy = Copy(part, mark, checksum, size, file, f"{source} {secrets.token_hex(8)}")
            try:
                os.ftruncate(copy.file, size)  # its pages are made as they come: all at once would take seconds
            except OSError as failed:
                os.close(copy.file)
                raise NoRoom(f"no {size} bytes: {failed.strerror}") from failed
            self._kept.setdefault(part, []).append(copy)
            return copy, os.dup(copy.file)

    def check(self, copy: Copy) -> str:
        """All of it has come: why it is of no use nevertheless; empty if it is."""
        with self._lock:
            if copy not in self._kept.get(copy.part, ()):
                return "it has been dropped meanwhile"
            head = _head(copy.file)
            known = head is not None and copy.is_of(head.mark, head.checksum, head.end)
            if head is None or not (known and head.committed and part_of(head) == copy.part):
                self._drop(copy, "it is not what it was said to be")
                return "it is not what it was said to be"
            file = os.dup(copy.file)
        if self.keeper is None:
            os.close(file)
        else:
            self.keeper.keep(copy.name, file)
        return ""

    def adopt(self, name: str, file: int) -> bool:
        """Take a copy that an agent before this one has received, unless it is of no use; then it is closed."""
        head = _head(file)
        if head is None or not head.committed:
            os.close(file)
            return False
        part = part_of(head)
        with self._lock:
            copy = Copy(part, head.mark, head.checksum, head.end, file, name, received=head.end)
            self._kept.setdefault(part, []).append(copy)
        self.tidy()
        return True

    def whole(self) -> dict[str, int]:
        """All copies that are whole, by name, with descriptors for the caller to close."""
        with self._lock:
            return {c.name: os.dup(c.file) for held in self._kept.values() for c in held if c.whole}

    def has(self, name: str) -> bool:
        """It has not been dropped."""
        with self._lock:
            return any(c.name == name for held in self._kept.values() for c in held)

    def count(self) -> int:
        """Whole ones."""
        with self._lock:
            return sum(c.whole for held in self._kept.values() for c in held)

    def forget(self, part: StatePart) -> None:
        """Copies of this part are kept elsewhere now."""
        with self._lock:
            for copy in list(self._kept.get(part, ())):
                self._drop(copy, "obsolete")

    def disown(self, job_id: str, source: str) -> None:
        """This worker's state is not what most replicas have: of its snapshots there is no copy from now on."""
        with self._lock:
            self._disowned[source] = job_id
            for copy in [c for held in self._kept.values() for c in held if c.source == source]:
                self._drop(copy, "its parameters are not those of most replicas")

    def release(self, job_ids: Collection[str]) -> None:
        """Jobs that are not among these have ended."""
        with self._lock:
            self._disowned = {worker: job_id for worker, job_id in self._disowned.items() if job_id in job_ids}
            for part in [part for part in self._kept if part.job_id not in job_ids]:
                self.forget(part)
            for worker in [name for name, own in self._own.items() if own.ended and own.job_id not in job_ids]:
                self._let_go(worker)

    @contextlib.contextmanager
    def staging(self, size: int) -> Iterator[int]:
        """Memory for a snapshot on its way out.  Raises `NoRoom`."""
        with self._lock:
            self._make_room(size)
            self._staged += size
        file = os.memfd_create("unicorn-staged")
        try:
            yield file
        finally:
            os.close(file)
            with self._lock:
                self._staged -= size

    # -- looking -------------------------------------------------------------------------

    def look(self, part: StatePart) -> list[seal.Snapshot]:
        """All whole snapshots of a part that are here, own ones too."""
        with self._lock:
            return list(self._whole(part))

    def open(self, part: StatePart, mark: Mark) -> tuple[int, seal.Snapshot] | None:
        """A snapshot that is here, whole, and its descriptor, for the caller to close."""
        with self._lock:
            for head in self._whole(part):
                if head.mark == mark:
                    return os.dup(head.file), head
        return None

    def _whole(self, part: StatePart) -> Iterator[seal.Snapshot]:
        files = [copy.file for copy in self._kept.get(part, ()) if copy.whole]
        files += [file for own in self._own.values() if own.job_id == part.job_id for file in own.files]
        for file in files:
            head = _head(file)
            if head is not None and part_of(head) == part:
                yield head

    def tidy(self) -> None:
        """Let go of what its template has given up, and of copies, if own snapshots have come to need their room."""
        with self._lock:
            for worker in [n for n, own in self._own.items() if own.ended and not _bytes_of_own(own)]:
                self._let_go(worker)
            copies = sorted((c for held in self._kept.values() for c in held), key=lambda c: c.touched)
            for copy in copies:
                if self._room() >= 0:
                    return
                self._drop(copy, "the node's own snapshots need its memory")

    def _room(self) -> int:
        own = sum(map(_bytes_of_own, self._own.values()))
        return self._bytes_max - own - self._staged - sum(c.size for held in self._kept.values() for c in held)

    def _make_room(self, size: int) -> None:
        left = max(self._room(), 0)
        if left < size:
            fix = "give this agent more by --snapshot-bytes"
            raise NoRoom(f"it needs {size} bytes, and {left} of {self._bytes_max} are left for copies; {fix}")

    def _let_go(self, worker: str) -> None:
        own = self._own.pop(worker)
        for file in (*own.files, *own.part):
            os.close(file)

    def _drop(self, copy: Copy, why: str) -> None:
        held = self._kept.get(copy.part, [])
        if copy not in held:
            return
        held.remove(copy)
        if not held:
            del self._kept[copy.part]
        os.close(copy.file)
        if self.keeper is not None:
            self.keeper.drop(copy.name)
        if why:
            told = {"job": copy.part.job_id, "part": copy.part.position, "step": copy.mark.step, "bytes": copy.size}
            log.info("a copy of a snapshot is dropped", why=why, **told)


def part_of(head: seal.Snapshot) -> StatePart:
    """What the snapshot is of."""
    axes = head.of.get("axes")
    return StatePart(head.of.get("job", ""), said(axes) if isinstance(axes, dict) else "?", head.of.get("position", -1))


def _head(file: int) -> seal.Snapshot | None:
    try:
        return seal.find(file)
    except (seal.Torn, OSError):
        return None


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def _bytes_of(file: int) -> int:
    return os.fstat(file).st_blocks * BLOCK_BYTES


def _bytes_of_own(own: _Own) -> int:
    return sum(map(_bytes_of, (*own.files, *own.part)))
