"""`kill -9` of workers of one running job, again and again, at random moments."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.cluster import Failed, Happened, Job, cluster, opened_at, written
from benchmarks.numbers import percentile
from benchmarks.records import Trace, durations, missing_steps, repeated_steps, traces
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, plain, words
from unicorn_mgr.messages import IncidentView, Resumed
from unicorn_mgr.model import Epoch

TITLE = "kill -9 of one of four workers, at random moments"
WORKERS = 4
KILLS, KILLS_QUICK = 40, 4
CALM_STEPS = 3
QUIET_STEPS = 6
"""Before each kill, to know how long an undisturbed step takes."""
SETTINGS = (f"restart_free={KILLS}",)
"""After ten restarts on one node for one cause the next ones are delayed: not what is measured here."""
QUIET_SECONDS = 1.0
"""Nobody asks the coordinator anything for this long after a kill."""

MEDIAN_MAX, P95_MAX = 0.15, 0.25
PARTS = ("settle", "fence", "regroup", "restore", "recompute")


@dataclass(frozen=True, slots=True)
class Kill:
    """One, by the killer's own clocks: monotonic, and seconds since 1970."""

    worker: str
    at: float
    wall: float
    calm_since: float


@dataclass(frozen=True, slots=True)
class Healed:
    """What a kill has cost, in seconds."""

    worker: str
    step: int
    next_step: float
    """From the kill until every survivor has finished its next step in a membership without the dead."""
    added: float
    """What that step took on the slowest survivor, without what an undisturbed step takes."""
    detected: float
    """From the kill until the coordinator has opened the incident."""
    full: float
    """From the kill until the replacement has finished its first step."""
    lost: float
    """What the steps until then have taken, less what as many take undisturbed; of the slowest survivor."""
    parts: dict[str, float]
    """As the coordinator tells them of the incident."""
    recomputed: int


@dataclass(frozen=True, slots=True)
class Kills:
    """All kills of one job, and what its workers have written."""

    healed: list[Healed]
    quiet: list[float]
    """Seconds of each undisturbed step."""
    seen: dict[str, Trace]
    incidents: Sequence[IncidentView]

    @property
    def steps_lost(self) -> int:
        """That no worker has finished, or that were begun again from an older state."""
        last = max(f.step for t in self.seen.values() for f in t.steps)
        return missing_steps(self.seen.values(), last) + sum(i.steps_lost for i in self.incidents)


def run(options: Options) -> Found:
    """Kill, wait until all is as before, kill again."""
    with cluster(options.folder, WORKERS, SETTINGS) as found:
        kills = measured(found.submit("gpt", WORKERS, "gpt.py"), options)
    next_step = [h.next_step for h in kills.healed]
    m, p95 = median(next_step), percentile(next_step, 95)
    return report(
        kills,
        Aim(f"median kill to next finished step <= {MEDIAN_MAX} s", f"{plain(m)} s", m <= MEDIAN_MAX),
        Aim(f"95th percentile <= {P95_MAX} s", f"{plain(p95)} s", p95 <= P95_MAX),
    )


def measured(job: Job, options: Options) -> Kills:
    """Kill random workers of a job, one after the other; let it end when all is as before."""
    chance = random.Random(options.seed)
    kills = [_kill(job, chance) for _ in range(KILLS_QUICK if options.quick else KILLS)]
    job.calm(CALM_STEPS)
    job.stop()
    events, incidents = list(job.cluster.events()), job.incidents()
    seen = traces(job.records)
    quiet = [d for t in seen.values() for d in durations(t, [(k.calm_since, k.at) for k in kills])]
    return Kills([_healed(k, events, incidents, seen, median(quiet)) for k in kills], quiet, seen, incidents)


def _kill(job: Job, chance: random.Random) -> Kill:
    view = job.calm(CALM_STEPS)
    calm_since = time.monotonic()
    time.sleep((QUIET_STEPS + chance.uniform(0.0, 2.0)) * view.step_seconds)
    victim = chance.choice(sorted((w for w in view.workers if w.member), key=lambda w: w.worker))
    kill = Kill(victim.worker, time.monotonic(), time.time(), calm_since)
    os.kill(victim.pid, signal.SIGKILL)
    time.sleep(QUIET_SECONDS)
    return kill


