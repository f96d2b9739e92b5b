"""A problem's plan: sizes, then places, then the reasons in words.

Sizes are an exact optimum where time allows, with a bound where it does not.  What sizes cannot foresee,
room in pieces too small for whole replicas beside jobs that stay where they are, is found out by
placing: the jobs that stay may then be moved, and if that does not help the job that found no room is
offered less.  The bound remains that of the sizes alone, so that the gap says what this has cost at
most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from unicorn_mgr.planner.choices import NOTHING, Sizes, sizes_of
from unicorn_mgr.planner.knapsack import Choice, Choices, Sizing
from unicorn_mgr.planner.packing import packed
from unicorn_mgr.planner.placement import Seats, Unplaceable, Wish, placed
from unicorn_mgr.planner.problem import Demand, Plan, Problem
from unicorn_mgr.planner.reasons import reasons
from unicorn_mgr.planner.sizing import Clock, sized

SECONDS_MAX = 0.3
SECONDS_MIN = 0.05
"""For placing, whatever sizing has taken: sizes that can't be placed are no plan."""


def plan(problem: Problem, limit: float = SECONDS_MAX, solver: str = "cbc", clock: Clock = time.monotonic) -> Plan:
    """The best plan that can be found within `limit` seconds, and how good it is known to be."""
    began = clock()
    sizes = sizes_of(problem)
    sizing = sized(sizes.knapsack, limit - (clock() - began), solver, sizes.least, clock)
    made = seated(problem, sizes, sizing, max(SECONDS_MIN, limit - (clock() - began)), solver)
    return replace(made, seconds=clock() - began)


def seated(problem: Problem, sizes: Sizes, sizing: Sizing, limit: float, solver: str = "cbc") -> Plan:
    """Sizes brought onto slots; a job that finds no room is given less until all do."""
    chosen = sizing.picked(sizes.knapsack)
    while True:
        try:
            return _made(problem, sizes, sizing, chosen, _placed(problem, sizes, chosen, limit, solver))
        except Unplaceable as error:
            chosen[error.job] = _less(sizes.knapsack.jobs[error.job], chosen[error.job])


def plan_of(problem: Problem, sizes: Sizes, sizing: Sizing) -> Plan:
    """Sizes brought onto slots without a solver and without moving who may stay.  Raises Unplaceable."""
    chosen = sizing.picked(sizes.knapsack)
    return _made(problem, sizes, sizing, chosen, placed(problem, _wishes(problem, sizes, chosen)))


def _made(problem: Problem, sizes: Sizes, sizing: Sizing, chosen: Sequence[Choice], seats: Sequence[Seats]) -> Plan:
    worth = sum(c.value for c in chosen)
    whole = list(chosen) == sizing.picked(sizes.knapsack)
    return Plan(
        seats={d.job: mine for d, mine in zip(problem.demands, seats, strict=True)},
        reasons=reasons(problem, chosen, seats, sizes.refused),
        value=worth,
        # A job that was left out for want of room in one piece may have been worth less than nothing.
        bound=max(sizing.bound, worth),
        proven=sizing.proven and whole,
        solver=sizing.solver,
        rung="greedy" if sizing.solver == "greedy" else "ilp",
        note=sizing.note if whole else "the room that is left is in pieces too small for whole replicas",
    )


def _placed(problem: Problem, sizes: Sizes, chosen: Sequence[Choice], limit: float, solver: str) -> list[Seats]:
    """With those that stay left alone, if that can be; otherwise they may be moved, too."""
    wishes = _wishes(problem, sizes, chosen)
    try:
        return placed(problem, wishes)
    except Unplaceable:
        pass
    try:
        return packed(problem, wishes, limit, solver)
    except Unplaceable:
        return packed(problem, [replace(w, frozen=False) for w in wishes], limit, solver)


def _wishes(problem: Problem, sizes: Sizes, chosen: Sequence[Choice]) -> list[Wish]:
    return [wish_of(d, sizes, c) for d, c in zip(problem.demands, chosen, strict=True)]


def wish_of(demand: Demand, sizes: Sizes, choice: Choice) -> Wish:
    """What a choice means for placing."""
    grade = sizes.grades[choice.grade] if choice.size else None
    return Wish(demand, choice.size, grade, choice.keeps)


def _less(choices: Choices, choice: Choice) -> Choice:
    """The most valuable of the job's smaller sizes; nothing, if there is none."""
    return max((c for c in choices if c.size < choice.size), key=lambda c: (c.value, -c.size), default=NOTHING)
