"""Sizes: brute force = dynamic programme = integer programme = the reduced one; bounds bound, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner.oracles import PATIENT, brute_force, dynamic_programme, knapsacks

from unicorn_mgr.planner import core, ilp
from unicorn_mgr.planner.knapsack import (
    Choice,
    Knapsack,
    Sizing,
    climbed,
    improved,
    nets,
    reduced,
    relaxation,
    repaired,
    undominated,
)
from unicorn_mgr.planner.sizing import sized

CLOSE = 1e-6
"""What sums of floats and a solver's tolerance differ by, of values up to thousands."""


def lightest(knapsack: Knapsack) -> tuple[int, ...]:
    return tuple(sizes.index(min(sizes)) for sizes in ([c.size for c in choices] for choices in knapsack.jobs))


def solved(knapsack: Knapsack, *, by_core: bool = True) -> Sizing:
    return sized(knapsack, 10.0, "cbc", lightest(knapsack), by_core=by_core)


def never() -> bool:
    return False


# -- all say the same -----------------------------------------------------------------------


@given(knapsacks())
@settings(max_examples=150)
def test_the_dynamic_programme_finds_what_brute_force_finds(knapsack: Knapsack) -> None:
    assert dynamic_programme(knapsack) == pytest.approx(brute_force(knapsack), abs=CLOSE)


@pytest.mark.parametrize("by_core", [True, False])
@given(knapsack=knapsacks())
@settings(max_examples=60, deadline=None)
def test_the_planner_finds_what_brute_force_finds(by_core: bool, knapsack: Knapsack) -> None:
    sizing = solved(knapsack, by_core=by_core)
    assert sizing.proven
    assert sizing.bound == pytest.approx(sizing.value, abs=CLOSE)
    assert knapsack.fits(sizing.chosen)
    assert sizing.value == pytest.approx(brute_force(knapsack), abs=CLOSE)


@given(knapsacks(rows=3, jobs_max=3))
@settings(max_examples=40, deadline=None)
def test_it_does_so_with_several_capacities(knapsack: Knapsack) -> None:
    sizing = solved(knapsack)
    assert knapsack.fits(sizing.chosen)
    assert sizing.value == pytest.approx(brute_force(knapsack), abs=CLOSE)
    assert sizing.bound >= sizing.value - CLOSE


@pytest.mark.parametrize("solver", ilp.SOLVERS)
@given(knapsack=knapsacks())
@settings(max_examples=30, deadline=None)
def test_the_whole_integer_programme_finds_it_too(solver: str, knapsack: Knapsack) -> None:
    found = ilp.best_sizes(knapsack, PATIENT, solver)
    assert found.proven
    assert knapsack.value(found.chosen) == pytest.approx(brute_force(knapsack), abs=CLOSE)


def test_cbc_does_not_take_its_parallel_code(tmp_path: Path) -> None:
    """In which it sometimes stands still for ten seconds, whatever its limit."""
    solver, log = ilp._solver("cbc", 10.0), tmp_path / "log"
    solver.optionsDict["logPath"] = str(log)
    programme = pulp.LpProblem("three_things", pulp.LpMaximize)
    taken = [programme.add_variable(f"y{i}", 0, 1, pulp.LpBinary) for i in range(3)]
    programme.setObjective(3 * taken[0] + 4 * taken[1] + 5 * taken[2])
    programme.addConstraint(2 * taken[0] + 3 * taken[1] + 4 * taken[2] <= 5)
    programme.solve(solver)
    assert [y.value() for y in taken] == [1.0, 1.0, 0.0]
    assert "Optimal solution found" in log.read_text()
    assert "Thread" not in log.read_text()


