"""The frozen ranges of costs: complete, ordered, and each with its source."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from unicorn_mgr.simulator import costs
from unicorn_mgr.simulator.costs import Costs


def test_the_file_has_every_field_and_nothing_else() -> None:
    assert list(costs.ranges()) == [field.name for field in fields(Costs)]


@pytest.mark.parametrize("name", costs.ranges())
def test_a_range_has_an_order_a_unit_and_a_source(name: str) -> None:
    found = costs.ranges()[name]
    ends = [found[level] for level in costs.LEVELS]
    assert ends == sorted(ends, reverse="bytes" in found["unit"]), "low is the favourable end"
    assert set(found) == {"unit", *costs.LEVELS, "source"}
    assert any(mark in found["source"] for mark in ("measured", "paper", "abstract", "second-hand"))


def test_an_ordinary_restart_is_the_published_one() -> None:
    mid = costs.load()
    assert (mid.timeout_seconds, mid.queue_seconds, mid.setup_seconds) == (30 * 60, 9 * 60, 14 * 60)


def test_levels_differ_and_others_are_refused() -> None:
    low, mid, high = (asdict(costs.load(level)) for level in costs.LEVELS)
    assert low != mid != high
    with pytest.raises(KeyError):
        costs.load("medium")
