"""A real core's journal becomes a scenario: what broke, until when, and what was really done about it."""

from __future__ import annotations

from typing import Any

import pytest
from unit.world import World

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.state import ClusterState
from unicorn_mgr.coordinator.store import Entry
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.simulator.history import Doing
from unicorn_mgr.simulator.journal import LIVED, Lived, Retold, retell
from unicorn_mgr.simulator.scenario import BadScenario, Kind

HOUR = 3_600.0


def trained(nodes: int = 4, slots: int = 1, **job: Any) -> World:
    world = World(nodes, slots)
    world.train(size=nodes * slots, throughput={n: n * 1e12 for n in range(2, nodes * slots + 1)}, size_min=2, **job)
    return world


def lose(world: World, node: str) -> None:
    """It falls silent, its job waits for it, and goes on without it."""
    world.tell(e.NodeSilent(node, 3.0), e.JobHalted("gpt", 3.0))
    world.wait(world.settings.fence_seconds)
    world.regroup()


def retold(world: World) -> Retold:
    entries = [Entry(i, at, 1e9 + at, event) for i, (at, event) in enumerate(world.journal, 1)]
    return retell(ClusterState(), entries, "the journal")


def later(world: World, seconds: float, job: str = "gpt") -> None:
    """Time passes, and something is journaled at its end."""
    world.wait(seconds)
    world.tell(e.JobProgressed(job, 5, 0.5))


def doings(found: Retold, job: str = "gpt") -> list[tuple[Doing, int, str]]:
    return [(change.doing, change.slots, change.cause) for change in found.lived.changes if change.job == job]


def test_a_process_that_died_is_a_fault_and_its_standstill_is_what_was_lived() -> None:
    world = trained()
    later(world, HOUR)
    world.die("gpt/1.0")
    world.regroup()
    later(world, HOUR)
    found = retold(world)
    (fault,) = found.faults
    assert (fault.kind, fault.cause, fault.nodes, fault.slot) == (Kind.PROCESS, "process_killed", (1,), 0)
    assert fault.at == pytest.approx(HOUR, abs=0.1)
    assert found.scenario.seconds == pytest.approx(2 * HOUR, rel=0.01)
    assert (found.scenario.nodes, found.scenario.slots, found.scenario.capacity) == (4, 1, 4)
    assert doings(found)[0] == (Doing.TRAINING, 4, "")
    assert doings(found)[-1] == (Doing.TRAINING, 4, "")
    assert (Doing.TRANSITION, 4, "process_killed") in doings(found)
    assert 0.99 < found.lived.goodput < 1.0
    assert list(found.lived.costs()) == ["process_killed"]


def test_a_job_is_the_one_that_ran() -> None:
    world = trained(weight=3.0, checkpoint_url="/c", checkpoint_every_steps=100)
    later(world, HOUR)
    (work,) = retold(world).scenario.jobs
    assert (work.name, work.weight, work.size_min, work.size_max, work.replica) == ("gpt", 3.0, 2, 4, 1)
    assert work.throughput == ((2, 2e12), (3, 3e12), (4, 4e12))
    assert work.checkpoint_seconds == pytest.approx(50.0)


def test_a_node_is_away_from_its_silence_until_it_is_back() -> None:
    world = trained()
    later(world, HOUR)
    lose(world, "n2")
    later(world, HOUR)
    world.attach("n2", incarnation="new")
    later(world, HOUR)
    found = retold(world)
    (fault,) = found.faults
    assert (fault.kind, fault.nodes, fault.cause) == (Kind.NODE, (2,), "lost_connection")
    assert fault.at == pytest.approx(HOUR, abs=10.0)
    assert fault.repair_seconds == pytest.approx(HOUR + world.settings.fence_seconds, rel=0.01)
    assert (Doing.TRAINING, 3, "lost_connection") in doings(found)
    assert found.lived.costs()["lost_connection"].sub_healthy > 0


def test_a_node_that_never_comes_back_is_never_repaired() -> None:
    world = trained()
    later(world, HOUR)
    lose(world, "n2")
    later(world, HOUR)
    assert retold(world).faults[0].repair_seconds == float("inf")


