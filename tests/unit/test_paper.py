"""docs/simulation.md is what `make paper` writes: every part has its marks, and every picture its file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tools import paper
from unicorn_mgr.simulator import costs, scenario_file
from unicorn_mgr.simulator.policies.registry import POLICIES
from unicorn_mgr.simulator.study import Figures

TEXT = paper.DOCUMENT.read_text()


def lived(runs: Sequence[paper.Run]) -> list[Figures]:
    """In this process; whoever takes seconds is lived as another that does not."""
    return [paper.live(run) for run in runs]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours by name, and another's ways."""
    monkeypatch.setitem(POLICIES, "ours", POLICIES["elastic"])
    monkeypatch.setattr(paper, "OURS", "elastic")


def test_every_part_has_its_marks_and_every_mark_its_part() -> None:
    marked = re.findall(r"<!-- (\S+): written by make paper -->", TEXT)
    assert marked
    for name in marked:
        assert TEXT.count(paper.marks(name)[1]) == 1, name
    assert set(marked) <= set(paper.parts(lived, 1, paper.PLOTS))
    assert {*paper.SECTIONS, "costs", "cases", "ablation", "assumptions"} <= set(marked)


def test_every_picture_that_is_shown_is_there_and_every_one_that_is_there_is_shown() -> None:
    shown = {paper.DOCUMENT.parent / link for link in re.findall(r"!\[.*?\]\((.*?)\)", TEXT)}
    assert shown == set(paper.PLOTS.rglob("*.svg"))


def test_the_table_of_costs_is_that_of_the_file() -> None:
    begin, end = paper.marks("costs")
    assert TEXT.split(begin)[1].split(end)[0].strip() == paper.prices()
    assert all(f"`{name}`" in TEXT for name in costs.ranges())


def test_all_that_is_compared_is_there() -> None:
    for section in paper.SECTIONS.values():
        assert section.scenario in scenario_file.names()
        assert {*section.policies, *section.plotted} <= set(POLICIES)
    assert set(paper.CASES) <= set(scenario_file.names())


def test_only_what_is_between_the_marks_is_replaced() -> None:
    begin, end = paper.marks("one")
    text = f"before {begin}old{end} after"
    assert paper.replaced(text, "one", "new") == f"before {begin}\n\nnew\n\n{end} after"
    with pytest.raises(SystemExit, match=r"paper: two: simulation\.md has lost its marks"):
        paper.replaced(text, "two", "new")


@pytest.mark.usefixtures("quick")
def test_a_comparison_tells_whether_its_aim_is_reached() -> None:
    policies = ("elastic", "megatron", "nofault")
    section = paper.Section("mtbf-10min", policies, 2, 1, paper.Aim("ettr", 0.5))
    told = paper.comparison(section, lived, 10)
    assert [line.split(" | ")[0] for line in told.splitlines() if line.startswith("| ")][2:] == [
        f"| {policy}" for policy in policies
    ]
    assert "seeds: 2, 1 at the ends" in told
    assert "**Aim: ETTR of at least 50.00%.** Reached: " in told
    assert told.endswith(": met over the whole range.")
    missed = paper.comparison(replace(section, aim=paper.Aim("ratio", 1e6)), lived, 1)
    assert (
        "if nothing ever broke): not met at any point. Of single costs at their high ends these cost most: " in missed
    )


@pytest.mark.usefixtures("quick")
def test_a_picture_is_linked_from_where_it_is(tmp_path: Path) -> None:
    section = paper.Section("mtbf-10min", (), 1, 1, plotted=("elastic", "megatron"))
    links = re.findall(r"\((.*?)\)", paper.drawn(section, tmp_path / "simulation"))
    assert sorted(tmp_path / link for link in links) == sorted((tmp_path / "simulation").rglob("*.svg"))
    assert len(links) == 4
