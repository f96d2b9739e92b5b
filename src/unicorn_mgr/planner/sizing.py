"""Sizes of jobs, as good as the time allows, with a certificate.

`knapsack` bounds the best value from above, finds a good allocation, and leaves out what no better one
can contain.  With one row `core` then mostly proves the best in milliseconds.  With several, or where
that grows too large, the integer programme does, made small first by guessing that the best one loses
little: with only the choices of loss <= room, an answer whose whole loss is within that room is proven
best; otherwise the room grows until it spans all that was not excluded.

Whatever the solver does, the answer fits, and its value, bound and gap are computed here from the
problem, not taken from the solver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from unicorn_mgr.planner import core, ilp
from unicorn_mgr.planner.knapsack import (
    Choices,
    Knapsack,
    Relaxation,
    Sizing,
    climbed,
    improved,
    net,
    reduced,
    relaxation,
    repaired,
)

Clock = Callable[[], float]

GAP_MIN = 1e-9
"""A share of the bound that sums of floats differ by: no gap."""

ROOM_FIRST = 1 / 8
ROOM_GROWS = 4.0
SOLVER_SECONDS_MIN = 0.02
"""Less is not worth starting a solver for."""


def sized(
    knapsack: Knapsack,
    limit: float = 0.3,
    solver: str = "cbc",
    fallback: tuple[int, ...] | None = None,
    clock: Clock = time.monotonic,
    *,
    by_core: bool = True,
) -> Sizing:
    """The best allocation that can be found within `limit` seconds.

    `fallback` is an allocation that fits, for several rows, where none may be found without a solver.
    A solver that fails, is missing or runs out of time leaves the best allocation known until then.
    Without `by_core` it is left to the solver.
    """
    end = clock() + limit

    def time_is_up() -> bool:
        return clock() >= end

    relaxed, chosen = _bounded(knapsack, limit, fallback)
    chosen = improved(knapsack, chosen, time_is_up)
    known = _sizing(knapsack, relaxed, chosen, "greedy")
    if known.gap <= GAP_MIN:
        return replace(known, proven=True, solver="bounds")
    if by_core and len(knapsack.capacities) == 1:
        try:
            # Half of what is left: a solver may still prove what this does not.
            half = clock() + (end - clock()) / 2
            best = core.best_of(knapsack, relaxed, known.value, lambda: clock() >= half)
        except core.TooLarge:
            pass
        else:
            if best is not None and knapsack.value(best) > known.value:
                known = _sizing(knapsack, relaxed, best, "core")
            return replace(known, proven=True, solver="core", bound=known.value)
    return _by_programme(knapsack, relaxed, known, solver, lambda: end - clock())


def _by_programme(
    knapsack: Knapsack, relaxed: Relaxation, known: Sizing, solver: str, seconds_left: Callable[[], float]
) -> Sizing:
    """No worse than what is known, by integer programmes over more and more choices."""
    room = (relaxed.bound - known.value) * ROOM_FIRST
    while True:
        left = seconds_left()
        if left < SOLVER_SECONDS_MIN:
            return replace(known, note="the time was up")
        whole = relaxed.bound - known.value
        room = min(room, whole)
        part, indices = reduced(knapsack, relaxed, relaxed.bound - room)
        try:
            found = ilp.best_sizes(part, left, solver)
        except ilp.Infeasible:
            # So little room holds no allocation at all; the whole of it holds the one that is known.
            if room < whole:
                room *= ROOM_GROWS
                continue
            return replace(known, note=f"{solver} calls infeasible what is not")
        except ilp.SolverFailed as failure:
            return replace(known, note=str(failure))
        chosen = [kept[i] for kept, i in zip(indices, found.chosen, strict=True)]
        if knapsack.fits(chosen) and knapsack.value(chosen) > known.value:
            known = _sizing(knapsack, relaxed, chosen, solver)
        if not found.proven:
            return replace(known, note="the time was up")
        if room >= whole or relaxed.bound - known.value <= room:
            return replace(known, proven=True, solver=solver, bound=known.value)
        room *= ROOM_GROWS


def _bounded(knapsack: Knapsack, limit: float, fallback: tuple[int, ...] | None) -> tuple[Relaxation, list[int]]:
    """An upper bound and an allocation that fits."""
    if len(knapsack.capacities) == 1:
        return climbed(knapsack)
    assert fallback is not None, "several rows: an allocation that fits must be known"
    assert knapsack.fits(fallback)
    try:
        prices = ilp.row_prices(knapsack, limit)
    except ilp.SolverFailed:
        prices = (0.0,) * len(knapsack.capacities)
    best = [_dearest(choices, prices) for choices in knapsack.jobs]
    fitting = repaired(knapsack, best, prices) or list(fallback)
    return relaxation(knapsack, prices), max(fitting, list(fallback), key=knapsack.value)


def _dearest(choices: Choices, prices: tuple[float, ...]) -> int:
    """What the job would take at these prices."""
    return max(range(len(choices)), key=lambda i: (net(choices[i], prices), -choices[i].size))


def _sizing(knapsack: Knapsack, relaxed: Relaxation, chosen: Sequence[int], solver: str) -> Sizing:
    return Sizing(tuple(chosen), knapsack.value(chosen), relaxed.bound, proven=False, solver=solver)
