"""No faults at all, on a machine with too much to do: nobody may be accused."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator

from benchmarks.cluster import cluster
from benchmarks.records import durations, traces
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, plain, words

TITLE = "no faults, the machine oversubscribed, in observe mode: incidents must be zero"
WORKERS = 4
SECONDS_QUICK = 25.0
PAUSE_SECONDS, PAUSE_SECONDS_QUICK = 30.0, 5.0
LOADERS = 2
BUSY_PER_CORE = 1
"""Processes that only compute, beside the job's own four workers and eight loaders."""


def run(options: Options) -> Found:
    """Train, and count what was detected."""
    seconds = SECONDS_QUICK if options.quick else 60 * options.soak_minutes
    pause = PAUSE_SECONDS_QUICK if options.quick else PAUSE_SECONDS
    busy = BUSY_PER_CORE * len(os.sched_getaffinity(0))
    with cluster(options.folder, WORKERS) as found:
        arguments = ("--loaders", str(LOADERS), "--pause", str(pause))
        job = found.submit("gpt", WORKERS, "gpt.py", *arguments, observe=True)
        job.calm(1)
        with _computing(busy):
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(1.0)
                job.view()
        job.stop()
        incidents, events = job.incidents(), list(found.events())
    kinds = [h.kind for h in events]
    epochs, inquiries = kinds.count("EpochGranted") - 1, kinds.count("InquiryOpened")
    steps = [d for t in traces(job.records).values() for d in durations(t, [(0.0, float("inf"))])]
    counts = (
        ("incidents", len(incidents)),
        ("epochs after the first", epochs),
        ("inquiries into a stall that found progress", inquiries),
    )
    return Found(
        tables=(
            Table(("", "in all"), tuple((name, str(count)) for name, count in counts)),
            Table(("", *FIGURES), (("a step", *figures(steps)),)),
        ),
        notes=(
            words(f"""
                {plain(seconds / 60)} minutes at default settings; {WORKERS} workers with {LOADERS} loader processes
                each and {busy} processes that only compute; an evaluation of {pause:.0f} s on one worker.
            """),
        ),
        aims=(
            Aim("no incident", str(len(incidents)), not incidents),
            Aim("no epoch after the first", str(epochs), epochs == 0),
        ),
        samples={"incidents": [f"{i.cause} of {i.worker}: {i.evidence}" for i in incidents]},
    )


@contextlib.contextmanager
def _computing(count: int) -> Iterator[None]:
    """Processes that leave nobody else a core for himself."""
    # Not forked: this process has threads.
    processes = [multiprocessing.get_context("spawn").Process(target=_compute, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute() -> None:
    while True:
        sum(range(100_000))
