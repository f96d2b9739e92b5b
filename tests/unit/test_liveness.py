"""Silence is noticed in time and only then; a coordinator that slept blames nobody."""

from __future__ import annotations

import pytest

from unicorn_mgr.coordinator.driver import POLL_SECONDS
from unicorn_mgr.coordinator.liveness import PROGRESS_SECONDS, Change, Liveness
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job, JobPhase, Node, NodePhase, Worker, WorkerPhase
from unicorn_mgr.effects.coordinator import JobHalted, JobProgressed, NodeHeard, NodeSilent
from unicorn_mgr.messages import Sample
from unicorn_mgr.model import JobSpec
from unicorn_mgr.phases import Phase


def world(nodes: int) -> tuple[ClusterState, Liveness]:
    state = ClusterState(nodes={f"n{i}": Node(f"n{i}") for i in range(nodes)})
    live = Liveness(Settings())
    live.start(state, 0.0)
    return state, live


def run(live: Liveness, state: ClusterState, seconds: float, beating: list[str], start: float = 0.0) -> list[Change]:
    """Poll as the driver does, with heartbeats of some nodes; what is silent is recorded as the core would."""
    changes: list[Change] = []
    for turn in range(1, int(seconds / POLL_SECONDS) + 1):
        now = start + turn * POLL_SECONDS
        if now % state_beat(live) == 0:
            for node in beating:
                live.beat(node, (), now)
        for change in live.poll(state, now):
            changes.append(change)
            if isinstance(change, NodeSilent):
                state.nodes[change.node].phase = NodePhase.SILENT
    return changes


def state_beat(live: Liveness) -> float:
    return live.settings.beat_seconds


def test_one_silent_node_of_a_thousand_is_noticed_within_three_seconds() -> None:
    state, live = world(1_000)
    beating = [n for n in state.nodes if n != "n123"]
    (silent,) = run(live, state, 60.0, beating)
    assert isinstance(silent, NodeSilent)
    assert silent.node == "n123"
    assert silent.silent_seconds <= 3.0


def test_a_thousand_nodes_that_beat_are_never_silent() -> None:
    state, live = world(1_000)
    assert run(live, state, 60.0, list(state.nodes)) == []


def test_one_late_heartbeat_silences_nobody() -> None:
    state, live = world(1)
    live.beat("n0", (), 10.0)
    assert list(live.poll(state, 12.4)) == []
    live.beat("n0", (), 12.4)
    assert list(live.poll(state, 14.8)) == []


def test_a_coordinator_that_stalled_declares_nobody_silent() -> None:
    """The shell notices that it overslept and credits every lease before it looks again."""
    state, live = world(1_000)
    run(live, state, 10.0, list(state.nodes))
    woke = 10.0 + POLL_SECONDS + 5.0
    live.credit(5.0)
    assert list(live.poll(state, woke + POLL_SECONDS)) == []
    assert run(live, state, 10.0, list(state.nodes), start=woke + POLL_SECONDS) == []


def test_without_the_credit_the_same_stall_would_silence_everybody() -> None:
    state, live = world(1_000)
    run(live, state, 10.0, list(state.nodes))
    assert len(list(live.poll(state, 15.5))) == 1_000


def test_a_node_that_is_heard_again_is_reported_once() -> None:
    state, live = world(1)
    state.nodes["n0"].phase = NodePhase.SILENT
    live.beat("n0", (), 20.0)
    assert list(live.poll(state, 20.1)) == [NodeHeard("n0")]
    state.nodes["n0"].phase = NodePhase.UP
    assert list(live.poll(state, 20.2)) == []


def test_a_new_term_begins_every_lease_anew() -> None:
    state, live = world(3)
    later = Liveness(Settings())
    later.start(state, 1_000.0)
    assert list(later.poll(state, 1_000.0 + live.settings.lease_seconds)) == []
    assert len(list(later.poll(state, 1_000.1 + live.settings.lease_seconds))) == 3


@pytest.mark.parametrize("phase", [NodePhase.LOST, NodePhase.ISOLATED, NodePhase.DRAINED])
def test_nodes_that_are_out_of_use_are_not_watched(phase: NodePhase) -> None:
    state, live = world(1)
    state.nodes["n0"].phase = phase
    assert list(live.poll(state, 1_000.0)) == []


# -- jobs -----------------------------------------------------------------------------------


def training(members: int = 3) -> tuple[ClusterState, Liveness, Job]:
    """A job with a member on each node."""
    state, live = world(members)
    names = tuple(f"gpt/{i}.0" for i in range(members))
    job = state.jobs["gpt"] = Job("gpt", JobSpec(name="gpt"), 0.0, phase=JobPhase.RUNNING, members=names)
    for i, name in enumerate(names):
        job.workers[name] = Worker(name, "gpt", i, f"n{i}", 0, 0.0, phase=WorkerPhase.MEMBER)
    return state, live, job


def place(i: int, phase: Phase, committed: int = 7, quiet: float = 0.0, step_seconds: float = 0.1) -> Sample:
    return Sample(f"gpt/{i}.0", phase=int(phase), committed=committed, quiet_seconds=quiet, step_seconds=step_seconds)


