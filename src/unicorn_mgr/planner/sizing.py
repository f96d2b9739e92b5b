"""Sizes of jobs, as good as the time allows, with a certificate.

First what is always had: prices of the rows bound the best value from above, and show a good
allocation.  Then, while there is time, that is improved job by job, and the best one is proven.  Where
one row alone has a price, `core` mostly does that in milliseconds: the best for that row is the best of
all if it fits the others.  Otherwise, or where that grows too large, the integer programme does, made
small first by guessing that the best one loses little: with only the choices of loss <= room, an answer
whose whole loss is within that room is proven best; otherwise the room grows until it spans all that was
not excluded.

Whatever the solver does, the answer fits, and its value, bound and gap are computed here from the
problem, not taken from the solver.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from unicorn_mgr.planner import core, ilp
from unicorn_mgr.planner.deadline import Clock, Deadline
from unicorn_mgr.planner.knapsack import (
    Knapsack,
    Relaxation,
    Sizing,
    climbed,
    climbed_from,
    improved,
    nets,
    reduced,
    relaxation,
    repaired,
)
from unicorn_mgr.planner.prices import better_prices, first_prices

GAP_MIN = 1e-9
"""A share of the bound that sums of floats differ by: no gap."""

ROOM_FIRST = 1 / 8
ROOM_GROWS = 4.0
LATE = "the time was up"


def sized(
    knapsack: Knapsack,
    limit: float = 0.3,
    solver: str = "cbc",
    fallback: tuple[int, ...] | None = None,
    clock: Clock = time.monotonic,
    *,
    by_core: bool = True,
) -> Sizing:
    """The best allocation that can be found within `limit` seconds: `bounded`, then `refined`."""
    deadline = Deadline(clock() + limit, clock)
    return refined(knapsack, *bounded(knapsack, fallback), deadline, solver, by_core=by_core)


def bounded(knapsack: Knapsack, fallback: tuple[int, ...] | None = None) -> tuple[Relaxation, Sizing]:
    """An upper bound and a good allocation that fits, with no more work than that takes.

    `fallback` is one that fits, for several rows, where none may be found otherwise.
    """
    if len(knapsack.capacities) == 1:
        relaxed, chosen = climbed(knapsack)
    else:
        assert fallback is not None, "several rows: an allocation that fits must be known"
        relaxed = relaxation(knapsack, first_prices(knapsack))
        chosen, _ = climbed_from(knapsack, fallback)
    return relaxed, _proven_if_met(
        Sizing(tuple(chosen), knapsack.value(chosen), relaxed.bound, proven=False, solver="greedy", note=LATE)
    )


def refined(
    knapsack: Knapsack,
    relaxed: Relaxation,
    known: Sizing,
    deadline: Deadline,
    solver: str = "cbc",
    *,
    by_core: bool = True,
) -> Sizing:
    """No worse than what is known, and as much better and surer as the time allows.

    A solver that fails, is missing or runs out of time leaves the best allocation known until then.
    Without `by_core` it is left to the solver.
    """
    if known.proven or deadline.passed():
        return known
    if len(knapsack.capacities) > 1:
        relaxed, known = _priced(knapsack, relaxed, known, deadline)
    known = _proven_if_met(_better(knapsack, known, improved(knapsack, known.chosen, deadline.passed)))
    priced = [row for row, price in enumerate(relaxed.prices) if price] or [0]
    if by_core and len(priced) == 1 and not known.proven:
        known = _by_core(knapsack, relaxed, known, deadline, priced[0])
    return known if known.proven else _by_programme(knapsack, relaxed, known, solver, deadline)


def _priced(knapsack: Knapsack, relaxed: Relaxation, known: Sizing, deadline: Deadline) -> tuple[Relaxation, Sizing]:
    """With better prices of several rows, and what all would take at these as far as it fits."""
    better = relaxation(knapsack, better_prices(knapsack, relaxed.prices, deadline.passed))
    if better.bound < relaxed.bound:
        relaxed, known = better, replace(known, bound=min(known.bound, better.bound))
    dearest = [_dearest(nets(choices, relaxed.prices)) for choices in knapsack.jobs]
    fitting = repaired(knapsack, dearest, relaxed.prices, deadline.passed)
    return relaxed, known if fitting is None else _better(knapsack, known, fitting)


def _by_core(knapsack: Knapsack, relaxed: Relaxation, known: Sizing, deadline: Deadline, row: int) -> Sizing:
    """With one row alone, whose best bounds that of all rows, and is it where it fits them."""
    # Half of what is left: a solver may still prove what this does not.
    half = deadline.sooner(deadline.left / 2)
    try:
        best = core.best_of(knapsack, relaxed, known.value, half.passed, row)
    except core.TooLarge:
        return known
    if best is None:
        return replace(known, proven=True, solver="core", bound=known.value, note="")
    known = replace(known, bound=min(known.bound, knapsack.value(best)))
    fitting = repaired(knapsack, best, relaxed.prices, deadline.passed)
    if fitting is not None:
        known = _better(knapsack, known, improved(knapsack, fitting, deadline.passed), "core")
    return _proven_if_met(known, "core")


def _by_programme(knapsack: Knapsack, relaxed: Relaxation, known: Sizing, solver: str, deadline: Deadline) -> Sizing:
    """No worse than what is known, by integer programmes over more and more choices."""
    room = (relaxed.bound - known.value) * ROOM_FIRST
    while not deadline.passed():
        whole = relaxed.bound - known.value
        room = min(room, whole)
        part, indices = reduced(knapsack, relaxed, relaxed.bound - room)
        try:
            found = ilp.best_sizes(part, deadline, solver)
        except ilp.Infeasible:
            # So little room holds no allocation at all; the whole of it holds the one that is known.
            if room < whole:
                room *= ROOM_GROWS
                continue
            return replace(known, note=f"{solver} calls infeasible what is not")
        except ilp.SolverFailed as failure:
            return replace(known, note=str(failure))
        chosen = [kept[i] for kept, i in zip(indices, found.chosen, strict=True)]
        if knapsack.fits(chosen):
            known = _better(knapsack, known, chosen, solver)
        if not found.proven:
            break
        if room >= whole or relaxed.bound - known.value <= room:
            return replace(known, proven=True, solver=solver, bound=known.value, note="")
        room *= ROOM_GROWS
    return replace(known, note=LATE)


def _dearest(worth: Sequence[float]) -> int:
    """What a job would take at these prices; of equals the smallest."""
    return max(range(len(worth)), key=worth.__getitem__)


def _better(knapsack: Knapsack, known: Sizing, chosen: Sequence[int], solver: str = "") -> Sizing:
    """With that allocation, if it is worth more."""
    value = knapsack.value(chosen)
    if value <= known.value:
        return known
    return replace(known, chosen=tuple(chosen), value=value, solver=solver or known.solver)


def _proven_if_met(known: Sizing, solver: str = "bounds") -> Sizing:
    """Where the bound is met."""
    return replace(known, proven=True, solver=solver, note="") if known.gap <= GAP_MIN else known
