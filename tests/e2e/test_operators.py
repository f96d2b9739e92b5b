"""What operators do to a running job, and what they only watch."""

from __future__ import annotations

import shutil
import sys

import pytest
from e2e.harness import SCRIPT, Cluster, Job, Undisturbed, finish

from unicorn_mgr import messages

STEPS = 60
ARGUMENTS = ["--steps", str(STEPS), "--pace", "0.05"]


def test_a_drained_node_is_left_and_used_again(shared: Cluster, undisturbed: Undisturbed) -> None:
    """Its worker leaves after a step it has applied; another takes its place elsewhere; nothing is lost."""
    job = shared.submit(ARGUMENTS)
    job.wait_step(4)
    left = next(w for w in shared.job(job.name).workers if w.worker.endswith("/1.0"))
    shared.command(messages.DrainNode(left.node))
    shared.wait_event("NodeEmptied", lambda e: e.node == left.node)
    state = next(n for n in shared.look().nodes if n.node == left.node)
    assert (state.state, state.slots_used) == ("drained", 0)
    finish(job, undisturbed, STEPS, members=3)
    assert shared.incidents(job.name) == [], "nobody failed"
    resumed = [h.event.fact for h in shared.events() if h.kind == "WorkerTold/Resumed" and job.name in h.event.worker]
    assert [f.recomputed for f in resumed if f.recomputed] == [], "what was to be its nobody had computed"
    shared.command(messages.UndrainNode(left.node))
    assert next(n for n in shared.look().nodes if n.node == left.node).state == "up"


def test_the_last_free_slot_is_drained(shared: Cluster, undisturbed: Undisturbed) -> None:
    """With nowhere to go the job goes on with one worker less, and takes the slot back."""
    job = shared.submit([*ARGUMENTS, "--micro-batches", "12"], size=4)  # so that a fourth worker makes it faster
    job.wait_step(4)
    shared.command(messages.DrainNode("node-2"))
    shared.wait_event("NodeEmptied", lambda e: e.node == "node-2")
    shared.wait_for("goes on with three", lambda _: shared.job(job.name).size == 3)
    shared.command(messages.UndrainNode("node-2"))
    finish(job, undisturbed, STEPS, members=4, micro_batches=12)


def test_a_joiner_with_another_program_stays_out(shared: Cluster, undisturbed: Undisturbed) -> None:
    script = shared.folder / "changed.py"
    shutil.copy(SCRIPT, script)
    out = shared.folder / "out" / "changed"
    drills = ("1.0:gate:4:compute",)
    job = shared.submit([], command=[sys.executable, str(script), "--out", str(out), *ARGUMENTS], drills=drills)
    job.at_gate("compute")
    script.write_text(script.read_text().replace("weight_decay=0.1", "weight_decay=0.2"))
    victim = next(w for w in shared.job(job.name).workers if w.worker.endswith("/1.0"))
    shared.end_process(victim.pid)
    barred = shared.wait_event("SeatBarred", lambda e: e.job == job.name)
    assert "code is" in barred.reason
    job.out = out
    out.joinpath("hurry").touch()
    finish(job, undisturbed, STEPS)
    assert {i.cause for i in shared.incidents(job.name)} == {"process_killed", "different_code"}
    assert sorted(job.weights()) == [f"{job.name}-0.0", f"{job.name}-2.0"]


def switch(how: str, job: Job, on: bool) -> messages.Command:
    if how == "the cluster is paused":
        return messages.SetPaused(on)
    return messages.SetObserve(job.name if how == "the job is observed" else "", on)


@pytest.mark.parametrize("how", ["the job is observed", "the cluster is observed", "the cluster is paused"])
def test_a_failure_is_only_told_until_acting_is_allowed(shared: Cluster, undisturbed: Undisturbed, how: str) -> None:
    job = shared.submit(ARGUMENTS, drills=("1.0:gate:6:compute",))
    job.at_gate("compute")
    shared.command(switch(how, job, True))
    shared.end_process(next(w.pid for w in shared.job(job.name).workers if w.worker.endswith("/1.0")))
    try:
        opened = shared.wait_event("IncidentOpened", lambda e: e.job == job.name)
        shared.wait_for("its cause", lambda _: shared.incidents(job.name)[0].cause == "process_killed")
        if how != "the cluster is paused":
            told = shared.wait_event("IncidentNoted", lambda e: e.incident == opened.incident)
            assert told.text.startswith("would have")
        view = shared.job(job.name)
        assert view.epoch.number == 1, f"something was done:\n{shared.story()}"
        assert {w.worker.rpartition("/")[2] for w in view.workers} == {"0.0", "2.0"}, "nobody was replaced"
    finally:
        shared.command(switch(how, job, False))
    finish(job, undisturbed, STEPS, members=3)
