"""The coordinator's core: how long a failure lasts, and what of it is lost."""

from __future__ import annotations

import pytest
from unit.world import World

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.record_incidents import seconds_of
from unicorn_mgr.effects import coordinator as e


def test_the_phases_of_an_incident_add_up(world: World) -> None:
    world.train(size=2)
    world.die("gpt/1.0")
    world.wait(0.02)
    epoch = world.job().epoch
    world.wait(0.3)
    world.tell(e.GroupFormed("gpt", epoch))
    world.wait(0.5)
    told = m.Resumed(epoch, 5, fence_seconds=9.0, regroup_seconds=0.1, restore_seconds=0.2, recompute_seconds=0.2)
    world.tell(e.WorkerTold("gpt/0.0", told))
    world.wait(2.0)
    world.begin_all()
    world.resume(step=6)
    seconds = seconds_of(world.incident(), world.now)
    spent = {"regroup": 0.1, "restore": 0.2, "recompute": 0.2}
    phases = {"detect": 0.0, "settle": 0.02, "fence": 0.3, **spent, "total": 0.82, "resize": 2.0}
    assert {phase: of for phase, of in seconds.items() if of or phase in phases} == pytest.approx(phases)


def test_a_job_is_down_from_its_first_failure_on(world: World) -> None:
    world.train()
    began = world.now
    world.die("gpt/0.0")
    world.wait(0.01)
    world.die("gpt/1.0")
    assert world.job().down_since == began


def test_nobody_waits_for_full_size_any_more_when_the_loop_has_ended(world: World) -> None:
    world.train()
    world.die("gpt/1.0")
    world.wait(0.02)
    world.resume(step=5)
    assert world.incident().open
    assert e.IncidentClosed("inc-1", "the loop has ended") in world.tell(e.WorkerTold("gpt/0.0", m.LoopEnded(9)))


def test_what_happens_before_a_job_has_begun_holds_nothing_up(world: World) -> None:
    world.submit()
    world.begin("gpt/0.0")
    world.tell(e.WorkerStarted("gpt/1.0", 4000), e.WorkerAttached("gpt/1.0"))
    world.die("gpt/1.0")
    assert world.incident().worker == "gpt/1.0"
    assert world.job().down_since is None
