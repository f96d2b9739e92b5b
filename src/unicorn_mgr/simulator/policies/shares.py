"""How slots are shared between jobs: the optimum, exactly, and the simple rules that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from unicorn_mgr.simulator.scenario import Work

Sizes = list[tuple[int, float]]
"""What a job may have, with its weighted FLOP/s."""


class Optimum:
    """The most weighted FLOP/s for every number of slots up to a capacity, by a dynamic programme over the jobs.

    It shares no code with the planner, on purpose: it is what the planner is judged by.
    """

    def __init__(self, choices: Sequence[Sizes], capacity: int) -> None:
        self._choices = choices
        self._unit = max(1, gcd(*(size for sizes in choices for size, _ in sizes)))
        most = capacity // self._unit
        self._best: list[list[float]] = [[0.0] * (most + 1)]
        """By jobs that are looked at and by units of slots; -inf: they don't fit."""
        for sizes in choices:
            before = self._best[-1]
            after = [float("-inf")] * (most + 1)
            for size, value in sizes:
                units = size // self._unit
                reached = [best + value for best in before[: most + 1 - units]]
                after[units:] = map(max, after[units:], reached)
            self._best.append(after)

    def value(self, capacity: int) -> float:
        """-inf: not all of them fit."""
        return self._best[-1][capacity // self._unit]

    def sizes(self, capacity: int) -> list[int]:
        """Of each job; of equally good ones the fewest slots for the last."""
        left = capacity // self._unit
        found = []
        for sizes, before, after in zip(
            reversed(self._choices), reversed(self._best[:-1]), reversed(self._best[1:]), strict=True
        ):
            for size, value in sizes:
                units = size // self._unit
                if units <= left and before[left - units] + value == after[left]:
                    found.append(size)
                    left -= units
                    break
        return found[::-1]


def choices_of(work: Work, least: int = 0, most: int | None = None) -> Sizes:
    """Its sizes from one to another; nothing at all is one of them if that is within."""
    most = work.size_max if most is None else min(most, work.size_max)
    runs = [(s, rate * work.weight) for s, rate in work.throughput if max(least, work.size_min) <= s <= most]
    return ([] if least else [(0, 0.0)]) + runs


def fitting(jobs: Sequence[Work], capacity: int) -> list[bool]:
    """Who gets its minimum: all, or in order of submission whoever still fits."""
    admitted = []
    for work in jobs:
        least = min((size for size, _ in choices_of(work, 1)), default=capacity + 1)
        admitted.append(least <= capacity)
        capacity -= least if admitted[-1] else 0
    return admitted


def best_sizes(jobs: Sequence[Work], capacity: int) -> list[int]:
    """The optimum in which everybody has its minimum, as far as there is room for all of these."""
    admitted = fitting(jobs, capacity)
    return Optimum(
        [choices_of(work, 1) if fits else [(0, 0.0)] for work, fits in zip(jobs, admitted, strict=True)], capacity
    ).sizes(capacity)


def shared_by(keys: Sequence[float], jobs: Sequence[Work], capacity: int) -> list[int]:
    """In proportion to the keys, with minima and maxima kept; what rounding leaves goes to whoever lacks most."""
    admitted = fitting(jobs, capacity)
    least = [min(s for s, _ in choices_of(w, 1)) if fits else 0 for w, fits in zip(jobs, admitted, strict=True)]
    sizes = [0] * len(jobs)
    open_ones = [i for i, fits in enumerate(admitted) if fits]
    left = capacity
    while open_ones:
        # Who is below its minimum gets it, and the others share what is left.
        total = sum(keys[i] for i in open_ones)
        low = [i for i in open_ones if left * keys[i] / total < least[i]]
        for i in low:
            sizes[i] = least[i]
            left -= least[i]
            open_ones.remove(i)
        if not low:
            break
    total = sum(keys[i] for i in open_ones)
    wish = {i: float(least[i]) for i, fits in enumerate(admitted) if fits}
    for i in open_ones:
        wish[i] = left * keys[i] / total
        sizes[i] = jobs[i].useful(int(wish[i]))
    _round_up(sizes, wish, jobs, capacity - sum(sizes))
    return sizes


def _round_up(sizes: list[int], wish: dict[int, float], jobs: Sequence[Work], left: int) -> None:
    """Next sizes, as long as one fits: of who has least of what it should have first."""
    while True:
        steps = [
            ((sizes[i] / wish[i]), i, larger)
            for i in sorted(wish)
            if (larger := next((s for s, _ in choices_of(jobs[i], sizes[i] + 1)), 0)) and larger - sizes[i] <= left
        ]
        if not steps:
            return
        _, i, larger = min(steps)
        left -= larger - sizes[i]
        sizes[i] = larger
