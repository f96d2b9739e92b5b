"""What a plan costs: solvers side by side, the whole plan, a look-up in the table, and limits of time."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from benchmarks.cluster import Failed
from benchmarks.incident import incident
from benchmarks.mixes import bereft, carried_out, mix
from benchmarks.result import Aim, Found, Options, Table, plain, words
from unicorn_mgr.planner import table
from unicorn_mgr.planner.choices import Sizes, sizes_of
from unicorn_mgr.planner.deadline import Deadline
from unicorn_mgr.planner.ilp import SolverFailed, best_sizes
from unicorn_mgr.planner.knapsack import Knapsack
from unicorn_mgr.planner.planner import plan
from unicorn_mgr.planner.problem import Problem
from unicorn_mgr.planner.sizing import sized

TITLE = "CPU milliseconds of a plan: solvers side by side, the whole plan, a look-up, and what a limit of time is worth"
CLUSTERS = ((128, 6), (1024, 20), (9600, 100), (65536, 100))
"""GPUs and jobs."""
CLUSTERS_QUICK = CLUSTERS[:2]
INCIDENTS = ((100, 6), (1000, 20), (8192, 100))
"""Nodes of eight slots and jobs, in a coordinator."""
INCIDENTS_QUICK = INCIDENTS[:2]
INCIDENT_PARTS = {
    "problem": "the problem",
    "look_up": "a look-up",
    "plan": "plan with seats",
    "whole": "all decisions",
    "base": "to begin a table",
    "entry": "for each entry",
}
INCIDENT_AIM = "1,000 / 20"
INSTANCES, INSTANCES_QUICK = 5, 2
PATIENCE_SECONDS = 10.0
"""For a solver to prove its answer here; in use a plan has 0.3 s."""
LIMITS = (0.01, 0.1)
ILP_SECONDS_MAX = 0.2
LOOK_UP_SECONDS_MAX = 1e-3
ENTRY_SECONDS_MAX = 1e-3
OVERSHOOT_MAX = 1.2
LOOK_UPS = 20
ENTRIES = 20
"""Of a table, to see how long one takes."""
SAME = 1e-9

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Solved:
    """One solver on one instance."""

    seconds: float
    """CPU, of this process and of the solver's."""
    value: float
    gap: float
    proven: bool


@dataclass(frozen=True, slots=True)
class Planned:
    """A whole plan of one instance."""

    seconds: float
    gap: float
    proven: bool
    rows: int


def run(options: Options) -> Found:
    """All of it, cluster by cluster."""
    clusters = CLUSTERS_QUICK if options.quick else CLUSTERS
    count = INSTANCES_QUICK if options.quick else INSTANCES
    seeds = [options.seed + i for i in range(count)]
    solvers, plans, tables, limits = {}, {}, {}, {}
    for slots, jobs in clusters:
        name = f"{slots:,} / {jobs}"
        for start in ("from scratch", "after a node's loss"):
            problems = [_instance(slots, jobs, seed, start, pipelines=False) for seed in seeds]
            solvers[f"{name}, {start}"] = [_side_by_side(sizes_of(p)) for p in problems]
            for pipelines in (False, True):
                problems = [_instance(slots, jobs, seed, start, pipelines=pipelines) for seed in seeds]
                kind = "replicas beyond a node" if pipelines else "replicas within a node"
                plans[f"{name}, {start}, {kind}"] = [_planned(p) for p in problems]
        tables[name] = [_looked_up(slots, jobs, seed) for seed in seeds]
        hit = [_instance(slots, jobs, seed, "after a node's loss", pipelines=False) for seed in seeds]
        limits[name] = {limit: [_limited(p, limit) for p in hit] for limit in LIMITS}
    sizes = INCIDENTS_QUICK if options.quick else INCIDENTS
    incidents = {f"{nodes:,} / {jobs}": incident(nodes, jobs) for nodes, jobs in sizes}
    return Found(
        tables=(
            _solver_table(solvers),
            _plan_table(plans),
            _table_table(tables),
            _incident_table(incidents),
            _limit_table(limits),
        ),
        notes=NOTES,
        aims=_aims(solvers, tables, incidents, limits),
        samples={
            "solvers": {k: [{n: asdict(s) for n, s in v.items()} for v in found] for k, found in solvers.items()},
            "plans": {k: [asdict(p) for p in v] for k, v in plans.items()},
            "tables": tables,
            "incidents": incidents,
            "limits": limits,
        },
    )


