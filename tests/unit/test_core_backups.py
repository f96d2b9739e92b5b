"""Second copies of snapshots in the coordinator's core: who sends them where, and who may have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from unit.world import World

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.views import job_view
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import StatePart
from unicorn_mgr.tokens import lets_in

SPLIT: dict[str, Any] = {"replica": {"shard": 2}, "replica_size": 2, "snapshot_budget": 0.005}
PLAIN: dict[str, Any] = {"snapshot_budget": 0.005}


@pytest.fixture
def world() -> Iterator[World]:
    made = World(nodes=3, slots=2)
    yield made
    made.check_replay()


def told(world: World) -> dict[str, m.BackUp]:
    """The newest word to each worker since the last `take`."""
    return {body.worker: body for _, body in world.said(m.BackUp)}


def trained(world: World, size: int, **spec: Any) -> dict[str, m.BackUp]:
    world.submit("gpt", size, size, **spec)
    world.begin_all()
    world.resume()
    return told(world)


def node_of(world: World, worker: str) -> str:
    return world.worker(worker).node


def in_a_rack() -> World:
    """Two nodes that fail as one, and one elsewhere that is too small for a replica."""
    made = World(nodes=0)
    made.attach("n0", 2, domain="rack")
    made.attach("n1", 2, domain="rack")
    made.attach("n2", 1, domain="other")
    return made


def test_parts_that_two_nodes_have_which_fail_apart_are_not_copied(world: World) -> None:
    assert trained(world, 4, **SPLIT) == {}
    assert world.decisions(e.BackupsPlaced) == []


def test_the_parts_of_one_replica_go_to_a_node_that_does_not_fail_with_them() -> None:
    world = in_a_rack()
    orders = trained(world, 4, **SPLIT)
    assert sorted(orders) == ["gpt/0.0", "gpt/1.0"]
    for name, order in orders.items():
        assert order.to.node == "n2"
        key = world.core.orders.copies_key("n2")
        job_id = world.core.orders.job_id(world.job())
        assert lets_in(order.to.token, key, StatePart(job_id, "shard=2", int(name[4])), node_of(world, name))
    assert world.job().backups.reason == ""
    world.check_replay()


def test_a_part_that_comes_to_a_second_node_needs_no_copy_any_more(world: World) -> None:
    orders = trained(world, 1, **PLAIN)
    (peer,) = {order.to.node for order in orders.values()}
    world.tell(e.JobProgressed("gpt", 5, 0.1, 4))
    assert world.job().backups.step == 4
    world.take()
    world.tell(e.WishesSet(world.request(), "gpt", 1.0, 0, 2, 2))
    world.begin_all()
    world.wait(world.settings.join_batch_seconds)
    world.resume(step=6)
    assert {w.node for w in world.job().living_members()} != {node_of(world, "gpt/0.0")}
    assert told(world) == {"gpt/0.0": m.BackUp("gpt/0.0")}
    assert world.said(m.ForgetCopies) == [(peer, m.ForgetCopies(world.core.orders.job_id(world.job()), 0))]
    world.tell(e.JobProgressed("gpt", 7, 0.1, 4))
    assert world.job().backups.step == -1


def test_jobs_without_snapshots_have_no_copies(world: World) -> None:
    assert trained(world, 1, snapshot_budget=0.0) == {}


def test_it_is_placed_once_as_long_as_nothing_changes(world: World) -> None:
    trained(world, 2, **SPLIT)
    world.take()
    for step in range(5):
        world.tell(e.JobProgressed("gpt", step, 0.1, step))
    assert world.decisions(e.BackupsPlaced) == []
    assert world.job().backups.step == 4


def test_when_the_node_that_keeps_them_goes_another_gets_them_and_nothing_else_moves() -> None:
    world = World(nodes=5, slots=2)
    trained(world, 2, **SPLIT)
    (peer,) = {node for node, _ in world.job().backups.peers.values()}
    world.take()
    world.tell(e.NodeSilent(peer, 3.0))
    assert told(world) == {}, "it may be back in a moment"
    world.wait(world.settings.silence_seconds_max + 1)
    assert world.node(peer).phase.value == "lost"
    assert {order.to.node for order in told(world).values()}.isdisjoint({peer, node_of(world, "gpt/0.0")})
    world.check_replay()


def test_copies_that_are_left_behind_are_obsolete_when_all_parts_have_newer_ones() -> None:
    world = World(nodes=5, slots=2)
    trained(world, 2, **SPLIT)
    (peer,) = {node for node, _ in world.job().backups.peers.values()}
    world.tell(e.JobProgressed("gpt", 5, 0.1, 4))
    world.tell(e.NodeDrained(world.request(), peer))
    assert {node for node, _ in world.job().backups.peers.values()}.isdisjoint({peer})
    world.take()
    world.tell(e.JobProgressed("gpt", 6, 0.1, 4))
    assert world.said(m.ForgetCopies) == []
    world.tell(e.JobProgressed("gpt", 7, 0.1, 6))
    job_id = world.core.orders.job_id(world.job())
    assert world.said(m.ForgetCopies) == [(peer, m.ForgetCopies(job_id, p, "shard=2")) for p in (0, 1)]
    world.take()
    world.tell(e.JobProgressed("gpt", 8, 0.1, 7))
    assert world.said(m.ForgetCopies) == []
    world.check_replay()


def test_an_agent_that_is_back_elsewhere_is_found_there(world: World) -> None:
    """Its port is another after a restart."""
    orders = trained(world, 2, **SPLIT)
    (peer,) = {order.to.node for order in orders.values()}
    world.take()
    world.attach(peer, 2, incarnation="another", copies_port=7001)
    assert {(order.to.node, order.to.port) for order in told(world).values()} == {(peer, 7001)}


def backed_up(world: World, ring: int) -> int:
    """What a user is told, when workers say that this step has copies."""
    live = Liveness(world.settings)
    for worker in world.job().living_members():
        sample = m.Sample(worker.name, counter=1, step=ring + 1, backed_up=ring)
        live.beat(worker.node, (sample,), world.now)
    return job_view(world.state, live, world.job(), world.now).backed_up_step


@pytest.mark.parametrize("kept", [2, 0])
def test_whether_copies_have_outlived_their_agent_is_known_at_once(world: World, kept: int) -> None:
    """Workers go on saying which they have had copied; if that is gone, only newer ones count."""
    trained(world, 2, **SPLIT)
    (peer,) = {node for node, _ in world.job().backups.peers.values()}
    world.tell(e.JobProgressed("gpt", 9, 0.1, 8))
    assert backed_up(world, 9) == 9
    world.attach(peer, 2, incarnation="another", copies_port=7001, copies=kept)
    assert backed_up(world, 9) == (9 if kept else -1)
    world.tell(e.JobProgressed("gpt", 10, 0.1, 9))
    assert (backed_up(world, 9), world.job().backups.step) == ((9, 9) if kept else (-1, -1))
    world.tell(e.JobProgressed("gpt", 11, 0.1, 10))
    assert (backed_up(world, 11), world.job().backups.step) == (11, 10)


def test_an_agent_that_was_only_out_of_reach_has_what_it_had(world: World) -> None:
    trained(world, 2, **SPLIT)
    (peer,) = {node for node, _ in world.job().backups.peers.values()}
    world.tell(e.JobProgressed("gpt", 9, 0.1, 8))
    world.attach(peer, 2)
    assert backed_up(world, 9) == 9


def test_what_was_on_a_lost_node_does_not_count(world: World) -> None:
    trained(world, 2, **SPLIT)
    (peer,) = {node for node, _ in world.job().backups.peers.values()}
    world.tell(e.JobProgressed("gpt", 9, 0.1, 8), e.NodeSilent(peer, 3.0))
    assert backed_up(world, 9) == 9
    world.wait(world.settings.silence_seconds_max + 1)
    assert world.node(peer).phase.value == "lost"
    assert backed_up(world, 9) == -1
    world.tell(e.JobProgressed("gpt", 10, 0.1, 9), e.JobProgressed("gpt", 11, 0.1, 10))
    assert backed_up(world, 11) == 11


@pytest.mark.parametrize("odd", [0, 1])
def test_copies_of_a_state_that_most_do_not_have_are_given_up(odd: int) -> None:
    """Whoever may be asked for them is told, and again when it has been away; of others' they keep theirs."""
    world = World(nodes=0)
    for node, rack in (("n0", "a"), ("n1", "a"), ("n2", "a"), ("n3", "b")):
        world.attach(node, 2 if rack == "a" else 1, domain=rack)
    orders = trained(world, 6, **SPLIT)
    assert (sorted(orders), {order.to.node for order in orders.values()}) == (["gpt/0.0", "gpt/1.0"], {"n3"})
    world.tell(e.JobProgressed("gpt", 9, 0.1, 8))
    world.take()
    minority = (f"gpt/{2 * odd}.0", f"gpt/{2 * odd + 1}.0")
    world.tell(e.WorkerTold("gpt/4.0", m.ChecksumsDiffer(world.job().epoch, 9, minority)))
    job_id = world.core.orders.job_id(world.job())
    forgotten = [m.ForgetCopies(job_id, worker=worker) for worker in minority]
    assert world.said(m.ForgetCopies) == [(f"n{i}", body) for i in range(4) for body in forgotten]
    assert backed_up(world, 9) == (-1 if odd == 0 else 9)
    world.take()
    world.attach("n3", 1, domain="b")
    assert world.said(m.ForgetCopies) == [("n3", body) for body in forgotten]
    world.check_replay()


