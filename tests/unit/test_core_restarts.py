"""What counts as a restart: a process in place of one that failed, and no other."""

from __future__ import annotations

import pytest
from unit.test_core_gang import start
from unit.test_core_suspension import Suspending
from unit.world import World

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.views import job_view
from unicorn_mgr.effects import coordinator as e


def restarts(world: World, job: str = "gpt") -> int:
    return job_view(world.state, Liveness(world.settings), world.job(job), world.now).restarts


def test_a_process_in_place_of_a_killed_one_does(world: World) -> None:
    world.train()
    world.die("gpt/1.0")
    assert [o.reason for o in world.decisions(e.WorkerOrdered)] == ["replaces the one before"]
    assert (restarts(world), world.state.counters.restarts) == (1, 1)


def test_all_processes_of_a_gang_that_is_begun_anew_do(world: World) -> None:
    world.submit()
    names = start(world)
    world.tell(e.WorkerExited(m.Exited(names[1], 3)))
    world.wait(0.2)
    world.tell(*(e.WorkerExited(m.Exited(name, -15)) for name in (names[0], names[2])))
    world.wait(1.0)
    assert restarts(world) == 3


@pytest.mark.parametrize("observe", [False, True])
def test_a_planned_move_and_back_is_none(observe: bool) -> None:
    """Nor is it a failure that observe mode would leave alone."""
    world = Suspending(nodes=4)
    world.train_planned("gpt", 1, 4, observe=observe)
    for node, _ in list(world.job().seats.values())[:2]:
        world.tell(e.NodeDrained(world.request(), node))
        world.answer()
        world.settle()
    assert len(world.members()) == 2
    for drained in world.state.nodes.values():
        if drained.draining:
            world.tell(e.NodeUndrained(world.request(), drained.name))
    world.take()
    world.answer()
    assert [o.worker for o in world.decisions(e.WorkerOrdered)] == ["gpt/0.1", "gpt/1.1"]
    assert {o.reason for o in world.decisions(e.WorkerOrdered)} == {world.job().seats_reason}
    world.settle()
    assert (len(world.members()), restarts(world), world.state.counters.restarts) == (4, 0, 0)
    world.check_replay()


@pytest.mark.parametrize("observe", [False, True])
def test_a_job_that_has_waited_has_had_none(observe: bool) -> None:
    world = Suspending(nodes=6)
    world.running_low(observe=observe)
    world.submit_high()
    world.stand()
    world.store()
    world.end()
    world.settle()
    world.tell(e.JobCancelled(world.request(), "high"))
    world.end("high")
    world.answer()
    world.begin_all("low")
    world.resume("low", step=42, source="storage", restored_step=41)
    assert (len(world.members("low")), restarts(world, "low")) == (6, 0)
    world.check_replay()