def _healed(
    kill: Kill, events: Sequence[Happened], incidents: Sequence[IncidentView], seen: dict[str, Trace], quiet: float
) -> Healed:
    gone, survivors, without = _parted(kill, events)
    next_at, added, step = 0.0, 0.0, 0
    for survivor in survivors:
        trace = seen[written(survivor)]
        step = _resumed_step(survivor, without, events)
        at, began = trace.finished(step), trace.finished(step - 1)
        if at is None or began is None:
            raise Failed(f"{survivor} has not written down that it finished steps {step - 1} and {step}")
        next_at, added = max(next_at, at), max(added, at - began - quiet)
    incident = next(i for i in incidents if i.worker == kill.worker)
    full = max(_returned(worker, kill.at, seen) for worker in gone)
    return Healed(
        worker=kill.worker,
        step=step,
        next_step=next_at - kill.at,
        added=added,
        detected=opened_at(events, incident.id) - kill.wall,
        full=full - kill.at,
        lost=max(_lost(seen[written(s)], kill.at, full, quiet) for s in survivors),
        parts={part: incident.seconds.get(part, 0.0) for part in PARTS},
        recomputed=incident.micro_batches_recomputed,
    )


def _returned(worker: str, killed_at: float, seen: dict[str, Trace]) -> float:
    """When the next worker in its seat had finished its first step."""
    seat = written(worker.partition(".")[0])
    later = [t.steps[0].at for t in seen.values() if t.steps and t.worker.startswith(f"{seat}.")]
    return min(at for at in later if at > killed_at)


def _lost(trace: Trace, killed_at: float, returned_at: float, quiet: float) -> float:
    """Seconds from the step before the kill on, less what the steps finished since would have taken undisturbed."""
    since = max(f.at for f in trace.steps if f.at <= killed_at)
    last = max(f.at for f in trace.steps if f.at <= returned_at)
    return last - since - sum(since < f.at <= last for f in trace.steps) * quiet


def _parted(kill: Kill, events: Sequence[Happened]) -> tuple[list[str], list[str], Epoch]:
    """Who was gone with the victim, who was not, and the first epoch of the latter."""
    before: tuple[str, ...] = ()
    for happened in events:
        if happened.kind == "EpochGranted":
            now = happened.event.members
            if kill.worker in before and kill.worker not in now:
                return sorted(set(before) - set(now)), sorted(set(before) & set(now)), happened.event.epoch
            before = now
    raise Failed(f"no epoch without {kill.worker}")


def _resumed_step(worker: str, epoch: Epoch, events: Sequence[Happened]) -> int:
    """The first step that it finished in this epoch or a later one."""
    for happened in events:
        if happened.kind == "WorkerTold/Resumed" and happened.event.worker == worker:
            fact = happened.event.fact
            assert isinstance(fact, Resumed)
            if fact.epoch >= epoch:
                return fact.step
    raise Failed(f"{worker} has not finished a step in epoch {epoch}")


def report(kills: Kills, *aims: Aim) -> Found:
    """What they have cost."""
    healed = kills.healed
    rows = (
        ("an undisturbed step", kills.quiet),
        ("kill to next finished step, all survivors", [h.next_step for h in healed]),
        ("added to the step that was hit", [h.added for h in healed]),
        ("kill to full size: first step of the replacement", [h.full for h in healed]),
        ("training time lost until then, in all", [h.lost for h in healed]),
    )
    parts = (
        ("detect: kill to incident, by the killer's clock", [h.detected for h in healed]),
        *((f"{part}: {_MEANING[part]}", [h.parts[part] for h in healed]) for part in PARTS),
    )
    return Found(
        tables=(
            Table(("", *FIGURES), tuple((name, *figures(values)) for name, values in rows)),
            Table(("part", *FIGURES), tuple((name, *figures(values)) for name, values in parts)),
        ),
        notes=(
            words(f"""
                {len(healed)} kills of {len({h.worker for h in healed})} workers; steps lost {kills.steps_lost}, steps
                done twice by a worker {repeated_steps(kills.seen.values())}, micro-batches recomputed
                {sum(h.recomputed for h in healed)} ({plain(sum(h.recomputed for h in healed) / len(healed))} a
                kill).
            """),
            words("""
                The time to the next finished step contains what was left of the step that was hit, or the whole
                next one; the added seconds do not: they are that step's duration on the slowest survivor less the
                median undisturbed step.
            """),
            "Parts are the slowest member's and overlap: who publishes first waits for the others.",
        ),
        aims=(*aims, Aim("no step lost", str(kills.steps_lost), kills.steps_lost == 0)),
        samples={"healed": [asdict(h) for h in healed], "undisturbed_step_seconds": kills.quiet},
    )


_MEANING = {
    "settle": "incident to the new membership",
    "fence": "until all have published what they hold",
    "regroup": "from its own publication until it is connected",
    "restore": "until missing sums are there",
    "recompute": "until the step is finished",
}