def test_an_agent_that_is_back_is_told_again_what_its_workers_send(world: World) -> None:
    trained(world, 2, **SPLIT)
    node = node_of(world, "gpt/0.0")
    before = told(world)
    world.take()
    world.attach(node, 2, ("gpt/0.0", "gpt/1.0"))
    assert told(world) == before


def test_where_no_other_node_can_keep_one_that_is_said_and_a_newcomer_is_used() -> None:
    world = World(nodes=1, slots=2)
    orders = trained(world, 2, **SPLIT)
    assert all(order.alone and not order.to.node for order in orders.values())
    assert world.job().backups.reason == "all parts: no other node can keep a copy"
    world.take()
    world.attach("n1")
    assert {order.to.node for order in told(world).values()} == {"n1"}
    assert world.job().backups.reason == ""
    world.check_replay()


def test_nodes_that_can_keep_none_are_not_asked() -> None:
    world = World(nodes=1, slots=2)
    world.attach("n1", copies_port=0)
    assert all(order.alone for order in trained(world, 2, **SPLIT).values())


def test_the_other_replica_sends_when_the_first_is_lost() -> None:
    world = in_a_rack()
    trained(world, 4, **SPLIT)
    world.take()
    world.die("gpt/1.0")
    world.regroup()
    orders = told(world)
    assert orders["gpt/2.0"].to.node
    assert orders["gpt/3.0"].to.node
    placed = world.decisions(e.BackupsPlaced)
    assert placed[0].sources == {0: "gpt/2.0", 1: "gpt/3.0"}
    assert set(placed[0].released) == {"gpt/0.0", "gpt/1.0"}


