"""kill -9 of the coordinator, at any moment: nothing acknowledged is lost, running jobs are not touched."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import Cluster, Undisturbed, cluster, finish

from unicorn_mgr import messages
from unicorn_mgr.model import JobSpec

STEPS = 60
ARGUMENTS = ["--steps", str(STEPS), "--pace", "0.3"]


@pytest.fixture
def own(tmp_path: Path, templates: Path) -> Iterator[Cluster]:
    """A cluster of this test alone, since its coordinator dies."""
    with cluster(tmp_path / "c", templates, nodes=3) as found:
        yield found


def test_a_running_job_is_found_running_and_not_touched(own: Cluster, undisturbed: Undisturbed) -> None:
    job = own.submit(ARGUMENTS)
    job.wait_step(5)
    own.kill_coordinator()
    own.wait_event("TermStarted", lambda e: e.term == 2)
    finish(job, undisturbed, STEPS, members=3)
    view = own.job(job.name)
    assert str(view.epoch.number) == "1", "no new membership"
    assert view.epoch.term == 1, "the old term's epoch goes on"
    assert own.incidents(job.name) == []


@pytest.mark.parametrize("place", ["publish", "gather", "deal", "recompute"])
def test_in_the_middle_of_a_transition(own: Cluster, undisturbed: Undisturbed, place: str) -> None:
    job = own.submit(ARGUMENTS, drills=("1.0:kill:6:compute", f"2.0:gate:6:{place}"))
    job.at_gate(place)
    own.kill_coordinator()
    job.open_gate(place)
    own.wait_event("EpochGranted", lambda e: e.job == job.name and e.epoch.term == 2)
    finish(job, undisturbed, STEPS, members=3)


def test_while_a_joiner_takes_its_state(own: Cluster, undisturbed: Undisturbed) -> None:
    job = own.submit(ARGUMENTS, drills=("1.0:kill:6:compute", "1.1:gate:-1:receive_state"))
    job.at_gate("receive_state")
    own.kill_coordinator()
    job.open_gate("receive_state")
    own.wait_event("TermStarted", lambda e: e.term == 2)
    finish(job, undisturbed, STEPS, members=3)


def test_a_worker_dies_while_the_coordinator_is_away(own: Cluster, undisturbed: Undisturbed) -> None:
    job = own.submit(ARGUMENTS, drills=("1.0:gate:6:compute",))
    job.at_gate("compute")
    pid = next(w.pid for w in own.job(job.name).workers if w.worker.endswith("/1.0"))
    own.kill_coordinator()
    os.kill(pid, 9)
    finish(job, undisturbed, STEPS, members=3)
    (incident,) = own.incidents(job.name)
    assert incident.cause == "process_killed"


def test_a_checkpoint_is_written_and_the_word_is_lost(own: Cluster, undisturbed: Undisturbed, tmp_path: Path) -> None:
    store = tmp_path / "store"
    job = own.submit(ARGUMENTS, drills=("0.0:gate:7:checkpoint",), checkpoint_url=str(store), checkpoint_every_steps=8)
    job.at_gate("checkpoint")
    own.kill_coordinator()
    job.open_gate("checkpoint")
    finish(job, undisturbed, STEPS, members=3)
    own.wait_event("CheckpointCommitted", lambda e: e.step == 7)
    assert sorted(store.glob("step-*.json"))[-1].name.startswith("step-0000000059")


def test_what_is_acknowledged_is_kept_and_done_once(own: Cluster) -> None:
    request = uuid.uuid4().hex
    spec = JobSpec(name="twice", command=("/bin/sleep", "60"), directory="/", size_min=1, size_max=1)
    asked = messages.SubmitJob(request, spec)
    assert own.client.call("Submit", asked, messages.Submitted).job == "twice"
    own.kill_coordinator()
    own.wait_event("TermStarted", lambda e: e.term == 2)
    assert own.client.call("Submit", asked, messages.Submitted).job == "twice"
    own.wait_for("its one process", lambda _: own.job("twice").state == "running" and own.job("twice").size == 1)
    assert sum(h.kind == "JobSubmitted" for h in own.events()) == 1
    own.command(messages.CancelJob("twice"))
    ended = own.wait_event("JobEnded")
    assert ended.exit_code == 130


def test_again_and_again_under_churn(own: Cluster, undisturbed: Undisturbed) -> None:
    drills = ("0.0:kill:8:compute", "1.0:kill:12:in_reduce", "2.0:kill:16:reduced", "0.1:kill:30:compute")
    job = own.submit(ARGUMENTS, drills=drills)
    for step in (3, 9, 13, 17, 32):
        job.wait_step(step)
        own.kill_coordinator()
        term = own.look_when_back().term
        assert term >= 2
    finish(job, undisturbed, STEPS)
