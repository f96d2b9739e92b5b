"""A slot moves between two running jobs, back and forth; then both are stopped and started anew instead."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

from benchmarks.cluster import Cluster, Failed, Job, cluster
from benchmarks.numbers import ratio_of_medians
from benchmarks.records import Finished, Trace, durations, missing_steps, redone, repeated_steps, traces
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, plain, words
from unicorn_mgr.messages import SetWishes

TITLE = "seconds that two running jobs stand still when a slot moves from one to the other"
NAMES = ("one", "other")
SLOTS, MOST = 3, 2
MOVES, MOVES_QUICK = 40, 4
RESTARTS, RESTARTS_QUICK = 12, 2
CALM_STEPS = 3
QUIET_STEPS = 6
"""Before each change, to know how long an undisturbed step takes."""
QUIET_SECONDS = 1.0
"""Nobody asks the coordinator anything for this long after a change."""
WEIGHT_HIGH, WEIGHT_LOW = 16.0, 0.0625

Sizes = dict[str, int]
Lines = Mapping[str, Sequence[Trace]]
"""By job, those whose steps follow each other: a process, or in restarts one and those after it."""


@dataclass(frozen=True, slots=True)
class Change:
    """Of both jobs' sizes, by the clock of whoever asked for it."""

    gets: str
    """The job that grows."""
    sizes: Sizes
    """Before it."""
    calm_since: float
    at: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What a change took from one of the two jobs, in seconds."""

    still: float
    """The longest time between two finished steps, without what an undisturbed step takes; the slowest survivor's."""
    lost: float
    """All steps until both jobs trained at their new sizes, less what as many take undisturbed; the slowest's."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change has cost."""

    gives: Cost
    gets: Cost
    took: float
    """From asking for it until both jobs had finished a step at their new sizes."""


def run(options: Options) -> Found:
    """Moves in one pair of jobs, then restarts that go on from where these ended."""
    chance = random.Random(options.seed)
    with cluster(options.folder, SLOTS) as found:
        jobs = {name: _submit(found, name, name, MOST) for name in NAMES}
        moves = []
        for number in range(MOVES_QUICK if options.quick else MOVES):
            moves += [_move(found, jobs, number, chance)]
        _calm(jobs)
        moved: Lines = {name: list(traces(job.records).values()) for name, job in jobs.items()}
        incidents = len(found.look().incidents)
        runs = {name: [job] for name, job in jobs.items()}
        restarts = []
        for number in range(RESTARTS_QUICK if options.quick else RESTARTS):
            restarts += [_restart(found, runs, number, chance)]
        _calm({name: jobs[-1] for name, jobs in runs.items()})
    restarted: Lines = {name: [_joined(each)] for name, each in runs.items()}
    if incidents:
        raise Failed(f"{incidents} incidents in planned moves; see {found.folder}")
    return _report(moves, moved, restarts, restarted)


# -- changes --------------------------------------------------------------------------------


def _submit(found: Cluster, name: str, state: str, size: int) -> Job:
    """Its state is stored when it ends, and read by the next one that is given the same name for it."""
    return found.submit(name, size, "gpt.py", checkpoint_url=str(found.folder / "checkpoints" / state))


def _move(found: Cluster, jobs: Mapping[str, Job], number: int, chance: random.Random) -> Change:
    """The weight of one of them says who gets the slot."""
    gets, gives = _turn(number)
    if number == 0:
        _weigh(found, NAMES[0], gets != NAMES[0])
        jobs[gives].size, jobs[gets].size = MOST, SLOTS - MOST
    change = _quiet(jobs, gets, chance)
    _weigh(found, NAMES[0], gets == NAMES[0])
    jobs[gives].size, jobs[gets].size = SLOTS - MOST, MOST
    time.sleep(QUIET_SECONDS)
    return change


def _weigh(found: Cluster, name: str, high: bool) -> None:
    found.command(SetWishes(name, {"weight": str(WEIGHT_HIGH if high else WEIGHT_LOW)}))


def _restart(found: Cluster, runs: Mapping[str, list[Job]], number: int, chance: random.Random) -> Change:
    """Both come to their end, which stores their state, and are submitted at their new sizes."""
    jobs = {name: jobs[-1] for name, jobs in runs.items()}
    gets = min(jobs, key=lambda name: jobs[name].size)
    change = _quiet(jobs, gets, chance)
    for job in jobs.values():
        (job.out / "stop").touch()
    for job in jobs.values():
        job.ended()
    for name, size in change.sizes.items():
        runs[name].append(_submit(found, f"{name}-{number}", name, SLOTS - size))
    time.sleep(QUIET_SECONDS)
    return change


def _turn(number: int) -> tuple[str, str]:
    return NAMES[number % 2], NAMES[1 - number % 2]


def _quiet(jobs: Mapping[str, Job], gets: str, chance: random.Random) -> Change:
    """Let both train in peace for a while; the change is due when this returns."""
    step_seconds = _calm(jobs)
    since = time.monotonic()
    time.sleep((QUIET_STEPS + chance.uniform(0.0, 2.0)) * step_seconds)
    return Change(gets, {name: job.size for name, job in jobs.items()}, since, time.monotonic())


def _calm(jobs: Mapping[str, Job]) -> float:
    """Returns what a step of the slower one takes."""
    return max(job.calm(CALM_STEPS).step_seconds for job in jobs.values())


def _joined(runs: Sequence[Job]) -> Trace:
    """The steps of the first worker of one job after the other."""
    firsts = [t for job in runs for t in traces(job.records).values() if t.worker.startswith(f"{job.name}-0.")]
    return Trace(runs[0].name, [step for t in firsts for step in t.steps], [m for t in firsts for m in t.micro_batches])


