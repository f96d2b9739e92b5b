"""Workers' logs: files with a bounded size, read on for whoever follows.

Workers append to their files directly, so that no agent and no pipe stands between a flood
of output and training.  What is older than the newest `bytes_max` is punched out of the
file: its length goes on growing, its place on disk does not, and readers keep their place.

A job has a folder on each node and a file per worker, ended ones too, until another job
takes its name.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from unicorn_mgr.messages import LogChunk

CHUNK_BYTES = 64 << 10
TURN_BYTES_MAX = 16 * CHUNK_BYTES
"""Per file and turn: a flood is thinned out, and the follower is told how much is missing."""

BLOCK_BYTES = 4096
_KEEP_SIZE_PUNCH_HOLE = 0x03
_OWNER = "job-id"


def folder_of(data: Path, job: str) -> Path:
    """Where a job's logs are."""
    return data / "logs" / job


def file_of(data: Path, worker: str) -> Path:
    """Where a worker's output goes."""
    job, _, seat = worker.rpartition("/")
    return folder_of(data, job) / f"{seat}.log"


def begin(data: Path, worker: str, job_id: str) -> Path:
    """The file for a worker that is about to start.  Logs of an earlier job of its name make way."""
    file = file_of(data, worker)
    folder = file.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    if _owner(folder) != job_id:
        for path in folder.glob("*.log"):
            path.unlink()
        (folder / _OWNER).write_text(job_id)
    return file


def _owner(folder: Path) -> str:
    path = folder / _OWNER
    return path.read_text() if path.exists() else ""


def bound(path: Path, bytes_max: int, punched: int) -> int:
    """Keep the newest `bytes_max` bytes of a growing file; returns up to where it is punched out."""
    try:
        until = (path.stat().st_size - bytes_max) // BLOCK_BYTES * BLOCK_BYTES
        if bytes_max <= 0 or until <= punched:
            return punched
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return punched  # gone, or not ours to shorten
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
    job_id: str
    folder: Path
    places: dict[str, int] = field(default_factory=dict)
    """Per file, how far it has been read."""
    ends: dict[str, int] | None = None
    """Per file, where to stop; None: never, and then only the newest is sent of what comes too fast."""
    bases: dict[str, int] = field(default_factory=dict)
    """Per file that has begun anew, how much was read of it before."""

    def skip(self) -> None:
        """What is there already is not wanted."""
        self.places = self._sizes()

    def stop_here(self) -> None:
        """What comes after this moment is not wanted."""
        self.ends = self._sizes()

    @property
    def finished(self) -> bool:
        """All that was wanted has been read."""
        return self.ends is not None and all(self.places.get(name, 0) >= end for name, end in self.ends.items())

    def turn(self) -> Iterator[LogChunk]:
        """What is new since the last turn, as much as one turn allows."""
        for name, size in sorted(self._sizes().items(), key=lambda item: _seat(item[0])):
            yield from self._read(name, size)

    def _sizes(self) -> dict[str, int]:
        if _owner(self.folder) != self.job_id:
            return {}  # an earlier job's, or nobody's yet
        return {path.name: path.stat().st_size for path in self.folder.glob("*.log")}

    def _read(self, name: str, size: int) -> Iterator[LogChunk]:
        until = size if self.ends is None else self.ends.get(name, 0)
        place = self.places.get(name, 0)
        if size < max(place, until):
            self.bases[name] = self.bases.get(name, 0) + place
            place, until = 0, min(until, size)
            if self.ends is not None:
                self.ends[name] = until
        if place == until:
            self.places[name] = place
            return
        with (self.folder / name).open("rb") as file:
            first = place if self.ends is not None else max(place, until - TURN_BYTES_MAX)
            first = min(until, _first_data(file.fileno(), first))
            file.seek(first)
            stop, base = min(until, first + TURN_BYTES_MAX), self.bases.get(name, 0)
            while first < stop and (data := file.read(min(CHUNK_BYTES, stop - first))):
                yield LogChunk(self.watch, f"{self.job}/{name.removesuffix('.log')}", data, base + first)
                first += len(data)
            self.places[name] = first


def _first_data(handle: int, place: int) -> int:
    """The first byte at or after `place` that has not been punched out."""
    try:
        return os.lseek(handle, place, os.SEEK_DATA)
    except OSError as failed:
        if failed.errno != errno.ENXIO:
            raise
        return os.fstat(handle).st_size


def _seat(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdecimal())
