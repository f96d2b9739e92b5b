"""The sizes of jobs as a multiple-choice knapsack, and what can be said of it without a solver.

Each job takes exactly one of its choices; a choice weighs its size, in slots, in the rows it names;
no row holds more than its capacity.  With one kind of device and no replica of several slots there
is one row, all slots.

For any prices of the rows, the *relaxation* is an upper bound of every allocation's value, and the
*loss* of a choice is what taking it costs against its job's best at these prices:

    bound      = sum over rows of price * capacity + sum over jobs of max(value - price * size)
    loss(c)    = max over its job's choices of (value - price * size), less (c's own) >= 0
    value(any) = bound - sum of its losses - sum of price * slots left over

So an allocation better than a known one of value v takes only choices with loss <= bound - v: all
others can be left out before a solver sees them, and nothing is lost (Sinha and Zoltners 1979, the
multiple-choice knapsack's dominance and bounds).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

Rows = tuple[int, ...]


class Choice(NamedTuple):
    """One size that a job could have."""

    size: int
    value: float
    """What the cluster gains by it over the horizon: weighted FLOP."""
    rows: Rows = (0,)
    """Which capacities it draws on, rising."""
    grade: int = 0
    """Which kind of slots it takes; the problem's affair."""
    keeps: bool = False
    """The job stays as it is."""
    form: int = 0
    """Which shape its replicas have; the problem's affair, too."""


Choices = tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Knapsack:
    """One tuple of choices a job, each `undominated`, in a fixed order; at least one set of them fits."""

    jobs: tuple[Choices, ...]
    capacities: tuple[int, ...]

    def value(self, chosen: Sequence[int]) -> float:
        """Of an allocation: the index of each job's choice.  Summed in the order of jobs."""
        return sum(choices[i].value for choices, i in zip(self.jobs, chosen, strict=True))

    def left(self, chosen: Sequence[int]) -> list[int]:
        """Slots of each row that an allocation leaves; negative where it does not fit."""
        left = list(self.capacities)
        for choices, i in zip(self.jobs, chosen, strict=True):
            take(left, choices[i])
        return left

    def fits(self, chosen: Sequence[int]) -> bool:
        """Whether no row is overdrawn."""
        return min(self.left(chosen), default=0) >= 0


def take(left: list[int], choice: Choice, times: int = 1) -> None:
    """Draw on the rows of a choice; -1 times: give back."""
    for row in choice.rows:
        left[row] -= times * choice.size


@dataclass(frozen=True, slots=True)
class Relaxation:
    """An upper bound, and the prices a slot of each row has in it."""

    prices: tuple[float, ...]
    bound: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """An allocation, and how good it is known to be."""

    chosen: tuple[int, ...]
    value: float
    bound: float
    """No allocation is worth more."""
    proven: bool
    solver: str
    """What the answer is from: `bounds` where they met, `core`, `cbc`, `highs`, or `greedy`."""
    note: str = ""
    """Why it is not proven."""

    def picked(self, knapsack: Knapsack) -> list[Choice]:
        """The choices themselves."""
        return [choices[i] for choices, i in zip(knapsack.jobs, self.chosen, strict=True)]

    @property
    def gap(self) -> float:
        """Share of the bound that might be missing, at most."""
        return max(0.0, self.bound - self.value) / max(abs(self.bound), 1e-30)


def undominated(choices: Iterable[Choice]) -> Choices:
    """Without choices that another one of the job beats: as valuable, no larger, in no further row.

    Sorted by size.  Of equal ones the first stays.
    """
    kept: list[Choice] = []
    best: dict[Rows, float] = {}
    for choice in sorted(choices, key=lambda c: (c.size, -c.value)):
        for rows, value in best.items():
            if value >= choice.value and (rows == choice.rows or set(rows) <= set(choice.rows)):
                break
        else:
            best[choice.rows] = choice.value
            kept.append(choice)
    return tuple(kept)


def lanes(choices: Choices) -> dict[Rows, list[int]]:
    """Indices of the choices that draw on the same rows: of those, the larger one is the more valuable."""
    found: dict[Rows, list[int]] = {}
    for i, choice in enumerate(choices):
        found.setdefault(choice.rows, []).append(i)
    return found


def hull(choices: Choices, lane: Iterable[int]) -> list[int]:
    """Of a lane, the corners of the upper concave hull of value over size, from the lightest to the best."""
    corners: list[int] = []
    for i in lane:
        size, value = choices[i].size, choices[i].value
        while len(corners) >= 2:
            a, b = choices[corners[-2]], choices[corners[-1]]
            # The middle corner goes if it lies on or below the line from the one before to this one.
            if (b.value - a.value) * (size - a.size) > (value - a.value) * (b.size - a.size):
                break
            corners.pop()
        corners.append(i)
    return corners


def climbed(knapsack: Knapsack) -> tuple[Relaxation, list[int]]:
    """For one row: the best price, exactly, and a good allocation that fits.

    Every job climbs its hull from its lightest choice: the linear relaxation's optimum, whose price is
    the slope of the first step that does not fit.
    """
    chosen, price = climbed_from(knapsack, [0] * len(knapsack.jobs))
    return relaxation(knapsack, (price,)), chosen


