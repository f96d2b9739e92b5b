"""Prices of several rows whose bound is low: the knapsack's dual, minimised along one direction after another.

Along any line of prices the bound is convex and made of straight pieces, so where the tangents of both
ends meet is either its least point or cuts off a piece (Kelley 1960, in one dimension): a handful of
evaluations, each a look at the hulls.  Directions are all prices together, as rows stand in for each
other; the price of a row; what moves a price from one row to another, as rows are mostly nested; and
which way the last cycle went.  Where that gets stuck the bound holds all the same: any prices bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from math import inf

from unicorn_mgr.planner.knapsack import Choices, Knapsack, Rows, hull, lanes

CYCLES_MAX = 20
STEPS_MAX = 40
CLOSE, CLOSE_CYCLE = 1e-10, 1e-6
"""Shares of the bound that are not worth another step, or another cycle."""

Point = tuple[float, float, float]
"""Steps along a direction, the bound there, its slope."""

Direction = dict[int, float]
"""By row, what one step along it adds to the price."""


def first_prices(knapsack: Knapsack) -> tuple[float, ...]:
    """As good as they are soon."""
    dual = _Dual(knapsack, [0.0] * len(knapsack.capacities))
    dual.along(dict.fromkeys(range(len(knapsack.capacities)), 1.0))
    for row in range(len(knapsack.capacities)):
        dual.along({row: 1.0})
    return tuple(dual.prices)


def better_prices(knapsack: Knapsack, prices: Sequence[float], stop: Callable[[], bool]) -> tuple[float, ...]:
    """As good as they become until `stop`, or until they hardly change any more."""
    dual = _Dual(knapsack, prices)
    rows = range(len(prices))
    fixed = [*({r: 1.0} for r in rows), *({r: -1.0, s: 1.0} for r, s in combinations(rows, 2))]
    bound = inf
    last: Direction = {}
    for _ in range(CYCLES_MAX):
        before, start = bound, list(dual.prices)
        for direction in (*fixed, _scaled(dict(enumerate(dual.prices))), last):
            if stop():
                return dual.clean()
            if direction:
                bound = dual.along(direction)
        if before - bound <= CLOSE_CYCLE * abs(bound):
            break
        last = _scaled({r: dual.prices[r] - start[r] for r in rows})
    return dual.clean()


def _scaled(direction: Direction) -> Direction:
    """Its longest way is 1; nothing, if it leads nowhere."""
    longest = max(map(abs, direction.values()))
    return {row: way / longest for row, way in direction.items() if way} if longest else {}


class _Lane:
    """The hull of a job's choices on the same rows."""

    def __init__(self, choices: Choices, rows: Rows, lane: list[int]) -> None:
        corners = [choices[i] for i in hull(choices, lane)]
        self.rows = rows
        self.sizes = [c.size for c in corners]
        self.values = [c.value for c in corners]
        self.falls = [-(b.value - a.value) / (b.size - a.size) for a, b in pairwise(corners)]
        """Of each step, what it gains per slot, negative: rising."""


class _Dual:
    """The bound as a function of prices."""

    def __init__(self, knapsack: Knapsack, prices: Sequence[float]) -> None:
        self.prices = list(prices)
        self._capacities = knapsack.capacities
        self._jobs = [[_Lane(c, rows, mine) for rows, mine in lanes(c).items()] for c in knapsack.jobs]
        self._rows = list(dict.fromkeys(lane.rows for job in self._jobs for lane in job))
        falls = (lane.falls[0] for job in self._jobs for lane in job if lane.falls)
        self._dearest = -min(falls, default=0.0) or 1.0

    def along(self, direction: Direction) -> float:
        """Move to the least point of a line, and say the bound there."""
        here, slope = self._at(direction, 0.0)
        if not slope:
            return here
        low = max((-self.prices[r] / way for r, way in direction.items() if way > 0), default=-inf)
        high = min((-self.prices[r] / way for r, way in direction.items() if way < 0), default=inf)
        near, far = (0.0, here, slope), self._beyond(direction, slope, low, high)
        best = min(near, far, key=_bound)
        for _ in range(STEPS_MAX):
            (a, bound_a, slope_a), (b, bound_b, slope_b) = near, far
            if slope_a * slope_b >= 0:
                break
            middle = (bound_b - bound_a + slope_a * a - slope_b * b) / (slope_a - slope_b)
            bound, slope = self._at(direction, middle)
            found = (middle, bound, slope)
            best = min(best, found, key=_bound)
            if bound - (bound_a + slope_a * (middle - a)) <= CLOSE * abs(bound):
                break
            near, far = (found, far) if slope * slope_a > 0 else (near, found)
        for row, way in direction.items():
            self.prices[row] = max(0.0, self.prices[row] + best[0] * way)
        return best[1]

    def clean(self) -> tuple[float, ...]:
        """The prices, without those that are only a rounding error."""
        least = max(self.prices) * CLOSE
        return tuple(price if price > least else 0.0 for price in self.prices)

    def _beyond(self, direction: Direction, slope: float, low: float, high: float) -> Point:
        """A point on the other side of the least one, or the end of what prices may be."""
        step = self._dearest / 16
        while True:
            point = min(high, step) if slope < 0 else max(low, -step)
            bound, there = self._at(direction, point)
            # Where nothing fits the bound falls for ever; prices need not follow it.
            if there * slope <= 0 or point in (low, high) or step > self._dearest * 1e6:
                return point, bound, there
            step *= 4

    def _at(self, direction: Direction, step: float) -> tuple[float, float]:
        """The bound there, and its slope along the direction."""
        prices = [p + step * direction.get(r, 0.0) for r, p in enumerate(self.prices)]
        paid = {rows: sum(prices[r] for r in rows) for rows in self._rows}
        ways = {rows: sum(direction.get(r, 0.0) for r in rows) for rows in self._rows}
        bound = sum(p * c for p, c in zip(prices, self._capacities, strict=True))
        slope = sum(way * self._capacities[r] for r, way in direction.items())
        for job in self._jobs:
            best, used = -inf, 0.0
            for lane in job:
                price = paid[lane.rows]
                corner = bisect_left(lane.falls, -price)
                net = lane.values[corner] - price * lane.sizes[corner]
                if net > best:
                    best, used = net, lane.sizes[corner] * ways[lane.rows]
            bound += best
            slope -= used
        return bound, slope


def _bound(point: Point) -> float:
    return point[1]
