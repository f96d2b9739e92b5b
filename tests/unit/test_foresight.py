"""The coordinator's core and the table of next events: what happens finds the plan that was made for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.test_core_planning import in_time
from unit.test_core_shapes import FOUR, SHAPES, TWO
from unit.test_core_suspension import Suspending

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.planning import Planner
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.planner.choices import sizes_of
from unicorn_mgr.planner.problem import Plan
from unicorn_mgr.planner.sizing import sized
from unicorn_mgr.planner.table import Foreseen, Table


class Foreseeing(Suspending):
    """A world whose planner has had the time to foresee all that may happen next."""

    def foresee(self) -> None:
        self.planner = Planner(10.0)
        table = Table.of(self.core.problem)
        for key, problem in table.missing():
            sizes = sizes_of(problem)
            table.answers[key] = Foreseen.of(sizes, sized(sizes.knapsack, 10.0, "cbc", sizes.least))
        self.planner._table = table

    def check_foreseen(self) -> Plan:
        """A plan was asked for, it is in the table, and it is just that which a solver makes."""
        assert self.asked(), "nothing has happened"
        found = self.planner._looked_up(self.core.problem)
        assert found is not None, "it was not foreseen"
        fresh = in_time(self.core.problem)
        assert (found.seats, found.reasons, found.value) == (fresh.seats, fresh.reasons, fresh.value)
        assert found.rung == "table"
        self.answer()
        self.take()
        return found

    def go_on(self) -> None:
        """What was planned has come about, and the next events are foreseen."""
        self.settle()
        self.foresee()
        self.take()

    def cut_off(self, node: str, job: str) -> None:
        self.tell(e.NodeSilent(node, 2.6))
        self.check_foreseen()
        self.tell(e.JobHalted(job, 1.1))


@pytest.fixture(params=[1, 2], ids=["one slot a node", "two slots a node"])
def world(request: pytest.FixtureRequest) -> Iterator[Foreseeing]:
    slots = request.param
    made = Foreseeing(nodes=6 // slots, slots=slots)
    made.train_planned("light", 1, 6)
    made.train_planned("heavy", 2, 6, weight=4.0)
    made.foresee()
    made.take()
    yield made
    made.check_replay()


def test_a_node_is_lost_and_comes_back(world: Foreseeing) -> None:
    lost = world.job("heavy").seats[0][0]
    slots = len(world.node(lost).slots)
    world.cut_off(lost, "heavy")
    world.check_foreseen()
    world.wait(world.settings.fence_seconds)  # a job that was there with all its members begins anew only then
    world.go_on()
    world.attach(lost, slots, incarnation="rebooted")
    world.check_foreseen()


def test_a_silent_node_is_heard_again(world: Foreseeing) -> None:
    silent = world.job("heavy").seats[0][0]
    world.tell(e.NodeSilent(silent, 2.6))
    world.check_foreseen()
    world.go_on()
    world.tell(e.NodeHeard(silent))
    assert world.asked()


def test_a_node_is_drained_and_given_back(world: Foreseeing) -> None:
    left = world.job("heavy").seats[0][0]
    world.tell(e.NodeDrained(world.request(), left))
    world.check_foreseen()
    world.go_on()
    world.tell(e.NodeUndrained(world.request(), left))
    world.check_foreseen()


def test_a_new_node_joins(world: Foreseeing) -> None:
    world.attach("another", len(world.node("n0").slots))
    world.check_foreseen()


def test_a_job_ends_and_its_slots_become_free(world: Foreseeing) -> None:
    world.tell(e.JobCancelled(world.request(), "heavy"))
    world.check_foreseen()
    for worker in list(world.job("heavy").workers.values()):
        world.tell(e.WorkerExited(m.Exited(worker.name, -15)))
    world.check_foreseen()
    world.settle()
    assert len(world.members("light")) == 6


@pytest.mark.parametrize("hit", [1, 2, 3])
def test_a_job_loses_slots_down_to_below_its_minimum(hit: int) -> None:
    world = Foreseeing(nodes=4, slots=hit)
    world.train_planned("gpt", 3 * hit + 1, 4 * hit)
    world.train_planned("low", 1, 4 * hit)
    world.foresee()
    world.take()
    lost = world.job("gpt").seats[0][0]
    world.cut_off(lost, "gpt")
    world.check_foreseen()
    assert 0 < len(world.job("gpt").seats) <= 3 * hit
    world.check_replay()


def test_a_table_of_speeds_says_nothing_of_sizes_below_the_minimum() -> None:
    world = Foreseeing(nodes=4)
    world.train_planned("gpt", 3, 4, throughput={3: 3e12, 4: 4e12})
    for name in ("n0", "n1"):
        world.go_on()
        world.cut_off(name, "gpt")
        world.check_foreseen()
    assert len(world.job("gpt").seats) == 2
    world.check_replay()


def test_which_shape_a_job_takes_is_foreseen() -> None:
    """One node of four slots is drained, and then one of the other two that it has moved to."""
    world = Foreseeing(nodes=0)
    for name, slots in (("large", 4), ("n0", 2), ("n1", 2)):
        world.attach(name, slots)
    world.train_planned("gpt", 2, 4, **SHAPES)
    assert world.job().spec.replica == FOUR
    world.go_on()
    world.tell(e.NodeDrained(world.request(), "large"))
    assert world.check_foreseen().shapes == {"gpt": "shard=2"}
    world.stand("gpt")
    world.store("gpt")
    world.go_on()
    assert (world.job().spec.replica, len(world.members())) == (TWO, 4)
    world.cut_off("n0", "gpt")
    world.check_foreseen()
    assert len(world.job().seats) == 2
    world.check_replay()
