"""Kills without pause, half of the workers at once, down to one and back: and the weights stay exact."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.cluster import Cluster, Failed, Job, cluster
from benchmarks.records import missing_steps, redone, repeated_steps, traces
from benchmarks.result import Aim, Found, Options, Table, plain, words

TITLE = "a kill every two seconds, also in recovery; half of the workers at once; down to one and back"
WORKERS = 4
EVERY_SECONDS = 2.0
CHURN_SECONDS, CHURN_SECONDS_QUICK = 300.0, 6.0
AGAIN_SHARE = 0.25
"""So many of the kills are followed by a second one, of another worker, while the first is being healed."""
AGAIN_SECONDS = (0.02, 0.25)
HALVES, HALVES_QUICK = 5, 1
DOWNS, DOWNS_QUICK = 3, 1
DOWN_SECONDS = 0.3
"""Between the kills on the way down to one."""
CALM_STEPS = 5
TOLERANCE = 1e-12
LEARNING_RATE = 1e-5
"""So low that training does not itself amplify rounding: at 1e-3 the mere order of sums is worth 1e-12 after 150 steps.

One micro-batch left out still moves weights by 3e-5 within 20 steps.
"""
UNLIMITED = 1_000_000


@dataclass(slots=True)
class Phase:
    """One kind of trouble: when it began and ended, and what was killed."""

    began: float
    ended: float = 0.0
    killed: list[str] = field(default_factory=list)
    in_recovery: int = 0


def run(options: Options) -> Found:
    """All of it in one job, then the same number of steps undisturbed."""
    chance = random.Random(options.seed)
    # What protects a job from a program that crashes by itself would end this one.
    settings = (f"restart_free={UNLIMITED}", f"restarts_max={UNLIMITED}")
    with cluster(options.folder, WORKERS, settings) as found:
        job = _submit(found, "churned")
        churn = _churn(job, chance, CHURN_SECONDS_QUICK if options.quick else CHURN_SECONDS)
        halves = _halves(job, chance, HALVES_QUICK if options.quick else HALVES)
        downs = _downs(job, chance, DOWNS_QUICK if options.quick else DOWNS)
        job.calm(CALM_STEPS)
        job.stop()
        incidents = job.incidents()
        last = max(f.step for t in traces(job.records).values() for f in t.steps)
        calm = _submit(found, "undisturbed", "--steps", str(last + 1))
        calm.ended(seconds=600.0)
    seen, undisturbed = traces(job.records), _seconds_per_step(calm)
    phases = (("a kill every 2 s", churn), ("half of the workers at once", halves), ("down to one and back", downs))
    rows = tuple(
        (
            name,
            str(len(phase.killed)),
            str(phase.in_recovery),
            f"{phase.ended - phase.began:.0f} s",
            f"{(steps := _steps_between(job, phase.began, phase.ended))}",
            f"{100 * steps * undisturbed / (phase.ended - phase.began):.0f} %",
        )
        for name, phase in phases
    )
    lost = missing_steps(seen.values(), last) + sum(i.steps_lost for i in incidents)
    far = _distance(job.out, calm.out)
    again = redone(seen.values())
    return Found(
        tables=(Table(("", "kills", "of them in recovery", "took", "steps", "throughput"), rows),),
        notes=(
            words(f"""
                {last + 1} steps on {len(seen)} processes; steps lost {lost}, steps done twice by a worker
                {repeated_steps(seen.values())}, micro-batches begun again {again} of {12 * (last + 1)}
                ({100 * again / 12 / (last + 1):.1f} %).
            """),
            words(f"""
                Throughput is a share of the undisturbed run's, which took {plain(undisturbed)} s a step; in
                float64. The last two rows contain at least {CALM_STEPS} steps in peace before each blow.
            """),
            words("""
                Budgets of restarts and the rule that a micro-batch on which two workers died is not dealt a third
                time are set out of reach: they are there to stop what happens here.
            """),
        ),
        aims=(
            Aim("no step lost", str(lost), lost == 0),
            Aim(f"weights equal to the undisturbed run's within {TOLERANCE:g}", f"{far:.1e}", far <= TOLERANCE),
        ),
        samples={"phases": {name: phase.killed for name, phase in phases}, "incidents": len(incidents)},
    )


def _submit(found: Cluster, name: str, *arguments: str) -> Job:
    limits = {"restarts_max": UNLIMITED, "poison_deaths": UNLIMITED}
    training = ("--dtype", "float64", "--learning-rate", str(LEARNING_RATE))
    return found.submit(name, WORKERS, "gpt.py", *training, *arguments, **limits)


# -- trouble --------------------------------------------------------------------------------


def _churn(job: Job, chance: random.Random, seconds: float) -> Phase:
    job.calm(CALM_STEPS)
    phase = Phase(time.monotonic())
    due = phase.began
    while due < phase.began + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        _kill(job, chance, phase)
        if chance.random() < AGAIN_SHARE:
            time.sleep(chance.uniform(*AGAIN_SECONDS))
            phase.in_recovery += _kill(job, chance, phase)
        due += EVERY_SECONDS
    phase.ended = time.monotonic()
    return phase


def _halves(job: Job, chance: random.Random, times: int) -> Phase:
    job.calm(CALM_STEPS)
    phase = Phase(time.monotonic())
    for _ in range(times):
        view = job.calm(CALM_STEPS)
        victims = chance.sample(sorted(view.workers, key=lambda w: w.worker), WORKERS // 2)
        for victim in victims:
            os.kill(victim.pid, signal.SIGKILL)
        phase.killed += [v.worker for v in victims]
    job.calm(1)
    phase.ended = time.monotonic()
    return phase


def _downs(job: Job, chance: random.Random, times: int) -> Phase:
    job.calm(CALM_STEPS)
    phase = Phase(time.monotonic())
    for _ in range(times):
        job.calm(CALM_STEPS)
        for _ in range(WORKERS - 1):
            _kill(job, chance, phase)
            time.sleep(DOWN_SECONDS)
    job.calm(1)
    phase.ended = time.monotonic()
    return phase


def _kill(job: Job, chance: random.Random, phase: Phase) -> bool:
    """Any process of the job, a joiner too; but never the last member that lives: nobody else has the state."""
    there = sorted((w for w in job.view().workers if w.pid), key=lambda w: w.worker)
    members = [w for w in there if w.member]
    victims = there if len(members) > 1 else [w for w in there if not w.member]
    if not victims:
        return False
    victim = chance.choice(victims)
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    phase.killed.append(victim.worker)
    return True


# -- what came of it ------------------------------------------------------------------------


def _steps_between(job: Job, began: float, ended: float) -> int:
    return len({f.step for t in traces(job.records).values() for f in t.steps if began <= f.at <= ended})


def _seconds_per_step(job: Job) -> float:
    """Over the whole run, its first steps left out."""
    trace = next(iter(traces(job.records).values()))
    steps = trace.steps[CALM_STEPS:]
    return (steps[-1].at - steps[0].at) / (len(steps) - 1)


def _distance(one: Path, other: Path) -> float:
    """Between the weights of any worker of one run and those of the other."""
    mine = [torch.load(p, weights_only=True) for p in sorted(one.glob("*.pt"))]
    theirs = [torch.load(p, weights_only=True) for p in sorted(other.glob("*.pt"))]
    if len(mine) != WORKERS or len(theirs) != WORKERS:
        raise Failed(f"{len(mine)} and {len(theirs)} workers came to the end, want {WORKERS} of both")
    return max(float((m[k] - theirs[0][k]).abs().max()) for m in (*mine, *theirs) for k in m)
