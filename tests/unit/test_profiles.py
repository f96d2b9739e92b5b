"""Profiles: what their sources say, how they lie over one another, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from unicorn_mgr.profiles.predict import rounds, staircase
from unicorn_mgr.profiles.problem import ProfileError
from unicorn_mgr.profiles.profile import Entry, Profile, combined, given, overlaid, predicted, proportional
from unicorn_mgr.profiles.shape import ModelShape
from unicorn_mgr.profiles.sizes import Sizes, sizes_of, smallest

SEVEN_B = ModelShape(parameters=7e9, sequence_length=4096, global_batch=64, device="A100")
TABLES = st.dictionaries(st.integers(1, 64), st.floats(1e9, 1e18), min_size=1, max_size=8)


def table(values: dict[int, float]) -> Profile:
    return Profile({size: Entry(flops, "given") for size, flops in values.items()})


# -- the staircase --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "turns", "busy"), [(1, 12, 1), (2, 6, 2), (5, 3, 4), (6, 2, 6), (7, 2, 6), (11, 2, 6), (12, 1, 12)]
)
def test_replicas_work_in_rounds(replicas: int, turns: int, busy: float) -> None:
    assert rounds(12, replicas) == turns
    assert staircase(12, replicas) == pytest.approx(busy)


@each(st.integers(1, 5000), st.integers(1, 5000))
def test_the_staircase_rises_where_a_round_falls_away_and_only_there(micro_batches: int, replicas: int) -> None:
    here, next_one = staircase(micro_batches, replicas), staircase(micro_batches, replicas + 1)
    assert here <= min(replicas, micro_batches)
    saved = rounds(micro_batches, replicas) > rounds(micro_batches, replicas + 1)
    assert (next_one > here) == saved


def test_without_a_model_slots_count_as_far_as_micro_batches_keep_them_busy() -> None:
    profile = proportional(6, Sizes(replica=2), 14, flops_per_slot=10.0)
    assert {size: profile.at(size) for size in profile.sizes} == pytest.approx(
        {2: 20, 4: 40, 6: 60, 8: 60, 10: 60, 12: 120, 14: 120}
    )


# -- a profile ------------------------------------------------------------------------------


def test_a_size_the_job_may_not_have_does_no_work() -> None:
    profile = table({4: 40.0, 8: 80.0})
    assert (profile.at(4), profile.at(6), profile.at(0)) == (40.0, 0.0, 0.0)
    assert (profile.source(8), profile.source(6)) == ("given", None)


def test_the_best_size_is_the_smallest_with_the_most_throughput() -> None:
    profile = table({8: 80.0, 2: 20.0, 6: 80.0, 4: 40.0})
    assert profile.sizes == (2, 4, 6, 8)
    assert [profile.best(slots) for slots in (1, 2, 3, 5, 7, 100)] == [0, 2, 2, 4, 6, 6]


@each(TABLES, st.integers(0, 70))
def test_nothing_within_the_slots_is_better_than_the_best(values: dict[int, float], slots: int) -> None:
    profile = table(values)
    best = profile.best(slots)
    assert best <= slots
    assert all(profile.at(size) <= profile.at(best) for size in profile.sizes if size <= slots)


def test_a_profile_cannot_be_changed_by_who_made_it() -> None:
    entries = {4: Entry(1.0, "given")}
    profile = Profile(entries)
    entries[8] = Entry(2.0, "given")
    assert profile.sizes == (4,)


# -- one over another -----------------------------------------------------------------------


def test_what_is_measured_wins_and_scales_the_rest_by_the_nearest_size_known() -> None:
    measured = Profile({2: Entry(30.0, "measured"), 16: Entry(80.0, "measured")})
    model = Profile({size: Entry(10.0 * size, "predicted") for size in (2, 4, 8, 16, 32)})
    both = combined([measured, model])
    # Twice as fast as foretold is 1.5 at 2 and 0.5 at 16; 4 is nearer to 2 as ratios go, 8 to 16.
    assert {size: both.at(size) for size in both.sizes} == pytest.approx({2: 30, 4: 60, 8: 40, 16: 80, 32: 160})
    assert [both.source(size) for size in both.sizes] == [
        "measured",
        "predicted",
        "predicted",
        "measured",
        "predicted",
    ]


def test_three_sources_take_their_turns() -> None:
    measured = Profile({8: Entry(90.0, "measured")})
    told = table({4: 40.0, 8: 60.0})
    model = Profile({size: Entry(100.0 * size, "predicted") for size in (2, 4, 8)})
    both = combined([measured, told, model])
    assert {size: both.at(size) for size in both.sizes} == pytest.approx({2: 30, 4: 60, 8: 90})
    assert [both.source(size) for size in both.sizes] == ["predicted", "given", "measured"]


def test_nothing_known_is_an_empty_profile() -> None:
    assert combined([]).sizes == ()
    assert combined([Profile({}), table({2: 5.0})]).at(2) == 5.0


@each(TABLES, TABLES)
def test_the_better_source_is_never_changed(better: dict[int, float], base: dict[int, float]) -> None:
    both = overlaid(table(better), table(base))
    assert {size: both.at(size) for size in better} == better
    assert set(both.sizes) == {*better, *base}


@each(TABLES, st.floats(0.1, 10.0))
def test_a_job_that_is_faster_everywhere_is_known_from_one_measurement(base: dict[int, float], times: float) -> None:
    size = min(base)
    both = overlaid(Profile({size: Entry(base[size] * times, "measured")}), table(base))
    assert {s: both.at(s) for s in base} == pytest.approx({s: v * times for s, v in base.items()})


# -- a user's table -------------------------------------------------------------------------


def test_a_table_in_tokens_is_kept_in_flops() -> None:
    assert given({8: 1000.0}, Sizes(replica=8), flops_per_unit=42e9).at(8) == 42e12


def test_a_partial_table_is_filled_by_a_prediction() -> None:
    sizes = Sizes(replica=8, maximum=32)
    told = given({8: 1e15}, sizes, partial=True)
    both = combined([told, predicted(SEVEN_B, sizes, 32)])
    assert both.sizes == (8, 16, 24, 32)
    assert both.at(8) == 1e15
    assert 1.8e15 < both.at(16) < 2e15


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "throughput: the table is empty: want slots and throughput, such as {8: 3.2e15}"),
        ({4: 1.0, 8: math.nan}, r"throughput\[8\]: nan: want a number above 0"),
        ({4: -1.0}, r"throughput\[4\]: -1.0: want a number above 0"),
        ({4: 0}, r"throughput\[4\]: 0: want a number above 0"),
        ({4: math.inf}, r"throughput\[4\]: inf: want a number above 0"),
        ({6: 1.0}, "throughput: 6 slots are not allowed: take them out; sizes are multiples of 4 from 4 to 24"),
        ({4: 1.0, 12: 3.0}, r"throughput: nothing for 8 slots: add them, or set sizes: \[4, 12\]"),
        ({24: 3.0}, r"throughput: nothing for 4, 8, 12 and 2 more slots: add them, or set sizes: \[24\]"),
        ({4: 2.0, 8: 1.5}, r"throughput\[8\]: 1.5 is less than 2 with 4 slots: want at least that, or 8 left out"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_one_line(values: dict[int, float], said: str) -> None:
    with pytest.raises(ProfileError, match=said) as caught:
        given(values, Sizes(replica=4, minimum=4, maximum=24))
    assert "\n" not in str(caught.value)


# -- sizes ----------------------------------------------------------------------------------


def test_sizes_are_whole_replicas_within_the_limits() -> None:
    assert Sizes(replica=4, minimum=6, maximum=18).up_to(100) == (8, 12, 16)
    assert Sizes(replica=4, minimum=6).up_to(13) == (8, 12)
    assert Sizes(replica=2, listed=(8, 2, 8)).up_to(7) == (2,)
    assert [size in Sizes(replica=2, listed=(8, 2)) for size in (2, 4, 8)] == [True, False, True]


@each(st.integers(1, 16), st.integers(1, 64), st.integers(0, 200))
def test_what_is_listed_is_what_is_contained(replica: int, minimum: int, slots: int) -> None:
    sizes = Sizes(replica=replica, minimum=minimum)
    assert sizes.up_to(slots) == tuple(size for size in range(1, slots + 1) if size in sizes)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"replica": 0}, "replica_size: 0: want a whole number, 1 or more"),
        ({"minimum": 8, "maximum": 4}, "max: 4 is below min, 8: want at least as many"),
        (
            {"replica": 8, "minimum": 9, "maximum": 15},
            "max: no multiple of replica_size 8 lies between min 9 and max 15",
        ),
        ({"replica": 4, "listed": (4, 6)}, "sizes: 6: want multiples of 4 from 1 on"),
        ({"listed": ()}, "sizes: the list is empty"),
    ],
)
def test_limits_that_leave_no_size_are_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        Sizes(**limits)


# -- memory ---------------------------------------------------------------------------------


def test_a_sharded_model_needs_so_many_devices_that_its_state_fits() -> None:
    """Weights, gradients and Adam of 7e9 parameters are 126 GB; A100s hold 74 of 80 GB."""
    shape = ModelShape(
        parameters=7e9, sequence_length=2048, global_batch=64, device="A100", sharding="full", recompute=True
    )
    assert smallest(shape) == 2
    assert not shape.fits(1)
    assert shape.fits(2)


def test_a_model_that_is_cut_too_little_says_how_to_cut_it() -> None:
    shape = ModelShape(parameters=175e9, sequence_length=2048, global_batch=64, device="A100", recompute=True)
    with pytest.raises(
        ProfileError, match=r"do not fit on A100 with tensor_parallel 1, .* want tensor_parallel 8, pipe"
    ):
        smallest(shape)


def test_the_sizes_of_a_model_go_from_its_memory_to_its_micro_batches() -> None:
    shape = ModelShape(
        parameters=7e9, sequence_length=2048, global_batch=6, device="A100", sharding="full", recompute=True
    )
    assert sizes_of(shape).up_to(100) == (2, 3, 4, 5, 6)
    assert sizes_of(shape, minimum=3, maximum=5).up_to(100) == (3, 4, 5)
    assert sizes_of(shape, listed=(1, 4, 8)).up_to(100) == (4,)
    with pytest.raises(ProfileError, match="min: 7 slots are more than 6 micro-batches keep busy, 6"):
        sizes_of(shape, minimum=7)
    with pytest.raises(ProfileError, match="max: 1 slots do not hold the model, 2 do: want max 2 or more"):
        sizes_of(shape, maximum=1)
    with pytest.raises(ProfileError, match="sizes: none of 8, 16 is within 2 to 6"):
        sizes_of(shape, listed=(8, 16))
