"""What one incarnation of an agent keeps for the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicorn_mgr.agent.cutoff import keep, recall
from unicorn_mgr.effects.agent import CutOff


def test_what_was_kept_last_is_recalled(tmp_path: Path) -> None:
    assert recall(tmp_path) is None
    for found in (CutOff(100.5, 30.0, frozen=True), CutOff(None, 120.0)):
        keep(tmp_path, found)
        assert recall(tmp_path) == found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"until": 1}'])
def test_what_can_not_be_read_is_as_if_nothing_were_kept(tmp_path: Path, text: str) -> None:
    keep(tmp_path, CutOff(1.0))
    (kept,) = tmp_path.iterdir()
    kept.write_text(text)
    assert recall(tmp_path) is None


def test_a_place_that_can_not_be_written_is_survived(tmp_path: Path) -> None:
    keep(tmp_path / "gone", CutOff(1.0))
    assert recall(tmp_path / "gone") is None
