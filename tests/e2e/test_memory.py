"""All workers of a job at once, and nothing in storage: the job begins again with what memory holds, in float64."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from e2e.harness import Cluster, Undisturbed, check_restored, cluster, finish

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
