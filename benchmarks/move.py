"""A slot moves between two running jobs, back and forth; or both are stopped and started anew, in two ways."""

from __future__ import annotations

import contextlib
import math
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import peers
from benchmarks.cluster import PATIENCE_SECONDS, Cluster, Failed, Job, cluster
from benchmarks.numbers import ratio_of_medians
from benchmarks.records import Finished, Trace, durations, missing_steps, redone, repeated_steps, traces
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, plain, words
from benchmarks.torchrun import command, torchrun_environment
from unicorn_mgr.messages import SetWishes

TITLE = "seconds that two running jobs stand still when a slot moves from one to the other"
NAMES = ("one", "other")
SLOTS, MOST = 3, 2
MOVES, MOVES_QUICK = 40, 3
RESTARTS, RESTARTS_QUICK = 12, 1
CALM_STEPS = 3
QUIET_STEPS = 6
"""Before each change, to know how long an undisturbed step takes."""
QUIET_SECONDS = 1.0
"""Nobody asks the coordinator anything for this long after a change."""

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


@dataclass(frozen=True, slots=True)
class Way:
    """All changes that were made in one way, and what the workers wrote meanwhile."""

    changes: Sequence[Change]
    """The last one was not made any more: it tells how both trained after the one before it."""
    lines: Lines


def run(options: Options) -> Found:
    """Moves in one pair of jobs, restarts that go on from where these ended, then restarts by torchrun."""
    chance = random.Random(options.seed)
    moves, restarts = (MOVES_QUICK, RESTARTS_QUICK) if options.quick else (MOVES, RESTARTS)
    with cluster(options.folder, SLOTS) as found:
        jobs = {name: _submit(found, name, name, MOST) for name in NAMES}
        ways = {"moved": _moved(found, jobs, moves, chance)}
        incidents = found.look().incidents
        if incidents:
            raise Failed(f"{len(incidents)} incidents in planned moves; see {found.folder}")
        ways["restarted"] = _restarted(found, jobs, restarts, chance)
    ways["by torchrun"] = _by_torchrun(options.folder.parent / "torchrun", restarts, chance)
    return _report(ways)


# -- changes --------------------------------------------------------------------------------


def _submit(found: Cluster, name: str, state: str, size: int) -> Job:
    """Its state is stored when it ends, and read by the next one that is given the same name for it."""
    return found.submit(name, size, "gpt.py", checkpoint_url=str(found.folder / "checkpoints" / state))


def _moved(found: Cluster, jobs: Mapping[str, Job], times: int, chance: random.Random) -> Way:
    """The minimum of one of them says who gets the slot, whatever the planner has measured that it is worth there."""
    changes = []
    for number in range(times + 1):
        heavy = NAMES[number % 2]
        for name, least in ((NAMES[1 - number % 2], SLOTS - MOST), (heavy, MOST)):
            found.command(SetWishes(name, {"min": str(least)}))
        for name, job in jobs.items():
            job.size = MOST if name == heavy else SLOTS - MOST
        time.sleep(QUIET_SECONDS)
        changes += [_quiet({name: job.size for name, job in jobs.items()}, _calm(jobs), chance)]
    return Way(changes, {name: list(traces(job.records).values()) for name, job in jobs.items()})


def _restarted(found: Cluster, jobs: Mapping[str, Job], times: int, chance: random.Random) -> Way:
    """Both come to their end, which stores their state, and are submitted at their new sizes."""
    runs = {name: [job] for name, job in jobs.items()}
    changes = []
    for number in range(times):
        newest = {name: each[-1] for name, each in runs.items()}
        changes += [_quiet({name: job.size for name, job in newest.items()}, _calm(newest), chance)]
        for job in newest.values():
            (job.out / "stop").touch()
        for job in newest.values():
            job.ended()
        for name, job in newest.items():
            runs[name].append(_submit(found, f"{name}-{number}", name, SLOTS - job.size))
        time.sleep(QUIET_SECONDS)
    last = {name: each[-1] for name, each in runs.items()}
    changes += [_quiet({name: job.size for name, job in last.items()}, _calm(last), chance)]
    written = {name: [t for job in each for t in _firsts(job.records, f"{job.name}-0.")] for name, each in runs.items()}
    return Way(changes, {name: [_joined(found)] for name, found in written.items()})


