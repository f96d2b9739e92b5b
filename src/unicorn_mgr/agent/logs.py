"""Workers' logs: files with a bounded size, read on for whoever follows.

Workers append to their files directly, so that no agent and no pipe stands between a flood
of output and training.  What is older than the newest `bytes_max` is punched out of the
file: its length goes on growing, its place on disk does not, and readers keep their place.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from unicorn_mgr.messages import LogChunk

CHUNK_BYTES = 64 << 10
CHUNKS_PER_TURN = 16
"""Per watch and turn: a flood is thinned out, and the follower is told how much is missing."""

BLOCK_BYTES = 4096
_KEEP_SIZE_PUNCH_HOLE = 0x03


def bound(path: Path, bytes_max: int, punched: int) -> int:
    """Keep the newest `bytes_max` bytes of a growing file; returns up to where it is punched out."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return punched
    until = (size - bytes_max) // BLOCK_BYTES * BLOCK_BYTES
    if bytes_max <= 0 or until <= punched:
        return punched
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        length = ctypes.c_int64(until - punched)
        if libc.fallocate(handle, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(punched), length) != 0:
            # This file system can't: the file begins anew, as a rotation would.
            os.ftruncate(handle, 0)
            return 0
    finally:
        os.close(handle)
    return until


@dataclass(slots=True)
class Follower:
    """One watch of one job's output on this node."""

    watch: str
    job: str
    from_start: bool
    places: dict[str, int] = field(default_factory=dict)

    def add(self, worker: str, path: Path) -> None:
        """A worker is there."""
        if worker not in self.places:
            size = path.stat().st_size if path.exists() else 0
            self.places[worker] = 0 if self.from_start else size

    def turn(self, worker: str, path: Path, punched: int) -> Iterator[LogChunk]:
        """What is new since the last turn, as much as one turn allows."""
        if worker not in self.places or not path.exists():
            return
        place, size = self.places[worker], path.stat().st_size
        if size < place:
            place = 0
        first = max(place, punched, size - CHUNKS_PER_TURN * CHUNK_BYTES)
        dropped = first - place
        with path.open("rb") as file:
            file.seek(first)
            while first < size:
                data = file.read(min(CHUNK_BYTES, size - first))
                if not data:
                    break
                first += len(data)
                yield LogChunk(self.watch, worker, data, dropped)
                dropped = 0
        self.places[worker] = first