def test_a_node_that_came_later_was_not_there_and_a_slow_one_was_slow() -> None:
    world = trained()
    later(world, HOUR)
    world.attach("n9")
    world.tell(e.NodeDegraded("r", "n0", 0.5, ()))
    later(world, HOUR)
    world.tell(e.NodeDegraded("s", "n0", 1.0, ()))
    later(world, HOUR)
    absent, slow = retold(world).faults
    assert (absent.kind, absent.nodes, absent.at) == (Kind.NODE, (4,), 0.0)
    assert absent.repair_seconds == pytest.approx(HOUR, rel=0.01)
    assert (slow.kind, slow.nodes, slow.slowness) == (Kind.SLOW, (0,), 2.0)
    assert slow.repair_seconds == pytest.approx(HOUR, rel=0.01)


def test_a_larger_node_is_several_that_fail_as_one() -> None:
    world = World(0)
    world.attach("large", 4)
    world.attach("small", 2)
    world.train(size=6)
    later(world, HOUR)
    world.die(next(worker.name for worker in world.state.on_slot("large", 3)))
    world.regroup()
    lose(world, "large")
    later(world, HOUR)
    found = retold(world)
    assert (found.scenario.nodes, found.scenario.slots) == (3, 2)
    by_kind = {fault.kind: fault for fault in found.faults}
    assert by_kind[Kind.NODE].nodes == (0, 1)
    assert (by_kind[Kind.PROCESS].nodes, by_kind[Kind.PROCESS].slot) == ((1,), 1)
    assert "nobody has told the speed of gpt: a slot counts as 1 TFLOP/s" in found.notes


def test_steps_that_were_lost_are_done_twice() -> None:
    world = trained(checkpoint_url="/c", checkpoint_every_steps=4)
    world.tell(e.JobProgressed("gpt", 400, 0.5))
    later(world, HOUR)
    for seat in range(4):
        world.die(f"gpt/{seat}.0")
    world.wait(10.0)
    world.begin_all()
    epoch = world.job().epoch
    world.tell(e.GroupFormed("gpt", epoch))
    for name in world.members():
        world.tell(e.WorkerTold(name, m.Resumed(epoch, 301, source="storage", restored_step=300)))
    later(world, HOUR)
    found = retold(world)
    assert world.job().steps_redone > 0
    (repeat,) = found.lived.repeats
    assert repeat.flop == pytest.approx(world.job().steps_redone * found.scenario.jobs[0].step_flops)


def test_jobs_come_and_go_so_the_longest_stretch_with_the_same_ones_is_taken() -> None:
    world = World(4)
    world.train("first", size=2)
    later(world, HOUR, "first")
    world.train("second", size=2)
    later(world, 3 * HOUR, "first")
    world.tell(e.JobCancelled(world.request(), "first"))
    for seat in range(2):
        world.tell(e.WorkerExited(m.Exited(f"first/{seat}.0", -15)))
    later(world, HOUR, "second")
    found = retold(world)
    assert sorted(work.name for work in found.scenario.jobs) == ["first", "second"]
    assert found.scenario.seconds == pytest.approx(3 * HOUR, rel=0.01)
    assert found.faults == ()


def test_what_waits_is_left_out_and_said() -> None:
    world = trained()
    world.submit("late", size_min=4, size_max=4)
    later(world, HOUR)
    found = retold(world)
    assert [work.name for work in found.scenario.jobs] == ["gpt"]
    assert "left out, as they were not there all the time: late" in found.notes


@pytest.mark.parametrize(
    ("world", "says"),
    [(None, "nothing has happened in it"), (World(2), "no job has trained in it")],
    ids=["empty", "no job"],
)
def test_a_journal_without_training_is_refused(world: World | None, says: str) -> None:
    entries = [Entry(i, at, at, event) for i, (at, event) in enumerate(world.journal, 1)] if world else []
    with pytest.raises(BadScenario, match=f"^journal: here: {says}; give one of a cluster that has run jobs$"):
        retell(ClusterState(), entries, "here")


def test_what_was_lived_stands_beside_what_was_not() -> None:
    world = trained()
    later(world, HOUR)
    found = retold(world)
    policy = Lived(found.lived)
    assert policy.name == LIVED == found.lived.policy
    costs: Any = None
    assert policy.live(found.scenario, found.faults, costs, 0) is found.lived
