"""How soon the coordinator knows that something broke, at default settings."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.cluster import Cluster, Failed, Happened, Job, cluster, opened_at, written
from benchmarks.records import traces
from benchmarks.result import FIGURES, Found, Options, Table, figures, plain, words
from unicorn_mgr.messages import IncidentView, WorkerView

TITLE = "seconds until the coordinator knows of a fault, at default settings"
WORKERS = 4
TIMES = {"kill": 10, "exception": 10, "hang": 4, "silent node": 4, "dead node": 4}
TIMES_QUICK = {"kill": 1, "exception": 1, "hang": 1, "silent node": 1, "dead node": 1}
CALM_STEPS = 8
QUIET_SECONDS = 1.0
NODE_DOWN_SECONDS = 5.0
"""A node that was struck stays so for at least this long: twice a lease."""
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Opened:
    """What a fault has led to."""

    incident: str
    struck: float
    """In seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Detected:
    """The same with what became of it, in seconds since the fault."""

    cause: str
    """What it was called in the end."""
    signed: float
    """Until its first sign opened the incident."""
    named: float
    """Until the incident had that cause."""


Strike = Callable[[Cluster, Job, WorkerView], float]
"""Makes a fault; returns when it struck, in seconds since 1970."""


def run(options: Options) -> Found:
    """Each fault some times, on a worker or its node, in one running job."""
    chance = random.Random(options.seed)
    opened: dict[str, list[Opened]] = {}
    with cluster(options.folder, WORKERS) as found:
        job = found.submit("gpt", WORKERS, "gpt.py")
        for name, times in (TIMES_QUICK if options.quick else TIMES).items():
            opened[name] = [_strike(found, job, chance, name) for _ in range(times)]
        job.calm(CALM_STEPS)
        job.stop()
        incidents, events = {i.id: i for i in job.incidents()}, list(found.events())
    detected = {name: [_detected(o, incidents[o.incident], events) for o in them] for name, them in opened.items()}
    rows = []
    for name, ds in detected.items():
        causes = ", ".join(sorted({d.cause for d in ds}))
        rows.append((f"{name}: {_MEANING[name]}", causes, *figures([d.signed for d in ds]), plain(_median_named(ds))))
    return Found(
        tables=(Table(("fault", "called", *FIGURES, "cause known, median"), tuple(rows)),),
        notes=(
            words("""
                From the fault, by the clock of whoever made it or the record of whoever suffered it, to the opening
                of the incident, and until the cause that it is called by in the end was known. A hang's incident is
                opened when two readings have named the culprit.
            """),
        ),
        samples={name: [asdict(d) for d in ds] for name, ds in detected.items()},
    )


def _median_named(detected: list[Detected]) -> float:
    return median(d.named for d in detected)


def _strike(found: Cluster, job: Job, chance: random.Random, name: str) -> Opened:
    view = job.calm(CALM_STEPS, PATIENCE_SECONDS)
    known = {i.id for i in job.incidents()}
    victim = chance.choice(sorted((w for w in view.workers if w.member), key=lambda w: w.worker))
    time.sleep(chance.uniform(0.0, 1.0))
    struck = _STRIKES[name](found, job, victim)
    time.sleep(NODE_DOWN_SECONDS if name.endswith("node") else QUIET_SECONDS)
    incident = _await_incident(job, known)
    _repair(found, victim)
    return Opened(incident.id, struck)


def _detected(opened: Opened, incident: IncidentView, events: list[Happened]) -> Detected:
    named = next(
        h.at
        for h in events
        if h.kind in ("IncidentOpened", "IncidentRefined", "IncidentExplained")
        and h.event.incident == incident.id
        and h.event.cause == incident.cause
    )
    return Detected(incident.cause, opened_at(events, incident.id) - opened.struck, named - opened.struck)


def _await_incident(job: Job, known: set[str]) -> IncidentView:
    """Nothing that died is started again meanwhile."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        new = [i for i in job.incidents() if i.id not in known]
        if new:
            return new[0]
        time.sleep(QUIET_SECONDS)
    raise Failed(f"a fault was not detected in {PATIENCE_SECONDS:.0f} s; logs in {job.cluster.folder}")


# -- faults ---------------------------------------------------------------------------------


def _kill(found: Cluster, job: Job, victim: WorkerView) -> float:
    del found, job
    struck = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    return struck


def _exception(found: Cluster, job: Job, victim: WorkerView) -> float:
    del found
    os.kill(victim.pid, signal.SIGUSR1)
    return _struck(job, victim)


def _hang(found: Cluster, job: Job, victim: WorkerView) -> float:
    del found
    os.kill(victim.pid, signal.SIGUSR2)
    return _struck(job, victim)


def _silent_node(found: Cluster, job: Job, victim: WorkerView) -> float:
    del job
    struck = time.time()
    for number in (_agent_of(found, victim), victim.pid):
        os.kill(number, signal.SIGSTOP)
    return struck


def _dead_node(found: Cluster, job: Job, victim: WorkerView) -> float:
    del job
    struck = time.time()
    for number in (_agent_of(found, victim), victim.pid):
        os.kill(number, signal.SIGKILL)
    return struck


_STRIKES: dict[str, Strike] = {
    "kill": _kill,
    "exception": _exception,
    "hang": _hang,
    "silent node": _silent_node,
    "dead node": _dead_node,
}

_MEANING = {
    "kill": "SIGKILL of a worker",
    "exception": "raised in the forward pass",
    "hang": "the forward pass never ends",
    "silent node": "its agent and worker are stopped, connections stay open",
    "dead node": "its agent and worker are killed",
}


def _struck(job: Job, victim: WorkerView) -> float:
    """When the victim wrote down that it will now fail."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for said in traces(job.records)[written(victim.worker)].others:
            if said["what"] == "fault":
                return float(said["at"]) + time.time() - time.monotonic()
        time.sleep(QUIET_SECONDS)
    raise Failed(f"{victim.worker} has not failed as it was asked to")


def _agent_of(found: Cluster, victim: WorkerView) -> int:
    process = next(kept.process for kept in found.local.agents if kept.name == victim.node)
    assert process is not None
    return process.pid


def _repair(found: Cluster, victim: WorkerView) -> None:
    """What was stopped runs on; what has died is started again by whoever waits next."""
    for kept in found.local.agents:
        if kept.name == victim.node and kept.process is not None and kept.process.poll() is None:
            os.kill(kept.process.pid, signal.SIGCONT)
    try:
        os.kill(victim.pid, signal.SIGCONT)
    except ProcessLookupError:
        return
