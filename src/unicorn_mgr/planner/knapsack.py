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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf


@dataclass(frozen=True, slots=True)
class Choice:
    """One size that a job could have."""

    size: int
    value: float
    """What the cluster gains by it over the horizon: weighted FLOP."""
    rows: tuple[int, ...] = (0,)
    """Which capacities it draws on, rising."""
    grade: int = 0
    """Which kind of slots it takes; the problem's affair."""
    keeps: bool = False
    """The job stays as it is."""


Choices = tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Knapsack:
    """One tuple of choices a job, in a fixed order; at least one set of them fits."""

    jobs: tuple[Choices, ...]
    capacities: tuple[int, ...]

    def value(self, chosen: Sequence[int]) -> float:
        """Of an allocation: the index of each job's choice.  Summed in the order of jobs."""
        return sum(choices[i].value for choices, i in zip(self.jobs, chosen, strict=True))

    def left(self, chosen: Sequence[int]) -> list[int]:
        """Slots of each row that an allocation leaves; negative where it does not fit."""
        left = list(self.capacities)
        for choices, i in zip(self.jobs, chosen, strict=True):
            for row in choices[i].rows:
                left[row] -= choices[i].size
        return left

    def fits(self, chosen: Sequence[int]) -> bool:
        """Whether no row is overdrawn."""
        return min(self.left(chosen), default=0) >= 0


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
    ordered = sorted(choices, key=lambda c: (c.size, -c.value))
    kept: list[Choice] = []
    best: dict[tuple[int, ...], float] = {}
    for choice in ordered:
        beaten = any(value >= choice.value and set(rows) <= set(choice.rows) for rows, value in best.items())
        if not beaten:
            best[choice.rows] = choice.value
            kept.append(choice)
    return tuple(kept)


def hull(choices: Choices) -> list[int]:
    """Indices of the upper concave hull of value over size, from the lightest choice to the best one.

    All must draw on the same rows and be undominated, so that size and value rise together.
    """
    corners: list[int] = []
    for i, c in enumerate(choices):
        while len(corners) >= 2:
            a, b = choices[corners[-2]], choices[corners[-1]]
            # The middle corner goes if it lies on or below the line from the one before to this one.
            if (b.value - a.value) * (c.size - a.size) > (c.value - a.value) * (b.size - a.size):
                break
            corners.pop()
        corners.append(i)
    return corners


def climbed(knapsack: Knapsack) -> tuple[Relaxation, list[int]]:
    """For one row: the best prices, exactly, and a good allocation that fits.

    Every job climbs its hull, the steepest step in the cluster first: the linear relaxation's
    optimum, whose price is the slope of the first step that does not fit.  Later steps that fit are
    taken, too, which makes the allocation whole.
    """
    (capacity,) = knapsack.capacities
    corners = [hull(choices) for choices in knapsack.jobs]
    chosen = [c[0] for c in corners]
    left = capacity - sum(choices[i].size for choices, i in zip(knapsack.jobs, chosen, strict=True))
    price = 0.0
    blocked: set[int] = set()
    for slope, job, step in sorted(_steps(knapsack.jobs, corners), key=lambda s: (-s[0], s[1], s[2])):
        if job in blocked:
            continue
        choices, (low, high) = knapsack.jobs[job], corners[job][step : step + 2]
        more = choices[high].size - choices[low].size
        if more <= left:
            chosen[job], left = high, left - more
        else:
            price = price or slope
            blocked.add(job)
    return relaxation(knapsack, (price,)), chosen


def _steps(jobs: Sequence[Choices], corners: Sequence[list[int]]) -> Iterator[tuple[float, int, int]]:
    """(value per slot, job, which step) of all hulls."""
    for job, (choices, path) in enumerate(zip(jobs, corners, strict=True)):
        for step, (low, high) in enumerate(pairwise(path)):
            gain = choices[high].value - choices[low].value
            yield gain / (choices[high].size - choices[low].size), job, step


def relaxation(knapsack: Knapsack, prices: tuple[float, ...]) -> Relaxation:
    """The bound at these prices, whatever they are."""
    bound = sum(p * c for p, c in zip(prices, knapsack.capacities, strict=True) if p)
    return Relaxation(prices, bound + sum(max(net(c, prices) for c in choices) for choices in knapsack.jobs))


def net(choice: Choice, prices: tuple[float, ...]) -> float:
    """What is left of a choice's value once its slots are paid for."""
    return choice.value - choice.size * sum(prices[r] for r in choice.rows)


def reduced(knapsack: Knapsack, relaxed: Relaxation, known: float) -> tuple[Knapsack, list[list[int]]]:
    """Only the choices that an allocation better than `known` can have, and each one's index before.

    A job whose choices are all too poor keeps its best one: nothing better exists then.
    """
    # Sums of floats in another order differ in the last digits; a choice on the edge stays.
    room = (relaxed.bound - known) + 1e-9 * max(1.0, abs(relaxed.bound))
    jobs, indices = [], []
    for choices in knapsack.jobs:
        nets = [net(c, relaxed.prices) for c in choices]
        best = max(nets)
        kept = [i for i, net in enumerate(nets) if best - net <= room]
        jobs.append(tuple(choices[i] for i in kept))
        indices.append(kept)
    return Knapsack(tuple(jobs), knapsack.capacities), indices


def improved(knapsack: Knapsack, chosen: Sequence[int], stop: Callable[[], bool], rounds_max: int = 50) -> list[int]:
    """An allocation no worse, by giving one job at a time the best choice that fits, until none gains."""
    best = list(chosen)
    left = knapsack.left(best)
    for _ in range(rounds_max):
        gained = False
        for job, choices in enumerate(knapsack.jobs):
            if stop():
                return best
            now = choices[best[job]]
            for row in now.rows:
                left[row] += now.size
            found = max(
                (i for i, c in enumerate(choices) if all(c.size <= left[r] for r in c.rows)),
                key=lambda i: (choices[i].value, i == best[job], -choices[i].size),
                default=best[job],
            )
            gained = gained or choices[found].value > now.value
            best[job] = found
            for row in choices[found].rows:
                left[row] -= choices[found].size
        if not gained:
            break
    return best


def repaired(knapsack: Knapsack, chosen: Sequence[int], prices: tuple[float, ...]) -> list[int] | None:
    """An allocation that fits, by taking from an overdrawn row where it costs least per slot; None: not found."""
    best = list(chosen)
    while True:
        left = knapsack.left(best)
        over = {r for r, slots in enumerate(left) if slots < 0}
        if not over:
            return best
        cheapest, swap = inf, (-1, -1)
        for job, choices in enumerate(knapsack.jobs):
            now = choices[best[job]]
            if over.isdisjoint(now.rows):
                continue
            for i, c in enumerate(choices):
                gives = {r: now.size * (r in now.rows) - c.size * (r in c.rows) for r in sorted({*now.rows, *c.rows})}
                relief = sum(slots for r, slots in gives.items() if r in over)
                if relief > 0 and all(left[r] + slots >= 0 for r, slots in gives.items() if r not in over):
                    cost = (net(now, prices) - net(c, prices)) / relief
                    if cost < cheapest:
                        cheapest, swap = cost, (job, i)
        if swap[0] < 0:
            return None
        best[swap[0]] = swap[1]
