"""Replicas that are pipelines: torch's own stages and schedules, healed as small replicas are, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import (
    PIPELINED,
    TOLERANCE,
    Cluster,
    Job,
    Undisturbed,
    check_counted_once,
    cluster,
    distance,
    submit_split,
)

from unicorn_mgr.messages import IncidentView

STEPS = 24
PIPELINE = {"pipeline": 2}


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[Cluster]:
    """A node of eight slots."""
    with cluster(tmp_path_factory.mktemp("pipelines"), templates, nodes=1, slots=8) as found:
        yield found


@pytest.fixture(scope="module")
def alone(undisturbed: Undisturbed) -> dict[str, Any]:
    """The same training without an agent."""
    return undisturbed("--steps", str(STEPS), script=PIPELINED)


def submit(
    cluster: Cluster,
    replica: dict[str, int],
    drills: tuple[str, ...] = (),
    pace: float = 0.05,
    replicas: int = 2,
    steps: int = STEPS,
    **spec: Any,
) -> Job:
    arguments = ("--steps", str(steps), "--pace", str(pace))
    return submit_split(cluster, PIPELINED, replica, *arguments, replicas=replicas, drills=drills, **spec)


def ends_well(job: Job, alone: dict[str, Any], members: int) -> None:
    ended = job.wait()
    assert ended.exit_code == 0, f"{ended.reason}\n{job.cluster.logs()}"
    found = job.weights()
    assert len(found) == members, sorted(found)
    assert {name for stage in found.values() for name in stage["state"]} == set(alone["state"])
    for worker, stage in found.items():
        same = {**alone, "state": {name: alone["state"][name] for name in stage["state"]}}
        assert distance(stage, same) <= TOLERANCE, worker
        assert abs(stage["loss"] - alone["loss"]) <= TOLERANCE, "every stage knows the loss"


def heals(eight: Cluster, alone: dict[str, Any], replica: dict[str, int], drill: str, **spec: Any) -> IncidentView:
    members = 2 * math.prod(replica.values())
    job = submit(eight, replica, drills=(drill,), **spec)
    job.hurry_when_whole(members)
    ends_well(job, alone, members)
    check_counted_once(job, STEPS)
    (incident,) = eight.incidents(job.name)
    assert (incident.steps_lost, incident.state) == (0, "closed")
    return incident


@pytest.mark.parametrize("place", ["compute", "backward", "in_reduce", "optimizer"])
@pytest.mark.parametrize("seat", [2, 3], ids=["first stage", "last stage"])
def test_a_pipeline_that_loses_a_stage_comes_back_whole(
    eight: Cluster, alone: dict[str, Any], seat: int, place: str
) -> None:
    heals(eight, alone, PIPELINE, f"{seat}.0:kill:6:{place}")


def test_a_stage_that_hangs_is_told_from_the_one_that_waits_for_it(eight: Cluster, alone: dict[str, Any]) -> None:
    incident = heals(eight, alone, PIPELINE, "3.0:hang:6:backward", stall_seconds=1.5)
    assert incident.cause == "task_hang"
    assert incident.worker.endswith("/3.0"), incident.evidence


@pytest.mark.parametrize("other", ["shard", "tensor"])
def test_a_pipeline_of_stages_that_are_split(eight: Cluster, alone: dict[str, Any], other: str) -> None:
    heals(eight, alone, {"pipeline": 2, other: 2}, "6.0:kill:6:backward")


def test_all_axes_at_once(eight: Cluster, alone: dict[str, Any]) -> None:
    job = submit(eight, {"pipeline": 2, "shard": 2, "tensor": 2}, pace=0.0, replicas=1)
    ends_well(job, alone, 8)
    check_counted_once(job, STEPS)


def test_a_checkpoint_has_the_stages_of_one_step(eight: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    """Both replicas are lost, and go on from it."""
    drills = tuple(f"{seat}.0:kill:14:before_reduce" for seat in range(4))
    stored: dict[str, Any] = {"checkpoint_url": str(tmp_path / "store"), "checkpoint_every_steps": 4}
    job = submit(eight, PIPELINE, drills=drills, pace=0.0, **stored)
    ends_well(job, alone, 4)
    (restored,) = {f.restored_step for f in _resumed(eight, job) if f.source == "storage"}
    assert 3 <= restored < 14, "whichever was the last that had been stored by then"


def test_a_job_that_is_split_otherwise_goes_on_from_it(eight: Cluster, alone: dict[str, Any], tmp_path: Path) -> None:
    stored: dict[str, Any] = {"checkpoint_url": str(tmp_path / "store")}
    assert submit(eight, PIPELINE, pace=0.0, steps=8, **stored).wait().exit_code == 0, eight.logs()
    job = submit(eight, {"shard": 2}, pace=0.0, **stored)
    ends_well(job, alone, 4)
    assert min(step for _, step, _, _ in job.records()) == 8


def _resumed(eight: Cluster, job: Job) -> list[Any]:
    facts = [h.event for h in eight.events() if h.kind == "WorkerTold/Resumed"]
    return [event.fact for event in facts if event.worker.startswith(f"{job.name}/")]
