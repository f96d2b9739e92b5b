"""How long those who train stand still when a worker joins them, by the size of the state it takes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.cluster import Failed, Happened, Job, cluster, written
from benchmarks.records import Trace, durations, traces
from benchmarks.result import FIGURES, Found, Options, Table, figures, plain, words
from unicorn_mgr.messages import Resumed
from unicorn_mgr.model import Epoch

TITLE = "seconds that three workers stand still while a fourth joins, by state size"
WORKERS = 4
JOINS = {10: 10, 100: 8, 500: 6}
"""Megabytes of state, and how often."""
JOINS_QUICK = {10: 2, 100: 1}
CALM_STEPS = 4
QUIET_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Joined:
    """One join."""

    still: float
    """The step that it hit, on the slowest survivor, without what an undisturbed step takes."""
    waited: float
    """From the news to computing again, on the slowest survivor, as it tells itself."""
    transfer: float
    """Until the joiner had the whole state, as it tells itself."""
    state_bytes: int


def run(options: Options) -> Found:
    """Kill a worker: its replacement joins."""
    rows: list[tuple[str, ...]] = []
    samples = {}
    for megabytes, times in (JOINS_QUICK if options.quick else JOINS).items():
        joined, quiet = _joins(options, megabytes, times)
        samples[str(megabytes)] = {"joined": [asdict(j) for j in joined], "undisturbed_step_seconds": quiet}
        rate = median(j.state_bytes / 1e6 / j.transfer for j in joined)
        size = median(j.state_bytes for j in joined) / 1e6
        still = figures([j.still for j in joined])
        waited = f"{plain(median(j.waited for j in joined))} s"
        rows.append((f"{size:.0f} MB", *still, waited, f"{plain(median(quiet))} s", f"{rate:.0f} MB/s"))
    return Found(
        tables=(Table(("state", *FIGURES, "waited, median", "undisturbed step", "transfer"), tuple(rows)),),
        notes=(
            words("""
                Standing still is the duration of the step in which the joiner came, on the slowest of the survivors,
                less the median undisturbed step; survivors go on while it starts and rehearses. Where a step takes long
                its own variation is in it: what the slowest survivor says that it waited, until it computed again,
                stands beside it.
            """),
            "State is the parameters and AdamW's moments of them, over loopback.",
        ),
        samples=samples,
    )


def _joins(options: Options, megabytes: int, times: int) -> tuple[list[Joined], list[float]]:
    chance = random.Random(options.seed)
    windows: list[tuple[float, float]] = []
    with cluster(options.folder / str(megabytes), WORKERS) as found:
        job = found.submit("wide", WORKERS, "wide.py", "--megabytes", str(megabytes))
        for _ in range(times):
            windows += [_kill_one(job, chance)]
        job.calm(CALM_STEPS)
        job.stop()
        events = list(found.events())
    seen = traces(job.records)
    quiet = [d for t in seen.values() for d in durations(t, windows)]
    if not quiet:
        raise Failed("no undisturbed step between two joins")
    return [_joined(*grant, events, seen, median(quiet)) for grant in _grants(events)], quiet


def _kill_one(job: Job, chance: random.Random) -> tuple[float, float]:
    """Returns since when it had been calm, and when it was over."""
    job.calm(1)
    since = time.monotonic()
    view = job.calm(CALM_STEPS)
    victim = chance.choice(sorted((w for w in view.workers if w.member), key=lambda w: w.worker))
    at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    time.sleep(QUIET_SECONDS)
    return since, at


def _grants(events: Sequence[Happened]) -> list[tuple[Epoch, tuple[str, ...], str]]:
    """Each epoch that somebody joined: it, those who were there before, and the joiner."""
    found: list[tuple[Epoch, tuple[str, ...], str]] = []
    before: tuple[str, ...] = ()
    for happened in events:
        if happened.kind == "EpochGranted":
            members = happened.event.members
            new = [m for m in members if m not in before]
            if before and len(new) == 1:
                found.append((happened.event.epoch, before, new[0]))
            before = members
    return found


def _joined(
    epoch: Epoch,
    survivors: tuple[str, ...],
    joiner: str,
    events: Sequence[Happened],
    seen: dict[str, Trace],
    quiet: float,
) -> Joined:
    resumed = {
        h.event.worker: h.event.fact
        for h in events
        if h.kind == "WorkerTold/Resumed" and isinstance(h.event.fact, Resumed) and h.event.fact.epoch == epoch
    }
    still = 0.0
    for worker in survivors:
        trace, step = seen[written(worker)], resumed[worker].step
        began, ended = trace.finished(step - 1), trace.finished(step)
        if began is None or ended is None:
            raise Failed(f"{worker} has not written down that it finished steps {step - 1} and {step}")
        still = max(still, ended - began - quiet)
    told = [resumed[worker] for worker in survivors]
    waited = max(r.fence_seconds + r.regroup_seconds + r.restore_seconds for r in told)
    return Joined(still, waited, resumed[joiner].restore_seconds, resumed[joiner].state_bytes)
