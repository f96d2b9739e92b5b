"""What would be planned if something were otherwise."""

from __future__ import annotations

import pytest
from unit.test_core_planning import Planned

from unicorn_mgr.coordinator.admission import Rejected
from unicorn_mgr.coordinator.whatif import compared, what_if
from unicorn_mgr.messages import PlannedJob, WhatIfRequest
from unicorn_mgr.planner.planner import plan

SLOT = 1e12


@pytest.fixture
def world() -> Planned:
    """Four slots: two of a job of weight 2, two of one of weight 1."""
    made = Planned(nodes=4)
    made.train_planned("heavy", 1, 2, weight=2.0)
    made.train_planned("light", 1, 2)
    return made


def asked(world: Planned, *changes: str) -> dict[str, PlannedJob]:
    present, changed = what_if(world.state, world.settings, WhatIfRequest(changes))
    return {j.job: j for j in compared(present, changed, plan(changed)).jobs}


def test_a_lost_node_is_made_up_for_by_the_lighter_job(world: Planned) -> None:
    lost = world.job("heavy").seats[0][0]
    jobs = asked(world, f"lose {lost}")
    assert [(j.job, j.size_before, j.size_after) for j in jobs.values()] == [("heavy", 2, 2), ("light", 2, 1)]
    assert [j.flops_before for j in jobs.values()] == pytest.approx([4 * SLOT, 2 * SLOT])
    assert [j.flops_after for j in jobs.values()] == pytest.approx([4 * SLOT, 1 * SLOT])
    assert jobs["heavy"].reason == "gets 1 slot from light: +2 weighted slots; all it wants"
    assert not any(j.rated for j in jobs.values())


def test_another_weight_alone_makes_nothing_more(world: Planned) -> None:
    heavy = asked(world, "job heavy weight=5")["heavy"]
    assert (heavy.flops_before, heavy.flops_after) == pytest.approx((10 * SLOT, 10 * SLOT))


def test_new_slots_are_for_whoever_can_use_them() -> None:
    """Also for a job that could use more than there were."""
    world = Planned(nodes=2)
    world.train_planned("wide", 1, 8)
    assert asked(world, "add 4 slots")["wide"].size_after == 6


def test_several_changes_are_taken_together(world: Planned) -> None:
    jobs = asked(world, "end heavy", "job light max=8", "add 3 slots")
    assert (jobs["light"].size_after, jobs["heavy"].size_after) == (7, 0)
    assert jobs["heavy"].reason == "it has ended"


@pytest.mark.parametrize(
    "change", ["", "lose", "lose nobody", "add 0 slots", "job light colour=2", "job light weight=-1"]
)
def test_what_names_nothing_is_refused_and_changes_nothing(world: Planned, change: str) -> None:
    before = repr(world.state)
    with pytest.raises(Rejected):
        asked(world, change)
    assert repr(world.state) == before
