"""Replicas of several workers in the coordinator's core: begun, lost, joined and left as one."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest
from unit.test_core_planning import Planned
from unit.world import World

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.rules.replicas import near_memory
from unicorn_mgr.coordinator.state import Job, Worker
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import JobSpec, Lineage, WorkerName

SPLIT: dict[str, Any] = {"replica": {"shard": 2}, "replica_size": 2}


@pytest.fixture
def world() -> Iterator[World]:
    made = World(nodes=3, slots=2)
    yield made
    made.check_replay()


def seats_of(names: list[str]) -> list[int]:
    return [int(name.split("/")[1].split(".")[0]) for name in names]


def test_a_replica_is_begun_as_one(world: World) -> None:
    world.submit("gpt", 2, 4, **SPLIT)
    orders = world.decisions(e.WorkerOrdered)
    assert [(o.worker, o.rank, o.world_size) for o in orders] == [
        ("gpt/0.0", 0, 2),
        ("gpt/1.0", 1, 2),
        ("gpt/2.0", 0, 2),
        ("gpt/3.0", 1, 2),
    ]
    assert [len({world.worker(f"gpt/{s}.0").node for s in pair}) for pair in ((0, 1), (2, 3))] == [1, 1]
    (welcome,) = {s.welcome.replica for _, s in world.said(m.StartWorker)}
    assert [(axis.name, axis.size) for axis in welcome] == [("shard", 2)]


def test_a_life_begins_with_whole_replicas(world: World) -> None:
    world.submit("gpt", 2, 4, **SPLIT)
    for name in ("gpt/0.0", "gpt/1.0", "gpt/2.0"):
        world.begin(name)
    world.wait(world.settings.start_grace_seconds + 1)
    assert world.members() == ["gpt/0.0", "gpt/1.0"]


def test_the_others_of_a_replica_go_with_the_one_that_is_lost(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    world.die("gpt/3.0")
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/2.0"]
    world.wait(world.settings.death_batch_seconds)
    assert world.members() == ["gpt/0.0", "gpt/1.0"]
    assert len(world.incidents) == 1
    world.resume(step=5)
    world.take()
    world.tell(e.WorkerExited(m.Exited("gpt/2.0", -9)))
    orders = world.decisions(e.WorkerOrdered)
    assert [(o.worker, o.restarts) for o in orders] == [("gpt/2.1", 1), ("gpt/3.1", 1)], (
        "both, and not before both went"
    )
    world.begin("gpt/2.1")
    world.wait(world.settings.join_batch_seconds + 1)
    assert len(world.members()) == 2, "half a replica is no member"
    world.begin("gpt/3.1")
    world.wait(world.settings.join_batch_seconds)
    assert seats_of(world.members()) == [0, 1, 2, 3]
    world.resume(step=6)
    assert not world.incident().open
    assert len(world.job().deaths) == 1


def test_what_a_sibling_runs_into_afterwards_is_the_same_incident(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    world.tell(e.WorkerDying("gpt/3.0", "mutex"))
    raised = m.Raised("RuntimeError", "Connection closed by peer", "Traceback", 5, 1)
    world.tell(e.WorkerTold("gpt/2.0", raised), e.WorkerExited(m.Exited("gpt/2.0", 1, raised)))
    assert [i.worker for i in world.incidents] == ["gpt/3.0"]
    assert world.job().deaths == []


CUT_OFF = m.Raised("RuntimeError", "Connection closed by peer", "Traceback\nRuntimeError: Connection closed", 5, 0)


def test_a_sibling_that_speaks_first_does_not_take_the_blame(world: World) -> None:
    """The end of the one that has crashed is heard of a little later, and it is not killed before that."""
    world.train("gpt", 4, 2, **SPLIT)
    world.tell(e.WorkerTold("gpt/2.0", CUT_OFF), e.WorkerExited(m.Exited("gpt/2.0", 1, CUT_OFF)))
    world.wait(world.settings.settle_seconds / 2)
    assert seats_of(world.members()) == [0, 1], "who is left goes on at once"
    world.die("gpt/3.0", code=-11, step=5, micro_batch=1)
    assert [(i.worker, i.cause, i.of_member) for i in world.incidents] == [("gpt/3.0", "segmentation_fault", True)]
    assert world.job().victims == [("gpt/3.0", 5, 1)]
    assert [(d.worker, d.cause) for d in world.job().deaths] == [("gpt/3.0", "segmentation_fault")]
    assert world.decisions(e.WorkerCondemned) == []
    assert "first sign: Traceback\nRuntimeError: Connection closed" in world.incident().evidence


def test_a_communication_error_that_nothing_explains_takes_its_replica_with_it(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    world.tell(e.WorkerTold("gpt/2.0", CUT_OFF), e.WorkerExited(m.Exited("gpt/2.0", 1, CUT_OFF)))
    world.tell(e.WorkerTold("gpt/3.0", CUT_OFF), e.WorkerExited(m.Exited("gpt/3.0", 1, CUT_OFF)))
    world.wait(world.settings.settle_seconds)
    assert [(i.worker, i.cause, i.severity) for i in world.incidents] == [("gpt/2.0", "connection_reset", "SEV2")]
    assert (world.job().victims, len(world.job().deaths)) == ([], 1)


def test_the_others_of_a_replica_are_ended_once_nothing_explains_its_communication_error(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    world.tell(e.WorkerTold("gpt/2.0", CUT_OFF))
    assert world.decisions(e.WorkerCondemned) == []
    world.wait(world.settings.settle_seconds)
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/3.0"]
    world.tell(e.WorkerDying("gpt/3.0", "mutex", m.Sample("gpt/3.0", step=5, micro_batch=1)))
    world.tell(e.WorkerExited(m.Exited("gpt/3.0", -9)))
    assert [i.worker for i in world.incidents] == ["gpt/2.0"]
    assert world.job().victims == []


def test_communication_errors_in_every_replica_are_not_the_programs(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    for name in world.members():
        world.tell(e.WorkerTold(name, CUT_OFF), e.WorkerExited(m.Exited(name, 1, CUT_OFF)))
    world.wait(1.0)
    assert world.decisions(e.JobGivenUp) == []


def test_only_the_one_that_was_lost_first_speaks_against_its_micro_batch(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    world.die("gpt/3.0", step=5, micro_batch=1)
    world.die("gpt/2.0", step=5, micro_batch=0)
    assert world.job().victims == [("gpt/3.0", 5, 1)]


def test_a_replica_leaves_when_all_of_it_has(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    world.tell(e.NodeDrained(world.request(), world.worker("gpt/2.0").node))
    world.begin_all()
    world.wait(world.settings.join_batch_seconds)
    world.resume(step=7)
    assert seats_of(world.members()) == [0, 1, 2, 3, 4, 5]
    assert [d.worker for d in world.decisions(e.RetirementOrdered)] == ["gpt/2.0", "gpt/3.0"]
    world.tell(e.WorkerTold("gpt/2.0", m.Leaving(7)))
    world.wait(1.0)
    assert len(world.members()) == 6
    world.tell(e.WorkerTold("gpt/3.0", m.Leaving(7)))
    assert seats_of(world.members()) == [0, 1, 4, 5]


def test_slots_that_make_no_replica_are_left_to_others() -> None:
    world = Planned(nodes=3, slots=3)
    world.submit("gpt", 2, 6, **SPLIT)
    world.answer()
    assert world.sizes() == {"gpt": 6}
    assert [w.seat for w in world.job().alive()] == [0, 1, 2, 3, 4, 5]
    places = [world.job().seats[s][0] for s in range(6)]
    assert places[::2] == places[1::2], "each within a node"
    world.submit("rest", 1, 3)
    world.answer()
    assert world.sizes() == {"gpt": 6, "rest": 3}
    world.check_replay()


def test_what_is_left_of_a_lost_replica_makes_a_new_one() -> None:
    """Two racks' worth of one slot each: replicas may reach over nodes, not over racks."""
    world = Planned(nodes=0)
    for i, rack in enumerate("aaabbb"):
        world.attach(f"n{i}", domain=f"rack-{rack}")
    world.train_planned("gpt", 2, 4, replica_within="domain", **SPLIT)
    lost = world.job().seats[0][0]
    world.tell(e.NodeSilent(lost, 2.6), e.JobHalted("gpt", 1.1))
    world.answer()
    world.settle()
    assert len(world.members()) == 4
    seats = world.job().seats
    racks = {seat: world.node(node).domain for seat, (node, _) in seats.items()}
    for seat in seats:
        assert racks[seat] == racks[seat ^ 1], seats
    world.check_replay()


