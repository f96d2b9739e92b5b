"""What the workers of a replica share: places, rounds, and what all of them hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.model import NO_STATE, Holdings
from unicorn_mgr.transition.deal import merged
from unicorn_mgr.worker.shares import Owners, Turn, turns
from unicorn_mgr.worker.siblings import place_of


def test_workers_along_a_data_axis_take_different_micro_batches_and_others_the_same() -> None:
    places = [place_of({"shard": 2, "tensor": 2}, position) for position in range(4)]
    assert [(p.coordinate, p.width, p.speaks) for p in places] == [
        (0, 2, True),
        (0, 2, False),
        (1, 2, True),
        (1, 2, False),
    ]
    assert place_of({"shard": 3}, 2).coordinate == 2
    assert place_of({}, 0).size == 1


@given(st.lists(st.integers(0, 50), unique=True), st.integers(1, 5))
def test_each_number_counts_once_and_all_make_as_many_rounds(numbers: list[int], width: int) -> None:
    mine = [turns(numbers, width, coordinate) for coordinate in range(width)]
    assert len({len(t) for t in mine}) == 1
    assert sorted(turn.number for t in mine for turn in t if turn.counts) == sorted(numbers)
    for together in zip(*mine, strict=True):
        assert len({turn.round for turn in together}) == 1
        assert all(turn.number in turn.round for turn in together)
    assert [n for turn in mine[0] for n in turn.round] == numbers


def test_a_short_round_is_filled_up_without_weight() -> None:
    assert list(turns([4, 7, 9], 2, 1)) == [Turn(7, (4, 7)), Turn(9, (9,), counts=False)]


@pytest.mark.parametrize(
    ("left", "recomputed", "lost"),
    [((), [1, 2, 4, 5], True), (("b",), [2, 5], True), (("b", "c"), [], False)],
)
def test_what_was_to_be_made_by_who_has_left_is_not_lost(
    left: tuple[str, ...], recomputed: list[int], lost: bool
) -> None:
    owners = Owners()
    owners.deal_evenly(("a", "b", "c"), 6)
    mine = [1, 2, 4, 5]
    assert owners.redeal(("a", *left), {"a": (0, 3)}, {"a": mine}, mine) == (recomputed, lost)
    assert owners.redeal(("a",), {"a": (0, 3)}, {"a": mine}, mine) == ([], False), "they are another's now"


def test_a_replica_holds_what_all_its_workers_do() -> None:
    one = Holdings(3, (0, 1), (True, True, False), (True, True, True))
    other = Holdings(3, (0, 1), (True, False, False), (True, True, False))
    assert merged([one, other]) == Holdings(3, (0, 1), (True, False, False), (True, True, False))
    assert merged([one]) == one


@pytest.mark.parametrize(
    "other",
    [Holdings(4, (0, 1), (True,)), Holdings(3, (0,), (True,)), Holdings(3, (0, 1)), Holdings(NO_STATE)],
)
def test_workers_that_differ_hold_nothing(other: Holdings) -> None:
    """A state has reached one of them and not the other."""
    assert merged([Holdings(3, (0, 1), (True,)), other]) == Holdings(NO_STATE)
