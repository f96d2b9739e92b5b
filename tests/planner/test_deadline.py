"""One limit for all of a plan: after it nothing more is begun, and what is answered is certified all the same.

The clock goes on by one whenever somebody looks at it, or with each piece of work, so the tests are the same on every
machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.oracles import brute_force, check, knapsacks, problems

from unicorn_mgr.planner import core, ilp, knapsack, placement, prices
from unicorn_mgr.planner.choices import sizes_of
from unicorn_mgr.planner.knapsack import Knapsack
from unicorn_mgr.planner.planner import _fitted, plan
from unicorn_mgr.planner.problem import Demand, Node, Problem
from unicorn_mgr.planner.sizing import bounded, sized

CLOSE = 1e-6
LOOKS_AFTER_MAX = 12
"""Who calls whom while time is up: each looks once, and begins nothing."""


@dataclass(slots=True)
class Looks:
    """A clock that counts the looks at it."""

    seen: int = 0

    def __call__(self) -> float:
        self.seen += 1
        return float(self.seen)


def lightest(knapsack: Knapsack) -> tuple[int, ...]:
    return tuple(sizes.index(min(sizes)) for sizes in ([c.size for c in choices] for choices in knapsack.jobs))


@given(st.one_of(knapsacks(jobs_max=4), knapsacks(rows=3, jobs_max=3)), st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_sizes_end_when_the_time_is_up_and_their_gap_is_no_less_than_the_true_one(
    knapsack: Knapsack, limit: int
) -> None:
    clock = Looks()
    found = sized(knapsack, float(limit), "cbc", lightest(knapsack), clock)
    assert clock.seen <= limit + 1 + LOOKS_AFTER_MAX
    best = brute_force(knapsack)
    assert knapsack.fits(found.chosen)
    assert found.bound >= best - CLOSE
    assert found.value == pytest.approx(knapsack.value(found.chosen))
    assert not found.proven or found.value == pytest.approx(best, abs=CLOSE)


@given(problems(), st.integers(0, 200))
@settings(max_examples=100, deadline=None)
def test_plans_end_when_the_time_is_up_and_can_be_applied(problem: Problem, limit: int) -> None:
    clock = Looks()
    made = plan(problem, float(limit), clock=clock)
    assert clock.seen <= limit + 4 + LOOKS_AFTER_MAX
    check(problem, made)
    best = brute_force(sizes_of(problem).knapsack)
    assert made.bound >= best - CLOSE * max(1.0, abs(best))


@given(problems(), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_more_time_is_never_worth_less(problem: Problem, limit: int) -> None:
    soon, late = (plan(problem, float(seconds), clock=Looks()) for seconds in (0, limit))
    assert late.value >= soon.value - CLOSE * max(1.0, abs(soon.value))
    assert late.bound <= soon.bound + CLOSE * max(1.0, abs(soon.bound))


def cluster(devices: str, replicas: int) -> Problem:
    """Jobs that want more than there is, on nodes of seven slots."""
    rates = {device: 1.0 + 0.7 * i for i, device in enumerate(devices)}
    stairs = {d: tuple((s, 840 / -(-840 // s) * f) for s in range(1, 61)) for d, f in rates.items()}
    return Problem(
        tuple(Node(f"n{i:02d}", tuple(range(7)), device=devices[i % len(devices)]) for i in range(24)),
        tuple(
            Demand(f"j{i}", 2, 60, weight=1.0 + i / 7, throughput=stairs, replica=1 + i % replicas) for i in range(12)
        ),
    )


@dataclass(slots=True)
class Work:
    """A clock that goes on by one with each piece of work, and not while nobody works."""

    done: int = 0

    def __call__(self) -> float:
        return float(self.done)

    def counted(self, patch: pytest.MonkeyPatch, module: object, name: str) -> None:
        work = getattr(module, name)

        def counting(*given: object, **named: object) -> object:
            self.done += 1
            return work(*given, **named)

        patch.setattr(module, name, counting)


BETWEEN_LOOKS_MAX = 20
"""Pieces of work: a line search along one direction; a job's or a programme's few."""


@pytest.mark.parametrize("problem", [cluster("a", 1), cluster("a", 3), cluster("abc", 3)], ids=["one", "wide", "mixed"])
def test_no_more_is_done_than_the_time_allows_or_the_first_plan_needs(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Work()
    for module, name in (
        (prices._Dual, "_at"),
        (knapsack, "take"),
        (core._Search, "_extended"),
        (ilp.Programme, "hurry"),
        (pulp, "COIN_CMD"),
        (placement, "_grown"),
    ):
        clock.counted(monkeypatch, module, name)
    sizes = sizes_of(problem)
    _, sizing = bounded(sizes.knapsack, sizes.least)
    _fitted(problem, sizes, sizing.picked(sizes.knapsack))
    least = clock.done
    for limit in range(0, 450, 10):
        clock.done = 0
        made = plan(problem, float(limit), clock=clock)
        check(problem, made)
        assert clock.done <= max(least, limit) + BETWEEN_LOOKS_MAX
        assert limit or not made.proven, "it is a problem for which there is more to do"