def test_an_incident_says_where_each_part_has_come_from(world: World) -> None:
    """And how much of it, and in which time; not of who had all."""
    world.train("gpt", 6, 2, **SPLIT)
    world.die("gpt/3.0")
    world.tell(e.WorkerExited(m.Exited("gpt/2.0", -9)))
    world.wait(world.settings.death_batch_seconds)
    world.resume(step=5)
    world.begin_all()
    world.wait(world.settings.join_batch_seconds)
    epoch = world.job().epoch
    world.tell(e.GroupFormed("gpt", epoch))
    came = {
        "gpt/2.1": m.Resumed(epoch, 6, source="live", state_bytes=10, restore_seconds=0.5),
        "gpt/3.1": m.Resumed(epoch, 6, source="memory", restored_step=5, state_bytes=20, restore_seconds=0.25),
        "gpt/4.0": m.Resumed(epoch, 6, source="live", state_bytes=11, restore_seconds=0.75),
    }
    for name in world.members():
        world.tell(e.WorkerTold(name, came.get(name, m.Resumed(epoch, 6, source="own"))))
    assert world.incident().sources == (
        m.StateSource(0, "live", 2, 21, 0.75),
        m.StateSource(1, "memory", 1, 20, 0.25),
    )


def test_what_is_left_of_two_replicas_is_put_where_its_memory_is() -> None:
    """A worker of each has gone with its node: of position 0 and of position 1."""
    world = World(nodes=0)
    for i in range(6):
        world.attach(f"n{i}", domain="rack")
    world.train("gpt", 4, 2, snapshot_budget=0.005, replica_within="domain", **SPLIT)
    left = {world.worker(name).node: world.worker(name).seat % 2 for name in ("gpt/1.0", "gpt/2.0")}
    for name in ("gpt/0.0", "gpt/3.0"):
        world.tell(e.NodeSilent(world.worker(name).node, 2.6))
    world.tell(e.JobHalted("gpt", 1.1))
    for name in ("gpt/1.0", "gpt/2.0"):
        world.tell(e.WorkerExited(m.Exited(name, -9)))
    world.wait(5.0)
    found = {w.node: w.seat % 2 for w in world.job().alive() if w.node in left}
    assert found == left
    world.begin_all()
    world.wait(world.settings.start_grace_seconds + 1)
    assert len(world.members()) == 4, "and stays there"
    world.check_replay()


