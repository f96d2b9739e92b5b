"""Replicas of several workers, split as torch documents it: they heal as small ones do, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import (
    SHARDED,
    Cluster,
    Job,
    Undisturbed,
    check_counted_once,
    check_exact,
    check_restored,
    cluster,
    distance,
    is_stopped,
    kill_together,
    submit_split,
)

STEPS = 40
PLACES = ["compute", "backward", "computed", "first_bucket", "in_reduce", "reduced", "optimizer"]


@pytest.fixture(scope="module")
def alone(undisturbed: Undisturbed) -> dict[str, Any]:
    """The same training without an agent."""
    return undisturbed("--steps", str(STEPS), script=SHARDED)


def submit(
    cluster: Cluster,
    replica: dict[str, int],
    replicas: int,
    drills: tuple[str, ...] = (),
    pace: float = 0.05,
    **spec: Any,
) -> Job:
    arguments = ("--steps", str(STEPS), "--pace", str(pace))
    return submit_split(cluster, SHARDED, replica, *arguments, replicas=replicas, drills=drills, **spec)


def finish(job: Job, alone: dict[str, Any], members: int) -> None:
    job.hurry_when_whole(members)
    ended = job.wait()
    assert ended.exit_code == 0, f"{ended.reason}\n{job.cluster.logs()}"
    check_exact(job, alone, members)
    check_counted_once(job, STEPS)


def test_an_undisturbed_job_of_sharded_replicas(eight: Cluster, alone: dict[str, Any]) -> None:
    job = submit(eight, {"shard": 2}, 2)
    finish(job, alone, 4)
    assert eight.incidents(job.name) == []


def test_in_float32(eight: Cluster, undisturbed: Undisturbed) -> None:
    """FSDP2 reduces 32 and 16 bits in another way than 64."""
    arguments = ["--steps", "6", "--dtype", "float32"]
    job = eight.submit(arguments, size=4, size_min=4, script=SHARDED, replica={"shard": 2}, replica_size=2)
    assert job.wait().exit_code == 0, eight.logs()
    reference = undisturbed(*arguments, script=SHARDED)
    assert all(distance(ended, reference) < 1e-4 for ended in job.weights().values())


@pytest.mark.parametrize("place", PLACES)
def test_a_replica_that_loses_a_worker_comes_back_whole(eight: Cluster, alone: dict[str, Any], place: str) -> None:
    heals(eight, alone, {"shard": 2}, f"3.0:kill:6:{place}")


def heals(eight: Cluster, alone: dict[str, Any], replica: dict[str, int], drill: str) -> None:
    job = submit(eight, replica, 2, drills=(drill,))
    finish(job, alone, 2 * math.prod(replica.values()))
    (incident,) = eight.incidents(job.name)
    assert (incident.steps_lost, incident.state) == (0, "closed")
    assert incident.worker == f"{job.name}/{drill.partition(':')[0]}", "not whoever of its replica has felt it"


@pytest.mark.parametrize("place", ["compute", "backward", "in_reduce"])
def test_sharded_and_tensor_parallel_at_once(eight: Cluster, alone: dict[str, Any], place: str) -> None:
    heals(eight, alone, {"shard": 2, "tensor": 2}, f"6.0:kill:6:{place}")


def test_both_workers_of_a_replica_at_once(eight: Cluster, alone: dict[str, Any]) -> None:
    job = submit(eight, {"shard": 2}, 3, drills=("2.0:kill:6:backward", "3.0:kill:6:backward"))
    finish(job, alone, 6)
    assert all(i.steps_lost == 0 for i in eight.incidents(job.name))


def test_two_replicas_at_once(eight: Cluster, alone: dict[str, Any]) -> None:
    """The third one has all of the state."""
    job = submit(eight, {"shard": 2}, 3, drills=("1.0:kill:6:in_reduce", "2.0:kill:6:in_reduce"))
    finish(job, alone, 6)
    assert all(i.steps_lost == 0 for i in eight.incidents(job.name))


@pytest.mark.parametrize("place", ["compute", "memory"])
def test_all_parts_of_all_replicas_at_once(eight: Cluster, alone: dict[str, Any], place: str) -> None:
    """The state is in memory, in parts: both halves of one step are taken up again."""
    job = killed_together(eight, (0, 1, 2, 3), place)
    job.hurry_when_whole(4)
    assert job.wait().exit_code == 0, eight.logs()
    check_exact(job, alone, 4)
    check_restored(job, 6)


@pytest.mark.parametrize("seats", [(0, 2), (0, 3)])
def test_every_replica_loses_a_part(eight: Cluster, alone: dict[str, Any], seats: tuple[int, ...]) -> None:
    """All holders of one part, or one of each: nobody moves anything, each takes up what its node has."""
    job = killed_together(eight, seats, "compute")
    job.hurry_when_whole(4)
    assert job.wait().exit_code == 0, eight.logs()
    check_exact(job, alone, 4)
    check_restored(job, 6)
    parts = [s for i in eight.incidents(job.name) for s in i.sources]
    assert {(s.position, s.source, s.workers) for s in parts} == {(0, "memory", 2), (1, "memory", 2)}


def killed_together(cluster: Cluster, seats: Sequence[int], place: str) -> Job:
    drills = tuple(f"{seat}.0:stop:6:{place}" for seat in seats)
    job = submit(cluster, {"shard": 2}, 2, drills, snapshot_budget=1000.0)
    kill_together(job, 6, seats)
    return job


def test_what_two_lost_nodes_leave_is_put_together(
    tmp_path_factory: pytest.TempPathFactory,
    templates: Path,
    alone: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part is left of each replica: it is begun again where its snapshot is, and nothing is moved."""
    monkeypatch.setenv("UNICORN_DOMAIN", "rack")
    with cluster(tmp_path_factory.mktemp("rack"), templates, nodes=4) as rack:
        drills = ("0.0:stop:6:compute", "3.0:stop:6:compute")
        job = submit(rack, {"shard": 2}, 2, drills, snapshot_budget=1000.0, replica_within="domain")
        job.wait_step(5)
        workers = {w.worker: w for w in rack.job(job.name).workers}
        lost = [workers[f"{job.name}/{seat}.0"] for seat in (0, 3)]
        rack.wait_for("both replicas stand still", lambda _: all(is_stopped(w.pid) for w in lost))
        for worker in lost:
            rack.power_off(worker.node)
        job.hurry_when_whole(2)
        assert job.wait().exit_code == 0, rack.logs()
        check_exact(job, alone, 2)
        check_restored(job, 6)
        parts = {(s.position, s.source, s.workers) for i in rack.incidents(job.name) for s in i.sources}
        assert parts == {(0, "memory", 1), (1, "memory", 1)}


def test_a_replica_is_given_to_another_job_and_back(eight: Cluster, alone: dict[str, Any]) -> None:
    """It leaves as a whole, after a step that all have made."""
    job = submit(eight, {"shard": 2}, 3, pace=0.5)
    eight.wait_for("all train", lambda _: eight.job(job.name).size == 6)
    other = eight.submit(["--steps", "20", "--pace", "0.1"], size=4, size_min=4, weight=50.0)
    eight.wait_for("two replicas are left", lambda _: eight.job(job.name).size == 4)
    (other.out / "hurry").touch()
    assert other.wait().exit_code == 0
    finish(job, alone, 6)
    assert eight.incidents(job.name) == []
