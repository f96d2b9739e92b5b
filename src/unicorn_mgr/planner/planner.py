"""A problem's plan: sizes, then places, then the reasons in words.

First a plan that is always had: sizes by greedy steps with a bound, and greedy places.  What that takes
is the least limit that can be kept; the rest of the time is for better ones.

Sizes are an exact optimum where time allows, with a bound where it does not.  What sizes cannot foresee,
room in pieces too small for whole replicas beside jobs that stay where they are, is found out by
placing: the jobs that stay may then be moved, and if that does not help the job that found no room is
offered less.  The bound remains that of the sizes alone, so that the gap says what this has cost at
most.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from unicorn_mgr.planner.choices import NOTHING, Sizes, sizes_of
from unicorn_mgr.planner.deadline import Clock, Deadline
from unicorn_mgr.planner.knapsack import Choice, Choices, Sizing
from unicorn_mgr.planner.packing import packed
from unicorn_mgr.planner.placement import Seats, Unplaceable, Wish, placed
from unicorn_mgr.planner.problem import Demand, Plan, Problem
from unicorn_mgr.planner.reasons import reasons
from unicorn_mgr.planner.sizing import bounded, refined

SECONDS_MAX = 0.3


class _Stays(Exception):
    """A job of another shape finds no room."""

    def __init__(self, job: int) -> None:
        super().__init__(job)
        self.job = job


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What each job has, and where."""

    chosen: Sequence[Choice]
    seats: Sequence[Seats]

    @property
    def value(self) -> float:
        """Of all sizes together."""
        return sum(c.value for c in self.chosen)


def plan(problem: Problem, limit: float = SECONDS_MAX, solver: str = "cbc", clock: Clock = time.monotonic) -> Plan:
    """The best plan that can be found within `limit` seconds, and how good it is known to be.

    The first plan is made whatever the limit, so a limit below what that takes (values of all sizes, `bounded`,
    greedy places: work in proportion to choices and slots) is not kept.  After that nothing is begun once the time
    is up, and a solver is given only what is left for it by an estimate of its overhead.
    """
    began = clock()
    deadline = Deadline(began + limit, clock)
    sizes = sizes_of(problem)
    relaxed, sizing = bounded(sizes.knapsack, sizes.least)
    before = clock()
    best = _fitted(problem, sizes, sizing.picked(sizes.knapsack))
    # Better sizes have to be placed, too.
    for_sizes = deadline.sooner(clock() - before)
    sizing = refined(sizes.knapsack, relaxed, sizing, for_sizes, solver)
    if best.value < sizing.value and not for_sizes.passed():
        better = _arranged(problem, sizes, sizing.picked(sizes.knapsack), for_sizes, solver)
        best = max(best, better, key=lambda a: a.value)
    return replace(_made(problem, sizes, sizing, best), seconds=clock() - began)


def plan_of(problem: Problem, sizes: Sizes, sizing: Sizing) -> Plan:
    """Sizes brought onto slots without a solver and without moving who may stay.  Raises Unplaceable."""
    chosen = sizing.picked(sizes.knapsack)
    return _made(problem, sizes, sizing, Arrangement(chosen, placed(problem, _wishes(problem, sizes, chosen))))


def _made(problem: Problem, sizes: Sizes, sizing: Sizing, best: Arrangement) -> Plan:
    whole = best.value >= sizing.value
    return Plan(
        seats={d.job: mine for d, mine in zip(problem.demands, best.seats, strict=True)},
        reasons=reasons(problem, sizes.kept, best.chosen, best.seats, sizes.refused),
        shapes={d.job: d.formed(c.form).shape for d, c in zip(problem.demands, best.chosen, strict=True) if c.form},
        value=best.value,
        # A job that was left out for want of room in one piece may have been worth less than nothing.
        bound=max(sizing.bound, best.value),
        proven=sizing.proven and whole,
        solver=sizing.solver,
        rung="greedy" if sizing.solver == "greedy" else "ilp",
        note=sizing.note if whole else "the room that is left is in pieces too small for whole replicas",
    )


def _fitted(problem: Problem, sizes: Sizes, wanted: Sequence[Choice]) -> Arrangement:
    """With those that stay left alone; a job that finds no room is given less.

    One that has something and finds no room in another shape stays in its own, on slots that others may
    have been given by then: so all are placed again.
    """
    wanted, chosen = list(wanted), list(wanted)

    def lesser(job: int, found: int) -> Wish:
        demand = problem.demands[job]
        if not demand.seats:
            chosen[job] = _best(_others(demand, sizes.knapsack.jobs[job], chosen[job], found))
        elif chosen[job].form:
            raise _Stays(job)
        else:
            chosen[job] = _best(c for c in sizes.own[job] if c.size <= found)
        return wish_of(demand, sizes, chosen[job])

    while True:
        try:
            return Arrangement(chosen, placed(problem, _wishes(problem, sizes, chosen), lesser))
        except _Stays as stays:
            most = max(sizes.kept[stays.job], wanted[stays.job].size)
            wanted[stays.job] = _best(c for c in sizes.own[stays.job] if c.size <= most)
            chosen[:] = wanted


def _arranged(problem: Problem, sizes: Sizes, wanted: Sequence[Choice], deadline: Deadline, solver: str) -> Arrangement:
    """As it fits; where that is not all, those that stay may be moved, too, if that helps."""
    found = _fitted(problem, sizes, wanted)
    if found.chosen == wanted:
        return found
    wishes = _wishes(problem, sizes, wanted)
    for tried in (wishes, [replace(w, frozen=False) for w in wishes]):
        try:
            return Arrangement(wanted, packed(problem, tried, deadline, solver))
        except Unplaceable:
            continue
    return found


def _wishes(problem: Problem, sizes: Sizes, chosen: Sequence[Choice]) -> list[Wish]:
    return [wish_of(d, sizes, c) for d, c in zip(problem.demands, chosen, strict=True)]


def wish_of(demand: Demand, sizes: Sizes, choice: Choice) -> Wish:
    """What a choice means for placing."""
    grade = sizes.grades[choice.grade] if choice.size else None
    return Wish(demand.formed(choice.form), choice.size, grade, choice.keeps)


def _best(choices: Iterable[Choice]) -> Choice:
    """The most valuable one; nothing, if there is none."""
    return max(choices, key=lambda c: (c.value, -c.size), default=NOTHING)


def _others(demand: Demand, choices: Choices, failed: Choice, found: int) -> Iterator[Choice]:
    """What may fit where a choice found only so many slots: less, or nearly as much in smaller replicas."""
    replica = demand.formed(failed.form).replica
    for choice in choices:
        narrower = choice.size < failed.size and demand.formed(choice.form).replica < replica
        if narrower or choice.size <= found:
            yield choice
