"""Nodes cut from the network, wholly or in part, and healed later."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import Cluster, Undisturbed, finish
from system.network import Network, hosts

from unicorn_mgr import messages

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Network, Cluster]]:
    with tempfile.TemporaryDirectory(prefix="unicorn-n") as folder, hosts(Path(folder), 3) as found:
        yield found


@pytest.fixture(autouse=True)
def healed(world: tuple[Network, Cluster]) -> Iterator[None]:
    """Every test begins with a whole network and all nodes in use."""
    network, cluster = world
    network.heal()
    cluster.wait_for("all nodes are up", lambda _: all(n.state == "up" for n in cluster.look().nodes))
    yield
    network.heal()


def test_an_undisturbed_run_over_tls_and_real_links(world: tuple[Network, Cluster], undisturbed: Undisturbed) -> None:
    _, cluster = world
    job = cluster.submit(["--steps", "10"])
    finish(job, undisturbed, 10, members=3)


def test_a_node_is_cut_off_and_healed_later(world: tuple[Network, Cluster], undisturbed: Undisturbed) -> None:
    network, cluster = world
    job = cluster.submit(["--steps", "150", "--pace", "0.05"], drills=("1.0:gate:6:compute",))
    job.at_gate("compute")
    network.cut(1)
    job.open_gate("compute")
    cluster.wait_event("NodeLost", lambda e: e.node == "node-1")
    cluster.wait_for("healed without it", lambda _: cluster.job(job.name).size == 2 and cluster.job(job.name).step > 8)
    network.heal()
    cluster.wait_event("WorkerOrdered", lambda e: e.worker == f"{job.name}/1.1")
    finish(job, undisturbed, 150, members=3)
    (incident,) = cluster.incidents(job.name)
    assert incident.cause == "lost_connection"
    assert incident.node == "node-1"
    assert incident.steps_lost == 0


def test_only_the_control_path_is_cut(world: tuple[Network, Cluster], undisturbed: Undisturbed) -> None:
    """The node is silent, its jobs' steps advance: it is not lost."""
    network, cluster = world
    job = cluster.submit(["--steps", "150", "--pace", "0.05"])
    job.wait_step(5)
    begun = len(cluster.events())
    network.cut_control(2)
    cluster.wait_for("silence", lambda e: any(h.kind == "NodeSilent" and h.event.node == "node-2" for h in e[begun:]))
    step = cluster.job(job.name).step
    cluster.wait_for("steps go on", lambda _: cluster.job(job.name).step > step + 20)
    network.heal()
    finish(job, undisturbed, 150, members=3)
    assert not any(h.kind == "NodeLost" for h in cluster.events()[begun:])
    assert cluster.incidents(job.name) == []
    assert cluster.job(job.name).epoch.number == 1


def test_only_the_data_path_is_cut(world: tuple[Network, Cluster], undisturbed: Undisturbed) -> None:
    """Everybody is heard and nobody is behind: the link is at fault, and the node that most others can't reach."""
    network, cluster = world
    job = cluster.submit(["--steps", "150", "--pace", "0.05"], drills=("0.0:gate:6:before_reduce",), stall_seconds=1.5)
    job.at_gate("before_reduce")
    network.cut_data(1)
    job.open_gate("before_reduce")
    isolated = cluster.wait_event("NodeIsolated")
    assert isolated.node == "node-1"
    cluster.wait_for("healed without it", lambda _: cluster.job(job.name).size == 2 and cluster.job(job.name).step > 8)
    (incident,) = cluster.incidents(job.name)
    assert incident.severity == "SEV1"
    assert any("reattempt" in line for line in incident.story)
    assert any("escalated to SEV1" in line for line in incident.story)
    network.heal()
    cluster.command(messages.UndrainNode("node-1"))
    finish(job, undisturbed, 150, members=3)
