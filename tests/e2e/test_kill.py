"""kill -9 at every place of the training loop: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import pytest
from e2e.harness import Cluster, Undisturbed, finish

STEPS = 40
PLACES = [
    "compute",
    "backward",
    "computed",
    "before_reduce",
    "first_bucket",
    "in_reduce",
    "reduced",
    "optimizer",
    "head",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_worker_is_killed(shared: Cluster, undisturbed: Undisturbed, place: str) -> None:
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.05"], drills=(f"1.0:kill:4:{place}",))
    finish(job, undisturbed, STEPS, members=3)
    (incident,) = shared.incidents(job.name)
    assert incident.cause == "process_killed"
    assert incident.severity == "SEV2"
    assert incident.steps_lost == 0
    assert incident.state == "closed"


def test_a_worker_is_killed_inside_the_optimizer(shared: Cluster, undisturbed: Undisturbed) -> None:
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.05", "--update-kill", "1:4"], last_fault=4)
    finish(job, undisturbed, STEPS, members=3)


def test_the_first_member_is_killed(shared: Cluster, undisturbed: Undisturbed) -> None:
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.05"], drills=("0.0:kill:4:computed",))
    finish(job, undisturbed, STEPS, members=3)


def test_two_are_killed_at_once(shared: Cluster, undisturbed: Undisturbed) -> None:
    drills = ("0.0:kill:4:before_reduce", "2.0:kill:4:before_reduce")
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.05"], drills=drills)
    finish(job, undisturbed, STEPS, members=3)


def test_all_but_one_are_killed_one_after_the_other(shared: Cluster, undisturbed: Undisturbed) -> None:
    drills = ("0.0:kill:4:in_reduce", "1.0:kill:5:compute", "2.0:kill:6:reduced")
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.05"], size=4, drills=drills)
    finish(job, undisturbed, STEPS, members=4)


@pytest.mark.parametrize("seat", [0, 1])
def test_a_worker_is_killed_in_the_closing_collective(shared: Cluster, undisturbed: Undisturbed, seat: int) -> None:
    job = shared.submit(["--steps", "8"], drills=(f"{seat}.0:kill:8:closing",))
    finish(job, undisturbed, 8, members=2)


def test_a_planted_bug_is_noticed(shared: Cluster, undisturbed: Undisturbed) -> None:
    """This test can fail: one wrong weight after a kill, and the weights differ."""
    arguments = ["--steps", str(STEPS), "--pace", "0.05", "--plant", "weight"]
    job = shared.submit(arguments, drills=("1.0:kill:4:compute",))
    with pytest.raises(AssertionError, match="differs from the undisturbed run"):
        finish(job, undisturbed, STEPS)
