"""Deadlines: the slots that they need, decided seldom, and given up when they can't be kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.test_core_planning import Planned, progressed

from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.rules.due import prospect
from unicorn_mgr.coordinator.state import Job
from unicorn_mgr.coordinator.throughput import rising, work_of_step
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import JobSpec, ModelDescription

WALL = 1_000.0
"""When the world begins, in seconds since 1970."""
MODEL = ModelDescription(1e9, sequence_length=2048, global_batch=8, device="H100")


@pytest.fixture
def world() -> Iterator[Planned]:
    """Six slots, and a job that needs four of them for its deadline, as is known when its steps are measured."""
    made = Planned(nodes=6)
    made.train_planned("gpt", 1, 6, deadline=WALL + 10_000, steps=6_000)
    yield made
    made.check_replay()


def measured(world: Planned) -> None:
    """A second a step, on all six."""
    progressed(world, "gpt", 1.0)
    world.answer()


def reckoned(world: Planned) -> list[tuple[int, str]]:
    """Decided since the last `take`."""
    return [(d.slots, d.prospect) for d in world.decisions(e.DeadlineReckoned)]


def test_a_deadline_keeps_the_slots_that_it_needs_from_a_weightier_job(world: Planned) -> None:
    assert reckoned(world) == [(0, "what its deadline needs is known when its steps have been measured")]
    world.take()
    measured(world)
    assert reckoned(world) == [(4, "its deadline needs 4 slots")]
    world.train_planned("heavy", 1, 6, weight=3.0)
    assert world.sizes() == {"gpt": 4, "heavy": 2}


def test_a_plan_is_asked_for_when_the_size_changes_not_with_every_second(world: Planned) -> None:
    measured(world)
    world.train_planned("heavy", 1, 6, weight=3.0)
    progressed(world, "gpt", 1.5)
    world.answer()
    world.take()
    for _ in range(20):
        world.now += 10.0
        progressed(world, "gpt", 1.5, times=7)
    assert reckoned(world) == []
    assert world.asked() == []
    world.now += 2_500.0
    progressed(world, "gpt", 1.5, times=1)
    assert reckoned(world) == [(5, "its deadline needs 5 slots")]
    assert len(world.asked()) == 1
    world.answer()
    assert world.sizes() == {"gpt": 5, "heavy": 1}


def test_a_deadline_that_cant_be_kept_is_given_up_and_the_job_goes_on(world: Planned) -> None:
    measured(world)
    world.train_planned("heavy", 1, 6, weight=3.0)
    world.take()
    world.now += 8_000.0
    progressed(world, "gpt", 1.5, times=1)
    given_up = "its deadline can't be kept on the slots there are, so it is planned as if it had none"
    assert reckoned(world) == [(0, given_up)]
    world.answer()
    assert world.sizes() == {"gpt": 1, "heavy": 5}
    world.now += 5_000.0
    progressed(world, "gpt", 6.0, times=1)
    assert reckoned(world)[1:] == [(0, "its deadline has passed")]
    assert describe(world.decisions(e.DeadlineReckoned)[-1]) == "job gpt: its deadline has passed"


def test_what_is_done_needs_nothing_any_more(world: Planned) -> None:
    measured(world)
    world.take()
    world.tell(e.JobProgressed("gpt", 5_999, 1.0))
    assert reckoned(world) == [(0, "")]
    assert "is done" in describe(world.decisions(e.DeadlineReckoned)[0])


def test_lost_nodes_can_make_it_impossible_and_their_return_possible(world: Planned) -> None:
    measured(world)
    for node in ("n3", "n4", "n5"):
        world.tell(e.NodeSilent(node, 2.6))
        world.tell(e.JobHalted("gpt", 1.1))
    assert world.job().due_slots == 0
    for node in ("n3", "n4", "n5"):
        world.attach(node, incarnation="rebooted")
    assert world.job().due_slots == 4
    world.answer()
    world.settle()


def test_time_alone_changes_what_a_waiting_job_needs() -> None:
    """Its speed is known from its model; the only slot belongs to another."""
    world = Planned(nodes=1)
    world.train_planned("first", 1, 1, priority=1)
    job = Job("gpt", JobSpec("gpt", ("python",), directory="/w", model=MODEL), 0.0)
    ((_, rate),) = rising(job, 1)
    work = work_of_step(job)
    assert work is not None
    seconds = 1_000 * work / rate
    world.submit("gpt", 1, 1, model=MODEL, steps=1_000, deadline=WALL + 2 * seconds)
    world.answer()
    world.wait(3 * seconds)
    assert [slots for slots, _ in reckoned(world)] == [1, 1, 0, 0]
    assert [words.partition(",")[0] for _, words in reckoned(world)] == [
        "its deadline needs 1 slot",
        "even on 1 slot it is late for its deadline",
        "its deadline can't be kept on the slots there are",
        "its deadline has passed",
    ]
    world.check_replay()


@pytest.mark.parametrize(
    ("seconds", "before", "slots", "words"),
    [
        (1_000.0, 0, 1, "needs 1 slot"),
        (400.0, 0, 3, "needs 3 slots"),
        (500.0, 3, 3, "needs 3 slots"),  # two would do with nothing to spare
        (560.0, 3, 2, "needs 2 slots"),
        (490.0, 2, 3, "needs 3 slots"),
        (240.0, 4, 4, "even on 4 slots it is late"),
        (200.0, 4, 0, "can't be kept"),
        (0.5, 4, 0, "can't be kept"),
        (-1.0, 4, 0, "has passed"),
    ],
)
def test_fewer_slots_are_enough_only_with_something_to_spare(
    seconds: float, before: int, slots: int, words: str
) -> None:
    """A thousand steps, of a second each on one slot."""
    spec = JobSpec("gpt", ("python",), directory="/w", size_max=4, deadline=1.0, steps=1_000)
    found = prospect(Job("gpt", spec, 0.0, paces={1: 1.0}, due_slots=before), 9, seconds)
    assert found[0] == slots
    assert words in found[1]


def test_an_imagined_change_tells_what_it_does_to_the_deadline(world: Planned) -> None:
    measured(world)
    gpt = world.imagine("lose n1", "lose n2", "lose n3")["gpt"]
    assert gpt.reason.endswith(
        "; its deadline can't be kept on the slots there are, so it is planned as if it had none"
    )
    assert world.job().due_slots == 4, "nothing is touched"
