"""Jobs of several shapes in the coordinator's core: which one the planner chooses, and how a job comes to have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.test_core_planning import in_time
from unit.test_core_suspension import STORE, Suspending
from unit.world import kinds

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.state import JobPhase
from unicorn_mgr.coordinator.views import job_view
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import ReplicaShape, said
from unicorn_mgr.profiles.measured import ENOUGH

FOUR, TWO = {"shard": 4}, {"shard": 2}
SHAPES: dict[str, Any] = {
    "replica": FOUR,
    "replica_size": 4,
    "shapes": (ReplicaShape(FOUR), ReplicaShape(TWO)),
    "checkpoint_url": STORE,
}


class Shaped(Suspending):
    """A node of four slots, on which the job trains, and one of two."""

    def end(self, job: str = "gpt", code: int = -15) -> list[e.Event]:
        """The last of those processes is gone that were to end; others may have been ordered since."""
        left = [w.name for w in self.job(job).workers.values() if w.exited is None and not w.alive]
        return [d for name in left for d in self.tell(e.WorkerExited(m.Exited(name, code)))]

    def in_two(self) -> None:
        """It has lost the large node, and trains on the small one."""
        self.begun()
        self.lose("large")
        go_on(self)
        assert self.at() == (["small"] * 2, TWO)
        self.take()

    def reshape(self) -> None:
        """It stores what it has, ends, and begins as it was planned."""
        self.stand("gpt")
        self.store("gpt")
        self.end("gpt")
        go_on(self)

    def take_steps(self, seconds: float, steps: int = ENOUGH) -> None:
        """So many steps of this duration."""
        for step in range(self.job().committed + 1, self.job().committed + 1 + steps):
            self.tell(e.JobProgressed("gpt", step, seconds))

    def begun(self, size_max: int = 4, size_min: int = 2, **more: Any) -> None:
        self.attach("large", slots=4)
        self.attach("small", slots=2)
        self.train_planned("gpt", size_min, size_max, **SHAPES, **more)
        assert self.at() == (["large"] * 4, FOUR)
        self.take()

    def lose(self, node: str) -> None:
        """Nobody hears of it any more, and all that was on it is gone."""
        self.tell(e.NodeSilent(node, 2.6))
        self.wait(self.settings.fence_seconds + 1)

    def at(self, job: str = "gpt") -> tuple[list[str], dict[str, int]]:
        """Where its members are, and in which shape."""
        found = self.job(job)
        nodes = [found.workers[name].node for name in found.members]
        shown = job_view(self.state, Liveness(self.settings), found, self.now).replica
        assert shown == found.spec.replica
        return nodes, shown

    def changes(self) -> list[dict[str, int]]:
        return [entry.axes for _, entry in self.journal if isinstance(entry, e.ShapeChanged)]


@pytest.fixture
def world() -> Iterator[Shaped]:
    made = Shaped(nodes=0)
    yield made
    made.check_replay()


def go_on(world: Shaped) -> None:
    """Questions are answered until there are none."""
    for _ in range(10):
        if world.state.planning.answered:
            break
        world.answer()
    world.settle()


def test_what_is_lost_is_begun_again_in_a_shape_that_fits(world: Shaped) -> None:
    world.begun()
    world.lose("large")
    go_on(world)
    assert world.at() == (["small"] * 2, TWO)
    assert world.members() == ["gpt/0.1", "gpt/1.1"]
    assert world.changes() == [TWO]
    (change,) = world.decisions(e.ShapeChanged)
    why = "gets 2 slots split as shard=2: +1.9 weighted slots; no more slots are free"
    assert describe(change) == f"job gpt is split as shard=2 from now on: {why}"
    orders = world.decisions(e.WorkerOrdered)
    assert [(o.rank, o.world_size) for o in orders] == [(0, 2), (1, 2)]
    assert len({o.restarts for o in orders}) == 1
    assert orders[0].restarts > 0, "nobody of the other shape has met under this number"
    axes = {tuple((axis.name, axis.size) for axis in s.welcome.replica) for _, s in world.said(m.StartWorker)}
    assert axes == {(("shard", 2),)}


def test_parts_of_the_shape_before_are_known_until_the_new_ones_have_copies(world: Shaped) -> None:
    """Nobody is asked for them as if they were of the new shape, and none of these goes with them."""
    for node in ("other", "another"):
        world.attach(node, slots=1)
    world.begun(snapshot_budget=0.005)
    peers = {p: node for p, (node, _) in world.job().backups.peers.items()}
    assert sorted(peers) == [0, 1, 2, 3]
    world.tell(e.JobProgressed("gpt", 42, 0.1, 41))
    world.lose("large")
    go_on(world)
    assert world.at() == (["small"] * 2, TWO)
    assert world.decisions(e.CopiesReleased) == []
    starts = [order for _, order in world.said(m.StartWorker)]
    assert [order.holders for order in starts] == [(), ()], "of parts of two there is nothing yet"
    for order in starts:
        assert [(part.shape, part.position) for part in order.former] == [(said(FOUR), p) for p in range(4)]
        assert [[holder.node for holder in part.holders] for part in order.former] == [[peers[p]] for p in range(4)]
        assert order.welcome.reshapes
    backups = world.job().backups
    assert [list(backups.nodes_with(said(FOUR), p)) for p in range(4)] == [["large", peers[p]] for p in range(4)]
    assert {order.worker for _, order in world.said(m.BackUp)} == {"gpt/0.1", "gpt/1.1"}
    world.tell(e.JobProgressed("gpt", 44, 0.1, 43))
    forgotten = [body for _, body in world.said(m.ForgetCopies)]
    assert {(body.shape, body.position) for body in forgotten} == {(said(FOUR), p) for p in range(4)}
    assert not any(list(world.job().backups.nodes_with(said(FOUR), p)) for p in range(4))


def test_half_of_it_is_lost(world: Shaped) -> None:
    """What is left of its slots is no replica, and the other shape has room beside it."""
    for node, slots in (("one", 2), ("two", 2), ("three", 1)):
        world.attach(node, slots=slots, domain="rack")
    world.train_planned("gpt", 2, 4, **SHAPES, replica_within="domain")
    nodes, _ = world.at()
    world.take()
    world.lose(max(nodes, key=nodes.count))
    go_on(world)
    for name in [w.name for w in world.job().alive() if w.was_member]:
        world.die(name)
    go_on(world)
    world.wait(60.0)
    go_on(world)
    left, shape = world.at()
    assert (len(left), shape) == (2, TWO)


def test_what_can_be_stored_is_stored_first(world: Shaped) -> None:
    world.begun()
    decided = world.tell(e.NodeDrained(world.request(), "large"))
    decided += world.answer()
    assert "SuspensionOrdered" in kinds(decided)
    world.stand("gpt")
    assert world.decisions(e.WorkerCondemned) == [], "what is not stored does not end"
    assert world.changes() == []
    world.store("gpt")
    assert len(world.decisions(e.WorkerCondemned)) == 4
    world.end("gpt")
    go_on(world)
    assert world.at() == (["small"] * 2, TWO)
    assert world.job().committed >= 41
    assert world.incidents == []


def test_slots_that_are_taken_from_it_leave_room_for_another_shape(world: Shaped) -> None:
    world.begun()
    world.tell(e.NodeDegraded(world.request(), "large", 1.0, (0, 1)))
    world.answer()
    world.stand("gpt")
    world.store("gpt")
    world.end("gpt")
    go_on(world)
    nodes, shape = world.at()
    assert (sorted(nodes), shape) == (["large"] * 2 + ["small"] * 2, TWO)


def test_a_fault_before_its_state_is_stored_sends_it_back_to_what_is_stored(world: Shaped) -> None:
    world.begun()
    world.tell(e.NodeDrained(world.request(), "large"))
    world.answer()
    world.stand("gpt")
    world.die("gpt/2.0")
    world.end("gpt")
    go_on(world)
    assert world.at() == (["small"] * 2, TWO)


def test_a_fault_in_the_new_shape_is_healed_in_it(world: Shaped) -> None:
    world.begun()
    world.lose("large")
    for _ in range(3):
        world.answer()
    world.begin("gpt/0.1")
    world.die("gpt/1.1")
    go_on(world)
    world.wait(60.0)
    go_on(world)
    assert world.at() == (["small"] * 2, TWO)
    assert world.changes() == [TWO]


def test_a_new_job_begins_with_the_first_shape_that_fits(world: Shaped) -> None:
    world.attach("small", slots=2)
    world.submit("gpt", 2, 4, **SHAPES)
    go_on(world)
    assert world.at() == (["small"] * 2, TWO)


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


def test_a_shape_that_has_no_room_any_more_gives_way_to_the_first(world: Shaped) -> None:
    """Two replicas of two have room, then only one of four."""
    world.begun(size_min=3)
    world.lose("large")
    world.attach("other", slots=2)
    go_on(world)
    assert (sorted(world.at()[0]), world.at()[1]) == (["other"] * 2 + ["small"] * 2, TWO)
    world.lose("small")
    go_on(world)
    assert world.changes() == [TWO], "the survivors go on below the minimum"
    world.lose("other")
    go_on(world)
    assert world.members() == []
    world.attach("whole", slots=5)
    go_on(world)
    assert world.at() == (["whole"] * 4, FOUR), "which it would rather have"


def test_without_room_for_any_it_waits(world: Shaped) -> None:
    world.begun(size_min=3)
    world.lose("large")
    go_on(world)
    assert world.members() == []
    assert world.changes() == []
    world.attach("other", slots=2)
    go_on(world)
    assert sorted(world.at()[0]) == ["other"] * 2 + ["small"] * 2
    assert world.changes() == [TWO]


def test_a_job_for_which_there_is_no_room_in_any_shape_keeps_its_own(world: Shaped) -> None:
    world.begun()
    world.lose("large")
    world.tell(e.PlanReady(world.state.planning.number, {"gpt": {}}, {"gpt": "waits"}))
    assert world.state.planning.answered
    assert world.changes() == []
    world.attach("other", slots=4)
    go_on(world)
    assert world.at() == (["other"] * 4, FOUR)


def test_a_job_that_has_one_shape_never_changes_it(world: Shaped) -> None:
    world.attach("small", slots=2)
    world.submit("gpt", 4, 4, replica=FOUR, replica_size=4, checkpoint_url=STORE)
    go_on(world)
    assert world.members() == []
    assert world.changes() == []


def test_a_pause_holds_it_where_it_is(world: Shaped) -> None:
    world.tell(e.PauseSet(world.request(), True))
    world.attach("small", slots=2)
    world.submit("gpt", 2, 4, **SHAPES)
    assert world.changes() == []
    world.tell(e.PauseSet(world.request(), False))
    go_on(world)
    assert world.changes() == [TWO]


def test_what_is_lost_is_left_alone_in_observe_mode(world: Shaped) -> None:
    world.begun()
    world.tell(e.ObserveSet(world.request(), "gpt", True))
    world.lose("large")
    go_on(world)
    assert world.changes() == []
    world.tell(e.ObserveSet(world.request(), "gpt", False))
    go_on(world)
    assert world.at() == (["small"] * 2, TWO)


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
