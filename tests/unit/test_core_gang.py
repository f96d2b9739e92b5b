"""Programs that never call attach(): they end with their own exit code, and are not restarted for ever."""

from __future__ import annotations

import pytest
from unit.world import World

from unicorn_mgr import messages as m
from unicorn_mgr.effects import coordinator as e


def start(world: World) -> list[str]:
    """All processes that are ordered come up, and none attaches."""
    names = [w.name for w in world.job().alive() if w.phase.value == "ordered"]
    world.tell(*(e.WorkerStarted(name, 1) for name in names))
    return names


def test_a_command_that_fails_ends_the_job_with_its_exit_code(world: World) -> None:
    world.submit(size_max=1)
    (name,) = start(world)
    world.tell(e.WorkerExited(m.Exited(name, 3)))
    world.wait(1.0)
    assert (world.job().over, world.job().exit_code) == (True, 3)
    assert world.job().end_reason == "every worker ended alike\nexit code 3"


def test_so_do_all_processes_of_a_gang_that_fail_alike(world: World) -> None:
    world.submit()
    names = start(world)
    world.tell(*(e.WorkerExited(m.Exited(name, 3)) for name in names))
    world.wait(1.0)
    assert (world.job().over, world.job().exit_code) == (True, 3)


@pytest.mark.parametrize("failing", [(1,), (0, 1)])
@pytest.mark.parametrize(("code", "expected"), [(3, 3), (-9, 1)])
def test_a_gang_that_fails_in_part_is_begun_anew_three_times(
    world: World, code: int, expected: int, failing: tuple[int, ...]
) -> None:
    """However many of it fail each time."""
    world.submit()
    starts = 0
    while not world.job().over:
        names = start(world)
        assert len(names) == 3
        starts += 1
        world.tell(*(e.WorkerExited(m.Exited(names[i], code)) for i in failing))
        world.wait(0.2)
        world.tell(*(e.WorkerExited(m.Exited(names[i], -15)) for i in range(3) if i not in failing))
        world.wait(1.0)
    assert starts == 1 + world.settings.gang_restarts_max
    assert world.job().exit_code == expected
    assert "restart budget spent: 4 failures in 600 s (limit 3)" in world.job().end_reason


def test_a_killed_command_is_started_again(world: World) -> None:
    world.submit(size_max=1)
    (name,) = start(world)
    world.tell(e.WorkerExited(m.Exited(name, -9)))
    world.wait(1.0)
    assert start(world) == ["gpt/0.1"]


def test_a_process_that_is_told_to_end_and_obeys_has_not_done_its_work(world: World) -> None:
    """A gang that is begun anew is so with all of its processes, however these end."""
    world.submit()
    names = start(world)
    world.tell(e.WorkerExited(m.Exited(names[1], 3)))
    world.wait(0.2)
    world.tell(*(e.WorkerExited(m.Exited(name, 0)) for name in (names[0], names[2])))
    world.wait(1.0)
    assert start(world) == ["gpt/0.1", "gpt/1.1", "gpt/2.1"]


def test_nor_has_one_whose_slot_is_taken_away(world: World) -> None:
    world.submit(size_max=2)
    names = start(world)
    world.tell(e.NodeDrained(world.request(), "n0"))
    world.tell(*(e.WorkerExited(m.Exited(name, 0)) for name in names))
    world.wait(1.0)
    assert not world.job().over
    assert sorted(w.node for w in world.job().alive()) == ["n1", "n2"]