@given(knapsacks(jobs_max=30, size_max=12), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_the_core_finds_the_best_or_that_nothing_is_better(knapsack: Knapsack, share: float) -> None:
    best = dynamic_programme(knapsack)
    relaxed, chosen = climbed(knapsack)
    value = knapsack.value(chosen)
    known = value + share * (best - value)
    found = core.best_of(knapsack, relaxed, known, never)
    if found is None:
        assert known == pytest.approx(best, abs=CLOSE)
    else:
        assert knapsack.fits(found)
        assert knapsack.value(found) == pytest.approx(best, abs=CLOSE)


# -- bounds and reduction -------------------------------------------------------------------


@given(knapsacks())
def test_climbing_finds_a_bound_and_an_allocation_that_fits(knapsack: Knapsack) -> None:
    relaxed, chosen = climbed(knapsack)
    assert knapsack.fits(chosen)
    assert knapsack.value(chosen) - CLOSE <= brute_force(knapsack) <= relaxed.bound + CLOSE


@given(knapsacks(), st.floats(0, 100))
def test_any_price_bounds_and_climbings_bounds_best(knapsack: Knapsack, price: float) -> None:
    assert climbed(knapsack)[0].bound <= relaxation(knapsack, (price,)).bound + CLOSE


@given(knapsacks())
def test_value_is_the_bound_less_losses_and_what_is_left_over(knapsack: Knapsack) -> None:
    relaxed, chosen = climbed(knapsack)
    (price,), (left,) = relaxed.prices, knapsack.left(chosen)
    losses = sum(
        max(nets(choices, relaxed.prices)) - nets(choices, relaxed.prices)[i]
        for choices, i in zip(knapsack.jobs, chosen, strict=True)
    )
    assert knapsack.value(chosen) == pytest.approx(relaxed.bound - losses - price * left, abs=CLOSE)


@given(knapsacks())
def test_reduction_leaves_the_best_in(knapsack: Knapsack) -> None:
    relaxed, chosen = climbed(knapsack)
    part, indices = reduced(knapsack, relaxed, knapsack.value(chosen))
    assert brute_force(part) == pytest.approx(brute_force(knapsack), abs=CLOSE)
    for choices, kept, mine in zip(knapsack.jobs, indices, part.jobs, strict=True):
        assert tuple(choices[i] for i in kept) == mine


@given(st.lists(st.builds(Choice, st.integers(0, 9), st.integers(-9, 9).map(float), st.just((0,))), min_size=1))
def test_dominance_leaves_the_best_of_every_size_in(choices: list[Choice]) -> None:
    kept = undominated(choices)
    for slots in range(10):
        before = max((c.value for c in choices if c.size <= slots), default=None)
        assert max((c.value for c in kept if c.size <= slots), default=None) == before
    values = [c.value for c in kept]
    assert values == sorted(set(values)), "size and value rise together"


@given(knapsacks(), knapsacks(rows=2))
def test_improving_never_makes_worse_and_always_fits(one: Knapsack, two: Knapsack) -> None:
    for knapsack in (one, two):
        start = lightest(knapsack)
        better = improved(knapsack, start, never)
        assert knapsack.fits(better)
        assert knapsack.value(better) >= knapsack.value(start)


@given(knapsacks(rows=2), st.data())
def test_repairing_ends_with_an_allocation_that_fits_or_with_none(knapsack: Knapsack, data: st.DataObject) -> None:
    chosen = [data.draw(st.integers(0, len(c) - 1)) for c in knapsack.jobs]
    fitting = repaired(knapsack, chosen, (1.0, 1.0), never)
    assert fitting is None or knapsack.fits(fitting)
    if knapsack.fits(chosen):
        assert fitting == chosen


# -- what a planner must keep to ------------------------------------------------------------


@given(knapsacks(), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_more_slots_are_never_worth_less(knapsack: Knapsack, more: int) -> None:
    larger = replace(knapsack, capacities=(knapsack.capacities[0] + more,))
    assert solved(larger).value >= solved(knapsack).value - CLOSE


@given(knapsacks(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_jobs_does_not_matter(knapsack: Knapsack, random: Random) -> None:
    jobs = list(knapsack.jobs)
    random.shuffle(jobs)
    assert solved(replace(knapsack, jobs=tuple(jobs))).value == pytest.approx(solved(knapsack).value, abs=CLOSE)


# -- no time, no solver ---------------------------------------------------------------------


@given(knapsacks(jobs_max=4), st.integers(0, 12))
def test_whatever_the_time_the_answer_fits_and_its_gap_is_no_less_than_the_true_one(
    knapsack: Knapsack, ticks: int
) -> None:
    clock = count(0)
    sizing = sized(knapsack, ticks / 100, "cbc", clock=lambda: next(clock) / 100)
    best = brute_force(knapsack)
    assert knapsack.fits(sizing.chosen)
    assert sizing.bound >= best - CLOSE
    assert sizing.bound - sizing.value >= best - sizing.value - CLOSE
    if sizing.proven:
        assert sizing.value == pytest.approx(best, abs=CLOSE)


HARD = Knapsack(((Choice(0, 0.0), Choice(3, 5.0)), (Choice(0, 0.0), Choice(3, 4.0), Choice(4, 6.0))), (6,))
"""The bound is above what is possible, so that a solver is asked."""


@pytest.mark.parametrize(
    "failure",
    [ilp.SolverFailed("cbc: it crashed"), ilp.Infeasible("cbc: infeasible"), ilp.SolverFailed("no such file")],
)
def test_a_solver_that_fails_leaves_a_certified_answer(
    failure: ilp.SolverFailed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> ilp.Found:
        raise failure

    monkeypatch.setattr(ilp, "best_sizes", fails)
    sizing = solved(HARD, by_core=False)
    assert not sizing.proven
    assert sizing.solver == "greedy"
    assert sizing.note
    assert HARD.fits(sizing.chosen)
    assert sizing.bound >= brute_force(HARD)


def test_a_solver_that_answers_what_does_not_fit_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lies(knapsack: Knapsack, *_: object) -> ilp.Found:
        return ilp.Found(tuple(len(c) - 1 for c in knapsack.jobs), proven=False)

    monkeypatch.setattr(ilp, "best_sizes", lies)
    sizing = solved(HARD, by_core=False)
    assert HARD.fits(sizing.chosen)
    assert not sizing.proven


def test_no_solver_is_needed_where_the_core_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> ilp.Found:
        raise AssertionError("it was asked")

    monkeypatch.setattr(ilp, "best_sizes", fails)
    sizing = solved(HARD)
    assert sizing.proven
    assert sizing.solver == "core"
    assert sizing.value == brute_force(HARD)


def test_a_core_that_grows_too_large_leaves_it_to_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "STEPS_MAX", 1)
    sizing = solved(HARD)
    assert sizing.proven
    assert sizing.solver == "cbc"
    assert sizing.value == pytest.approx(brute_force(HARD))


def test_a_core_stops_when_the_time_is_up() -> None:
    relaxed, chosen = climbed(HARD)
    with pytest.raises(core.TooLarge):
        core.best_of(HARD, relaxed, HARD.value(chosen), lambda: True)


def test_a_missing_solver_is_named() -> None:
    with pytest.raises(ilp.SolverFailed, match="nosuch"):
        ilp.best_sizes(HARD, PATIENT, "nosuch")


def test_the_solver_in_use_is_there() -> None:
    assert "cbc" in ilp.available()
