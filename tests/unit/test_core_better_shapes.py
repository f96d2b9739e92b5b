"""Jobs of several shapes in the coordinator's core: they return to a better one where that pays, and come to rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.test_core_planning import in_time
from unit.test_core_shapes import FOUR, SHAPES, TWO, Shaped, go_on
from unit.test_core_suspension import STORE
from unit.world import kinds

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.state import JobPhase
from unicorn_mgr.effects import coordinator as e


@pytest.fixture
def world() -> Iterator[Shaped]:
    made = Shaped(nodes=0)
    yield made
    made.check_replay()


def test_it_returns_to_a_better_shape_when_slots_come_back(world: Shaped) -> None:
    world.in_two()
    world.attach("larger", slots=4)
    decided = world.answer()
    assert "SuspensionOrdered" in kinds(decided)
    why = "is split as shard=4 instead of shard=2, on 4 slots: +2.1 weighted slots after a standstill of some 61 s"
    assert world.job().seats_reason.startswith(why)
    assert world.members() == ["gpt/0.1", "gpt/1.1"], "it goes on until its state is stored"
    world.reshape()
    assert world.at() == (["larger"] * 4, FOUR)
    assert world.changes() == [TWO, FOUR]
    assert world.job().committed >= 41
    assert world.incidents[1:] == [], "beside the lost node nothing has failed"
    world.take()
    world.wait(3_600.0)
    assert (world.asked(), world.changes()) == ([], [TWO, FOUR]), "it stays"


def test_it_stays_as_it_is_where_a_change_costs_more_than_it_gains() -> None:
    """The same, where nodes fail so often that two minutes are as far as plans look."""
    world = Shaped(nodes=0, node_mtbf_seconds=100.0)
    world.in_two()
    world.attach("larger", slots=2)
    world.answer()
    world.settle()
    assert sorted(world.at()[0]) == ["larger"] * 2 + ["small"] * 2
    world.attach("largest", slots=4)
    world.answer()
    assert world.changes() == [TWO], "some five in a hundred are not worth a minute in two"
    world.check_replay()


def test_it_stays_where_more_slots_serve_it_better(world: Shaped) -> None:
    world.attach("small", slots=2)
    world.submit("gpt", 2, 6, **SHAPES)
    go_on(world)
    world.attach("larger", slots=4)
    go_on(world)
    nodes, shape = world.at()
    assert (sorted(nodes), shape) == (["larger"] * 4 + ["small"] * 2, TWO)
    assert world.changes() == [TWO]


def test_what_has_been_measured_counts_more_than_its_order_of_shapes(world: Shaped) -> None:
    """In four it takes 1 s on four slots, in two 0.8 s: so it changes once more, and stays."""
    world.begun()
    world.take_steps(1.0)
    world.answer()
    world.attach("other", slots=2)
    world.tell(e.NodeDrained(world.request(), "large"))
    world.answer()
    world.reshape()
    assert (len(world.members()), world.at()[1]) == (4, TWO)
    world.take_steps(0.8)
    world.answer()
    world.tell(e.NodeUndrained(world.request(), "large"))
    world.answer()
    assert world.changes() == [TWO], "there is room for four, which is slower"
    world.take_steps(1.2, 64)
    world.answer()
    world.reshape()
    assert world.at() == (["large"] * 4, FOUR), "now it is not"
    assert world.job().paces == {4: 1.0}, "what was known of this shape is known still"
    world.take_steps(1.0)
    assert world.changes() == [TWO, FOUR]
    assert world.replayed().jobs["gpt"].other_paces == {"shard=2": {4: 1.2}}


def test_what_cannot_be_stored_stays_as_it_is(world: Shaped) -> None:
    world.in_two()
    world.attach("larger", slots=4)
    world.answer()
    world.stand("gpt")
    world.tell(e.WorkerTold(world.members()[0], m.CheckpointFailed(41, "no space left on device")))
    go_on(world)
    nodes, shape = world.at()
    assert (sorted(nodes), shape) == (["larger"] * 2 + ["small"] * 2, TWO)
    assert world.changes() == [TWO]


def test_a_node_that_goes_again_before_it_has_changed(world: Shaped) -> None:
    world.in_two()
    world.attach("larger", slots=4)
    world.answer()
    world.stand("gpt")
    world.tell(e.NodeDrained(world.request(), "larger"))
    world.answer()
    world.reshape()
    assert world.at() == (["small"] * 2, TWO)


def test_nothing_is_given_up_for_another_shape_while_a_silent_node_may_come_back(world: Shaped) -> None:
    world.in_two()
    world.tell(e.NodeSilent("small", 2.6))
    world.attach("larger", slots=4)
    world.answer()
    assert world.changes() == [TWO]
    world.tell(e.NodeHeard("small"))
    world.answer()
    world.reshape()
    assert world.at() == (["larger"] * 4, FOUR)


def test_a_better_shape_may_come_before_it_has_begun_in_another(world: Shaped) -> None:
    world.attach("small", slots=2)
    world.submit("gpt", 2, 4, **SHAPES)
    world.answer()
    assert (world.job().phase, world.job().spec.replica) == (JobPhase.STARTING, TWO)
    world.attach("large", slots=4)
    world.answer()
    world.end("gpt")
    go_on(world)
    assert world.at() == (["large"] * 4, FOUR)


def test_what_is_left_of_a_replica_whose_state_is_stored_nowhere_is_asked_about_once(world: Shaped) -> None:
    """Two of its four slots are taken away: no plan can give it those alone, and none can stop it."""
    world.attach("large", slots=4)
    world.train_planned("gpt", 4, 4, replica=FOUR, replica_size=4)
    world.take()
    world.tell(e.NodeDegraded(world.request(), "large", 1.0, (0, 1)))
    world.answer()
    assert world.asked() == [world.state.planning.number]
    assert world.state.planning.answered
    assert len(world.members()) == 4


def test_what_would_be_is_told_with_the_shape_and_the_standstill(world: Shaped) -> None:
    world.begun()
    without = world.imagine("lose large")["gpt"]
    assert (without.size_after, without.replica_after) == (2, TWO)
    assert without.flops_after == pytest.approx(1.9e12)
    world.lose("large")
    go_on(world)
    stays = world.imagine("job gpt weight=2")["gpt"]
    assert (stays.replica_after, stays.standstill_seconds) == (TWO, 0.0)
    back = world.imagine("add 4 slots")["gpt"]
    assert back.replica_after == TWO, "on nodes like the small one"


# -- anything may happen --------------------------------------------------------------------


def at_rest(world: Shaped) -> None:
    """Questions are answered, and what is told is done, until nothing more happens."""
    for _ in range(30):
        before = len(world.journal)
        for name in world.state.jobs:
            world.end(name)
        if not world.state.planning.answered:
            world.answer()
        world.settle()
        for name, job in world.state.jobs.items():
            if job.standing and job.suspension is not None and job.suspension.stored_step is None:
                world.store(name, max(job.committed, 0) + 1)
        if len(world.journal) == before:
            return
    raise AssertionError("it never comes to rest")


HAPPENS = st.tuples(
    st.sampled_from(
        ("drain", "undrain", "degrade", "mend", "join", "die", "silent", "slow", "fast", "other", "cancel")
    ),
    st.integers(0, 2),
    st.sampled_from(("at rest", "answered", "at once")),
)


def happen(world: Shaped, what: str, n: int) -> None:
    node, job = ("large", "small", "more")[n], world.job()
    match what:
        case "drain" if node in world.state.nodes:
            world.tell(e.NodeDrained(world.request(), node))
        case "undrain" if node in world.state.nodes:
            world.tell(e.NodeUndrained(world.request(), node))
        case "degrade" | "mend" if node in world.state.nodes:
            world.tell(e.NodeDegraded(world.request(), node, 1.0, (0, 1) if what == "degrade" else ()))
        case "join":
            world.attach("more", slots=(2, 4, 6)[n])
        case "die" if job.alive():
            world.die(job.alive()[n % len(job.alive())].name)
        case "silent" if node in world.state.nodes:
            world.tell(e.NodeSilent(node, 2.6))
        case "slow" | "fast":
            world.take_steps(2.0 if what == "slow" else 0.5, 64)
        case "other" if "other" not in world.state.jobs:
            world.submit("other", 1 + n, 4, priority=n - 1, checkpoint_url=STORE)
        case "cancel" if "other" in world.state.jobs:
            world.tell(e.JobCancelled(world.request(), "other"))


@given(st.lists(HAPPENS, max_size=8))
@settings(max_examples=8, deadline=None)
def test_whatever_happens_it_comes_to_rest_in_whole_replicas(things: list[tuple[str, int, str]]) -> None:
    world = Shaped(nodes=0)
    world.begun()
    for what, n, then in things:
        happen(world, what, n)
        if then == "at rest":
            at_rest(world)
        elif then == "answered" and not world.state.planning.answered:
            world.answer()
    for node in list(world.state.nodes.values()):
        world.attach(node.name, slots=len(node.slots), workers=tuple(w.name for w in world.state.on_node(node.name)))
        world.tell(e.NodeUndrained(world.request(), node.name))
        world.tell(e.NodeDegraded(world.request(), node.name, 1.0, ()))
    world.wait(700.0)
    at_rest(world)
    job = world.job()
    assert world.members()
    assert len(job.members) == len(job.seats)
    assert len(job.members) % job.spec.replica_size == 0
    assert job.suspension is None
    made = in_time(world.core.problem)
    assert not made.shapes, "it would not change again"
    world.check_replay()
