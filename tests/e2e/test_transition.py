"""Faults in the middle of healing: in the transition, to joiners and to those who serve them."""

from __future__ import annotations

import pytest
from e2e.harness import Cluster, Undisturbed, finish

STEPS = 40
ARGUMENTS = ["--steps", str(STEPS), "--pace", "0.05"]
FIRST = "1.0:kill:4:compute"


@pytest.mark.parametrize("place", ["publish", "constructor", "gather", "deal", "recompute"])
def test_a_second_worker_is_killed_in_the_transition(shared: Cluster, undisturbed: Undisturbed, place: str) -> None:
    job = shared.submit(ARGUMENTS, drills=(FIRST, f"2.0:kill:4:{place}"))
    finish(job, undisturbed, STEPS, members=3)


@pytest.mark.parametrize("place", ["constructor", "gather", "deal"])
def test_a_worker_is_killed_while_the_first_group_is_built(
    shared: Cluster, undisturbed: Undisturbed, place: str
) -> None:
    job = shared.submit(ARGUMENTS, drills=(f"1.0:kill:-1:{place}",))
    finish(job, undisturbed, STEPS, members=3)


@pytest.mark.parametrize("place", ["rehearse", "ready", "receive_state"])
def test_a_joiner_is_killed(shared: Cluster, undisturbed: Undisturbed, place: str) -> None:
    job = shared.submit(["--steps", "60", "--pace", "0.05"], drills=(FIRST, f"1.1:kill:-1:{place}"))
    finish(job, undisturbed, 60, members=3)


def test_the_donor_is_killed_while_a_joiner_takes_its_state(shared: Cluster, undisturbed: Undisturbed) -> None:
    job = shared.submit(["--steps", "60", "--pace", "0.05"], drills=(FIRST, "0.0:kill:5:send_state"))
    finish(job, undisturbed, 60, members=3)
