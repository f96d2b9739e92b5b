"""The coordinator's core and the planner: on which nodes a job is put, by what is known of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from unit.test_core_planning import Planned

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.views import node_view
from unicorn_mgr.effects import coordinator as e


@pytest.fixture
def world() -> Iterator[Planned]:
    """Nothing is there yet."""
    made = Planned(nodes=0)
    yield made
    made.check_replay()


def nodes_of(world: Planned, job: str = "gpt") -> Counter[str]:
    """Seats by node."""
    return Counter(node for node, _ in world.job(job).seats.values())


def racks_of(world: Planned, job: str = "gpt") -> Counter[str]:
    """Seats by failure domain."""
    return Counter(world.node(node).domain for node, _ in world.job(job).seats.values())


# -- racks ----------------------------------------------------------------------------------


def two_racks(world: Planned, slots: int = 2) -> None:
    for i, rack in enumerate(("a", "a", "b", "b")):
        world.attach(f"n{i}", slots, domain=rack)


@pytest.mark.parametrize(("domains", "racks"), [(1, {"a": 2}), (2, {"a": 1, "b": 1}), (0, {"a": 1, "b": 1})])
def test_a_job_is_spread_over_as_many_racks_as_it_wishes(world: Planned, domains: int, racks: dict[str, int]) -> None:
    """Without a wish over two: the loss of one leaves a copy of its state."""
    two_racks(world)
    world.submit("gpt", 2, 2, domains=domains)
    world.answer()
    assert racks_of(world) == racks


def test_a_replica_stays_within_its_rack(world: Planned) -> None:
    """Of four slots, where no node has more than two."""
    two_racks(world)
    world.submit("gpt", 4, 8, replica_size=4, replica_within="domain")
    world.submit("whole", 4, 8, replica_size=4, replica_within="node")
    world.answer()
    assert racks_of(world) == {"a": 4, "b": 4}
    assert nodes_of(world, "whole") == {}


def test_without_racks_each_node_is_one(world: Planned) -> None:
    for i in range(3):
        world.attach(f"n{i}", 2)
    world.submit("gpt", 2, 2)
    world.submit("wide", 4, 4, replica_size=4, replica_within="domain")
    world.answer()
    assert sorted(nodes_of(world).values()) == [1, 1]
    assert nodes_of(world, "wide") == {}


def test_a_seat_that_is_lost_with_its_rack_goes_where_the_job_is_not(world: Planned) -> None:
    two_racks(world, slots=1)
    world.train_planned("gpt", 2, 2)
    left = next(node for node, _ in world.job().seats.values() if world.node(node).domain == "b")
    world.attach("n4", 1, domain="c")
    for node in ("n2", "n3"):
        world.tell(e.NodeDrained(world.request(), node))
    world.answer()
    world.settle()
    assert left not in nodes_of(world)
    assert racks_of(world) == {"a": 1, "c": 1}


def test_a_node_that_comes_back_in_another_rack_is_taken_at_its_word(world: Planned) -> None:
    two_racks(world)
    world.train_planned("gpt", 4, 4, replica_size=2, replica_within="domain", domains=1)
    assert racks_of(world) == {"a": 4}
    here = tuple(w.name for w in world.job().alive() if w.node == "n1")
    world.take()
    world.attach("n1", 2, workers=here, domain="b")
    assert world.asked(), "the plan was made for other racks"
    assert node_view(world.state, Liveness(world.settings), world.node("n1"), world.now).domain == "b"
    world.answer()
    assert racks_of(world) == {"a": 2, "b": 2}, "its replicas are whole still, and nobody moves"


# -- warm nodes -----------------------------------------------------------------------------


def moved(world: Planned) -> Planned:
    """It has run on n1 and n2, and now only on n1; n0 is as good, comes first, and has never seen it."""
    for i in range(3):
        world.attach(f"n{i}")
    world.train_planned("other", 1, 1)
    world.train_planned("gpt", 2, 2)
    world.tell(e.JobCancelled(world.request(), "other"), e.WorkerExited(m.Exited("other/0.0", -15)))
    assert world.job("other").over
    world.tell(e.WishesSet(world.request(), "gpt", 1.0, 0, 1, 1))
    world.answer()
    world.settle()
    assert nodes_of(world) == {"n1": 1}
    return world


def test_of_two_equal_nodes_the_one_that_has_run_the_job_gets_the_seat(world: Planned) -> None:
    moved(world)
    world.tell(e.NodeDrained(world.request(), "n1"))
    world.answer()
    assert nodes_of(world) == {"n2": 1}


def test_a_node_that_was_lost_meanwhile_has_nothing_loaded_any_more(world: Planned) -> None:
    moved(world)
    world.tell(e.NodeSilent("n2", 2.6))
    world.wait(world.settings.silence_seconds_max)
    world.attach("n2", incarnation="rebooted")
    world.tell(e.NodeDrained(world.request(), "n1"))
    world.answer()
    assert nodes_of(world) == {"n0": 1}


def test_what_another_job_has_loaded_is_of_no_use(world: Planned) -> None:
    moved(world)
    world.submit("third", 1, 1)
    world.answer()
    assert nodes_of(world, "third") == {"n0": 1}
