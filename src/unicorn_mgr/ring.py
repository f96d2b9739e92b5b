"""The shared-memory ring in which a worker tells what it is doing, and its death watch.

Theory of operation
-------------------
The worker's main thread writes one record at every change of place: step, micro-batch,
phase, time.  Writing costs about a microsecond and never blocks; the agent maps the same
memory (a memfd that the template process keeps, so it outlives both) and reads the newest
record without disturbing the worker.  A heartbeat *thread* would prove nothing: it beats
while the main thread hangs.

The first bytes hold a robust, process-shared mutex that the worker's main thread locks
once and never unlocks.  The kernel releases it as the very first act of tearing the
process down, before it frees the memory: a waiter in the agent wakes 0.2 ms after a kill,
whatever the size of the process, while the exit of a 400 MB process (pidfd) shows after
30 to 75 ms and that of a process with pinned buffers after seconds.  Waking is only a
hint, since exec releases the mutex too; PF_EXITING in /proc/pid/stat is the proof.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unicorn_mgr.phases import Phase

RECORDS = 60
_RECORD = struct.Struct("<QQqqqiii")
_HEADER = struct.Struct("<Qdqq")  # counter, mean step in seconds, committed step, backed-up step
_HEADER_AT = 64
_RECORDS_AT = 256
_STRIDE = 64
SIZE_BYTES = 4096
_MUTEX_AT = 0
_ARMED_AT = 120
_PHASES = frozenset(int(phase) for phase in Phase)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the ring.  Times are seconds of the machine's monotonic clock."""

    counter: int
    at_seconds: float
    epoch: int
    step: int
    committed: int
    micro_batch: int
    phase: Phase
    sequence: int


class RingWriter:
    """The worker's end.  Only the main thread writes."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._counter = int(_HEADER.unpack_from(memory, _HEADER_AT)[0])
        self.epoch = 0
        self.step = -1
        self.committed = -1
        self.micro_batch = -1
        self.sequence = 0
        self.backed_up = -1
        """The last step whose snapshots are all on a second node."""
        self.phase = Phase.STARTING
        self._step_seconds = 0.0

    def write(self, phase: Phase) -> None:
        """Record the present place; the fields of this object are the rest of the record."""
        self.phase = phase
        self._counter = n = self._counter + 1
        _RECORD.pack_into(
            self._memory,
            _RECORDS_AT + (n % RECORDS) * _STRIDE,
            n,
            time.monotonic_ns(),
            self.epoch,
            self.step,
            self.committed,
            self.micro_batch,
            phase,
            self.sequence,
        )
        _HEADER.pack_into(self._memory, _HEADER_AT, n, self._step_seconds, self.committed, self.backed_up)

    def set_step_seconds(self, seconds: float) -> None:
        """The mean duration of quiet steps, for the stall detector."""
        self._step_seconds = seconds


class RingReader:
    """The agent's end: reads without the worker noticing."""

    def __init__(self, memory: mmap.mmap | bytes | bytearray) -> None:
        self._memory = memory

    def newest(self) -> Record | None:
        """The newest record; None before the first, or if it is being overwritten."""
        for _ in range(3):
            counter = int(_HEADER.unpack_from(self._memory, _HEADER_AT)[0])
            if counter == 0:
                return None
            record = self._at(counter)
            if record is not None:
                return record
        return None

    def last(self, count: int = RECORDS) -> list[Record]:
        """Up to `count` records, oldest first."""
        newest = int(_HEADER.unpack_from(self._memory, _HEADER_AT)[0])
        first = max(1, newest - min(count, RECORDS) + 1)
        return [r for r in (self._at(n) for n in range(first, newest + 1)) if r is not None]

    def step_seconds(self) -> float:
        """Mean duration of quiet steps, 0 while unknown."""
        return float(_HEADER.unpack_from(self._memory, _HEADER_AT)[1])

    def backed_up(self) -> int:
        """The last step whose snapshots are all on a second node."""
        return int(_HEADER.unpack_from(self._memory, _HEADER_AT)[3])

    def _at(self, counter: int) -> Record | None:
        found = _RECORD.unpack_from(self._memory, _RECORDS_AT + (counter % RECORDS) * _STRIDE)
        number, at_ns, epoch, step, committed, micro_batch, phase, sequence = found
        # The user's code can write here too: what no writer of ours wrote is no record.
        if number != counter or phase not in _PHASES:
            return None
        return Record(number, at_ns / 1e9, epoch, step, committed, micro_batch, Phase(phase), sequence)


# -- the death watch ------------------------------------------------------------------------

_EOWNERDEAD = 130
_PF_EXITING = 0x4
_ATTRIBUTE_BYTES = 64


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mutex(memory: mmap.mmap) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory, _MUTEX_AT)))


def prepare_death_watch(memory: mmap.mmap) -> bool:
    """Initialise the mutex, once, before the worker exists.  False: this libc has none."""
    libc = _libc()
    attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    try:
        steps = (
            libc.pthread_mutexattr_init(attribute),
            libc.pthread_mutexattr_setpshared(attribute, 1),
            libc.pthread_mutexattr_setrobust(attribute, 1),
            libc.pthread_mutex_init(_mutex(memory), attribute),
        )
    except AttributeError:
        return False
    return not any(steps)


def enter_death_watch(memory: mmap.mmap) -> None:
    """Called by the worker's main thread: hold the mutex until the process dies."""
    if _libc().pthread_mutex_lock(_mutex(memory)) == 0:
        memory[_ARMED_AT] = 1


def death_watch_entered(memory: mmap.mmap) -> bool:
    """True once the worker holds the mutex: before that a waiter would take it away."""
    return memory[_ARMED_AT] == 1


def watch_death(memory: mmap.mmap, died: Callable[[], None]) -> None:
    """Block until the mutex's owner is gone, then call `died`.  Runs in a thread of its own."""
    if _libc().pthread_mutex_lock(_mutex(memory)) == _EOWNERDEAD:
        died()


def is_exiting(pid: int) -> bool:
    """True if the kernel is tearing the process down, or has: it will never run again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def is_stopped(pid: int) -> bool:
    """True if the process is stopped by a signal or a tracer."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (FileNotFoundError, ProcessLookupError):
        return False
