"""How long it takes to bring a worker's state back, from each place that may have it."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.cluster import PATIENCE_SECONDS, Failed, environment
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, plain, words
from benchmarks.scripts import holder
from unicorn_mgr import seal
from unicorn_mgr.agent.ferry import Ferry
from unicorn_mgr.agent.stripes import Stripes
from unicorn_mgr.messages import Holder
from unicorn_mgr.tokens import token
from unicorn_mgr.worker.exchange import Landing
from unicorn_mgr.worker.snapshot import load
from unicorn_mgr.worker.transfer import Pull

TITLE = "seconds to bring back a worker's state, by where it comes from"
MEGABYTES, MEGABYTES_QUICK = 1024, 64
TIMES, TIMES_QUICK = 15, 3
SHARE_AIMED_AT = 0.8

RAW = "as many bytes over a plain socket, into memory that is there"
OWN = "own node's memory, into the model"
BROUGHT = "another node's memory, into this node's"
PEER = "another node's memory, into the model"
LIVE = "a live replica, into the model"
STORED = "storage, into the model"


def run(options: Options) -> Found:
    """All in turns."""
    megabytes, times = (MEGABYTES_QUICK, TIMES_QUICK) if options.quick else (MEGABYTES, TIMES)
    options.folder.mkdir(parents=True)
    seconds: dict[str, list[float]] = {}
    with _holder(options, megabytes) as there:
        ways = _ways(there, megabytes, str(options.folder / "stored"))
        for way, once in ways.items():
            once()  # pages of memory, files, and what is imported on first use are there from now on
            seconds[way] = []
        for _ in range(times):
            for way, once in ways.items():
                began = time.monotonic()
                inner = once()
                seconds[way].append(time.monotonic() - began)
                if inner is not None:
                    seconds.setdefault(BROUGHT, []).append(inner)
    return _report(seconds, there["state"], there["size"])


def _report(seconds: dict[str, list[float]], state_bytes: int, snapshot_bytes: int) -> Found:
    raw = median(seconds[RAW])
    rows = []
    for way in (RAW, BROUGHT, PEER, LIVE, OWN, STORED):
        took = median(seconds[way])
        rows.append((way, *figures(seconds[way]), plain(state_bytes / took / 1e9), f"{raw / took:.0%}"))
    share = raw / median(seconds[BROUGHT])
    return Found(
        tables=(Table(("from", *FIGURES, "GB/s", "of the plain socket's rate"), tuple(rows)),),
        notes=(
            f"{plain(state_bytes / 1e9)} GB of state; as a snapshot {plain(snapshot_bytes / 1e9)} GB.",
            words("""
                Two processes on one machine, over its loopback: what a network does is not in it. Into the model
                means that every byte's checksum has been compared too, which a thread of one processor does, but for
                a live replica, whose word is believed; storage is this machine's page cache.
            """),
        ),
        aims=(
            Aim(
                f"another node's memory into this node's at {SHARE_AIMED_AT:.0%} of a plain socket's rate",
                f"{share:.0%}",
                share >= SHARE_AIMED_AT,
            ),
        ),
        samples={"state_bytes": state_bytes, "seconds": seconds},
    )


@contextmanager
def _holder(options: Options, megabytes: int) -> Iterator[dict[str, Any]]:
    log = options.folder / "holder.log"
    command = [sys.executable, "-m", "benchmarks.scripts.holder", "--megabytes", str(megabytes)]
    command += ["--stored", str(options.folder / "stored")]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise Failed(f"the other node did not start; see {log}")
        yield json.loads(line)
    finally:
        process.stdin.close()
        process.wait(PATIENCE_SECONDS)


def _ways(there: dict[str, Any], megabytes: int, stored: str) -> dict[str, Callable[[], float | None]]:
    """Each brings the state back once; one of them says how much of that was on the way."""

    mine = holder.replica(megabytes)
    own, brought = holder.in_memory(holder.packed(mine)), os.memfd_create("brought")
    place = mmap.mmap(-1, there["size"])
    asked = Holder("b", holder.HERE, there["pier"], token(holder.KEY, holder.PART, "a"))
    changed = threading.Condition()

    def wake() -> None:
        with changed:
            changed.notify_all()

    def raw() -> None:
        with socket.create_connection((holder.HERE, there["raw"])) as line, memoryview(place) as whole:
            at = 0
            while at < len(whole):
                with whole[at : at + holder.CHUNK_BYTES] as chunk:
                    at += line.recv_into(chunk)

    def from_own() -> None:
        found = seal.find(own)
        assert found is not None
        mine.state.adopt(load(found, mine.state.homes()))

    def from_peer() -> float:
        began = time.monotonic()
        Ferry("a", None).pull(asked, holder.PART, holder.MARK, Stripes(brought, threading.Event()))
        on_the_way = time.monotonic() - began
        found = seal.find(brought)
        assert found is not None
        mine.state.adopt(load(found, mine.state.homes()))
        return on_the_way

    def from_live() -> None:
        landing = Landing(mine.state.homes(), None)
        pull = Pull((holder.HERE, there["donor"]), (holder.EPOCH, holder.KEY, "state"), landing.place, wake)
        with changed:
            changed.wait_for(lambda: pull.done)
        if pull.error:
            raise Failed(pull.error)
        landing.land()
        assert landing.packed is not None
        mine.state.adopt(landing.packed)

    def from_storage() -> None:
        progress, _ = holder.checkpointer(stored).find(mine)
        assert progress is not None

    return {RAW: raw, PEER: from_peer, LIVE: from_live, OWN: from_own, STORED: from_storage}
