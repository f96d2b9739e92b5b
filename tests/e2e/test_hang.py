"""Workers that stop without dying: the culprit is named, its stacks are kept, the job heals."""

from __future__ import annotations

import pytest
from e2e.harness import Cluster, Undisturbed, finish

STEPS = 50


@pytest.mark.parametrize("place", ["compute", "in_reduce", "optimizer", "gather"])
def test_a_stopped_worker_is_named_and_replaced(shared: Cluster, undisturbed: Undisturbed, place: str) -> None:
    drills = [f"1.0:stop:6:{place}"]
    if place == "gather":
        drills.append("2.0:kill:6:compute")
    arguments = ["--steps", str(STEPS), "--pace", "0.05"]
    job = shared.submit(arguments, drills=tuple(drills), stall_seconds=1.5)
    finish(job, undisturbed, STEPS, members=3)
    hangs = [i for i in shared.incidents(job.name) if i.cause == "process_stopped"]
    assert [i.worker for i in hangs] == [f"{job.name}/1.0"]
    assert hangs[0].detected_by == "online statistical monitoring"
    assert "stopped" in hangs[0].evidence
    assert "stacks by" in hangs[0].evidence, hangs[0].evidence


def test_a_hung_worker_is_told_from_those_who_wait_for_it(shared: Cluster, undisturbed: Undisturbed) -> None:
    """It sleeps for ever in its own code, inside a micro-batch, and answers every signal."""
    arguments = ["--steps", str(STEPS), "--pace", "0.05"]
    job = shared.submit(arguments, drills=("2.0:hang:6:backward",), stall_seconds=1.5)
    finish(job, undisturbed, STEPS, members=3)
    (incident,) = shared.incidents(job.name)
    assert incident.cause == "task_hang"
    assert incident.worker == f"{job.name}/2.0"
    assert "in compute" in incident.evidence
    assert "_strike" in incident.evidence, "the stacks name the place"


def test_a_pause_between_steps_is_nobodys_fault(shared: Cluster, undisturbed: Undisturbed) -> None:
    """All evaluate for longer than a stall may last; nothing is suspected that long."""
    arguments = ["--steps", "12", "--evaluate", "5:4"]
    job = shared.submit(arguments, stall_seconds=1.0)
    finish(job, undisturbed, 12, members=3)
    assert shared.incidents(job.name) == []
    assert shared.job(job.name).epoch.number == 1
