"""Other systems under the same faults: started, killed at random moments, and read from outside."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster import Failed
from benchmarks.records import Trace, traces

LOOK_SECONDS = 0.2
RETURN_SECONDS_MAX = 60.0
"""Whoever is not back by then does not come back."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One, by the killer's clock."""

    at: float
    worker: str
    survivors: tuple[str, ...]


@contextlib.contextmanager
def started(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process and its children, all ended with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def running(records: Path) -> dict[int, Trace]:
    """Per rank or replica, the trace of its newest process, if that is alive."""
    newest: dict[int, Trace] = {}
    for trace in traces(records).values():
        begun = _start(trace)
        rank: int = begun["rank"]
        if rank not in newest or _start(newest[rank])["at"] < begun["at"]:
            newest[rank] = trace
    return {rank: trace for rank, trace in newest.items() if _lives(pid(trace))}


def pid(trace: Trace) -> int:
    """Of the process that wrote a trace."""
    number: int = _start(trace)["pid"]
    return number


def wait_until_calm(records: Path, workers: int, steps: int, log: Path) -> dict[int, Trace]:
    """Until all are there and each has finished some steps.  Raises `Failed`."""
    deadline = time.monotonic() + RETURN_SECONDS_MAX
    while True:
        found = running(records)
        if len(found) == workers and all(len(t.steps) >= steps for t in found.values()):
            return found
        if time.monotonic() > deadline:
            raise Failed(f"not all of {workers} workers were back after {RETURN_SECONDS_MAX:.0f} s; see {log}")
        time.sleep(LOOK_SECONDS)


def kill_one(found: Mapping[int, Trace], chance: random.Random) -> Kill:
    """`kill -9` of one of them, within the next fifth of a second."""
    time.sleep(chance.uniform(0.0, LOOK_SECONDS))
    victim = chance.choice(sorted(found))
    at = time.monotonic()
    os.kill(pid(found[victim]), signal.SIGKILL)
    while _lives(pid(found[victim])):
        time.sleep(LOOK_SECONDS)
    return Kill(at, found[victim].worker, tuple(t.worker for r, t in sorted(found.items()) if r != victim))


def _start(trace: Trace) -> dict[str, Any]:
    return next(o for o in trace.others if o["what"] == "started")


def _lives(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
