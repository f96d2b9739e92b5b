"""Jobs of several shapes in the coordinator's core: which one the planner chooses, and how a job comes to have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from unit.test_core_parts import LINEAGE
from unit.test_core_suspension import STORE, Suspending
from unit.world import kinds

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.liveness import Liveness
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


def test_parts_of_checkpoints_of_the_shape_before_make_none_of_this_one(world: Shaped) -> None:
    """Two of four are as many as there are now; whoever stores them is not waited for, and ended."""
    world.begun()
    handed, stored = m.CheckpointHanded(20, LINEAGE, STORE), m.CheckpointWritten(20, LINEAGE, STORE, handed=True)
    world.tell(*(e.WorkerTold(f"gpt/{seat}.0", handed) for seat in (2, 3)))
    world.lose("large")
    go_on(world)
    assert world.at() == (["small"] * 2, TWO)
    old = ("gpt/2.0", "gpt/3.0")
    known = tuple(name for name in old if name in world.job().workers)
    world.attach("large", slots=4, workers=known)
    world.tell(*(e.WorkerTold(name, stored) for name in old))
    assert world.job().checkpoint is None
    world.tell(*(e.WorkerExited(m.Exited(name, -9)) for name in old))
    assert sorted(world.job().workers) == ["gpt/0.1", "gpt/1.1"]
    assert set(old) <= {body.worker for _, body in world.said(m.ForgetWorker)}


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


def test_parts_of_the_shape_before_are_asked_for_where_they_are_nearest(world: Shaped) -> None:
    """On its own node, in its failure domain, and only then where they have been written."""
    for node, slots, domain in (("large", 4, "far"), ("small", 2, "near"), ("other", 1, "near")):
        world.attach(node, slots=slots, domain=domain)
    world.train_planned("gpt", 2, 4, **SHAPES, snapshot_budget=0.005)
    assert world.at() == (["large"] * 4, FOUR)
    peers = {p: node for p, (node, _) in world.job().backups.peers.items()}
    world.take()
    world.tell(e.NodeDrained(world.request(), "large"))
    world.answer()
    world.reshape()
    assert world.at() == (["small"] * 2, TWO)
    for _, order in world.said(m.StartWorker):
        asked = [[holder.node for holder in part.holders] for part in order.former]
        assert asked == [[peers[p], "large"] for p in range(4)]


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


def test_an_answer_that_comes_in_a_pause_changes_nothing_yet(world: Shaped) -> None:
    world.attach("small", slots=2)
    world.submit("gpt", 2, 4, **SHAPES)
    world.tell(e.PauseSet(world.request(), True))
    world.answer()
    assert world.changes() == []
    world.tell(e.PauseSet(world.request(), False))
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
