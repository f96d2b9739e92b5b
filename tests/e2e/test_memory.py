"""All workers of a job at once, and nothing in storage: the job begins again with what memory holds, in float64."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.harness import Cluster, Job, Undisturbed, check_restored, cluster, finish, is_stopped

from unicorn_mgr.messages import CancelJob
from unicorn_mgr.worker.snapshot import find

STEPS = 20
EVERY_STEP = 1000.0
"""A budget that pays for a snapshot after each."""


@pytest.mark.parametrize("place", ["compute", "in_reduce", "optimizer", "memory"])
def test_all_workers_at_once(shared: Cluster, undisturbed: Undisturbed, place: str) -> None:
    """In the middle of a copy, too: the other buffer has the step before."""
    drills = tuple(f"{seat}.0:kill:8:{place}" for seat in range(3))
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.02"], drills=drills, snapshot_budget=EVERY_STEP)
    finish(job, undisturbed, STEPS, 3)
    check_restored(job, 8)


def test_a_new_agent_finds_what_the_old_one_had(templates: Path, undisturbed: Undisturbed) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="unicorn-c") as folder,
        cluster(Path(folder), templates, nodes=2) as own,
    ):
        job = own.submit(["--steps", str(STEPS), "--pace", "0.1"], size=2, snapshot_budget=EVERY_STEP)
        job.wait_step(5)
        before = [w.pid for w in own.job(job.name).workers]
        for node in range(2):
            own.kill_agent(node)
        own.wait_for("both attached again", lambda events: sum(h.kind == "NodeAttached" for h in events) == 4)
        step = max(step for _, step, _, rehearsal in job.records() if not rehearsal)
        for pid in before:
            own.end_process(pid)
        finish(job, undisturbed, STEPS, 2)
        check_restored(job, step)


def kept(template: int, name: str) -> list[Path]:
    """The memory of a template in which snapshots of a worker or a job are."""
    words = f"-{name}".replace("/", "-")
    files = Path(f"/proc/{template}/fd").iterdir()
    return [file for file in files if "unicorn-snapshot" in (of := str(file.readlink())) and words in of]


def template_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def damage(path: Path) -> bool:
    """A bit of a whole snapshot; False if it is none."""
    file = os.open(path, os.O_RDWR)
    try:
        snapshot = find(file)
        if snapshot is not None:
            (byte,) = os.pread(file, 1, snapshot.body_at)
            os.pwrite(file, bytes([byte ^ 1]), snapshot.body_at)
        return snapshot is not None
    finally:
        os.close(file)


@contextmanager
def all_stopped(shared: Cluster) -> Iterator[tuple[Job, dict[str, int]]]:
    """A job whose workers stand still in step 8; their pids.  They are ended with the block."""
    drills = tuple(f"{seat}.0:stop:8:compute" for seat in range(3))
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.02"], drills=drills, snapshot_budget=EVERY_STEP)
    job.wait_step(7)
    pids = {w.worker: w.pid for w in shared.job(job.name).workers}
    shared.wait_for("all stand still", lambda _: all(is_stopped(pid) for pid in pids.values()))
    yield job, pids
    for pid in pids.values():
        shared.end_process(pid)


def test_whoever_finds_its_own_damaged_takes_the_state_from_another(shared: Cluster, undisturbed: Undisturbed) -> None:
    """One bit of each that is whole; the newest may have been stopped before it was."""
    with all_stopped(shared) as (job, pids):
        worker, pid = min(pids.items())
        damaged = [damage(path) for path in kept(template_of(pid), worker)]
        assert any(damaged)
    finish(job, undisturbed, STEPS, 3)
    assert "its body is not as it was written" in job.log()
    assert {s.source: s.workers for i in shared.incidents(job.name) for s in i.sources} == {"memory": 2, "live": 1}


def test_memory_is_given_back(shared: Cluster) -> None:
    """When a job ends, and when it is cancelled."""
    jobs = [shared.submit(["--steps", "40", "--pace", "0.2"], size=1, snapshot_budget=EVERY_STEP) for _ in range(2)]
    for job in jobs:
        job.wait_step(3)
    held = {job: template_of(shared.job(job.name).workers[0].pid) for job in jobs}
    assert all(len(kept(template, job.name)) == 2 for job, template in held.items())
    cancelled, hurried = jobs
    shared.command(CancelJob(cancelled.name))
    (hurried.out / "hurry").touch()
    for job in jobs:
        job.wait()
    shared.wait_for("nothing is kept", lambda _: not any(kept(template, job.name) for job, template in held.items()))