@pytest.mark.parametrize(
    ("been", "found"),
    [
        ({"a": (0, 1), "b": (2, 3)}, "aabb"),
        ({"a": (2, 3), "b": (0, 1)}, "bbaa"),
        ({"b": (0, 1)}, "bbaa"),
        ({"a": (0, 2), "b": (1, 3)}, "aabb"),
        ({}, "aabb"),
    ],
)
def test_neighbours_are_not_taken_apart_for_the_sake_of_memory(been: dict[str, tuple[int, ...]], found: str) -> None:
    """The two workers that share tensors stay on one node."""
    spec = JobSpec("gpt", ("true",), replica={"shard": 2, "tensor": 2}, replica_size=4, snapshot_budget=0.005)
    workers = [
        Worker(str(WorkerName("gpt", p, 0)), "gpt", p, node, 0, 0.0) for node, those in been.items() for p in those
    ]
    job = Job("gpt", spec, 0.0, workers={w.name: w for w in workers})
    planned = {4: ("a", 0), 5: ("a", 1), 6: ("b", 0), 7: ("b", 1)}
    ordered = near_memory(job, planned)
    assert "".join(node for node, _ in ordered.values()) == found
    assert sorted(ordered.values()) == sorted(planned.values())
    job.seats = planned
    assert near_memory(job, ordered) == planned, "who is there stays there"


