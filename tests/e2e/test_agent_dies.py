"""kill -9 of an agent: its workers train on, and it finds them again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import Cluster, Undisturbed, cluster, finish

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 60
ARGUMENTS = ["--steps", str(STEPS), "--pace", "0.05"]


@pytest.fixture
def own(tmp_path: Path, templates: Path) -> Iterator[Cluster]:
    """A cluster of this test alone."""
    with cluster(tmp_path / "c", templates, nodes=3) as found:
        yield found


def test_workers_outlive_their_agent(own: Cluster, undisturbed: Undisturbed) -> None:
    job = own.submit(ARGUMENTS)
    job.wait_step(5)
    before = {w.worker: w.pid for w in own.job(job.name).workers}
    own.kill_agent(1)
    own.wait_for("node-1 attached again", lambda e: sum(h.kind == "NodeAttached" for h in e) == 4)
    assert {w.worker: w.pid for w in own.job(job.name).workers} == before
    finish(job, undisturbed, STEPS, members=3)
    assert own.job(job.name).epoch.number == 1
    assert own.incidents(job.name) == []


def test_a_worker_dies_while_its_agent_is_away(own: Cluster, undisturbed: Undisturbed) -> None:
    job = own.submit(ARGUMENTS, drills=("1.0:gate:6:compute",))
    job.at_gate("compute")
    pid = next(w.pid for w in own.job(job.name).workers if w.worker.endswith("/1.0"))
    own.kill_agent(1)
    os.kill(pid, 9)
    finish(job, undisturbed, STEPS, members=3)
    causes = [i.cause for i in own.incidents(job.name)]
    assert causes in (["process_killed"], ["lost_connection"])


def test_a_healing_needs_an_agent_that_is_away(own: Cluster, undisturbed: Undisturbed) -> None:
    """Seat 1 dies while the agent of seat 2, which must publish, is dead."""
    job = own.submit(ARGUMENTS, drills=("1.0:gate:6:compute",))
    job.at_gate("compute")
    pid = next(w.pid for w in own.job(job.name).workers if w.worker.endswith("/1.0"))
    own.kill_agent(2)
    os.kill(pid, 9)
    finish(job, undisturbed, STEPS, members=3)


def test_agent_and_coordinator_die_together(own: Cluster, undisturbed: Undisturbed) -> None:
    job = own.submit(ARGUMENTS, drills=("0.0:kill:20:compute",))
    job.wait_step(8)
    own.kill_coordinator()
    own.kill_agent(0)
    own.kill_agent(1)
    finish(job, undisturbed, STEPS, members=3)


def test_processes_without_attach_still_meet(own: Cluster, tmp_path: Path) -> None:
    """The agent dies before a process has asked for its store, whose port stands in its environment."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [sys.executable, str(SCRIPTS / "ddp.py"), "--out", str(tmp_path), "--gate", f"1:{gate}"]
    job = own.submit([], size_min=3, command=command)
    with gate.open("w"):  # from here the process waits for what is written, to its end
        own.kill_agent(1)
        own.wait_for("node-1 attached again", lambda e: sum(h.kind == "NodeAttached" for h in e) == 4)
    assert job.wait().exit_code == 0
    assert own.incidents(job.name) == []


def test_a_node_is_lost_and_comes_back(own: Cluster, undisturbed: Undisturbed) -> None:
    """Agent and worker die together; the others go on, and the node is used again when it is back."""
    job = own.submit(["--steps", "100", "--pace", "0.05"], drills=("1.0:gate:6:compute",))
    job.at_gate("compute")
    own.power_off("node-1")
    lost = own.wait_event("NodeLost", lambda e: e.node == "node-1")
    assert "waits for its workers" in lost.reason
    own.wait_for("healed without it", lambda _: own.job(job.name).size == 2 and own.job(job.name).step > 8)
    own.power_on("node-1")
    finish(job, undisturbed, 100, members=3)
    incident = next(i for i in own.incidents(job.name) if i.cause == "lost_connection")
    assert incident.severity == "SEV1"
    assert incident.detected_by == "node health monitoring"
    assert incident.node == "node-1"
    assert incident.seconds["detect"] < 4
