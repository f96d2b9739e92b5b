"""Processes of workers, from outside: their rings, their last words, their ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from unicorn_mgr.messages import Raised, Sample, StartWorker
from unicorn_mgr.ring import SIZE_BYTES, RingReader, death_watch_entered, is_exiting, is_stopped, watch_death

LAST_WORDS_BYTES_MAX = 64_000
STACKS_SECONDS = 0.3
STACKS_BYTES_MAX = 32_000


@dataclass(eq=False)
class Process:
    """One worker's process."""

    order: StartWorker
    pid: int
    ring: mmap.mmap
    words: int
    log: Path
    token: str
    writer: asyncio.StreamWriter | None = None
    ended: bool = False
    stopping: bool = False
    _reader: RingReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = RingReader(self.ring)

    def sample(self) -> Sample | None:
        """The newest record of its ring; None before the first."""
        record = self._reader.newest()
        if record is None:
            return None
        return Sample(
            worker=self.order.worker,
            counter=record.counter,
            epoch=record.epoch,
            step=record.step,
            committed=record.committed,
            micro_batch=record.micro_batch,
            phase=record.phase,
            sequence=record.sequence,
            quiet_seconds=max(0.0, time.monotonic() - record.at_seconds),
            step_seconds=self._reader.step_seconds(),
            stopped=not self.ended and is_stopped(self.pid),
            backed_up=self._reader.backed_up(),
        )

    def last_words(self) -> tuple[Raised | None, str]:
        """What excepthook and faulthandler wrote: the exception that ended it, and stacks."""
        text = os.pread(self.words, LAST_WORDS_BYTES_MAX, 0).decode(errors="replace")
        raised: Raised | None = None
        stacks: list[str] = []
        for line in text.splitlines():
            said = _json(line)
            if said is None:
                stacks.append(line)
            elif said["kind"] == "main":
                raised = Raised(said["type"], said["message"], said["traceback"])
            else:
                stacks.append(f"in a thread: {said['traceback']}")
        return raised, "\n".join(stacks)[-STACKS_BYTES_MAX:]

    def watch(self, dying: Callable[[str], None]) -> None:
        """Wait in a thread for the kernel to begin to tear it down."""
        if not death_watch_entered(self.ring):
            return

        def died() -> None:
            if is_exiting(self.pid):
                dying("futex")

        thread = threading.Thread(target=watch_death, args=(self.ring, died), name="unicorn-death-watch", daemon=True)
        thread.start()

    def close(self) -> None:
        """Let go of the last words.  The ring stays mapped: a thread may still wait on it."""
        os.close(self.words)


def _json(line: str) -> dict[str, str] | None:
    with contextlib.suppress(ValueError):
        said = json.loads(line)
        if isinstance(said, dict) and "kind" in said:
            return said
    return None


def map_ring(fd: int) -> mmap.mmap:
    """Map a ring and let go of its descriptor."""
    try:
        return mmap.mmap(fd, SIZE_BYTES)
    finally:
        os.close(fd)


# -- ending ---------------------------------------------------------------------------------


def session_of(leader: int) -> list[int]:
    """Processes of a worker's session; the worker is its leader."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append(int(entry))
    return found


def signal_session(leader: int, number: int) -> int:
    """Signal every process of a worker's session; returns how many."""
    count = 0
    for pid in session_of(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            count += 1
    return count


def strays(socket_path: Path, known: Collection[str]) -> list[int]:
    """Processes that belong to this agent's socket and to no worker it knows: of an earlier incarnation."""
    mark = f"UNICORN_AGENT={socket_path}".encode()
    theirs = {f"UNICORN_WORKER={worker}".encode() for worker in known}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                if mark in environment and theirs.isdisjoint(environment):
                    found.append(int(entry))
    return found


# -- evidence -------------------------------------------------------------------------------


async def stacks_of(process: Process) -> tuple[str, str]:
    """(stacks, tool) of a hung worker: by py-spy from outside, else by faulthandler from inside."""
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if tool is not None:
        spy = await asyncio.create_subprocess_exec(
            tool, "dump", "--pid", str(process.pid), "--nonblocking",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(2.0):
                out, _ = await spy.communicate()
        except TimeoutError:
            spy.kill()
            out = b""
        if spy.returncode == 0 and out:
            return out.decode(errors="replace")[-STACKS_BYTES_MAX:], "py-spy"
    before = os.fstat(process.words).st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGRTMIN + 7)
    await asyncio.sleep(STACKS_SECONDS)
    text = os.pread(process.words, STACKS_BYTES_MAX, before).decode(errors="replace")
    return (text, "faulthandler") if text else ("", "none")