NOTES = (
    words("""
        CPU seconds of the planner and of the solver that it starts, so that they mean something on a machine that
        others use, too; medians over instances, each measured once. Jobs are models of 1.3 to 175 billion parameters
        with batches of 512 to 8,192 sequences and weights of 0.5 to 2, minimums mandatory, on nodes of eight A100s;
        throughput is what `profiles` predicts.
    """),
    words("""
        core: what the planner does with one capacity, bounds and a dynamic programme over what they leave; reduced
        ILP: what it does with several, here told to; whole ILP: every size of every job that pays as a binary, without
        bounds; dynamic programme: the paper's recurrence over the sizes that pay, in numpy. All start from choices
        whose value is known; the time for these is in the second table. A solver that proves nothing within 10 s is
        counted with what it took.
    """),
    words("""
        A whole plan is values, sizes and places. With replicas of 32 and 64 slots within racks, a lost node makes a
        second and third capacity. A look-up finds sizes; entries are what
        may happen next, nodes that are alike counted once.
    """),
    words("""
        A node is lost: what a coordinator with all its workers takes, in CPU, to see what has changed of the problem,
        to find its sizes in the table, and to give them seats and reasons; all decisions are what healing takes
        beside, before the planner is asked. Then the table for what may follow is filled by a process of its own: told
        are the coordinator's CPU to begin it, with its first entry, and for each other entry.
    """),
    words("""
        Limits are wall time, which others' work on the machine lengthens. 0.010 s is less than the values of sizes
        alone take in the largest clusters: sizing starts when these are there.
    """),
)


def _instance(slots: int, jobs: int, seed: int, start: str, *, pipelines: bool) -> Problem:
    """Nothing runs yet; or all runs as it is best, and then a node is lost."""
    chance = random.Random(seed)
    problem = mix(chance, slots, jobs, pipelines=pipelines)
    if start == "from scratch":
        return problem
    return bereft(carried_out(problem, plan(problem, PATIENCE_SECONDS)), chance)


# -- measuring ------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """Of this process and of all that it has waited for."""
    who = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(w.ru_utime + w.ru_stime for w in who)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = cpu_seconds()
    done = work()
    return done, cpu_seconds() - began


def _side_by_side(sizes: Sizes) -> dict[str, Solved]:
    knapsack = sizes.knapsack
    by_core, core_took = _timed(lambda: sized(knapsack, PATIENCE_SECONDS))
    reduced, reduced_took = _timed(lambda: sized(knapsack, PATIENCE_SECONDS, by_core=False))
    best, dynamic_took = _timed(lambda: dynamic_programme(knapsack))
    found = {
        "core": Solved(core_took, by_core.value, by_core.gap, by_core.proven),
        "reduced ILP": Solved(reduced_took, reduced.value, reduced.gap, reduced.proven),
        "whole ILP": _whole(knapsack, by_core.bound),
        "dynamic programme": Solved(dynamic_took, best, 0.0, proven=True),
    }
    for name, one in found.items():
        if one.proven and abs(one.value - best) > SAME * abs(best):
            raise Failed(f"{name} proves {one.value}, but the best is {best}")
    return found


def _whole(knapsack: Knapsack, bound: float) -> Solved:
    began = cpu_seconds()
    try:
        found = best_sizes(knapsack, Deadline(time.monotonic() + PATIENCE_SECONDS, time.monotonic))
    except SolverFailed:
        return Solved(cpu_seconds() - began, 0.0, 1.0, proven=False)
    took = cpu_seconds() - began
    value = knapsack.value(found.chosen)
    return Solved(took, value, max(0.0, 1 - value / bound), found.proven)


def dynamic_programme(knapsack: Knapsack) -> float:
    """The paper's recurrence (Unicron, section 5: equation 4): best[j] of at most j slots."""
    (capacity,) = knapsack.capacities
    best = np.zeros(capacity + 1)
    for choices in knapsack.jobs:
        # Values may be negative: the maximum starts from nothing known, never from nothing gained.
        new = np.full(capacity + 1, -np.inf)
        for c in (c for c in choices if c.size <= capacity):
            np.maximum(new[c.size :], best[: capacity + 1 - c.size] + c.value, out=new[c.size :])
        best = new
    return float(best[capacity])


def _planned(problem: Problem) -> Planned:
    made, took = _timed(lambda: plan(problem, PATIENCE_SECONDS))
    return Planned(took, made.gap, made.proven, len(sizes_of(problem).knapsack.capacities))


def _looked_up(slots: int, jobs: int, seed: int) -> dict[str, float]:
    """A look-up of what follows a node's loss, and what its entry has cost."""
    chance = random.Random(seed)
    problem = mix(chance, slots, jobs, pipelines=False)
    present = carried_out(problem, plan(problem, PATIENCE_SECONDS))
    made = table.Table.of(present)
    lost = bereft(present, chance)
    followers, listing = _timed(lambda: list(made.missing()))
    filling = []
    for key, follower in [(table.situation(lost), lost), *followers[: ENTRIES - 1]]:
        began = cpu_seconds()
        sizes = sizes_of(follower)
        found = sized(sizes.knapsack, PATIENCE_SECONDS, fallback=sizes.least)
        made.answers[key] = table.Foreseen.of(sizes, found)
        filling.append(cpu_seconds() - began)
    foreseen = {key for key, _ in followers}
    if table.situation(lost) not in foreseen:
        raise Failed("the loss of a node was not foreseen")
    taken = []
    for _ in range(LOOK_UPS):
        answer, took = _timed(lambda: made.look_up(lost))
        if answer is None:
            raise Failed("the loss of a node was not found in the table")
        taken.append(took)
    return {
        "look_up_seconds": median(taken),
        "entries": len(followers),
        "listing_seconds": listing,
        "entry_seconds": median(filling),
    }


