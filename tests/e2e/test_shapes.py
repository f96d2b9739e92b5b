"""Jobs of several shapes with real processes: where four slots are not together any more, two do, in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import (
    PIPELINED,
    SHARDED,
    Cluster,
    Job,
    Undisturbed,
    check_counted_once,
    check_exact,
    check_restored,
    cluster,
)
from e2e.test_lost_nodes import SOON, backed_up

from unicorn_mgr import messages
from unicorn_mgr.model import ReplicaShape, WorkerName

FOUR, TWO = {"shard": 4}, {"shard": 2}
LARGE, SMALL = "node-0", "node-1"
STEPS = 24
SELDOM = 1e-6
"""A budget that pays for no snapshot beside the first."""


@pytest.fixture(scope="module")
def alone(undisturbed: Undisturbed) -> dict[str, Any]:
    """The same training without an agent."""
    return undisturbed("--steps", str(STEPS), script=SHARDED)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[Cluster]:
    """Two nodes, of four slots and of two."""
    folder = tmp_path_factory.mktemp("uneven")
    with cluster(folder, templates, nodes=2, slots=4, settings=("fence_seconds=7.5",)) as found:
        found.command(messages.DegradeNode(SMALL, slots="2"))
        yield found


def submit(
    cluster: Cluster, store: Path, drills: tuple[str, ...] = (), every: int = 4, pace: float = 0.05, **spec: Any
) -> Job:
    return cluster.submit(
        ["--steps", str(STEPS), "--axes", "shard", "--pace", str(pace)],
        size=4,
        size_min=2,
        drills=drills,
        script=SHARDED,
        replica=FOUR,
        replica_size=4,
        shapes=(ReplicaShape(FOUR), ReplicaShape(TWO)),
        checkpoint_url=str(store),
        checkpoint_every_steps=every,
        checkpoint_keep=20,
        **spec,
    )


def trains_in(job: Job, shape: dict[str, int], members: int) -> None:
    def changed(_: object) -> bool:
        view = job.cluster.job(job.name)
        return (view.replica, view.size) == (shape, members)

    job.cluster.wait_for("it trains in its other shape", changed)


def ends_exactly(job: Job, alone: dict[str, Any], members: int) -> None:
    (job.out / "hurry").touch()
    ended = job.wait()
    assert ended.exit_code == 0, f"{ended.reason}\n{job.cluster.logs()}"
    check_exact(job, alone, members)


def ends_in_two(job: Job, alone: dict[str, Any], members: int) -> None:
    trains_in(job, TWO, members)
    ends_exactly(job, alone, members)
    assert changes(job) == [TWO]


def changes(job: Job) -> list[dict[str, int]]:
    return [h.event.axes for h in job.cluster.events() if h.kind == "ShapeChanged" and h.event.job == job.name]


@pytest.fixture
def rack(
    tmp_path_factory: pytest.TempPathFactory, templates: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """Three nodes in one failure domain: two of two slots, that together have one copy of the model, and one of one."""
    monkeypatch.setenv("UNICORN_DOMAIN", "rack")
    with cluster(tmp_path_factory.mktemp("rack"), templates, nodes=3, slots=2, settings=SOON) as found:
        found.command(messages.DegradeNode("node-2", slots="1"))
        yield found


def begun_in_four(job: Job, step: int) -> None:
    job.wait_step(step)
    view = job.cluster.job(job.name)
    assert (view.replica, {w.node for w in view.workers}) == (FOUR, {LARGE})


def test_slots_are_taken_from_it_and_nothing_is_lost(uneven: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    job = submit(uneven, tmp_path / "store")
    begun_in_four(job, 5)
    uneven.command(messages.DegradeNode(LARGE, slots="2"))
    ends_in_two(job, alone, 4)
    uneven.command(messages.DegradeNode(LARGE, slots="4"))
    computed = Counter((step, number) for _, step, number, rehearsal in job.records() if not rehearsal)
    assert set(computed.values()) == {1}
    assert uneven.incidents(job.name) == []


def test_its_node_is_lost(uneven: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    """With all copies of its state, so it goes back to the newest checkpoint."""
    job = submit(uneven, tmp_path / "store")
    begun_in_four(job, 9)
    uneven.power_off(LARGE)
    ends_in_two(job, alone, 2)
    uneven.power_on(LARGE)
    uneven.wait_for("the node is back", lambda _: all(n.state == "up" for n in uneven.look().nodes))
    check_counted_once(job, STEPS)
    resumed = [
        h.event.fact for h in uneven.events() if h.kind == "WorkerTold/Resumed" and h.event.worker.startswith(job.name)
    ]
    assert {f.restored_step for f in resumed if f.source == "storage"} <= {3, 7}
    assert max(i.steps_lost for i in uneven.incidents(job.name)) <= 6


def test_its_node_comes_back(uneven: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    """With it the shape that it would rather have: what that gains until a node fails again is worth a standstill."""
    job = submit(uneven, tmp_path / "store", pace=0.2)
    begun_in_four(job, 4)
    uneven.power_off(LARGE)
    trains_in(job, TWO, 2)
    uneven.power_on(LARGE)
    trains_in(job, FOUR, 4)
    ends_exactly(job, alone, 4)
    assert changes(job) == [TWO, FOUR]
    check_counted_once(job, STEPS)
    assert len(uneven.incidents(job.name)) == 1, "the return is no incident"
    stored = [h.event.step for h in uneven.events() if h.kind == "JobSuspended" and h.event.job == job.name]
    assert len(stored) == 1, "what it had is stored, and nothing of that is done again"
    told = [h.event for h in uneven.events() if h.kind == "WorkerTold/Resumed" and h.event.worker.startswith(job.name)]
    held = {e.worker: e.fact.held_bytes for e in told}
    first, of_two, last = (held[f"{job.name}/0.{i}"] for i in range(3))
    assert 0 < first == last < of_two < 3 * first, "a worker of two holds about twice as much as one of four"


def test_faults_in_the_middle_of_a_change(uneven: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    """The old shape loses a worker while it stores what the new one is to begin with; the new one as it begins."""
    job = submit(uneven, tmp_path / "store", drills=("2.0:kill:8:snapshot", "1.1:kill:-1:compute"))
    begun_in_four(job, 8)
    uneven.command(messages.DrainNode(LARGE))
    ends_in_two(job, alone, 2)
    uneven.command(messages.UndrainNode(LARGE))
    check_counted_once(job, STEPS)
    dead = {h.event.exited.worker for h in uneven.events() if h.kind == "WorkerExited" and h.event.exited.code == -9}
    assert {f"{job.name}/2.0", f"{job.name}/1.1"} <= dead


def test_a_pipeline_that_becomes_none(uneven: Cluster, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Each worker then has parts of what two stages had."""
    cut, whole = {"pipeline": 2, "shard": 2}, {"pipeline": 1, "shard": 2}
    job = uneven.submit(
        ["--steps", str(STEPS), "--axes", "pipeline,shard", "--pace", "0.05"],
        size=4,
        size_min=2,
        script=PIPELINED,
        replica=cut,
        replica_size=4,
        shapes=(ReplicaShape(cut), ReplicaShape(whole)),
        checkpoint_url=str(tmp_path / "store"),
    )
    job.wait_step(5)
    uneven.command(messages.DegradeNode(LARGE, slots="2"))
    uneven.wait_for("it trains in its other shape", lambda _: uneven.job(job.name).replica == whole)
    (job.out / "hurry").touch()
    ended = job.wait()
    assert ended.exit_code == 0, f"{ended.reason}\n{uneven.logs()}"
    check_exact(job, undisturbed("--steps", str(STEPS), script=PIPELINED), 4)
    uneven.command(messages.DegradeNode(LARGE, slots="4"))
    computed = Counter((step, number) for _, step, number, rehearsal in job.records() if not rehearsal)
    assert set(computed.values()) == {1}


