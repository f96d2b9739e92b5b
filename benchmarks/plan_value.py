"""What the planner's shares are worth against simple ones, on the paper's mixes and on random ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from benchmarks.cluster import Failed
from benchmarks.mixes import DEVICE, MODELS, bereft, carried_out, demand, nodes, sharded
from benchmarks.numbers import percentile
from benchmarks.result import Found, Options, Table, plain, words
from unicorn_mgr.planner.choices import standstill
from unicorn_mgr.planner.planner import plan
from unicorn_mgr.planner.problem import Demand, Problem

TITLE = "weighted throughput of the planner's shares over that of simple ones, on 128 GPUs"
SLOTS = 128
MIXES, MIXES_QUICK = 300, 20
LIMIT_SECONDS = 10.0

SMALL = ("1.3B", "1.3B", "1.3B", "7B", "7B", "13B")
RISING = (0.5, 0.8, 1.1, 1.4, 1.7, 2.0)
CASES: Mapping[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "1: 6 x 7B, weights 1": (("7B",) * 6, (1.0,) * 6),
    "2: 3 x 1.3B, 2 x 7B, 13B, weights 1": (SMALL, (1.0,) * 6),
    "3: as 1, weights 0.5 to 2": (("7B",) * 6, RISING),
    "4: as 2, weights 0.5 to 2": (SMALL, RISING),
    "5: as 2, weights 2 to 0.5": (SMALL, RISING[::-1]),
}

Shares = dict[str, int]
"""Slots by job."""


def run(options: Options) -> Found:
    """The five cases, then the random mixes."""
    chance = random.Random(options.seed)
    cases = {name: ratios(case(name), chance) for name in CASES}
    mixes = [ratios(_random_mix(chance), chance) for _ in range(MIXES_QUICK if options.quick else MIXES)]
    return Found(
        tables=(_case_table(cases), _mix_table(mixes)),
        notes=NOTES,
        samples={"cases": cases, "mixes": mixes},
    )


NOTES = (
    words("""
        Steady: weighted FLOP/s, nobody changing. After a loss: a node on which somebody trains is lost; weighted FLOP
        over the time to the next failure, less what each change costs in standstill. Ratios of the planner's value to
        the other's, everything predicted by `profiles`: what is compared is shares, not measured training.
    """),
    words("""
        Minimums are honoured by all. The splits share slots equally, by weight or by parameters, and who would get less
        than its least size gets that; each job takes the best of its sizes that its share allows. The other two start
        from the planner's shares before the loss: only the jobs that were hit shrink, counted where that leaves them
        their least size; or they wait for the node, and make nothing, which alone honours no minimum: where a large
        job of little weight waits that is worth more than to give it its least size.
    """),
    words("""
        After a loss a ratio can fall a little below 1: a job that need not change does so only for a gain of 1 % of its
        value, and the splits may change for less. No time is measured here: others' use of the machine changes nothing.
    """),
    "Random mixes: 4 to 8 jobs of 1.3B to 175B, weights 0.5 to 2, whose least sizes fit together.",
)


# -- mixes ----------------------------------------------------------------------------------


def case(name: str) -> Problem:
    """One of the paper's, before anything has happened."""
    return _mix(*CASES[name])


def _mix(models: Sequence[str], weights: Sequence[float]) -> Problem:
    wishes = (
        demand(f"{i}: {model}", sharded(MODELS[model]), SLOTS, weight)
        for i, (model, weight) in enumerate(zip(models, weights, strict=True))
    )
    return Problem(nodes(SLOTS), tuple(wishes))


def _random_mix(chance: random.Random) -> Problem:
    while True:
        count = chance.randint(4, 8)
        models = [chance.choice(sorted(MODELS)) for _ in range(count)]
        problem = _mix(models, [round(chance.uniform(0.5, 2.0), 2) for _ in range(count)])
        # With a node to spare, so that all have their minimum after its loss, too.
        if sum(d.size_min for d in problem.demands) <= SLOTS - len(problem.nodes[0].slots):
            return problem


def _parameters(job: Demand) -> float:
    return MODELS[job.job.partition(": ")[2]].parameters


# -- policies -------------------------------------------------------------------------------