def climbed_from(knapsack: Knapsack, start: Sequence[int]) -> tuple[list[int], float]:
    """An allocation no worse than one that fits, and what a slot gains in the first step that does not.

    Every job climbs the hull of the choices on the rows it is on, the steepest step in the cluster first.
    Later steps that fit are taken, too, which makes the allocation whole.
    """
    chosen = list(start)
    left = knapsack.left(chosen)
    corners = [
        hull(choices, [k for k in range(i, len(choices)) if choices[k].rows == choices[i].rows])
        for choices, i in zip(knapsack.jobs, chosen, strict=True)
    ]
    price = 0.0
    blocked: set[int] = set()
    for slope, job, step in sorted(_steps(knapsack.jobs, corners), key=lambda s: (-s[0], s[1], s[2])):
        if job in blocked:
            continue
        choices, (low, high) = knapsack.jobs[job], corners[job][step : step + 2]
        more = choices[high].size - choices[low].size
        if all(more <= left[row] for row in choices[high].rows):
            take(left, choices[low], -1)
            take(left, choices[high])
            chosen[job] = high
        else:
            price = price or slope
            blocked.add(job)
    return chosen, price


def _steps(jobs: Sequence[Choices], corners: Sequence[list[int]]) -> Iterator[tuple[float, int, int]]:
    """(value per slot, job, which step) of all hulls."""
    for job, (choices, path) in enumerate(zip(jobs, corners, strict=True)):
        for step, (low, high) in enumerate(pairwise(path)):
            gain = choices[high].value - choices[low].value
            yield gain / (choices[high].size - choices[low].size), job, step


def relaxation(knapsack: Knapsack, prices: tuple[float, ...]) -> Relaxation:
    """The bound at these prices, whatever they are."""
    bound = sum(p * c for p, c in zip(prices, knapsack.capacities, strict=True) if p)
    return Relaxation(prices, bound + sum(max(nets(choices, prices)) for choices in knapsack.jobs))


def nets(choices: Choices, prices: tuple[float, ...]) -> list[float]:
    """What is left of each choice's value once its slots are paid for."""
    paid = {rows: sum(prices[r] for r in rows) for rows in dict.fromkeys([c.rows for c in choices])}
    return [value - size * paid[rows] for size, value, rows, *_ in choices]


def reduced(knapsack: Knapsack, relaxed: Relaxation, known: float) -> tuple[Knapsack, list[list[int]]]:
    """Only the choices that an allocation better than `known` can have, and each one's index before.

    A job whose choices are all too poor keeps its best one: nothing better exists then.
    """
    # Sums of floats in another order differ in the last digits; a choice on the edge stays.
    room = (relaxed.bound - known) + 1e-9 * max(1.0, abs(relaxed.bound))
    jobs, indices = [], []
    for choices in knapsack.jobs:
        mine = nets(choices, relaxed.prices)
        least = max(mine) - room
        kept = [i for i, net in enumerate(mine) if net >= least]
        jobs.append(tuple(choices[i] for i in kept))
        indices.append(kept)
    return Knapsack(tuple(jobs), knapsack.capacities), indices


def improved(knapsack: Knapsack, chosen: Sequence[int], stop: Callable[[], bool], rounds_max: int = 50) -> list[int]:
    """An allocation no worse, by giving one job at a time the best choice that fits, until none gains."""
    best = list(chosen)
    left = knapsack.left(best)
    sized = [
        [(rows, lane, [choices[i].size for i in lane]) for rows, lane in lanes(choices).items()]
        for choices in knapsack.jobs
    ]
    for _ in range(rounds_max):
        gained = False
        for job, choices in enumerate(knapsack.jobs):
            if stop():
                return best
            found = best[job]
            now = choices[found]
            take(left, now, -1)
            for rows, lane, sizes in sized[job]:
                fitting = bisect_right(sizes, min((left[r] for r in rows), default=sizes[-1]))
                # The largest one of a lane that fits is its most valuable one.
                if fitting and choices[lane[fitting - 1]].value > choices[found].value:
                    found = lane[fitting - 1]
            gained = gained or found != best[job]
            best[job] = found
            take(left, choices[found])
        if not gained:
            break
    return best


def repaired(
    knapsack: Knapsack, chosen: Sequence[int], prices: tuple[float, ...], stop: Callable[[], bool]
) -> list[int] | None:
    """An allocation that fits, by taking from an overdrawn row where it costs least per slot; None: not found."""
    best = list(chosen)
    left = knapsack.left(best)
    by_rows = [lanes(choices) for choices in knapsack.jobs]
    worth = [nets(choices, prices) for choices in knapsack.jobs]
    while True:
        over = {r for r, slots in enumerate(left) if slots < 0}
        if not over:
            return best
        if stop():
            return None
        cheapest, swap = inf, (-1, -1)
        for job, choices in enumerate(knapsack.jobs):
            now = choices[best[job]]
            if over.isdisjoint(now.rows):
                continue
            for rows, lane in by_rows[job].items():
                per_slot = len(over.intersection(rows))
                most = min((left[r] + now.size * (r in now.rows) for r in rows if r not in over), default=now.size)
                for i in lane:
                    size = choices[i].size
                    relief = now.size * len(over.intersection(now.rows)) - size * per_slot
                    if size > most or relief <= 0:
                        break
                    cost = (worth[job][best[job]] - worth[job][i]) / relief
                    if cost < cheapest:
                        cheapest, swap = cost, (job, i)
        if swap[0] < 0:
            return None
        take(left, knapsack.jobs[swap[0]][best[swap[0]]], -1)
        take(left, knapsack.jobs[swap[0]][swap[1]])
        best[swap[0]] = swap[1]