def test_what_the_old_shape_has_left_in_memory(uneven: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    """It loses a worker before anything is stored: the new shape begins with the snapshots of all four."""
    uneven.command(messages.DrainNode(SMALL))
    job = submit(uneven, tmp_path / "store", drills=("2.0:kill:8:snapshot",), every=100, snapshot_budget=1000.0)
    begun_in_four(job, 8)
    uneven.command(messages.DegradeNode(LARGE, slots="2"))
    ends_in_two(job, alone, 2)
    uneven.command(messages.DegradeNode(LARGE, slots="4"))
    uneven.command(messages.UndrainNode(SMALL))
    check_restored(job, 8)
    check_counted_once(job, STEPS)


def test_parts_that_lie_on_several_nodes(rack: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    """One of its two nodes is lost: the other has half of all parts, and a third one copies of the others."""
    job = submit(rack, tmp_path / "store", every=100, snapshot_budget=1000.0, replica_within="domain")
    step = backed_up(job, 4)
    rack.power_off(node_of(job, 2))
    ends_in_two(job, alone, 2)
    check_counted_once(job, STEPS)
    begun = begun_with(job)
    assert begun.keys() <= {"memory", "peer"}, "a worker that is put where all that it needs is takes it from there"
    assert min(begun.values()) >= step
    assert ("peer" in begun) == ("pieces of snapshots have come" in rack.logs())


def node_of(job: Job, seat: int) -> str:
    return next(w.node for w in job.cluster.job(job.name).workers if WorkerName.parse(w.worker).seat == seat)


def test_what_stands_still_goes_on_from_memory(uneven: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    """Though all of it is stored, too: memory of the node that it leaves is nearer, and has the same step."""
    job = submit(uneven, tmp_path / "store", every=100, drills=("1.1:kill:-1:pieces",), snapshot_budget=SELDOM)
    begun_in_four(job, 6)
    uneven.command(messages.DrainNode(LARGE))
    ends_in_two(job, alone, 2)
    uneven.command(messages.UndrainNode(LARGE))
    computed = Counter((step, number) for _, step, number, rehearsal in job.records() if not rehearsal)
    assert set(computed.values()) == {1}
    assert begun_with(job) == {"peer": stood_still_after(job)}
    (died,) = [i for i in uneven.incidents(job.name) if i.worker == f"{job.name}/1.1"]
    assert died.steps_lost == 0


def test_the_node_goes_from_which_it_comes(uneven: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    """In the middle: what is stored, and what of the last snapshot has been copied by then, is of the same step."""
    job = submit(uneven, tmp_path / "store", every=100, drills=("0.1:gate:-1:pieces",), snapshot_budget=SELDOM)
    begun_in_four(job, 6)
    uneven.command(messages.DrainNode(LARGE))
    job.at_gate("pieces")
    uneven.power_off(LARGE)
    job.open_gate("pieces")
    ends_in_two(job, alone, 2)
    uneven.power_on(LARGE)
    uneven.wait_for("the node is back", lambda _: all(n.state != "lost" for n in uneven.look().nodes))
    uneven.command(messages.UndrainNode(LARGE))
    computed = Counter((step, number) for _, step, number, rehearsal in job.records() if not rehearsal)
    assert set(computed.values()) == {1}
    assert set(begun_with(job).values()) == {stood_still_after(job)}


def stood_still_after(job: Job) -> int:
    (step,) = [h.event.step for h in job.cluster.events() if h.kind == "JobSuspended" and h.event.job == job.name]
    return int(step)


def begun_with(job: Job) -> dict[str, int]:
    """Where workers have taken a state from that no member had, and of which step it was."""
    resumed = [h.event for h in job.cluster.events() if h.kind == "WorkerTold/Resumed"]
    told = [e.fact for e in resumed if e.worker.startswith(f"{job.name}/")]
    return {fact.source: fact.restored_step for fact in told if fact.source in ("memory", "peer", "storage")}
