"""Checkpoints to storage of models that are split over several workers: all parts of one step, or none."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import SHARDED, Cluster, Job, Undisturbed, check_counted_once, check_exact, submit_split

SHARD = {"shard": 2}
STEPS = 24


@pytest.fixture(scope="module")
def alone(undisturbed: Undisturbed) -> dict[str, Any]:
    """The same training without an agent."""
    return undisturbed("--steps", str(STEPS), script=SHARDED)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def submit(
    cluster: Cluster,
    store: Path,
    *more: str,
    replica: dict[str, int] = SHARD,
    replicas: int = 2,
    every: int = 4,
    steps: int = STEPS,
    **spec: Any,
) -> Job:
    stored = {"checkpoint_url": str(store), "checkpoint_every_steps": every, "checkpoint_keep": 20}
    arguments = ("--steps", str(steps), *more)
    return submit_split(cluster, SHARDED, replica, *arguments, replicas=replicas, **stored, **spec)


def stored_steps(store: Path) -> list[int]:
    return sorted(int(p.name[5:15]) for p in store.glob("step-*.json"))


def ends_well(job: Job, alone: dict[str, Any], members: int) -> None:
    ended = job.wait()
    assert ended.exit_code == 0, f"{ended.reason}\n{job.cluster.logs()}"
    check_exact(job, alone, members)


@pytest.mark.parametrize("replica", [SHARD, {"shard": 2, "tensor": 2}], ids=["shard", "shard and tensor"])
def test_all_replicas_are_lost(eight: Cluster, alone: dict[str, Any], store: Path, replica: dict[str, int]) -> None:
    seats = 2 * math.prod(replica.values())
    drills = tuple(f"{seat}.0:kill:14:before_reduce" for seat in range(seats))
    job = submit(eight, store, replica=replica, drills=drills)
    ends_well(job, alone, seats)
    resumed = [
        h.event.fact for h in eight.events() if h.kind == "WorkerTold/Resumed" and h.event.worker.startswith(job.name)
    ]
    restored = {f.restored_step for f in resumed if f.source == "storage"}
    assert restored <= set(range(7, 13)), "the newest: each begins when due, or as soon as the one before is written"
    assert len(restored) == 1, "all parts are of the same one"
    lost = 12 - restored.pop()  # nobody had seen yet that all have made step 13
    assert max(i.steps_lost for i in eight.incidents(job.name)) == lost
    assert stored_steps(store)[-1] == STEPS - 1


def test_with_a_damaged_part_all_go_on_from_an_older_one(eight: Cluster, alone: dict[str, Any], store: Path) -> None:
    first = submit(eight, store, steps=10)
    assert first.wait().exit_code == 0, eight.logs()
    newest, older = stored_steps(store)[-1], stored_steps(store)[-2]
    (part,) = store.glob(f"step-{newest:010d}.*/part-1")
    data = next(part.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-7])
    job = submit(eight, store)
    ends_well(job, alone, 4)
    assert f"checkpoint {part.parent.name}.json is skipped: part-1: " in job.log()
    assert min(step for _, step, _, _ in job.records()) == older + 1


def test_a_writer_is_killed_and_the_next_replica_takes_the_next_step(
    eight: Cluster, alone: dict[str, Any], store: Path
) -> None:
    """It has not handed its part over yet."""
    job = submit(eight, store, "--pace", "0.05", drills=("1.0:kill:7:snapshot",))
    job.hurry_when_whole(4)
    ends_well(job, alone, 4)
    check_counted_once(job, STEPS)
    steps = stored_steps(store)
    assert steps[-1] == STEPS - 1
    assert next(step for step in steps if step >= 7) <= 16, steps
    (incident,) = eight.incidents(job.name)
    assert (incident.steps_lost, incident.state) == (0, "closed")


def test_it_waits_for_a_more_important_job_and_comes_back(eight: Cluster, alone: dict[str, Any], store: Path) -> None:
    low = submit(eight, store, "--pace", "0.2", replicas=3, every=0, size_min=4)
    low.wait_step(3)
    high = eight.submit(["--steps", "60", "--pace", "0.2"], size=6, size_min=6, priority=1)
    suspended = eight.wait_event("JobSuspended", lambda e: e.job == low.name)
    assert stored_steps(store) == [suspended.step]
    high.wait_step(1)
    (high.out / "hurry").touch()
    assert high.wait().exit_code == 0, eight.logs()
    (low.out / "hurry").touch()
    ends_well(low, alone, 6)
    computed = Counter((step, number) for _, step, number, rehearsal in low.records() if not rehearsal)
    assert set(computed.values()) == {1}, "nothing is lost by waiting"
    assert eight.incidents(low.name) == []


def test_a_given_up_job_saves_all_parts_of_what_it_has(eight: Cluster, store: Path) -> None:
    job = submit(eight, store, "--raise-at", "6:2", replicas=3, every=100)
    assert job.wait().exit_code == 1
    assert stored_steps(store) == [5]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (SHARD, {"shard": 4}),
        (SHARD, {"tensor": 2}),
        ({"shard": 2, "tensor": 2}, SHARD),
        (SHARD, {}),
    ],
    ids=["more shards", "another axis", "fewer axes", "not split"],
)
def test_a_job_of_another_shape_goes_on_from_it(
    eight: Cluster, alone: dict[str, Any], store: Path, there: dict[str, int], here: dict[str, int]
) -> None:
    first = submit(eight, store, replica=there, steps=10)
    assert first.wait().exit_code == 0, eight.logs()
    job = submit(eight, store, replica=here)
    ends_well(job, alone, 2 * math.prod(here.values()))
    assert min(step for _, step, _, _ in job.records()) == 10
