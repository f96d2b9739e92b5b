"""The node with a job's only state is lost: it comes back from the memory of another, in float64."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.harness import SHARDED, Cluster, Job, Undisturbed, check_exact, cluster, environment, submit_split

STEPS = 60
EVERY_STEP = 1000.0
"""A budget that pays for a snapshot after each."""


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[Cluster]:
    """Three nodes of two slots, of which some will be lost."""
    with cluster(tmp_path_factory.mktemp("three"), templates, nodes=3, slots=2, settings=SOON) as found:
        yield found


SOON = ("lease_seconds=2", "silence_seconds_max=0", "fence_seconds=6")
"""A node that is gone is given up soon."""


def backed_up(job: Job, beyond: int) -> int:
    """Until a later step than this has copies; returns it."""

    def found(_: Any) -> int:
        step = job.cluster.job(job.name).backed_up_step
        return step if step > beyond else 0

    step: int = job.cluster.wait_for("copies of a snapshot", found)
    return step


def node_of(job: Job) -> str:
    (node,) = {w.node for w in job.cluster.job(job.name).workers if w.member}
    return node


def peer_of(job: Job) -> str:
    """Where its copies go, by the newest word."""
    placed = [h.event for h in job.cluster.events() if h.kind == "BackupsPlaced" and h.event.job == job.name]
    (peer,) = {node for node, _ in placed[-1].peers.values()}
    return str(peer)


def finish(job: Job, reference: dict[str, Any], members: int, step: int, source: str) -> None:
    """The job ends exactly as it should, and has made no step again that was safe."""
    (job.out / "hurry").touch()
    ended = job.wait()
    story = f"{ended}\n{job.cluster.story()}\n{job.cluster.logs()}"
    assert ended.exit_code == 0, story
    check_exact(job, reference, members)
    healed = [i for i in job.cluster.incidents(job.name) if i.source == source]
    assert healed, f"{[i.source for i in job.cluster.incidents(job.name)]}\n{story}"
    pids = {told["pid"] for told in job.ended()}
    assert min(made for pid, made, _, rehearsal in job.records() if pid in pids and not rehearsal) >= step


def test_the_only_node_is_lost(own: Cluster, undisturbed: Undisturbed) -> None:
    job = own.submit(["--steps", str(STEPS), "--pace", "0.02"], size=1, snapshot_budget=EVERY_STEP)
    step = backed_up(job, 4)
    own.power_off(node_of(job))
    finish(job, undisturbed("--steps", str(STEPS)), 1, step, "peer")


def test_a_split_model_whose_only_node_is_lost(own: Cluster, sharded: dict[str, Any]) -> None:
    training = ("--steps", str(STEPS), "--pace", "0.02")
    job = submit_split(own, SHARDED, {"shard": 2}, *training, replicas=1, snapshot_budget=EVERY_STEP)
    step = backed_up(job, 4)
    own.power_off(node_of(job))
    finish(job, sharded, 2, step, "peer")


def test_one_of_two_nodes_of_a_split_model_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
    templates: Path,
    sharded: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other has newer snapshots of its own part, which are of no use: both begin with what both have."""
    monkeypatch.setenv("UNICORN_DOMAIN", "rack")
    with cluster(tmp_path_factory.mktemp("rack"), templates, nodes=3, settings=SOON) as rack:
        job = submit_split(
            rack,
            SHARDED,
            {"shard": 2},
            *("--steps", str(STEPS), "--pace", "0.02"),
            replicas=1,
            replica_within="domain",
            snapshot_budget=EVERY_STEP,
        )
        step = backed_up(job, 4)
        assert rack.job(job.name).backup_note == "all parts: its copy is in the same failure domain rack"
        rack.power_off(next(w.node for w in rack.job(job.name).workers if w.worker == f"{job.name}/0.0"))
        finish(job, sharded, 2, step, "peer")


def test_the_node_with_the_copies_is_lost_and_then_the_other(own: Cluster, undisturbed: Undisturbed) -> None:
    """In the middle of a copy, since there is always one on its way: a third node gets them."""
    job = own.submit(["--steps", str(STEPS), "--pace", "0.05"], size=1, snapshot_budget=EVERY_STEP)
    backed_up(job, 1)
    home, peer = node_of(job), peer_of(job)
    own.power_off(peer)
    own.wait_event("NodeLost", lambda e: e.node == peer)
    own.wait_for("another node", lambda _: peer_of(job) not in (home, peer))
    step = backed_up(job, own.job(job.name).backed_up_step + 1)
    own.power_off(home)
    finish(job, undisturbed("--steps", str(STEPS)), 1, step, "peer")


def test_both_copies_are_lost(own: Cluster, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """What is stored is older, and all that there is."""
    job = own.submit(
        ["--steps", str(STEPS), "--pace", "0.05"],
        size=1,
        snapshot_budget=EVERY_STEP,
        checkpoint_url=str(tmp_path / "stored"),
        checkpoint_every_steps=5,
    )
    backed_up(job, 7)
    step = own.job(job.name).checkpoint_step
    assert step >= 0
    home, peer = node_of(job), peer_of(job)
    own.power_off(peer)
    own.power_off(home)
    finish(job, undisturbed("--steps", str(STEPS)), 1, step, "storage")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The split model's script without an agent."""
    out = tmp_path_factory.mktemp("alone")
    subprocess.run(
        [sys.executable, str(SHARDED), "--out", str(out), "--steps", str(STEPS)], check=True, env=environment()
    )
    found: dict[str, Any] = torch.load(out / "weights-alone.pt", weights_only=True)
    return found
