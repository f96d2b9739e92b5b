"""A node that stands still for so long that it is given up, and then runs on as if nothing had happened."""

from __future__ import annotations

import os
import signal

from e2e.harness import Cluster, Undisturbed, finish

STEPS = 120


def test_a_frozen_node_is_lost_and_comes_back(shared: Cluster, undisturbed: Undisturbed) -> None:
    twelve = ["--micro-batches", "12"]  # so that a fourth worker makes it faster
    job = shared.submit(["--steps", str(STEPS), "--pace", "0.05", *twelve], size=4)
    job.wait_step(5)
    victim = next(w for w in shared.job(job.name).workers if w.node == "node-2")
    agent = next(kept.process for kept in shared.local.agents if kept.name == "node-2")
    assert agent is not None
    for pid in (agent.pid, victim.pid):
        os.kill(pid, signal.SIGSTOP)
    shared.wait_event("NodeLost", lambda e: e.node == "node-2")
    for pid in (agent.pid, victim.pid):
        os.kill(pid, signal.SIGCONT)
    finish(job, undisturbed, STEPS, members=4, micro_batches=12)
    assert [i.cause for i in shared.incidents(job.name)] == ["lost_connection"]
    assert agent.poll() is None
