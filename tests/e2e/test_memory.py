"""All workers of a job at once, and nothing in storage: the job begins again with what memory holds, in float64."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.harness import (
    SHARDED,
    Cluster,
    Job,
    Undisturbed,
    check_exact,
    check_restored,
    cluster,
    finish,
    is_stopped,
    kill_together,
    submit_split,
)

from unicorn_mgr.messages import CancelJob
from unicorn_mgr.model import WorkerName
from unicorn_mgr.seal import find

STEPS = 20
EVERY_STEP = 1000.0
"""A budget that pays for a snapshot after each."""


@pytest.mark.parametrize("place", ["compute", "in_reduce", "optimizer", "memory"])
def test_all_workers_at_once(shared: Cluster, undisturbed: Undisturbed, place: str) -> None:
    """In the middle of a copy, too: the other buffer has the step before."""
    drills = tuple(f"{seat}.0:stop:8:{place}" for seat in range(3))
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.02"], drills=drills, snapshot_budget=EVERY_STEP)
    kill_together(job, 8, range(3))
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
    found = []
    for file in Path(f"/proc/{template}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            of = str(file.readlink()).removesuffix(" (deleted)")
            if "unicorn-snapshot" in of and f"-{name}-".replace("/", "-") in f"{of}-":
                found.append(file)
    return found


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
def at_a_stop(job: Job, step: int, seats: tuple[int, ...]) -> Iterator[dict[int, int]]:
    """These have been stopped in a step, and nobody goes on; all pids by seat.  All are ended with the block."""
    job.wait_step(step - 1)
    workers = job.cluster.job(job.name).workers
    pids = {WorkerName.parse(w.worker).seat: w.pid for w in workers}
    job.cluster.wait_for("they stand still", lambda _: all(is_stopped(pids[seat]) for seat in seats))
    yield pids
    for pid in pids.values():
        job.cluster.end_process(pid)


def test_whoever_finds_its_own_damaged_takes_the_state_from_another(shared: Cluster, undisturbed: Undisturbed) -> None:
    """One bit of each that is whole; the newest may have been stopped before it was."""
    drills = tuple(f"{seat}.0:stop:8:compute" for seat in range(3))
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.02"], drills=drills, snapshot_budget=EVERY_STEP)
    with at_a_stop(job, 8, (0, 1, 2)) as pids:
        assert sum(map(damage, kept(template_of(pids[0]), f"{job.name}/0.0"))) > 0
    finish(job, undisturbed, STEPS, 3)
    assert "its body is not as it was written" in job.log()
    assert {s.source: s.workers for i in shared.incidents(job.name) for s in i.sources} == {"memory": 2, "live": 1}


def test_a_damaged_part_costs_its_replica_what_the_others_have_read(eight: Cluster, undisturbed: Undisturbed) -> None:
    """Half of a state is none: both take it from the replica that has read all of its own."""
    drills = ("0.0:stop:6:compute", "3.0:stop:6:compute")
    arguments = ("--steps", "40", "--pace", "0.05")
    job = submit_split(eight, SHARDED, {"shard": 2}, *arguments, drills=drills, snapshot_budget=EVERY_STEP)
    with at_a_stop(job, 6, (0, 3)) as pids:
        assert sum(map(damage, kept(template_of(pids[0]), f"{job.name}/0.0"))) > 0
    job.hurry_when_whole(4)
    assert job.wait().exit_code == 0, eight.logs()
    check_exact(job, undisturbed("--steps", "40", script=SHARDED), 4)
    check_restored(job, 6)
    parts = {(s.position, s.source, s.workers) for i in eight.incidents(job.name) for s in i.sources}
    assert parts == {(p, source, 1) for p in (0, 1) for source in ("memory", "live")}


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
