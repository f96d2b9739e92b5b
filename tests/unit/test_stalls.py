"""Who is waited for: two readings of all rings name the culprit, the link, or nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.coordinator.outlook import Outlook
from unicorn_mgr.coordinator.record_workers import LINK_VERDICT
from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.stalls import judge, limits_of_spec, most_named
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job, Node, NodePhase, Transition, Worker, WorkerPhase
from unicorn_mgr.messages import Sample
from unicorn_mgr.model import Epoch, JobSpec
from unicorn_mgr.phases import WAITS_FOR_OTHERS, Limits, Phase
from unicorn_mgr.planner.simple import FirstComeFirstServed

LIMITS = Limits()


def at(seat: int, phase: Phase, step: int = 5, sequence: int = 0, quiet: float = 12.0, **more: Any) -> Sample:
    known = Sample(
        worker=f"gpt/{seat}.0",
        phase=int(phase),
        step=step,
        sequence=sequence,
        quiet_seconds=quiet,
        step_seconds=0.1,
        epoch=1,
        counter=100 + seat,
    )
    return replace(known, **more)


def verdict(*samples: Sample) -> tuple[str, str]:
    """Of two readings that are alike."""
    return judge(samples, samples, LIMITS)


def test_the_one_that_computes_while_others_wait_is_the_culprit() -> None:
    says, culprit = verdict(at(0, Phase.REDUCE, sequence=2), at(1, Phase.COMPUTE), at(2, Phase.REDUCE, sequence=2))
    assert culprit == "gpt/1.0"
    assert says == "gpt/1.0 stands in compute in step 5 for 12.0 s"


def test_the_stopped_one_is_the_culprit_wherever_it_stands() -> None:
    """Stopped in the collective it is no further behind than its victims."""
    samples = [at(seat, Phase.REDUCE, sequence=2) for seat in range(3)]
    samples[2] = replace(samples[2], stopped=True)
    assert verdict(*samples)[1] == "gpt/2.0"


def test_the_one_in_an_earlier_step_is_the_culprit() -> None:
    assert verdict(at(0, Phase.COMPUTE, step=6), at(1, Phase.SNAPSHOT, step=5))[1] == "gpt/1.0"


def test_the_one_in_an_earlier_epoch_is_the_culprit() -> None:
    """It has not heard, so everybody gathers without it."""
    late = at(1, Phase.COMPUTE, step=6, epoch=0)
    assert verdict(at(0, Phase.GATHER), late, at(2, Phase.GATHER))[1] == "gpt/1.0"


def test_a_member_that_never_answered_its_first_membership_is_the_culprit() -> None:
    """For whoever waits for one at all it is no sign of anything; the others gather without it."""
    gathers, deaf = at(0, Phase.GATHER), at(1, Phase.WAITING, epoch=0)
    says, culprit = judge((gathers, deaf), (gathers, deaf), LIMITS, granted=1)
    assert culprit == "gpt/1.0"
    assert says == "gpt/1.0 waits for a membership, and has not answered the one that it was granted"
    assert judge((gathers, deaf), (gathers, replace(deaf, counter=9)), LIMITS, granted=1)[1] == "", "it has heard it"
    assert judge((gathers, gathers), (gathers, replace(deaf, epoch=1)), LIMITS, granted=1)[1] == ""


def test_nobody_behind_means_the_link() -> None:
    assert verdict(*(at(seat, Phase.REDUCE, sequence=2) for seat in range(3))) == (LINK_VERDICT, "")


def test_whoever_moved_between_the_readings_clears_everybody() -> None:
    first = (at(0, Phase.REDUCE, sequence=2), at(1, Phase.COMPUTE))
    second = (first[0], replace(first[1], counter=500))
    assert judge(first, second, LIMITS) == ("progress: gpt/1.0 went on", "")


def test_the_users_own_code_may_take_longer() -> None:
    says, culprit = verdict(at(0, Phase.REDUCE, sequence=2), at(1, Phase.UPDATE, quiet=30.0))
    assert culprit == ""
    assert says == "waiting for gpt/1.0, which may take longer in update"
    assert verdict(at(0, Phase.REDUCE, sequence=2), at(1, Phase.UPDATE, quiet=601.0))[1] == "gpt/1.0"


def test_no_reading_is_no_verdict() -> None:
    assert judge((), (), LIMITS) == ("nobody could be read", "")


PHASES = st.sampled_from(list(Phase))


@given(st.lists(st.tuples(PHASES, st.integers(4, 6), st.integers(0, 2), st.floats(0, 1e3), st.booleans()), min_size=1))
def test_a_victim_is_never_the_culprit(places: list[tuple[Phase, int, int, float, bool]]) -> None:
    samples = [
        at(seat, phase, step, sequence, quiet, stopped=stopped)
        for seat, (phase, step, sequence, quiet, stopped) in enumerate(places)
    ]
    _, culprit = verdict(*samples)
    if culprit:
        (guilty,) = (s for s in samples if s.worker == culprit)
        assert guilty.stopped or Phase(guilty.phase) not in WAITS_FOR_OTHERS
        assert guilty.quiet_seconds >= LIMITS.of(guilty.phase, guilty.step_seconds, guilty.stopped)


def test_a_job_may_have_its_own_limits() -> None:
    assert limits_of_spec(JobSpec(), Settings()) == Limits(10.0, 3.0, 600.0)
    own = JobSpec(stall_seconds=2.0, stall_factor=5.0, user_seconds=60.0)
    assert limits_of_spec(own, Settings()) == Limits(2.0, 5.0, 60.0)


# -- who can't be reached -------------------------------------------------------------------


def context(nodes: int, weights: dict[str, Any] | None = None) -> tuple[Context, Job]:
    """A job with one worker on each node; a second job of some weight on nodes that are named."""
    state = ClusterState(nodes={f"n{i}": Node(f"n{i}") for i in range(nodes)})
    job = state.jobs["gpt"] = Job("gpt", JobSpec(name="gpt"), 0.0)
    for i in range(nodes):
        name = f"gpt/{i}.0"
        job.workers[name] = Worker(name, "gpt", i, f"n{i}", 0, 0.0, phase=WorkerPhase.MEMBER)
        state.nodes[f"n{i}"].processes[0] = [name]
    for node, weight in (weights or {}).items():
        name = f"other-{node}"
        other = state.jobs[name] = Job(name, JobSpec(name=name, weight=weight), 0.0)
        other.workers[f"{name}/0.0"] = Worker(f"{name}/0.0", name, 0, node, 1, 0.0, phase=WorkerPhase.MEMBER)
        state.nodes[node].processes[1] = [f"{name}/0.0"]
    return Context(state, Settings(), FirstComeFirstServed(), 0.0, Outlook(Settings())), job


def named(who: dict[int, tuple[int, ...]]) -> Transition:
    return Transition(
        Epoch(1, 2),
        0.0,
        unreachable={f"gpt/{reporter}.0": tuple(f"gpt/{o}.0" for o in others) for reporter, others in who.items()},
    )


def test_the_node_that_most_others_name_is_isolated() -> None:
    c, job = context(4)
    node, why = most_named(c, job, named({0: (2,), 1: (2,), 2: (0, 1, 3), 3: (2,)}))
    assert (node, why) == ("n2", "node n2 is named unreachable 3 times")


def test_on_a_tie_the_node_whose_loss_costs_less() -> None:
    c, job = context(2, weights={"n0": 5.0})
    assert most_named(c, job, named({0: (1,), 1: (0,)}))[0] == "n1"
    c, job = context(2, weights={"n1": 5.0})
    assert most_named(c, job, named({0: (1,), 1: (0,)}))[0] == "n0"


def test_a_node_that_is_out_of_use_is_not_isolated_again() -> None:
    c, job = context(3)
    c.state.nodes["n2"].phase = NodePhase.ISOLATED
    assert most_named(c, job, named({0: (2,), 1: (2,)})) == ("", "")


def test_nobody_is_isolated_for_what_its_own_node_says() -> None:
    c, job = context(2)
    job.workers["gpt/1.0"].node = "n0"
    assert most_named(c, job, named({0: (1,), 1: (0,)})) == ("", "")


@pytest.mark.parametrize("stranger", ["gpt/9.0", "other/0.0"])
def test_names_that_nobody_knows_are_no_votes(stranger: str) -> None:
    c, job = context(2)
    t = Transition(Epoch(1, 2), 0.0, unreachable={"gpt/0.0": (stranger,), stranger: ("gpt/1.0",)})
    assert most_named(c, job, t) == ("", "")
