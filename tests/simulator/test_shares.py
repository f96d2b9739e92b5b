"""Ways to share slots between jobs."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from unicorn_mgr.simulator.policies.shares import Optimum, best_sizes, choices_of, fitting, shared_by
from unicorn_mgr.simulator.scenario import Work


def work(*sizes: int, size_min: int = 0, weight: float = 1.0) -> Work:
    return Work("a", tuple((s, 10.0 * s**0.9) for s in sizes), size_min or sizes[0], sizes[-1], weight)


def test_the_optimum_is_that_of_trying_all() -> None:
    draw = Random("optimum")
    for _ in range(200):
        unit = draw.choice([1, 2, 8])
        choices = [
            [(unit * draw.randint(0, 6), draw.uniform(0, 10)) for _ in range(draw.randint(1, 4))]
            for _ in range(draw.randint(1, 4))
        ]
        capacity = draw.randint(0, 20) * unit
        optimum = Optimum(choices, capacity)
        for left in {0, capacity // 2, capacity}:
            tried = [sum(v for _, v in some) for some in product(*choices) if sum(s for s, _ in some) <= left]
            assert optimum.value(left) == pytest.approx(max(tried, default=float("-inf")))
            if tried:
                sizes = optimum.sizes(left)
                values = [max(v for s, v in some if s == size) for some, size in zip(choices, sizes, strict=True)]
                assert sum(sizes) <= left
                assert sum(values) == pytest.approx(optimum.value(left))


def test_everybody_has_its_minimum_as_far_as_there_is_room() -> None:
    jobs = (work(4, 8, weight=0.1), work(4, 8, 12, weight=2.0), work(4, 8))
    assert best_sizes(jobs, 16) == [4, 8, 4]
    assert best_sizes(jobs, 100) == [8, 12, 8]
    # In order of submission, and who does not fit keeps nobody behind it from what is left.
    assert fitting((work(4), work(8), work(2)), 7) == [True, False, True]
    assert best_sizes((work(4), work(8), work(2)), 7) == [4, 0, 2]


def test_choices_are_sizes_between_minimum_and_maximum() -> None:
    some = Work("a", ((2, 20.0), (4, 40.0), (8, 80.0), (16, 160.0)), size_min=4, size_max=8, weight=2.0)
    assert choices_of(some, 1) == [(4, 80.0), (8, 160.0)]
    assert choices_of(some) == [(0, 0.0), (4, 80.0), (8, 160.0)]


def test_slots_are_shared_in_proportion_and_what_is_left_goes_to_who_lacks_most() -> None:
    every = work(*range(1, 17))
    assert shared_by([1.0, 1.0], (every, every), 16) == [8, 8]
    assert shared_by([3.0, 1.0], (every, every), 16) == [12, 4]
    assert shared_by([1.0, 1.0, 1.0], (every, every, every), 16) == [6, 5, 5]
    fours = work(4, 8, 12)
    assert shared_by([2.0, 1.0], (fours, fours), 16) == [12, 4]
    assert shared_by([9.0, 1.0], (every, work(4, 8)), 16) == [12, 4]
    assert shared_by([9.0, 1.0], (work(4), work(4, 8)), 16) == [4, 8]


def test_shares_fit_and_keep_minima() -> None:
    draw = Random("shares")
    for _ in range(300):
        jobs = [work(*sorted({draw.randint(1, 20) for _ in range(4)})) for _ in range(draw.randint(1, 5))]
        keys = [draw.uniform(0.1, 5) for _ in jobs]
        capacity = draw.randint(0, 60)
        sizes = shared_by(keys, jobs, capacity)
        assert sum(sizes) <= capacity
        for one, size, fits in zip(jobs, sizes, fitting(jobs, capacity), strict=True):
            assert (size > 0) == fits
            assert size in {0, *(s for s, _ in one.throughput)}