def split(problem: Problem, by: Callable[[Demand], float]) -> Shares:
    """Everybody's least size, and what is left shared out by a key; nobody gets more than pays."""
    slots = sum(len(n.slots) for n in problem.nodes)
    least = {d.job: _sizes(d)[0] for d in problem.demands}
    # Whom its share would leave below its least size takes that, and the others share the rest.
    fixed: Shares = {}
    while True:
        free = [d for d in problem.demands if d.job not in fixed]
        total = sum(by(d) for d in free)
        left = slots - sum(fixed.values())
        shares = {d.job: left * by(d) / total for d in free}
        short = [job for job, share in shares.items() if share < least[job]]
        if not short:
            return fixed | {d.job: _at_most(d, shares[d.job]) for d in free}
        fixed |= {job: least[job] for job in short}


def _sizes(job: Demand) -> list[int]:
    return [size for size, _ in job.throughput[DEVICE] if job.size_min <= size <= job.size_max]


def _at_most(job: Demand, slots: float) -> int:
    return max((size for size in _sizes(job) if size <= slots), default=0)


SPLITS: Mapping[str, Callable[[Demand], float]] = {
    "equal split": lambda _: 1.0,
    "by weight": lambda d: d.weight,
    "by parameters": _parameters,
}


# -- values ---------------------------------------------------------------------------------


def ratios(problem: Problem, chance: random.Random) -> dict[str, float]:
    """The planner's value over each policy's, steady and after the loss of a node."""
    best = plan(problem, LIMIT_SECONDS)
    running = carried_out(problem, best)
    lost = bereft(running, chance)
    again = plan(lost, LIMIT_SECONDS)
    if not (best.proven and again.proven):
        raise Failed(f"a plan for {SLOTS} GPUs was not proven best")
    before = {d.job: len(best.seats[d.job]) for d in problem.demands}
    steady = _steady(problem, before)
    after = _after(lost, before, {d.job: len(again.seats[d.job]) for d in lost.demands})
    found = {}
    for name, by in SPLITS.items():
        shares = split(problem, by)
        found[f"{name}, steady"] = steady / _steady(problem, shares)
        found[f"{name}, after a loss"] = after / _after(lost, shares, split(lost, by))
    shrunk = {d.job: _at_most(d, len(d.seats)) if _is_hit(d, before) else before[d.job] for d in lost.demands}
    if all(shrunk.values()):
        found["hit jobs shrink, after a loss"] = after / _after(lost, before, shrunk)
    waiting = {d.job: 0 if _is_hit(d, before) else before[d.job] for d in lost.demands}
    found["hit jobs wait, after a loss"] = after / _after(lost, before, waiting)
    return found


def _steady(problem: Problem, shares: Shares) -> float:
    return sum(_rate(d, shares[d.job]) for d in problem.demands)


def _after(lost: Problem, before: Shares, now: Shares) -> float:
    """Weighted FLOP until the next failure; who changes or was hit stands still first."""
    value = 0.0
    for d in lost.demands:
        size = now[d.job]
        hit = _is_hit(d, before)
        stays = size == before[d.job] and not hit
        running = replace(d, members=d.members if hit else before[d.job])
        value += _rate(d, size) * (lost.horizon - (0.0 if stays else standstill(running, size, running.members)))
    return value


def _is_hit(job: Demand, before: Shares) -> bool:
    """One that has lost all it had begins anew, and is no less hit."""
    return len(job.seats) < before[job.job]


def _rate(job: Demand, size: int) -> float:
    return job.weight * max((t for s, t in job.throughput[DEVICE] if s <= size), default=0.0)


# -- telling --------------------------------------------------------------------------------


def _case_table(cases: Mapping[str, Mapping[str, float]]) -> Table:
    rows = tuple(
        (policy, *(plain(ratios[policy]) if policy in ratios else "-" for ratios in cases.values()))
        for policy in _policies(cases.values())
    )
    return Table(("the paper's cases: the planner's value over", *cases), rows)


def _mix_table(mixes: Sequence[Mapping[str, float]]) -> Table:
    rows = []
    for policy in _policies(mixes):
        ratios = [mix[policy] for mix in mixes if policy in mix]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        cells = (plain(v) for v in (mean, percentile(ratios, 90), max(ratios), min(ratios)))
        rows.append((policy, str(len(ratios)), *cells))
    head = ("random mixes: the planner's value over", "n", "geometric mean", "p90", "highest", "lowest")
    return Table(head, tuple(rows))


def _policies(found: Iterable[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(policy for ratios in found for policy in ratios))
