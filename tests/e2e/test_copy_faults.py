"""Agents die in the middle of copying snapshots and of bringing them back, at gates in their errands."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import SCRIPT, Cluster, Undisturbed, check_exact, cluster
from e2e.test_lost_nodes import EVERY_STEP, SOON, STEPS, backed_up, finish, node_of

from unicorn_mgr import messages

TRAINING = ["--steps", str(STEPS), "--pace", "0.02"]


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("gated"), templates, nodes=3, settings=SOON) as found:
        yield found


class Gate:
    """In the errands of the agents of some nodes."""

    def __init__(self, own: Cluster, place: str, *nodes: str) -> None:
        self._own = own
        self._files = {node: own.folder / node / "gates" / place for node in nodes}
        self.place = place
        for file in self._files.values():
            file.parent.mkdir(exist_ok=True)
            file.touch()

    def wait(self) -> str:
        """Until an agent stands there; returns its node."""

        def reached(_: object) -> str:
            return next((n for n, file in self._files.items() if file.with_suffix(".reached").exists()), "")

        return str(self._own.wait_for(f"an agent at {self.place}", reached))

    def open(self) -> None:
        for file in self._files.values():
            file.unlink()


def all_but(home: str) -> list[str]:
    return [node for node in ("node-0", "node-1", "node-2") if node != home]


def restart(own: Cluster, node: str) -> None:
    """Its agent dies, and the next one is there."""
    before = sum(h.kind == "NodeAttached" and h.event.node == node for h in own.events())
    own.kill_agent(int(node.rpartition("-")[2]))
    own.wait_for(
        f"{node} attached again",
        lambda events: sum(h.kind == "NodeAttached" and h.event.node == node for h in events) > before,
    )


def test_the_agent_that_receives_a_copy_dies_and_then_the_other_node(own: Cluster, undisturbed: Undisturbed) -> None:
    """The copy before outlives it, in which nothing is torn; another one does not get through."""
    job = own.submit(TRAINING, size=1, snapshot_budget=EVERY_STEP)
    backed_up(job, 4)
    home = node_of(job)
    gate = Gate(own, "receive", *all_but(home))
    peer = gate.wait()
    step = own.job(job.name).backed_up_step
    restart(own, peer)
    own.power_off(home)
    gate.open()
    finish(job, undisturbed("--steps", str(STEPS)), 1, step, "peer")


def test_the_agent_that_sends_a_copy_dies(tmp_path: Path, templates: Path, undisturbed: Undisturbed) -> None:
    """Its worker does not notice, and the next agent sends."""
    with cluster(tmp_path / "c", templates, nodes=2) as two:
        job = two.submit(TRAINING, size=1, snapshot_budget=EVERY_STEP)
        backed_up(job, 4)
        home = node_of(job)
        gate = Gate(two, "push", home)
        gate.wait()
        before = two.job(job.name).backed_up_step
        restart(two, home)
        gate.open()
        backed_up(job, before)
        assert two.incidents(job.name) == []
        (job.out / "hurry").touch()
        assert job.wait().exit_code == 0
        check_exact(job, undisturbed("--steps", str(STEPS)), 1)


def test_the_agent_that_brings_a_snapshot_back_dies(own: Cluster, undisturbed: Undisturbed) -> None:
    """The worker that waits for it has the next agent bring it."""
    job = own.submit(TRAINING, size=1, snapshot_budget=EVERY_STEP)
    step = backed_up(job, 4)
    home = node_of(job)
    gate = Gate(own, "pull", *all_but(home))
    own.power_off(home)
    restart(own, gate.wait())
    gate.open()
    finish(job, undisturbed("--steps", str(STEPS)), 1, step, "peer")


HELD = """
import os, pathlib, runpy, sys, time
gate = pathlib.Path(sys.argv[1])
if not os.environ["UNICORN_WORKER"].endswith(".0"):
    gate.with_suffix(".reached").touch()
    while gate.exists():
        time.sleep(0.005)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A script that stands at a gate before it attaches, unless its worker is the first one."""


def test_the_agent_of_a_worker_that_has_not_attached_yet_dies(own: Cluster, undisturbed: Undisturbed) -> None:
    """The next agent, too, asks what there is elsewhere."""
    gate = own.folder / "held"
    gate.touch()
    out = own.folder / "out"
    command = [sys.executable, "-c", HELD, str(gate), str(SCRIPT), "--out", str(out), *TRAINING]
    job = own.submit([], size=1, command=command, snapshot_budget=EVERY_STEP)
    job.out = out
    step = backed_up(job, 4)
    own.power_off(node_of(job))
    own.wait_for("the next one", lambda _: gate.with_suffix(".reached").exists())
    restart(own, next(w.node for w in own.job(job.name).workers if w.worker.endswith(".1")))
    gate.unlink()
    finish(job, undisturbed("--steps", str(STEPS)), 1, step, "peer")


def test_one_of_two_that_have_it_dies_while_it_hands_it_out(own: Cluster, undisturbed: Undisturbed) -> None:
    """Both of a job's nodes have what their dead workers have left, and a third one brings it."""
    own.power_off("node-2")
    own.wait_event("NodeLost", lambda e: e.node == "node-2")
    job = own.submit(TRAINING, size=2, snapshot_budget=EVERY_STEP)
    job.wait_step(8)
    own.command(messages.SetPaused(True))
    for pid in [w.pid for w in own.job(job.name).workers]:
        os.kill(pid, signal.SIGKILL)
    own.wait_for("all ended", lambda events: sum(h.kind == "WorkerExited" for h in events) == 2)
    for node in ("node-0", "node-1"):
        own.command(messages.DrainNode(node))
    gate = Gate(own, "hand-out", "node-0", "node-1")
    own.power_on("node-2")
    own.command(messages.SetPaused(False))
    own.power_off(gate.wait())
    gate.open()
    (job.out / "hurry").touch()
    assert job.wait().exit_code == 0, f"{own.story()}\n{own.logs()}"
    check_exact(job, undisturbed("--steps", str(STEPS)), 1)
    assert "peer" in [i.source for i in own.incidents(job.name)]
    pids = {told["pid"] for told in job.ended()}
    assert min(step for pid, step, _, rehearsal in job.records() if pid in pids and not rehearsal) > 5