def _by_torchrun(folder: Path, times: int, chance: random.Random) -> Way:
    """Both store their state and end, and are started at their new sizes."""
    sizes = {NAMES[0]: MOST, NAMES[1]: SLOTS - MOST}
    changes = []
    for number in range(times + 1):
        with contextlib.ExitStack() as both:
            ends = [both.enter_context(_torchrun(folder / name, size)) for name, size in sizes.items()]
            calm = [
                peers.wait_until_calm(folder / name / "records", size, CALM_STEPS, folder / name / "log")
                for name, size in sizes.items()
            ]
            seconds = max(median(durations(t, [(0.0, math.inf)])) for found in calm for t in found.values())
            changes += [_quiet(sizes, seconds, chance)]
            if number < times:
                for name in sizes:
                    (folder / name / "stop").touch()
                for process in ends:
                    process.wait(PATIENCE_SECONDS)
        sizes = {name: SLOTS - size for name, size in sizes.items()}
    return Way(changes, {name: [_joined(_firsts(folder / name / "records", "rank-0-"))] for name in sizes})


def _torchrun(out: Path, size: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    (out / "stop").unlink(missing_ok=True)
    return peers.started(command(out, size, "--stops"), torchrun_environment(), out / "log")


def _quiet(sizes: Sizes, step_seconds: float, chance: random.Random) -> Change:
    """Let both train in peace for a while; the change is due when this returns."""
    since = time.monotonic()
    time.sleep((QUIET_STEPS + chance.uniform(0.0, 2.0)) * step_seconds)
    return Change(min(sizes, key=lambda name: sizes[name]), dict(sizes), since, time.monotonic())


def _calm(jobs: Mapping[str, Job]) -> float:
    """Returns what a step of the slower one takes."""
    return max(job.calm(CALM_STEPS).step_seconds for job in jobs.values())


def _firsts(records: Path, name: str) -> list[Trace]:
    """The first worker's, of every start."""
    return [t for t in traces(records).values() if t.worker.startswith(name)]


def _joined(firsts: Sequence[Trace]) -> Trace:
    """The steps of one process after the other."""
    return Trace(firsts[0].worker, sorted((step for t in firsts for step in t.steps), key=lambda step: step.at))


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
    """What a change has cost; `until` the next one."""
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


def _report(ways: Mapping[str, Way]) -> Found:
    quiets = {name: undisturbed(way.changes, way.lines) for name, way in ways.items()}
    costs = {name: _costs(way, quiets[name]) for name, way in ways.items()}
    lost = {name: sum(_missing(lines) for lines in way.lines.values()) for name, way in ways.items()}
    twice = {name: sum(repeated_steps(lines) for lines in way.lines.values()) for name, way in ways.items()}
    again = sum(redone(lines) for lines in ways["moved"].lines.values())
    return Found(
        tables=(_figures_table(costs, quiets), _ratio_table(costs)),
        notes=(
            words(f"""
                {len(costs["moved"])} moves: steps lost {lost["moved"]}, steps done twice by a worker {twice["moved"]},
                micro-batches begun by a second worker {again}. {len(costs["restarted"])} restarts: steps lost
                {lost["restarted"]}, done twice {twice["restarted"]}; {len(costs["by torchrun"])} by torchrun:
                {lost["by torchrun"]} and {twice["by torchrun"]}.
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
                as soon as both have ended, which is looked for every 0.1 s. By torchrun: the same with
                DistributedDataParallel, torch.save and two torchruns, started anew as soon as both have ended.
            """),
        ),
        aims=(Aim("no step lost in planned moves", str(lost["moved"]), lost["moved"] == 0),),
        samples={
            **{name: [asdict(c) for c in found] for name, found in costs.items()},
            "undisturbed_step_seconds": {
                f"{name}, {job} on {size}": values
                for name, found in quiets.items()
                for (job, size), values in found.items()
            },
        },
    )


def _costs(way: Way, quiet: Mapping[tuple[str, int], list[float]]) -> list[Changed]:
    typical = {key: median(values) for key, values in quiet.items()}
    return [changed(change, following.at, way.lines, typical) for change, following in pairwise(way.changes)]


def _missing(lines: Sequence[Trace]) -> int:
    return missing_steps(lines, max(f.step for t in lines for f in t.steps))


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


def _ratio_table(costs: Mapping[str, Sequence[Changed]]) -> Table:
    moved, *others = (_rows(found) for found in costs.values())
    rows = []
    for name, ours in moved.items():
        ratios = (ratio_of_medians(theirs[name], ours) for theirs in others)
        rows.append((name, *(f"{plain(ratio)} ({plain(low)} to {plain(high)})" for ratio, (low, high) in ratios)))
    _, *names = costs
    return Table(("times as much as moved, ratio of medians (95 % interval)", *names), tuple(rows))
