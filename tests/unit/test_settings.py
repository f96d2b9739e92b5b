"""Numbers that contradict each other are refused when they are read, not when they hurt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from unicorn_mgr.coordinator.settings import Settings


def test_the_defaults_keep_what_is_promised() -> None:
    s = Settings()
    assert s.lease_seconds + 0.25 < 3.0, "a silent node is noticed within 3 s, by a loop that looks every 0.25 s"
    assert s.fence_seconds * 2 / 3 + s.lease_seconds < s.fence_seconds, "agents freeze before others take over"
    assert s.breaker_share == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"lease_seconds": 1.0}, "lease_seconds: 1.0 is less than two beats of 1.0 s"),
        ({"beat_seconds": 2.0}, "lease_seconds: 2.5 is less than two beats of 2.0 s"),
        ({"fence_seconds": 5.0}, "fence_seconds: 5.0 is less than three leases of 2.5 s"),
        ({"breaker_share": 0.0}, "breaker_share"),
        ({"breaker_share": 1.5}, "breaker_share"),
        ({"stall_factor": 0.5}, "stall_factor"),
        ({"poison_deaths": 0}, "poison_deaths"),
        ({"restarts_max": -1}, "restarts_max"),
        ({"settle_seconds": -0.1}, "settle_seconds"),
        ({"lease_seconds": "soon"}, "lease_seconds"),
        ({"leese_seconds": 3.0}, "leese_seconds"),
    ],
    ids=str,
)
def test_a_number_that_can_not_be_is_named(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(**values)
    assert says in str(refused.value)


def test_a_fence_of_zero_means_never() -> None:
    assert Settings(fence_seconds=0.0).fence_seconds == 0.0


@pytest.mark.parametrize("name", [n for n, f in Settings.model_fields.items() if f.annotation is float])
def test_no_duration_may_be_negative(name: str) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({name: -1.0})


def test_nothing_changes_a_setting_afterwards() -> None:
    with pytest.raises(ValidationError):
        Settings().lease_seconds = 9.0


def test_the_readme_names_settings_that_there_are() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    named = set(re.findall(r"`((?!unicorn_)(?:[a-z]+_)+(?:seconds|per_second|objective))(?:=[^`]*)?`", readme))
    assert "store_seconds" in named
    assert named <= Settings.model_fields.keys()
    assert "at most ten minutes (`store_seconds`)" in " ".join(readme.split())
    assert Settings().store_seconds == 10 * 60