def test_progress_is_told_every_ten_seconds_and_not_every_heartbeat() -> None:
    state, live, _ = training()
    told: list[float] = []
    for second in range(60):
        for i in range(3):
            live.beat(f"n{i}", (place(i, Phase.COMPUTE, committed=second),), float(second))
        told += [float(second) for c in live.poll(state, float(second)) if isinstance(c, JobProgressed)]
    assert told == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert PROGRESS_SECONDS == 10.0


def test_a_job_that_waits_for_silent_nodes_is_halted() -> None:
    state, live, job = training()
    state.nodes["n2"].phase = NodePhase.SILENT
    for i in range(2):
        live.beat(f"n{i}", (place(i, Phase.REDUCE, quiet=0.5),), 50.0)
    live.beats["n2"] = 40.0
    assert [c for c in live.poll(state, 50.4) if isinstance(c, JobHalted)] == []
    (halted,) = (c for c in live.poll(state, 50.6) if isinstance(c, JobHalted))
    assert halted.job == "gpt"
    assert halted.halted_seconds == pytest.approx(1.1)
    job.halted = True
    assert [c for c in live.poll(state, 50.7) if isinstance(c, JobHalted)] == [], "it is known"


def test_a_job_that_is_halted_again_is_told_again() -> None:
    """An epoch was granted meanwhile, or the breaker reset: the first word counts no more."""
    state, live, job = training()
    state.nodes["n2"].phase = NodePhase.SILENT
    for i in range(2):
        live.beat(f"n{i}", (place(i, Phase.REDUCE, quiet=2.0),), 50.0)
    for now in (50.1, 50.2):
        assert [c.job for c in live.poll(state, now) if isinstance(c, JobHalted)] == ["gpt"]
        job.halted = True
        assert [c for c in live.poll(state, now) if isinstance(c, JobHalted)] == []
        job.halted = False


def test_a_job_whose_steps_go_on_is_not_halted() -> None:
    state, live, _ = training()
    state.nodes["n2"].phase = NodePhase.SILENT
    live.beat("n0", (place(0, Phase.REDUCE, quiet=30.0),), 50.0)
    live.beat("n1", (place(1, Phase.COMPUTE, quiet=30.0),), 50.0)
    assert [c for c in live.poll(state, 50.0) if isinstance(c, JobHalted)] == []


def test_whoever_stands_inside_a_step_beside_a_silent_worker_of_its_replica_waits_for_that() -> None:
    """In a collective of FSDP2, for example: nobody tells it that the other end is gone."""
    state, live, job = training(4)
    job.spec = JobSpec(name="gpt", replica={"shard": 2}, replica_size=2)
    state.nodes["n1"].phase = NodePhase.SILENT
    places = {0: Phase.COMPUTE, 2: Phase.REDUCE, 3: Phase.REDUCE}

    def halted(quiet: float, **instead: Phase) -> bool:
        for i, phase in (places | {int(k[1:]): p for k, p in instead.items()}).items():
            live.beat(f"n{i}", (place(i, phase, quiet=quiet),), 50.0)
        live.beats["n1"] = 40.0
        return any(isinstance(c, JobHalted) for c in live.poll(state, 50.0))

    job.step_seconds = 4.0
    assert not halted(1.9), "half a step is waited for"
    assert not halted(9.0, n2=Phase.COMPUTE), "in a whole replica somebody computes"
    assert not halted(9.0, n0=Phase.USER), "it may evaluate"
    assert halted(2.1)
    for name in ("n2", "n3"):
        state.nodes[name].phase = NodePhase.SILENT
    assert not halted(11.9), "nobody else has come to the end of the step: three are waited for"
    assert halted(12.1)
    for name in ("n2", "n3"):
        state.nodes[name].phase = NodePhase.UP
    job.step_seconds = 0.0
    assert not halted(60.0), "a first step may compile"


def test_long_steps_are_waited_for() -> None:
    state, live, job = training()
    job.step_seconds = 20.0
    state.nodes["n2"].phase = NodePhase.SILENT
    for i in range(2):
        live.beat(f"n{i}", (place(i, Phase.REDUCE, quiet=9.0),), 50.0)
    assert [c for c in live.poll(state, 50.0) if isinstance(c, JobHalted)] == []
    assert [c for c in live.poll(state, 51.0) if isinstance(c, JobHalted)] != []


def test_a_job_out_of_reach_as_a_whole_is_not_halted() -> None:
    """Nobody is heard who could wait for the others; they may well be training."""
    state, live, _ = training()
    for node in state.nodes.values():
        node.phase = NodePhase.SILENT
    assert [c for c in live.poll(state, 1_000.0) if isinstance(c, JobHalted)] == []


def test_what_a_dead_worker_said_is_forgotten() -> None:
    state, live, _ = training()
    live.beat("n0", (place(0, Phase.COMPUTE, committed=99),), 1.0)
    live.forget("gpt/0.0")
    assert [c for c in live.poll(state, 2.0) if isinstance(c, JobProgressed)] == []


def test_the_next_job_of_a_name_begins_before_the_first_step() -> None:
    state, live, _ = training()
    live.beat("n0", (place(0, Phase.COMPUTE, committed=999),), 1.0)
    assert list(live.poll(state, 1.0)) == [JobProgressed("gpt", 999, 0.1)]
    live.forget_job("gpt")
    assert live.samples == {}, "processes on a lost node never say that they have ended"
    live.beat("n0", (place(0, Phase.COMPUTE, committed=0),), 2.0)
    assert list(live.poll(state, 2.0)) == [JobProgressed("gpt", 0, 0.1)]
