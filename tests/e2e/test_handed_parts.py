"""What workers have left of a checkpoint is stored, whoever dies before: worker, agent, coordinator; float64."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import SHARDED, Cluster, Job, Undisturbed, check_exact, cluster, finish, submit_split

STEPS = 40
LATER = ("1.0:gate:8:checkpoint", "0.1:gate:8:checkpoint")
"""Whoever stores next is held up before it gives the word, so that what was left before it is not obsolete at once."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture(scope="module")
def own(templates: Path) -> Iterator[Cluster]:
    """Whose agents and coordinator are killed."""
    with tempfile.TemporaryDirectory(prefix="unicorn-c") as folder, cluster(Path(folder), templates) as found:
        yield found


def submit(shared: Cluster, store: Path, *drills: str, **spec: Any) -> Job:
    return shared.submit(
        ["--steps", str(STEPS), "--pace", "0.2"],
        drills=drills,
        checkpoint_url=str(store),
        checkpoint_every_steps=8,
        checkpoint_keep=99,
        **spec,
    )


def stored_steps(store: Path) -> list[int]:
    return sorted(int(p.name[5:15]) for p in store.glob("step-*.json"))


def kill(job: Job, worker: str) -> None:
    """One that has seen step 7 committed: nobody begins step 10 before all have finished step 8."""
    name = f"{job.name}/{worker}"
    job.cluster.wait_event("WorkerTold/CheckpointHanded", lambda e: e.worker == name)
    job.wait_step(10)
    job.cluster.end_process(next(w.pid for w in job.cluster.job(job.name).workers if w.worker == name))
    job.cluster.wait_event("WorkerExited", lambda e: e.exited.worker == name)


def end(job: Job, undisturbed: Undisturbed) -> None:
    """Well, and without taking its time any longer."""
    (job.out / "hurry").touch()
    finish(job, undisturbed, STEPS)


def await_published(job: Job, worker: str, step: int) -> None:
    job.cluster.wait_event(
        "WorkerTold/CheckpointPublished", lambda e: (e.worker, e.fact.step) == (f"{job.name}/{worker}", step)
    )


def test_a_worker_dies_after_it_has_left_its_part(shared: Cluster, undisturbed: Undisturbed, store: Path) -> None:
    job = submit(shared, store, "0.0:gate:7:handed", *LATER)
    job.at_gate("handed")
    kill(job, "0.0")
    assert stored_steps(store) == []
    job.open_gate("handed")
    await_published(job, "0.0", 7)
    assert stored_steps(store) == [7]
    job.open_gate("checkpoint")
    end(job, undisturbed)
    assert stored_steps(store)[-1] == STEPS - 1


@pytest.mark.parametrize("place", ["handed", "checkpoint", "publish_checkpoint"])
def test_who_stores_it_is_killed_and_another_begins_again(
    shared: Cluster, undisturbed: Undisturbed, store: Path, place: str
) -> None:
    job = submit(shared, store, f"0.0:kill:7:{place}")
    end(job, undisturbed)
    await_published(job, "0.0", 7)
    assert stored_steps(store)[0] == 7
    assert shared.incidents(job.name) == [], "training has not noticed"


def test_storage_is_down_while_worker_and_agent_die(own: Cluster, undisturbed: Undisturbed, store: Path) -> None:
    """It can't be reached at first; what was left is stored when it is back."""
    store.write_text("in the way")
    job = submit(own, store, "1.0:gate:8:handed", "0.1:gate:8:checkpoint")
    own.wait_event("WorkerTold/CheckpointFailed", lambda e: e.worker == f"{job.name}/0.0")
    kill(job, "0.0")
    for node in range(3):
        own.kill_agent(node)
    store.unlink()
    await_published(job, "0.0", 7)
    job.open_gate("handed")
    job.open_gate("checkpoint")
    end(job, undisturbed)
    assert stored_steps(store)[0] == 7


def test_the_coordinator_dies_before_it_has_noted_that_all_is_there(
    own: Cluster, undisturbed: Undisturbed, store: Path
) -> None:
    """And the worker with it: the word that its part is stored is told to the next coordinator."""
    job = submit(own, store, "0.0:gate:7:handed", *LATER)
    job.at_gate("handed")
    kill(job, "0.0")
    own.kill_coordinator()
    job.open_gate("handed")
    await_published(job, "0.0", 7)
    assert [h.event.step for h in own.events() if h.kind == "CheckpointCommitted" and h.event.job == job.name] == [7]
    job.open_gate("checkpoint")
    end(job, undisturbed)


def test_the_coordinator_dies_after_it_has_noted_that_all_is_there(
    own: Cluster, undisturbed: Undisturbed, store: Path
) -> None:
    """And nothing is published yet."""
    job = submit(own, store, "0.0:gate:7:publish_checkpoint", *LATER)
    job.at_gate("publish_checkpoint")
    own.wait_event("CheckpointCommitted", lambda e: e.job == job.name)
    kill(job, "0.0")
    own.kill_coordinator()
    job.open_gate("publish_checkpoint")
    await_published(job, "0.0", 7)
    assert stored_steps(store) == [7]
    job.open_gate("checkpoint")
    end(job, undisturbed)
    assert own.job(job.name).checkpoint_step == STEPS - 1


def test_a_worker_dies_with_the_last_part_after_the_loop(
    shared: Cluster, undisturbed: Undisturbed, store: Path
) -> None:
    last = STEPS - 1
    job = submit(shared, store, f"0.0:gate:{last}:handed")
    (job.out / "hurry").touch()
    job.at_gate("handed")
    name = f"{job.name}/0.0"
    shared.wait_event("WorkerTold/CheckpointHanded", lambda e: (e.worker, e.fact.step) == (name, last))
    shared.wait_event("WorkerTold/LoopEnded", lambda e: e.worker == name)
    shared.end_process(next(w.pid for w in shared.job(job.name).workers if w.worker == name))
    shared.wait_event("WorkerExited", lambda e: e.exited.worker == name)
    job.open_gate("handed")
    assert job.wait().reason == f"finished after step {last}, but a worker then ended with -9"
    assert stored_steps(store)[-1] == last


def test_both_parts_of_a_split_model_are_stored_though_its_replica_has_died(
    eight: Cluster, undisturbed: Undisturbed, store: Path
) -> None:
    later = tuple(f"{worker}:gate:8:checkpoint" for worker in ("2.0", "3.0", "0.1", "1.1"))
    job = submit_split(
        eight,
        SHARDED,
        {"shard": 2},
        *("--steps", str(STEPS), "--pace", "0.2"),
        drills=("0.0:gate:7:handed", "1.0:gate:7:handed", *later),
        checkpoint_url=str(store),
        checkpoint_every_steps=8,
        checkpoint_keep=99,
    )
    job.at_gate("handed")
    eight.wait_event("WorkerTold/CheckpointHanded", lambda e: e.worker == f"{job.name}/0.0")
    kill(job, "1.0")
    eight.wait_event("WorkerExited", lambda e: e.exited.worker == f"{job.name}/0.0")
    job.open_gate("handed")
    await_published(job, "0.0", 7)
    job.open_gate("checkpoint")
    (job.out / "hurry").touch()
    assert job.wait().exit_code == 0, eight.logs()
    check_exact(job, undisturbed("--steps", str(STEPS), script=SHARDED))
    assert stored_steps(store)[0] == 7
