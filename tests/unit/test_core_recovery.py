"""The coordinator's core: the journal is the state, the same events decide the same, nothing is done twice."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.chaos import ACTS, WISHES, check_well, happen, heal, restart
from unit.world import World, kinds

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.state import JobPhase, WorkerPhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Drill, Epoch, JobSpec

NewWorld = Callable[..., World]


def story(world: World) -> None:
    """Some of everything."""
    world.train("one", size=2)
    world.train("two", size=2)
    world.die("one/0.0")
    world.regroup("one")
    world.tell(e.NodeDrained(world.request(), "n3"))
    world.tell(e.NodeSilent("n1", 2.6))
    for job in ("one", "two"):
        world.tell(e.JobHalted(job, 1.5))
    world.wait(200.0)
    world.tell(e.JobCancelled(world.request(), "two"))


# -- determinism ----------------------------------------------------------------------------


def test_the_same_events_lead_to_the_same_decisions_and_actions(new_world: NewWorld) -> None:
    worlds = [new_world(nodes=5), new_world(nodes=5)]
    for world in worlds:
        story(world)
    assert len(worlds[0].journal) > 50
    assert worlds[0].journal == worlds[1].journal
    assert worlds[0].acted == worlds[1].acted


TELL = """
import sys
sys.path.insert(0, {tests!r})
from unit.test_core_recovery import story
from unit.world import World
world = World(nodes=5)
story(world)
print(world.journal, world.acted)
"""


def test_hash_seeds_change_nothing() -> None:
    tests = str(Path(__file__).parents[1])
    told = {
        subprocess.run(
            [sys.executable, "-c", TELL.format(tests=tests)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert "JobCancelled" in told.pop()


# -- a new term -----------------------------------------------------------------------------


def reattach(world: World) -> None:
    """All agents come back and report what is true."""
    for i in range(len(world.state.nodes)):
        here = tuple(w.name for w in world.state.on_node(f"n{i}"))
        world.attach(f"n{i}", workers=here, incarnation=world.node(f"n{i}").incarnation)


def test_running_jobs_are_found_running_and_are_not_touched(world: World) -> None:
    world.train()
    epoch = world.job().epoch
    restart(world, 2)
    reattach(world)
    world.wait(600.0)
    assert [d for d in world.decided if not isinstance(d, e.TermStarted)] == []
    assert not world.said(m.StartWorker)
    assert not world.said(m.StopWorker)
    assert world.job().epoch == epoch


def test_a_transition_under_way_is_begun_anew_under_the_new_term(world: World) -> None:
    world.train()
    world.die("gpt/1.0")
    world.wait(0.02)
    before = world.job().epoch
    restart(world, 2)
    granted = world.decisions(e.EpochGranted)
    assert [g.epoch for g in granted] == [Epoch(2, before.number + 1)]
    assert granted[0].members == ("gpt/0.0", "gpt/2.0")
    assert "the coordinator has started anew in the middle of a transition" in granted[0].reason
    assert world.tell(e.GroupFormed("gpt", before)) == []
    world.resume(step=5)
    world.begin_all()
    world.resume(step=6)
    assert not world.incident().open


def test_a_death_while_the_coordinator_was_away_is_healed_when_it_is_told(world: World) -> None:
    world.train()
    restart(world, 2)
    world.attach("n0", workers=("gpt/0.0",), incarnation=world.node("n0").incarnation)
    world.attach("n1", workers=("gpt/1.0",), incarnation=world.node("n1").incarnation)
    world.die("gpt/1.0")
    world.wait(0.02)
    (granted,) = world.decisions(e.EpochGranted)
    assert granted.epoch == Epoch(2, 2)


def test_an_older_term_never_takes_over(world: World) -> None:
    restart(world, 3)
    for term in (1, 2, 3):
        world.tell(e.TermStarted(term, 9_000.0))
    assert world.state.term == 3
    assert world.state.term_wall == 2_000.0


def test_every_epoch_is_newer_than_all_before(world: World) -> None:
    world.train()
    epochs = [world.job().epoch]
    for term in range(2, 6):
        world.die(world.members()[-1])
        world.wait(0.02)
        epochs.append(world.job().epoch)
        restart(world, term)
        epochs.append(world.job().epoch)
        world.resume(step=term)
        world.begin_all()
        world.resume(step=term)
        epochs.append(world.job().epoch)
    assert epochs == sorted(set(epochs))


def test_an_inquiry_under_way_is_opened_anew_when_it_is_told_again(world: World) -> None:
    world.train()
    quiet = e.WorkerQuiet(m.Sample("gpt/1.0", quiet_seconds=12.0), 10.0)
    world.tell(quiet)
    restart(world, 2)
    assert world.job().inquiry is None
    assert e.InquiryOpened("gpt", 2) in world.tell(quiet)


# -- nothing is done twice ------------------------------------------------------------------


def twice(world: World, fact: e.Fact) -> None:
    """The second time nothing happens."""
    world.tell(fact)
    before, journal = copy.deepcopy(world.state), len(world.journal)
    world.take()
    assert world.tell(fact) == []
    assert world.acted == []
    assert world.state == before
    assert len(world.journal) == journal


def test_a_repeated_request_is_done_once(world: World) -> None:
    spec = JobSpec("gpt", ("python", "train.py"), directory="/w", size_max=3)
    twice(world, e.JobSubmitted("r1", "gpt", spec))
    twice(world, e.ObserveSet("r2", "gpt", observe=True))
    twice(world, e.PauseSet("r3", paused=True))
    twice(world, e.PauseSet("r4", paused=False))
    twice(world, e.DrillOrdered("r5", "gpt", "gpt/0.0", Drill("kill")))
    twice(world, e.NodeDrained("r6", "n1"))
    twice(world, e.NodeUndrained("r7", "n1"))
    twice(world, e.JobCancelled("r8", "gpt"))
    assert set(world.state.requests) >= {f"r{i}" for i in range(1, 9)}


def test_a_repeated_request_is_known_after_a_restart(world: World) -> None:
    spec = JobSpec("gpt", ("python", "train.py"), directory="/w")
    world.tell(e.JobSubmitted("r1", "gpt", spec))
    world.tell(e.JobCancelled("r2", "gpt"))
    restart(world, 2)
    assert world.state.requests == {"r1": "gpt", "r2": "gpt"}
    assert world.tell(e.JobSubmitted("r1", "gpt", spec)) == []


def test_a_submission_that_is_repeated_after_its_job_has_ended_starts_no_other(world: World) -> None:
    submitted = e.JobSubmitted("r1", "gpt", JobSpec("gpt", ("true",), directory="/w"))
    world.tell(submitted)
    world.tell(e.WorkerExited(m.Exited("gpt/0.0", 0)))
    assert world.job().over
    assert world.tell(submitted) == []
    assert world.job().over


def test_two_jobs_of_one_name_at_once_are_one(world: World) -> None:
    world.train()
    before = copy.deepcopy(world.state)
    assert world.tell(e.JobSubmitted("another", "gpt", JobSpec("gpt", ("other",), directory="/w"))) == []
    assert world.state == before


# -- illegal events change nothing ----------------------------------------------------------


ILLEGAL: list[e.Fact] = [
    e.WorkerStarted("gpt/9.0", 1),
    e.WorkerAttached("nobody/0.0"),
    e.WorkerDying("gpt/9.0", "mutex"),
    e.WorkerExited(m.Exited("gpt/9.0", -9)),
    e.WorkerExited(m.Exited("not a name", -9)),
    e.WorkerQuiet(m.Sample("gpt/9.0"), 10.0),
    e.WorkerTold("gpt/9.0", m.Ready()),
    e.WorkerTold("gpt/0.0", m.Symptom(Epoch(0, 7), "of another epoch")),
    e.WorkerTold("gpt/0.0", m.Resumed(Epoch(9, 9), 5)),
    e.WorkerTold("gpt/0.0", m.Unreachable(Epoch(0, 1), ("gpt/1.0",), "timed out")),
    e.EvidenceTaken("gpt/9.0", "stacks", "py-spy"),
    e.GroupFormed("gpt", Epoch(0, 7)),
    e.GroupFormed("nobody", Epoch(1, 1)),
    e.JobHalted("nobody", 3.0),
    e.JobProgressed("nobody", 3, 0.1),
    e.ReadingTaken("nobody", 1, ()),
    e.JobCancelled("r1", "nobody"),
    e.ObserveSet("r1", "nobody", observe=True),
    e.DrillOrdered("r1", "nobody", "nobody/0.0", Drill("kill")),
    e.NodeSilent("nowhere", 3.0),
    e.NodeHeard("nowhere"),
    e.NodeDrained("r1", "nowhere"),
    e.NodeUndrained("r1", "nowhere"),
    e.TermStarted(0, 9_000.0),
]


@pytest.mark.parametrize("fact", ILLEGAL, ids=lambda f: str(f)[:60])
def test_an_illegal_event_changes_nothing(world: World, fact: e.Fact) -> None:
    world.train()
    before, journal = copy.deepcopy(world.state), len(world.journal)
    assert world.tell(fact) == []
    assert world.state == before
    assert len(world.journal) == journal


def test_whoever_is_gone_never_comes_back(world: World) -> None:
    world.train()
    world.tell(e.WorkerDying("gpt/1.0", "mutex"))
    late: list[e.Fact] = [
        e.WorkerStarted("gpt/1.0", 1),
        e.WorkerAttached("gpt/1.0"),
        e.WorkerTold("gpt/1.0", m.Ready()),
        e.WorkerTold("gpt/1.0", m.Leaving(5)),
        e.WorkerTold("gpt/1.0", m.LoopEnded(5)),
    ]
    for fact in late[:-1]:
        world.tell(fact)
        assert world.worker("gpt/1.0").phase is WorkerPhase.GONE
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", -9)))
    world.wait(0.02)
    assert world.members() == ["gpt/0.0", "gpt/2.0"]


# -- whatever happens -----------------------------------------------------------------------

OFTEN = ("ready", "resume", "wait", "die") * 2
THINGS = st.lists(st.tuples(st.sampled_from((*ACTS, *WISHES, *OFTEN)), st.integers(0, 30)), max_size=60)


def chaos(things: list[tuple[str, int]]) -> World:
    world = World(nodes=3)
    world.submit("job-0", 1, 3)
    world.begin_all("job-0")
    for act, n in things:
        happen(world, act, n)
    return world


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(things=THINGS)
def test_whatever_happens_the_journal_leads_to_the_state(things: list[tuple[str, int]]) -> None:
    """And no invariant breaks, no rules undo each other, no slot is used twice."""
    chaos(things).check_replay()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(things=THINGS)
def test_whatever_has_happened_all_is_well_again(things: list[tuple[str, int]]) -> None:
    world = chaos(things)
    heal(world)
    check_well(world)
    world.check_replay()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(things=THINGS)
def test_whatever_has_happened_a_cancelled_job_ends(things: list[tuple[str, int]]) -> None:
    world = chaos(things)
    world.tell(e.PauseSet(world.request(), paused=False))
    for name in list(world.state.jobs):
        world.tell(e.JobCancelled(world.request(), name))
    for job in world.state.jobs.values():
        for name in [w.name for w in job.workers.values() if w.exited is None]:
            world.tell(e.WorkerExited(m.Exited(name, -15)))
        assert job.phase is JobPhase.ENDED, (job.phase, kinds(world.decided)[-10:])
        assert not job.incidents
        assert not job.workers
