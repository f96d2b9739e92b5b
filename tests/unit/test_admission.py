"""A wish that can't be granted is refused in one line with field, value and fix, and changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.coordinator.admission import Rejected, check_spec, commanded, job_submitted
from unicorn_mgr.coordinator.state import ClusterState, Job, JobPhase, Node, NodePhase, Worker, WorkerPhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import (
    CancelJob,
    Command,
    DegradeNode,
    DrainNode,
    Inject,
    SetObserve,
    SetPaused,
    UndrainNode,
)
from unicorn_mgr.model import FAULTS, PLACES, Drill, JobDrill, JobSpec, Slot

GOOD = JobSpec(name="gpt", command=("python", "train.py"), directory="/work", size_min=1, size_max=4)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"name": ""}, "name", ""),
        ({"name": "a/b"}, "name", "a/b"),
        ({"name": "-gpt"}, "name", "-gpt"),
        ({"name": "x" * 64}, "name", "x" * 64),
        ({"name": "gpt\n"}, "name", r"'gpt\n'"),
        ({"command": ()}, "command", ""),
        ({"size_min": 0}, "min", "0"),
        ({"size_min": -3}, "min", "-3"),
        ({"size_min": 5}, "max", "4"),
        ({"size_max": 100_001}, "max", "100001"),
        ({"weight": 0.0}, "weight", "0.0"),
        ({"weight": -1.0}, "weight", "-1.0"),
        ({"weight": float("nan")}, "weight", "nan"),
        ({"weight": float("inf")}, "weight", "inf"),
        ({"directory": "here"}, "workdir", "here"),
        ({"checkpoint_every_steps": -1}, "checkpoint_every", "-1"),
        ({"checkpoint_keep": 0}, "checkpoint_keep", "0"),
        ({"stall_seconds": -1.0}, "stall_seconds", "-1.0"),
        ({"stall_seconds": float("nan")}, "stall_seconds", "nan"),
        ({"stall_seconds": float("inf")}, "stall_seconds", "inf"),
        ({"user_seconds": -1.0}, "user_seconds", "-1.0"),
        ({"user_seconds": float("inf")}, "user_seconds", "inf"),
        ({"stall_factor": 0.5}, "stall_factor", "0.5"),
        ({"stall_factor": float("inf")}, "stall_factor", "inf"),
        ({"stall_factor": float("nan")}, "stall_factor", "nan"),
        ({"restarts_max": -1}, "restarts", "-1"),
        ({"poison_deaths": -1}, "poison_deaths", "-1"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_a_bad_field_is_named_with_its_value_and_the_fix(change: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(Rejected) as refused:
        check_spec(replace(GOOD, **change))
    mistake = refused.value.mistake
    assert (mistake.field, mistake.value) == (field, value)
    assert mistake.fix.startswith(("want ", "give "))
    assert str(mistake).isprintable(), "one line, whatever was given"


def test_a_good_job_is_accepted() -> None:
    check_spec(GOOD)
    check_spec(replace(GOOD, name="a", size_min=4, stall_factor=1.0, weight=0.1))


@given(st.text(max_size=70))
def test_a_name_that_is_accepted_can_stand_in_a_path_and_a_worker_name(name: str) -> None:
    try:
        check_spec(replace(GOOD, name=name))
    except Rejected:
        return
    assert name.isascii()
    assert not set(name) & set("/. \\\n\t:|")
    assert 1 <= len(name) <= 63


SPEED = "want a number above 0, at most 1"
BAD_SPEEDS = ("0", "-0.5", "1.1", "nan", "inf", "slow", "1,0")
SLOTS = "want how many, 1 to 4, or which of 0, 1, 2, 3"
BAD_SLOTS = ("0", "-1", "5", "1.5", "all", ",", "0,", "0,4", "-1,0", "9" * 5000)


def cluster() -> ClusterState:
    """A running job with a worker on seat 1, one that has ended, and a node of each phase."""
    running = Job("gpt", GOOD, 0.0, phase=JobPhase.RUNNING)
    running.workers["gpt/1.2"] = Worker("gpt/1.2", "gpt", 1, "up", 0, 0.0, phase=WorkerPhase.MEMBER)
    nodes = {phase.value: Node(phase.value, phase=phase, drills=True) for phase in NodePhase}
    nodes["up"].slots = tuple(Slot(i) for i in range(4))
    nodes["up"].speed, nodes["up"].good = 0.9, (1, 2)
    nodes["quiet"] = Node("quiet", phase=NodePhase.SILENT, draining=True)
    ended = Job("old", replace(GOOD, name="old"), 0.0, phase=JobPhase.ENDED)
    return ClusterState(jobs={"gpt": running, "old": ended}, nodes=nodes)


def test_a_name_is_taken_while_its_job_runs_and_free_afterwards() -> None:
    with pytest.raises(Rejected, match="name: gpt: a job of this name is running"):
        job_submitted(cluster(), "r1", GOOD, drills_allowed=False)
    again = replace(GOOD, name="old")
    assert job_submitted(cluster(), "r1", again, drills_allowed=False) == e.JobSubmitted("r1", "old", again)


@pytest.mark.parametrize(
    ("drill", "allowed", "says"),
    [
        (Drill("kill"), False, "drills: this coordinator does not allow drills; start it with --allow-drills"),
        (Drill("melt"), True, f"fault: melt: want one of {', '.join(FAULTS)}"),
        (Drill("kill", 3, "nowhere"), True, f"place: nowhere: want one of {', '.join(PLACES)}"),
        (Drill("slow", seconds=float("inf")), True, "seconds: inf: want a number of seconds, at least 0"),
        (Drill("slow", seconds=float("nan")), True, "seconds: nan: want a number of seconds, at least 0"),
        (Drill("slow", seconds=-1.0), True, "seconds: -1.0: want a number of seconds, at least 0"),
    ],
)
def test_a_job_with_a_drill_that_can_not_be(drill: Drill, allowed: bool, says: str) -> None:
    spec = replace(GOOD, name="drilled", drills=(JobDrill(0, -1, drill),))
    with pytest.raises(Rejected) as refused:
        job_submitted(cluster(), "r1", spec, drills_allowed=allowed)
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("command", "says", "missing"),
    [
        (CancelJob("nobody"), "job: nobody: there is no such job; known: gpt, old", True),
        (CancelJob("old"), "job: old: it has ended", False),
        (SetObserve("nobody", True), "job: nobody: there is no such job; known: gpt, old", True),
        (
            DrainNode("nowhere"),
            f"node: nowhere: there is no such node; known: {', '.join(sorted(cluster().nodes))}",
            True,
        ),
        (DrainNode("lost"), "node: lost: it is lost and holds nothing that could be drained", False),
        (DrainNode("isolated"), "node: isolated: it is isolated and holds nothing that could be drained", False),
        (UndrainNode("up"), "node: up: it is up, neither drained, quarantined nor isolated", False),
        (UndrainNode("lost"), "node: lost: it is lost, neither drained, quarantined nor isolated", False),
        (
            DegradeNode("nowhere", "0.5"),
            f"node: nowhere: there is no such node; known: {', '.join(sorted(cluster().nodes))}",
            True,
        ),
        (DegradeNode("up"), "degrade: up: say --speed, --slots or both", False),
        *((DegradeNode("up", text), f"speed: {text}: {SPEED}", False) for text in BAD_SPEEDS),
        *((DegradeNode("up", "1", text), f"slots: {text}: {SLOTS}", False) for text in BAD_SLOTS),
        (Inject("gpt", 0, Drill("kill")), "worker: 0: job gpt has workers 1", True),
        (Inject("nobody", 0, Drill("kill")), "job: nobody: there is no such job; known: gpt, old", True),
        (Inject("gpt", 1, Drill("melt")), f"fault: melt: want one of {', '.join(FAULTS)}", False),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_command_that_can_not_be(command: Command, says: str, missing: bool) -> None:
    state = cluster()
    before = copy.deepcopy(state)
    with pytest.raises(Rejected) as refused:
        commanded(state, "r1", command, drills_allowed=True)
    assert str(refused.value) == says
    assert refused.value.missing == missing
    assert state == before


def test_nothing_is_injected_where_drills_are_not_allowed() -> None:
    with pytest.raises(Rejected, match="inject: this coordinator does not allow drills"):
        commanded(cluster(), "r1", Inject("gpt", 1, Drill("kill")), drills_allowed=False)


@pytest.mark.parametrize(
    ("phase", "drill", "says"),
    [
        (WorkerPhase.ORDERED, Drill("kill"), "gpt/1.2 has not started yet"),
        (WorkerPhase.STARTED, Drill("exception"), "gpt/1.2 has not called unicorn.attach() yet"),
        (WorkerPhase.STARTED, Drill("kill", 7), "gpt/1.2 has not called unicorn.attach() yet"),
    ],
)
def test_a_drill_that_would_come_to_nothing_is_refused(phase: WorkerPhase, drill: Drill, says: str) -> None:
    state = cluster()
    state.jobs["gpt"].workers["gpt/1.2"].phase = phase
    with pytest.raises(Rejected) as refused:
        commanded(state, "r1", Inject("gpt", 1, drill), drills_allowed=True)
    assert says in str(refused.value)


def test_the_node_has_to_allow_drills_too() -> None:
    state = cluster()
    state.nodes["up"].drills = False
    with pytest.raises(Rejected, match="the agent of node up does not allow drills"):
        commanded(state, "r1", Inject("gpt", 1, Drill("kill")), drills_allowed=True)


@pytest.mark.parametrize(
    ("command", "fact"),
    [
        (CancelJob("gpt"), e.JobCancelled("r1", "gpt")),
        (DrainNode("up"), e.NodeDrained("r1", "up")),
        (DrainNode("silent"), e.NodeDrained("r1", "silent")),
        (UndrainNode("draining"), e.NodeUndrained("r1", "draining")),
        (UndrainNode("drained"), e.NodeUndrained("r1", "drained")),
        (UndrainNode("isolated"), e.NodeUndrained("r1", "isolated")),
        (UndrainNode("quiet"), e.NodeUndrained("r1", "quiet")),
        (DegradeNode("up", "0.5"), e.NodeDegraded("r1", "up", 0.5, (1, 2))),
        (DegradeNode("up", "", "3"), e.NodeDegraded("r1", "up", 0.9, (0, 1, 2))),
        (DegradeNode("up", "0.25", "3,0,1"), e.NodeDegraded("r1", "up", 0.25, (0, 1, 3))),
        (DegradeNode("up", "1", "4"), e.NodeDegraded("r1", "up", 1.0, ())),
        (DegradeNode("up", "1", "0,1,2,3"), e.NodeDegraded("r1", "up", 1.0, ())),
        (DegradeNode("lost", "0.5"), e.NodeDegraded("r1", "lost", 0.5, ())),
        (SetPaused(True), e.PauseSet("r1", True)),
        (SetObserve("", True), e.ObserveSet("r1", "", True)),
        (SetObserve("gpt", False), e.ObserveSet("r1", "gpt", False)),
        (Inject("gpt", 1, Drill("kill")), e.DrillOrdered("r1", "gpt", "gpt/1.2", Drill("kill"))),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_command_becomes_a_fact(command: Command, fact: e.Fact) -> None:
    assert commanded(cluster(), "r1", command, drills_allowed=True) == fact
