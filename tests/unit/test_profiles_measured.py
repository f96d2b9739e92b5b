"""Measured throughput: unmoved by outliers, sure of as much as it has seen, kept as plain data."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from unicorn_mgr.profiles.measured import ENOUGH, WINDOW, Estimate, Measured, departs, restored
from unicorn_mgr.profiles.problem import ProfileError
from unicorn_mgr.profiles.profile import Entry, Profile
from unicorn_mgr.profiles.sizes import Sizes


def seen(samples: list[float], size: int = 8) -> Measured:
    measured = Measured()
    for seconds in samples:
        measured.add(size, seconds)
    return measured


def value(measured: Measured, size: int = 8) -> Estimate:
    found = measured.step_seconds(size)
    assert found is not None
    return found


def test_few_steps_say_nothing() -> None:
    assert seen([2.0] * (ENOUGH - 1)).step_seconds(8) is None
    assert value(seen([2.0] * ENOUGH)) == Estimate(2.0, 0.0)
    assert seen([2.0] * ENOUGH).step_seconds(4) is None


def test_outliers_do_not_move_it() -> None:
    chance = random.Random(7)
    steps = [chance.gauss(2.0, 0.02) for _ in range(WINDOW)]
    for at in range(0, WINDOW, 5):
        steps[at] = 30.0
    found = value(seen(steps))
    assert found.value == pytest.approx(2.0, rel=0.02)
    assert found.error < 0.05


@each(st.lists(st.floats(0.9, 1.1), min_size=20, max_size=40), st.lists(st.floats(0.001, 1e6), max_size=9))
def test_a_minority_of_wild_steps_leaves_it_among_the_others(usual: list[float], wild: list[float]) -> None:
    assert min(usual) <= value(seen(usual + wild)).value <= max(usual)


def test_the_error_covers_the_truth_nineteen_times_out_of_twenty() -> None:
    chance = random.Random(3)
    covered = 0
    for _ in range(200):
        found = value(seen([chance.lognormvariate(0.0, 0.2) for _ in range(30)]))
        covered += found.value / (1 + found.error) <= 1.0 <= found.value * (1 + found.error)
    assert 184 <= covered < 200


def test_only_the_newest_steps_count() -> None:
    assert value(seen([9.0] * 500 + [1.0] * WINDOW)).value == 1.0


@pytest.mark.parametrize("nonsense", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_duration_is_not_counted(nonsense: float) -> None:
    assert seen([nonsense] * 20).plain() == {}


def test_the_profile_has_the_sizes_that_are_known_and_allowed() -> None:
    measured = Measured()
    for size, seconds in ((4, 2.0), (8, 1.0), (6, 1.5)):
        for _ in range(ENOUGH):
            measured.add(size, seconds)
    measured.add(16, 0.5)
    profile = measured.profile(Sizes(replica=4), work=100.0)
    assert {size: profile.at(size) for size in profile.sizes} == {4: 50.0, 8: 100.0}
    assert profile.source(8) == "measured"


@each(st.dictionaries(st.integers(1, 99), st.lists(st.floats(1e-3, 1e3), max_size=90), max_size=4))
def test_it_survives_a_journal(samples: dict[int, list[float]]) -> None:
    measured = Measured()
    for size, seconds in samples.items():
        for one in seconds:
            measured.add(size, one)
    again = restored(json.loads(json.dumps(measured.plain())))
    assert again.plain() == measured.plain()
    assert all(again.step_seconds(size) == measured.step_seconds(size) for size in samples)


def test_a_journal_of_something_else_is_refused() -> None:
    with pytest.raises(ProfileError, match="measured: 'eight' is no number of slots"):
        restored({"eight": [1.0]})


PROMISED = Profile({8: Entry(100.0, "predicted")})


@pytest.mark.parametrize(
    ("measured", "error", "departed"),
    [(100, 0.0, False), (95, 0.0, False), (85, 0.0, True), (85, 0.1, False), (70, 0.1, True), (115, 0.0, True)],
)
def test_a_departure_is_more_than_the_tolerance_and_the_error(measured: float, error: float, departed: bool) -> None:
    assert departs(PROMISED, 8, Estimate(measured, error)) is departed


def test_a_size_without_a_promise_departs_from_nothing() -> None:
    assert not departs(PROMISED, 4, Estimate(1.0, 0.0))