def test_a_worker_that_begins_anew_is_told_who_may_have_its_part(world: World) -> None:
    """Its own node before others; a live job's newcomer needs nobody."""
    trained(world, 2, **SPLIT)
    home = node_of(world, "gpt/0.0")
    (peer,) = {node for node, _ in world.job().backups.peers.values()}
    assert all(order.holders == () for _, order in world.said(m.StartWorker))
    world.take()
    world.die("gpt/0.0")
    world.die("gpt/1.0")
    world.wait(1.0)
    (start,) = [order for _, order in world.said(m.StartWorker) if order.worker == "gpt/0.1"]
    assert [holder.node for holder in start.holders] == [home, peer]


def test_lost_nodes_are_not_asked(world: World) -> None:
    trained(world, 2, **SPLIT)
    home = node_of(world, "gpt/0.0")
    (peer,) = {node for node, _ in world.job().backups.peers.values()}
    world.take()
    world.tell(e.NodeSilent(home, 3.0))
    world.wait(world.settings.fence_seconds + world.settings.silence_seconds_max)
    starts = [order for _, order in world.said(m.StartWorker)]
    assert starts
    assert all([holder.node for holder in order.holders] == [peer] for order in starts)


def test_a_job_of_small_replicas_has_its_copy_where_it_is_not(world: World) -> None:
    orders = trained(world, 2, **PLAIN)
    on = {w.node for w in world.job().alive()}
    assert {order.to.node for order in orders.values()}.isdisjoint(on)