def _limited(problem: Problem, limit: float) -> dict[str, float]:
    sizes = sizes_of(problem)
    began = time.monotonic()
    sizing = sized(sizes.knapsack, limit, fallback=sizes.least, by_core=False)
    alone = time.monotonic() - began
    began = time.monotonic()
    made = plan(problem, limit)
    return {"sizing": alone, "plan": time.monotonic() - began, "gap": sizing.gap, "plan_gap": made.gap}


# -- telling --------------------------------------------------------------------------------


def _ms(seconds: float) -> str:
    return f"{plain(seconds * 1000)} ms"


def _solver_table(solvers: dict[str, list[dict[str, Solved]]]) -> Table:
    names = ("core", "reduced ILP", "whole ILP", "dynamic programme")
    rows = []
    for case, found in solvers.items():
        cells = []
        for name in names:
            mine = [f[name] for f in found]
            gaps = [s.gap for s in mine if not s.proven]
            proof = f", {sum(s.proven for s in mine)} of {len(mine)} proven, gap to {max(gaps):.0e}" if gaps else ""
            cells.append(_ms(median(s.seconds for s in mine)) + proof)
        rows.append((case, *cells))
    return Table(("GPUs / jobs: sizes alone", *names), tuple(rows))


def _plan_table(plans: dict[str, list[Planned]]) -> Table:
    rows = tuple(
        (
            case,
            str(max(p.rows for p in found)),
            _ms(median(p.seconds for p in found)),
            _ms(max(p.seconds for p in found)),
            f"{sum(p.proven for p in found)} of {len(found)}",
            f"{max(p.gap for p in found):.0e}",
        )
        for case, found in plans.items()
    )
    return Table(("whole plan", "capacities", "median", "slowest", "proven", "largest gap"), rows)


def _table_table(tables: dict[str, list[dict[str, float]]]) -> Table:
    rows = tuple(
        (
            case,
            _ms(median(t["look_up_seconds"] for t in found)),
            f"{median(t['entries'] for t in found):.0f}",
            _ms(median(t["entry_seconds"] for t in found)),
        )
        for case, found in tables.items()
    )
    return Table(("table of next events", "a look-up", "entries", "to fill one"), rows)


def _incident_table(incidents: dict[str, dict[str, float]]) -> Table:
    rows = tuple((case, *(_ms(found[part]) for part in INCIDENT_PARTS)) for case, found in incidents.items())
    return Table(("nodes / jobs: a node is lost", *INCIDENT_PARTS.values()), rows)


def _limit_table(limits: dict[str, dict[float, list[dict[str, float]]]]) -> Table:
    rows = tuple(
        (
            f"{case}, at most {plain(limit)} s",
            _ms(median(t["sizing"] for t in found)),
            _ms(max(t["sizing"] for t in found)),
            f"{max(t['gap'] for t in found):.0e}",
            _ms(median(t["plan"] for t in found)),
        )
        for case, by_limit in limits.items()
        for limit, found in by_limit.items()
    )
    return Table(("limits, wall time", "sizes by the reduced ILP", "slowest", "largest gap", "whole plan"), rows)


def _aims(
    solvers: dict[str, list[dict[str, Solved]]],
    tables: dict[str, list[dict[str, float]]],
    incidents: dict[str, dict[str, float]],
    limits: dict[str, dict[float, list[dict[str, float]]]],
) -> tuple[Aim, ...]:
    found = incidents[INCIDENT_AIM]["problem"] + incidents[INCIDENT_AIM]["look_up"]
    crowd = list(incidents)[-1]
    entry = incidents[crowd]["entry"]
    largest = list(tables)[-1]
    ilp = {k: median(f["reduced ILP"].seconds for f in v) for k, v in solvers.items() if k.startswith(largest)}
    look_up = median(t["look_up_seconds"] for t in tables[largest])
    over = {f"{c} at {plain(s)} s": max(t["sizing"] for t in f) / s for c, by in limits.items() for s, f in by.items()}
    worst = max(over, key=lambda k: over[k])
    slowest = max(ilp, key=lambda k: ilp[k])
    return (
        Aim(
            f"the reduced ILP at {largest} <= {ILP_SECONDS_MAX * 1000:.0f} ms of CPU",
            f"{_ms(ilp[slowest])}, {slowest.rpartition(', ')[2]}",
            ilp[slowest] <= ILP_SECONDS_MAX,
        ),
        Aim(f"a look-up at {largest} <= 1 ms", _ms(look_up), look_up <= LOOK_UP_SECONDS_MAX),
        Aim(
            f"in a coordinator of {INCIDENT_AIM} nodes and jobs, problem and look-up <= 1 ms",
            _ms(found),
            found <= LOOK_UP_SECONDS_MAX,
        ),
        Aim(
            f"an entry of the table <= 1 ms of a coordinator of {crowd} nodes and jobs",
            _ms(entry),
            entry <= ENTRY_SECONDS_MAX,
        ),
        Aim(
            "limits of sizing kept to within 20 %",
            f"at most {plain(over[worst])} times the limit, {worst}",
            over[worst] <= OVERSHOOT_MAX,
        ),
    )
