"""The coordinator's core and the planner: on which nodes a job is put, by what is known of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from unit.test_core_planning import Planned

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.views import node_view
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import NodeView


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


# -- degraded nodes -------------------------------------------------------------------------


def degraded(world: Planned, node: str, speed: float, *slots: int) -> None:
    world.tell(e.NodeDegraded(world.request(), node, speed, slots))
    world.answer()
    world.settle()


def seen(world: Planned, node: str) -> NodeView:
    return node_view(world.state, Liveness(world.settings), world.node(node), world.now)


def four(slots: int = 1) -> Planned:
    made = Planned(nodes=4, slots=slots)
    made.train_planned("gpt", 1, 4 * slots)
    assert len(made.members()) == 4 * slots
    made.take()
    return made


def test_slots_that_must_not_be_used_are_left_and_used_again_when_they_may() -> None:
    world = four(slots=2)
    degraded(world, "n1", 1.0, 1)
    assert nodes_of(world) == {"n0": 2, "n1": 1, "n2": 2, "n3": 2}
    assert ("n1", 0) not in world.job().seats.values()
    assert len(world.members()) == 7
    assert (seen(world, "n1").slots, seen(world, "n1").slots_used) == (1, 1)
    assert seen(world, "n1").reason == "degraded by an operator: without slot 0"
    assert world.incidents == [], "its worker has left after a step that all have made"
    degraded(world, "n1", 1.0)
    assert len(world.members()) == 8
    assert (seen(world, "n1").slots, seen(world, "n1").reason) == (2, "")
    world.check_replay()


def test_a_job_leaves_a_node_that_holds_it_up_and_takes_it_back_when_it_is_repaired() -> None:
    """A job runs at its slowest slot's speed: three good ones are worth more than four at half speed."""
    world = four()
    degraded(world, "n2", 0.5)
    assert sorted(nodes_of(world)) == ["n0", "n1", "n3"]
    assert (seen(world, "n2").speed, seen(world, "n2").reason) == (0.5, "degraded by an operator: speed 0.5")
    degraded(world, "n2", 0.9)
    assert len(nodes_of(world)) == 4, "four at nine tenths are worth more than three"
    degraded(world, "n2", 1.0)
    assert len(nodes_of(world)) == 4
    world.check_replay()


def test_a_slow_node_goes_to_the_job_of_less_weight() -> None:
    world = Planned(nodes=2)
    world.train_planned("light", 1, 1)
    world.train_planned("heavy", 1, 1, weight=5.0)
    assert nodes_of(world, "heavy") == {"n1": 1}
    degraded(world, "n1", 0.2)
    assert (nodes_of(world, "heavy"), nodes_of(world, "light")) == ({"n0": 1}, {"n1": 1})
    world.check_replay()


def test_a_node_stays_degraded_whatever_its_agent_does() -> None:
    world = Planned(nodes=0)
    world.attach("n0", 4)
    world.tell(e.NodeDegraded(world.request(), "n0", 0.5, (0, 3)))
    world.attach("n0", 4, incarnation="rebooted")
    assert (world.node("n0").offered, world.node("n0").speed) == ((0, 3), 0.5)
    world.attach("n0", 2, incarnation="with fewer slots")
    assert world.node("n0").offered == (0,)
    world.check_replay()


def test_a_repeated_request_is_done_once() -> None:
    world = Planned(nodes=1)
    world.tell(e.NodeDegraded("once", "n0", 0.5, ()))
    world.tell(e.NodeDegraded(world.request(), "n0", 1.0, ()))
    world.tell(e.NodeDegraded("once", "n0", 0.5, ()))
    assert world.node("n0").speed == 1.0


def test_steps_on_a_degraded_node_are_not_held_against_the_job_twice() -> None:
    """They take longer there, as the planner reckons; elsewhere the job is as fast as it was."""
    world = four()
    for _ in range(8):
        world.tell(e.JobProgressed("gpt", world.job().committed + 1, 0.9))
    assert world.job().paces == {4: 0.9}
    world.answer()
    degraded(world, "n2", 0.9)
    assert world.job().paces == {}, "who knows how long it had been slow"
    for _ in range(8):
        world.tell(e.JobProgressed("gpt", world.job().committed + 1, 1.0))
    assert world.job().paces == {4: 0.9}
    world.check_replay()


def test_what_if_reckons_with_the_slowest_node() -> None:
    world = Planned(nodes=2)
    world.train_planned("gpt", 1, 2)
    degraded(world, "n1", 0.75)
    told = world.imagine("lose n1")["gpt"]
    assert (told.flops_before, told.flops_after) == (1.5e12, 1e12)


@pytest.mark.parametrize(
    ("speed", "slots", "text"),
    [
        (0.5, (), "node n0 is to be counted on for all its slots at speed 0.5"),
        (1.0, (0, 3), "node n0 is to be counted on for slots 0, 3 at speed 1"),
    ],
)
def test_it_is_told_in_words(speed: float, slots: tuple[int, ...], text: str) -> None:
    assert describe(e.NodeDegraded("r", "n0", speed, slots)) == text
