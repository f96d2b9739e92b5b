"""Checkpoints to storage: when no replica is left, and when storage itself is bad."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import SCRIPT, Cluster, Job, Undisturbed, check_exact, finish

ALL = tuple(f"{seat}.0:kill:12:before_reduce" for seat in range(3))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def stored_steps(store: Path) -> list[int]:
    return sorted(int(p.name[5:15]) for p in store.glob("step-*.json"))


def test_all_replicas_are_lost(shared: Cluster, undisturbed: Undisturbed, store: Path) -> None:
    job = shared.submit(
        ["--steps", "20"],
        drills=ALL,
        checkpoint_url=str(store),
        checkpoint_every_steps=4,
        checkpoint_keep=2,
        snapshot_budget=0.0,
    )
    assert job.wait().exit_code == 0, shared.logs()
    check_exact(job, undisturbed("--steps", "20"), members=3)
    incidents = shared.incidents(job.name)
    assert len(incidents) == 3
    restored = shared.wait_event(
        "WorkerTold/Resumed", lambda e: e.worker.startswith(job.name) and e.fact.source == "storage"
    )
    assert 3 <= restored.fact.restored_step < 12
    assert max(i.steps_lost for i in incidents) <= 12
    assert stored_steps(store)[-1] == 19
    assert len(stored_steps(store)) == 2
    assert shared.job(job.name).checkpoint_step == 19


def test_all_replicas_are_lost_and_there_is_no_checkpoint(shared: Cluster, undisturbed: Undisturbed) -> None:
    job = shared.submit(["--steps", "40", "--pace", "0.05"], drills=ALL, snapshot_budget=0.0)
    job.hurry_when_whole(3)
    assert job.wait().exit_code == 0, shared.logs()
    check_exact(job, undisturbed("--steps", "40"), members=3)


def train_to(shared: Cluster, store: Path, steps: int, **spec: Any) -> Job:
    job = shared.submit(
        ["--steps", str(steps)], checkpoint_url=str(store), checkpoint_every_steps=4, checkpoint_keep=9, **spec
    )
    assert job.wait().exit_code == 0, shared.logs()
    return job


def test_a_later_job_goes_on_where_the_first_ended(shared: Cluster, undisturbed: Undisturbed, store: Path) -> None:
    train_to(shared, store, 10)
    job = train_to(shared, store, 20)
    check_exact(job, undisturbed("--steps", "20"), members=3)
    assert min(step for _, step, _, _ in job.records()) == 10


@pytest.mark.parametrize("harm", ["torn", "rotten", "missing", "manifest"])
def test_a_damaged_checkpoint_is_skipped_for_the_next_older(
    shared: Cluster, undisturbed: Undisturbed, store: Path, harm: str
) -> None:
    train_to(shared, store, 10)
    newest = sorted(store.glob("step-*.json"))[-1]
    older = stored_steps(store)[-2]
    data = next(newest.with_suffix("").glob("*.distcp"))
    if harm == "torn":
        data.write_bytes(data.read_bytes()[:-7])
    elif harm == "rotten":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif harm == "missing":
        data.unlink()
    else:
        newest.write_text(json.dumps({"checksum": "0", "manifest": newest.read_text()}))
    job = train_to(shared, store, 20)
    check_exact(job, undisturbed("--steps", "20"), members=3)
    assert f"checkpoint {newest.name} is skipped" in job.log()
    assert min(step for _, step, _, _ in job.records()) == older + 1


def test_a_checkpoint_of_another_model_is_the_users_mistake(shared: Cluster, store: Path) -> None:
    train_to(shared, store, 6)
    before = sorted(p.name for p in store.iterdir())
    job = shared.submit(["--steps", "8", "--hidden", "5"], checkpoint_url=str(store), checkpoint_every_steps=4)
    ended = job.wait()
    assert ended.exit_code == 2
    assert ended.reason.startswith(f"checkpoint: {store}: step-")
    assert "is of another model (parameters" in ended.reason
    assert sorted(p.name for p in store.iterdir()) == before


def test_the_writer_is_killed_and_another_takes_the_next_step(
    shared: Cluster, undisturbed: Undisturbed, store: Path
) -> None:
    """It has not handed its part over yet."""
    job = shared.submit(
        ["--steps", "40", "--pace", "0.05"],
        drills=("0.0:kill:7:snapshot",),
        checkpoint_url=str(store),
        checkpoint_every_steps=4,
        checkpoint_keep=20,
    )
    finish(job, undisturbed, 40, members=3)
    steps = stored_steps(store)
    assert steps[-1] == 39
    written = [
        h.event.fact
        for h in shared.events()
        if h.kind == "WorkerTold/CheckpointPublished" and job.name in h.event.worker
    ]
    assert [f.step for f in written] == sorted({f.step for f in written}), "no step is published twice"
    after = [s for s in steps if s >= 7]
    assert after[0] <= 16, steps


def test_storage_that_fails_is_tried_again(shared: Cluster, undisturbed: Undisturbed, store: Path) -> None:
    """The directory can't be made at first, because a file is in its place."""
    store.write_text("in the way")
    job = shared.submit(["--steps", "60", "--pace", "0.05"], checkpoint_url=str(store), checkpoint_every_steps=4)
    shared.wait_event("WorkerTold/CheckpointFailed", lambda e: e.worker.startswith(job.name))
    store.unlink()
    finish(job, undisturbed, 60, members=3)
    assert stored_steps(store)[-1] == 59


def test_a_given_up_job_saves_what_it_has(shared: Cluster, store: Path) -> None:
    job = shared.submit(["--steps", "30", "--raise-at", "6:2"], checkpoint_url=str(store), checkpoint_every_steps=100)
    assert job.wait().exit_code == 1
    assert stored_steps(store) == [5]


def test_a_worker_that_a_shell_has_started_stores_by_itself(
    shared: Cluster, undisturbed: Undisturbed, store: Path
) -> None:
    """What starts it has not loaded torch, and stores nothing for it."""
    line = f'exec {sys.executable} {SCRIPT} --out "${{UNICORN_GATES%/gates}}" --steps 12'
    command = ["/bin/sh", "-c", line]
    job = shared.submit([], size=2, command=command, checkpoint_url=str(store), checkpoint_every_steps=4)
    assert job.wait().exit_code == 0, shared.logs()
    check_exact(job, undisturbed("--steps", "12"))
    assert stored_steps(store)[-1] == 11
    handed = [h.event.worker for h in shared.events() if h.kind == "WorkerTold/CheckpointHanded"]
    assert not any(worker.startswith(f"{job.name}/") for worker in handed)