# -- what they cost -------------------------------------------------------------------------


def undisturbed(changes: Sequence[Change], lines: Lines) -> dict[tuple[str, int], list[float]]:
    """By job and size, how long steps took before changes."""
    found: dict[tuple[str, int], list[float]] = {}
    for change in changes:
        for name, size in change.sizes.items():
            for line in lines[name]:
                found.setdefault((name, size), []).extend(durations(line, [(change.calm_since, change.at)]))
    return found


def changed(change: Change, until: float, lines: Lines, quiet: Mapping[tuple[str, int], float]) -> Changed:
    """What a change has cost; `until` the next one there are no others."""
    after = {name: SLOTS - size for name, size in change.sizes.items()}
    ended = 0.0
    for name, size in after.items():
        reached = [f.at for line in lines[name] for f in line.steps if change.at < f.at < until and f.size == size]
        if not reached:
            raise Failed(f"{name} has not written down that it finished a step with {size} workers")
        ended = max(ended, min(reached))
    costs = {name: _cost(name, lines[name], change.at, ended, quiet) for name in after}
    gives = next(name for name in after if name != change.gets)
    return Changed(costs[gives], costs[change.gets], ended - change.at)


def _cost(
    name: str, lines: Sequence[Trace], began: float, ended: float, quiet: Mapping[tuple[str, int], float]
) -> Cost:
    spans = [_span(line.steps, began, ended) for line in lines]
    added = [
        [after.at - before.at - quiet[name, after.size] for before, after in pairwise(span)] for span in spans if span
    ]
    return Cost(max(max(each) for each in added), max(sum(each) for each in added))


def _span(steps: Sequence[Finished], began: float, ended: float) -> list[Finished]:
    """From the last step before until the first one that is finished when all is over; nothing if it saw not all."""
    before = [f for f in steps if f.at <= began]
    later = [f for f in steps if f.at >= ended]
    if not (before and later):
        return []
    return [before[-1], *(f for f in steps if began < f.at < ended), later[0]]


def _report(moves: Sequence[Change], moved: Lines, restarts: Sequence[Change], restarted: Lines) -> Found:
    ways = {}
    quiets = {}
    for way, changes, lines in (("moved", moves, moved), ("restarted", restarts, restarted)):
        quiets[way] = undisturbed(changes, lines)
        typical = {key: median(values) for key, values in quiets[way].items()}
        ends = [c.at for c in changes[1:]] + [float("inf")]
        ways[way] = [changed(c, end, lines, typical) for c, end in zip(changes, ends, strict=True)]
    steps = {name: missing_steps(lines, max(f.step for t in lines for f in t.steps)) for name, lines in moved.items()}
    lost = sum(steps.values())
    every = [t for lines in moved.values() for t in lines]
    again = sum(redone(lines) for lines in moved.values())
    return Found(
        tables=(_figures_table(ways, quiets), _ratio_table(ways)),
        notes=(
            words(f"""
                {len(moves)} moves; steps lost {lost}, steps done twice by a worker {repeated_steps(every)},
                micro-batches begun by a second worker {again}. {len(restarts)} restarts; steps lost
                {sum(missing_steps(t, max(f.step for f in t[0].steps)) for t in restarted.values())}, steps done
                twice {repeated_steps(t for lines in restarted.values() for t in lines)}.
            """),
            words("""
                Standing still is the longest time between two finished steps of a worker that stays, less the median
                undisturbed step of its job at that size. Time lost is what all steps took until both jobs had finished
                one at their new sizes, less what as many take undisturbed: while the newcomer starts it takes its share
                of the cores.
            """),
            words("""
                Restarted: the best that can be done without moves on the same software. Both jobs are told to stop,
                store their state after their last step, and are submitted anew, with processes from a warm template,
                as soon as both have ended, which is looked for every 0.1 s.
            """),
        ),
        aims=(Aim("no step lost in planned moves", str(lost), lost == 0),),
        samples={
            **{way: [asdict(c) for c in found] for way, found in ways.items()},
            "undisturbed_step_seconds": {
                f"{way}, {name} on {size}": values
                for way, found in quiets.items()
                for (name, size), values in found.items()
            },
        },
    )


def _rows(found: Sequence[Changed]) -> dict[str, list[float]]:
    return {
        "the job that gives stands still": [c.gives.still for c in found],
        "the job that gets stands still": [c.gets.still for c in found],
        "time lost by the job that gives": [c.gives.lost for c in found],
        "time lost by the job that gets": [c.gets.lost for c in found],
        "until both train at their new sizes": [c.took for c in found],
    }


def _figures_table(
    ways: Mapping[str, Sequence[Changed]], quiets: Mapping[str, Mapping[tuple[str, int], list[float]]]
) -> Table:
    sizes = sorted({size for found in quiets.values() for _, size in found})
    rows = [
        (
            f"an undisturbed step on {size}",
            [d for found in quiets.values() for (_, s), v in found.items() if s == size for d in v],
        )
        for size in sizes
    ]
    rows += [(f"{way}: {name}", values) for way, found in ways.items() for name, values in _rows(found).items()]
    return Table(("", *FIGURES), tuple((name, *figures(values)) for name, values in rows))


def _ratio_table(ways: Mapping[str, Sequence[Changed]]) -> Table:
    moved, restarted = _rows(ways["moved"]), _rows(ways["restarted"])
    rows = []
    for name, ours in moved.items():
        ratio, (low, high) = ratio_of_medians(restarted[name], ours)
        rows.append((name, f"{plain(ratio)} ({plain(low)} to {plain(high)})"))
    return Table(("restarted over moved", "ratio of medians (95 % interval)"), tuple(rows))