def ordered_in(replica: dict[str, int], been: dict[str, tuple[int, ...]], **spec: Any) -> str:
    """The nodes that the positions of a replica are given, planned on abba, or on that twice."""
    size = prod(replica.values())
    asked = JobSpec("gpt", ("true",), replica=replica, replica_size=size, **spec)
    workers = [Worker(f"gpt/{p}.0", "gpt", p, node, 0, 0.0) for node, those in been.items() for p in those]
    job = Job("gpt", asked, 0.0, workers={w.name: w for w in workers})
    places = [(node, slot) for slot, node in enumerate("abba" * (size // 4))]
    return "".join(node for node, _ in near_memory(job, dict(enumerate(places))).values())


def test_who_is_a_neighbour_follows_from_the_innermost_axis() -> None:
    """Of a plan that has the two in the middle together: only along one axis of four are they neighbours."""
    been: dict[str, tuple[int, ...]] = {"a": (0, 2), "b": (1, 3)}
    assert ordered_in({"shard": 4}, been, snapshot_budget=0.005) == "abba"
    assert ordered_in({"shard": 2, "tensor": 2}, been, snapshot_budget=0.005) == "abab"
    twice: dict[str, tuple[int, ...]] = {"a": (0, 2, 4, 6), "b": (1, 3, 5, 7)}
    assert ordered_in({"shard": 4, "tensor": 2}, twice, snapshot_budget=0.005) == "abababab"


def test_a_job_without_snapshots_finds_nothing_in_memory() -> None:
    assert ordered_in({"shard": 2, "tensor": 2}, {"a": (0, 2), "b": (1, 3)}) == "abba"


def test_while_actions_are_paused_nobody_goes_with_the_one_that_is_lost(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    world.tell(e.PauseSet(world.request(), paused=True))
    world.die("gpt/3.0")
    assert world.decisions(e.WorkerCondemned) == []
    world.tell(e.PauseSet(world.request(), paused=False))
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/2.0"]


def test_the_same_exception_in_every_replica_is_the_programs(world: World) -> None:
    """Only the first worker of each to fail has been heard; the other went with it."""
    world.train("gpt", 4, 2, **SPLIT)
    for name in ("gpt/0.0", "gpt/1.0", "gpt/2.0", "gpt/3.0"):
        raised = m.Raised("ValueError", "bad", "Traceback\n  File 'train.py', line 3", 5, 1)
        world.tell(e.WorkerTold(name, raised), e.WorkerExited(m.Exited(name, 1, raised)))
    world.wait(1.0)
    assert [d.exit_code for d in world.decisions(e.JobGivenUp)] == [1]


def without_a_replica(world: World) -> None:
    """The second of two has died, and its replacement has been started."""
    world.train("gpt", 4, 2, **SPLIT)
    world.die("gpt/3.0")
    world.wait(world.settings.death_batch_seconds)
    world.resume(step=5)
    world.tell(e.WorkerExited(m.Exited("gpt/2.0", -9)))
    assert [d.worker for d in world.decisions(e.WorkerOrdered)] == ["gpt/2.1", "gpt/3.1"]
    world.take()


def test_a_mistake_bars_the_whole_replica(world: World) -> None:
    without_a_replica(world)
    world.tell(e.WorkerTold("gpt/3.1", m.Mistake("script", fix="give it a model")))
    world.tell(e.WorkerExited(m.Exited("gpt/3.1", 2)), e.WorkerExited(m.Exited("gpt/2.1", -9)))
    assert [d.seat for d in world.decisions(e.SeatBarred)] == [2, 3]
    world.wait(60.0)
    assert set(world.job().seats) == {0, 1}
    assert not any(i.open for i in world.incidents), "as full as can be"


def test_another_program_bars_the_whole_replica(world: World) -> None:
    without_a_replica(world)
    world.begin("gpt/3.1", {"script": "another"})
    assert [d.seat for d in world.decisions(e.SeatBarred)] == [2, 3]
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/3.1", "gpt/2.1"]


def test_replacements_of_a_replica_that_fail_on_one_node_take_it_out_of_use(world: World) -> None:
    """Whichever of its workers fails first."""
    without_a_replica(world)
    node = world.incident().node
    for first, other in (("gpt/2.1", "gpt/3.1"), ("gpt/3.2", "gpt/2.2")):
        world.die(first)
        world.tell(e.WorkerExited(m.Exited(other, -9)))
        world.wait(world.settings.restart_delay_seconds)
    assert [d.node for d in world.decisions(e.NodeIsolated)] == [node]


@pytest.mark.parametrize("seat", [0, 1])
def test_after_the_loop_nobody_waits_for_a_checkpoint_that_can_not_be_complete(world: World, seat: int) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    for name in world.members():
        world.tell(e.WorkerTold(name, m.LoopEnded(9)))
    part = m.CheckpointWritten(9, Lineage(0, world.job().epoch), "file:///c", 100, 0.1, 0.5)
    world.tell(e.WorkerTold(f"gpt/{seat}.0", part))
    world.take()
    world.tell(e.WorkerExited(m.Exited(f"gpt/{1 - seat}.0", -11)))
    (condemned,) = world.decisions(e.WorkerCondemned)
    assert condemned.worker == f"gpt/{seat}.0"
    assert condemned.reason == (f"the last checkpoint can't be complete without gpt/{1 - seat}.0: segmentation_fault")


def test_after_the_loop_the_others_of_a_replica_go_on_by_themselves(world: World) -> None:
    world.train("gpt", 4, 2, **SPLIT)
    for name in world.members():
        world.tell(e.WorkerTold(name, m.LoopEnded(9)))
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", -11)))
    world.wait(100.0)
    assert world.decisions(e.WorkerCondemned) == []


def test_half_a_replica_is_no_member_at_the_end_either(world: World) -> None:
    """One of its workers has come to the end of the loop, which the other has by then, too."""
    world.train("gpt", 6, 2, **SPLIT)
    world.tell(e.WorkerTold("gpt/2.0", m.LoopEnded(9)))
    world.die("gpt/0.0")
    world.wait(world.settings.death_batch_seconds)
    assert seats_of(world.members()) == [4, 5]
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/1.0"], "the other is about to say so, too"


def spread() -> World:
    """Of two replicas in the second rack one is on one node, the other on both."""
    world = World(nodes=0)
    for node, rack, slots in (("n0", "a", 2), ("n1", "b", 3), ("n2", "b", 1)):
        world.attach(node, slots, domain=rack)
    world.train("gpt", 6, 2, replica_within="domain", **SPLIT)
    return world


@pytest.mark.parametrize("halted", [True, False])
def test_a_communication_error_because_of_a_sibling_whose_node_is_lost_is_one_incident(halted: bool) -> None:
    """The node is known to be lost long after the error has settled, and with it all of other replicas, or none."""
    world = spread()
    node = "n1" if halted else "n2"
    (herald, sibling), rest = _by_reach(world, node)
    world.tell(e.WorkerTold(herald, CUT_OFF), e.WorkerExited(m.Exited(herald, 1, CUT_OFF)))
    world.wait(world.settings.settle_seconds + world.settings.death_batch_seconds)
    world.tell(e.NodeSilent(node, 3.0))
    assert sibling in [d.worker for d in world.decisions(e.WorkerCondemned)]
    if halted:
        world.tell(e.JobHalted("gpt", 1.1))
    else:
        world.resume(step=5)
        world.wait(world.settings.silence_seconds_max)
    assert world.node(node).phase.value == "lost"
    found = [(i.worker, i.node, i.cause, i.severity) for i in world.incidents]
    assert found == [("", node, "lost_connection", "SEV1")]
    assert "first sign: Traceback\nRuntimeError: Connection closed" in world.incident().evidence
    assert world.job().deaths == [], "the other node has nothing to do with it"
    assert bool([name for name in rest if world.worker(name).node == node]) == halted
    world.check_replay()


def _by_reach(world: World, node: str) -> tuple[tuple[str, str], list[str]]:
    """The worker whose replica reaches over to this node, and the one of it that is there; then all others."""
    for seat in range(0, 6, 2):
        pair = [f"gpt/{seat}.0", f"gpt/{seat + 1}.0"]
        there = [name for name in pair if world.worker(name).node == node]
        if len(there) == 1:
            (here,) = set(pair) - set(there)
            return (here, there[0]), sorted(set(world.members()) - set(pair))
    raise AssertionError("no replica reaches over")
