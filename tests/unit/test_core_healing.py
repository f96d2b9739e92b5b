"""The coordinator's core: workers die, hang, raise, differ; the survivors go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.world import World, kinds, stories

from unicorn_mgr import messages as m
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import INITIAL, Epoch
from unicorn_mgr.phases import Phase

NewWorld = Callable[..., World]

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line {}, in main\nValueError: {}\n'


def raised(line: int = 4, message: str = "no", step: int = 5, micro_batch: int = -1) -> m.Raised:
    return m.Raised("ValueError", message, TRACEBACK.format(line, message), step, micro_batch)


# -- one death ------------------------------------------------------------------------------


def test_a_death_is_healed_from_its_first_sign_to_full_size(world: World) -> None:
    world.train()
    assert kinds(world.tell(e.WorkerDying("gpt/1.0", "mutex"))) == ["IncidentOpened"]
    assert kinds(world.tell(e.WorkerExited(m.Exited("gpt/1.0", -9)))) == ["IncidentRefined", "WorkerOrdered"]
    assert [(n, s.worker) for n, s in world.said(m.StartWorker)] == [("n1", "gpt/1.1")]
    world.take()

    survivors = ("gpt/0.0", "gpt/2.0")
    (granted, dismissed) = world.wait(0.02)
    assert granted == e.EpochGranted("gpt", Epoch(1, 2), survivors, "without gpt/1.0: dying (witness: mutex)")
    assert dismissed == e.WorkerDismissed("gpt/1.0", "n1")
    assert [worker for worker, _ in world.directives(m.Granted)] == list(survivors)
    world.take()

    recomputed = world.resume(step=5, recomputed=(3,), recompute_seconds=0.04, added_seconds=0.07)
    assert recomputed == [e.TransitionEnded("gpt", Epoch(1, 2))]
    (joined,) = world.begin("gpt/1.1")
    assert isinstance(joined, e.EpochGranted)
    assert joined.members == ("gpt/0.0", "gpt/2.0", "gpt/1.1")
    assert kinds(world.resume(step=6)) == ["TransitionEnded", "IncidentClosed"]

    incident = world.incident()
    assert (incident.cause, incident.severity) == ("process_killed", "SEV2")
    assert incident.detected_by == "process supervision"
    assert incident.micro_batches_recomputed == 2, "one on each survivor"
    assert incident.worker_seconds["recompute"] == 0.04
    assert (incident.epoch_before, incident.epoch_after) == (Epoch(1, 1), Epoch(1, 2))
    assert incident.steps_lost == 0
    assert incident.escalations == []


def test_nobody_joins_after_the_last_step(world: World) -> None:
    """One member has come to the end, and the other is about to."""
    world.train(size=2)
    world.tell(e.WishesSet(world.request(), "gpt", 1.0, 0, 1, 3))
    world.tell(e.PauseSet(world.request(), paused=True))
    world.begin("gpt/2.0")
    world.tell(e.WorkerTold("gpt/0.0", m.LoopEnded(9)))
    world.take()
    world.tell(e.PauseSet(world.request(), paused=False))
    assert world.decisions(e.EpochGranted) == []
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/2.0"]


def test_deaths_within_twenty_milliseconds_make_one_epoch(world: World) -> None:
    world.train()
    world.die("gpt/0.0")
    world.wait(0.015)
    world.die("gpt/2.0")
    world.wait(0.02)
    (granted,) = world.decisions(e.EpochGranted)
    assert granted.members == ("gpt/1.0",)
    assert len(world.incidents) == 2


def test_a_second_death_during_the_transition_makes_another_epoch(world: World) -> None:
    world.train()
    world.die("gpt/0.0")
    world.wait(0.02)
    first = world.job().epoch
    world.tell(e.GroupFormed("gpt", first))
    world.die("gpt/2.0")
    (granted, *_) = world.wait(0.02)
    assert isinstance(granted, e.EpochGranted)
    assert granted.members == ("gpt/1.0",)
    assert world.tell(e.GroupFormed("gpt", first)) == [], "what was said of the epoch before is out of date"
    assert world.tell(e.WorkerTold("gpt/1.0", m.Resumed(first, 5))) == []
    assert e.TransitionEnded("gpt", granted.epoch) in world.resume(step=5)
    assert {i.epoch_after for i in world.incidents} == {granted.epoch}


def test_every_member_dies_and_the_job_begins_a_new_life(world: World) -> None:
    world.train()
    for name in ("gpt/0.0", "gpt/1.0", "gpt/2.0"):
        world.tell(e.WorkerDying(name, "mutex"))
    world.wait(0.1)
    assert world.decisions(e.LifeEnded) == [], "why they are gone is not known yet"
    for name in ("gpt/0.0", "gpt/1.0", "gpt/2.0"):
        world.tell(e.WorkerExited(m.Exited(name, -9)))
    assert len(world.decisions(e.LifeEnded)) == 1
    world.take()
    world.begin_all()
    (granted,) = world.decisions(e.EpochGranted)
    assert granted.members == ("gpt/0.1", "gpt/1.1", "gpt/2.1")
    world.resume(step=21, source="storage", restored_step=20)
    assert all(not i.open for i in world.incidents)


@pytest.mark.parametrize(("source", "restored_step", "lost"), [("storage", 20, 7), ("initial", INITIAL, 28)])
def test_steps_that_nobody_has_any_more_are_lost_and_told(
    world: World, source: str, restored_step: int, lost: int
) -> None:
    world.train()
    world.tell(e.JobProgressed("gpt", 27, 0.1))
    for name in world.members():
        world.die(name)
    world.begin_all()
    world.resume(step=restored_step + 1, source=source, restored_step=restored_step)
    assert {i.steps_lost for i in world.incidents} == {lost}
    assert world.job().committed == restored_step


def test_exit_zero_before_the_end_is_a_fault_with_a_name(world: World) -> None:
    world.train()
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 0)))
    assert world.incident().cause == "left_the_loop_early"
    assert kinds(world.wait(0.02))[0] == "EpochGranted"


def test_a_worker_that_asked_for_a_fresh_start_is_nobodys_fault(world: World) -> None:
    world.train()
    world.tell(e.WorkerTold("gpt/1.0", m.FreshStart("its state is spoilt")))
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 75)))
    world.wait(0.02)
    assert world.incidents == []
    assert [o.worker for o in world.decisions(e.WorkerOrdered)] == ["gpt/1.1"]
    assert world.job().deaths == []


def test_a_joiner_that_dies_costs_the_others_nothing(new_world: NewWorld) -> None:
    world = new_world(nodes=2)
    world.train()
    world.attach("n2")
    world.take()
    world.die("gpt/2.0")
    assert world.decisions(e.EpochGranted) == []
    assert world.wait(5.0) == []
    assert [o.worker for o in world.decisions(e.WorkerOrdered)] == ["gpt/2.1"]
    world.begin("gpt/2.1")
    world.resume(step=9)
    assert not world.incident().open


def test_the_kernels_and_the_agents_word_come_in_any_order(new_world: NewWorld) -> None:
    """A lost or doubled word costs a delay at most."""
    both: list[e.Fact] = [e.WorkerDying("gpt/1.0", "mutex"), e.WorkerExited(m.Exited("gpt/1.0", -9))]
    for facts in (both, both[1:], [*both, *both], [both[1], both[0]]):
        world = new_world()
        world.train()
        world.tell(*facts)
        world.regroup()
        assert world.members() == ["gpt/0.0", "gpt/2.0", "gpt/1.1"]
        assert world.incident().cause == "process_killed"
        assert not world.incident().open


# -- exceptions -----------------------------------------------------------------------------


def test_an_exception_restarts_its_worker_with_the_traceback_as_evidence(world: World) -> None:
    world.train()
    world.tell(e.WorkerTold("gpt/1.0", raised()))
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 1, raised())))
    incident = world.incident()
    assert (incident.cause, incident.severity, incident.detected_by) == ("exception", "SEV2", "exception propagation")
    assert 'File "train.py", line 4' in incident.evidence
    world.regroup()
    assert world.members() == ["gpt/0.0", "gpt/2.0", "gpt/1.1"]


def test_the_same_exception_on_every_replica_ends_the_job_with_the_traceback(world: World) -> None:
    world.train()
    for i, name in enumerate(list(world.members())):
        world.tell(e.WorkerTold(name, raised(message=f"rank {i}")))
        world.tell(e.WorkerExited(m.Exited(name, 1, raised(message=f"rank {i}"))))
    ordered = [o.worker for o in world.decisions(e.WorkerOrdered)]
    assert len(ordered) < 3, "another start would end alike"
    for name in ordered:
        world.tell(e.WorkerExited(m.Exited(name, -15)))
    job = world.job()
    assert (job.over, job.exit_code) == (True, 1)
    assert job.end_reason.startswith("every worker raised the same\nexit code 1\n")
    assert 'File "train.py", line 4, in main' in job.end_reason


def test_the_same_exception_one_worker_after_the_other_ends_the_job_too(world: World) -> None:
    world.train()
    for name in list(world.members()):
        world.tell(e.WorkerExited(m.Exited(name, 1, raised())))
        world.wait(0.02)
    (given_up,) = world.decisions(e.JobGivenUp)
    assert given_up.reason.startswith("every worker raised the same")


def test_different_exceptions_do_not_end_the_job(world: World) -> None:
    world.train()
    for i, name in enumerate(list(world.members())):
        world.tell(e.WorkerExited(m.Exited(name, 1, raised(line=4 + i))))
    assert not world.job().over
    assert len(world.decisions(e.WorkerOrdered)) == 3


def test_a_step_that_was_completed_since_clears_the_record(world: World) -> None:
    """The same exception on one worker after the other, with progress between: each is a restart."""
    world.train()
    for turn in range(3):
        name = world.members()[0]
        world.tell(e.WorkerExited(m.Exited(name, 1, raised())))
        world.regroup(step=10 * turn + 5)
    assert not world.job().over
    assert len(world.members()) == 3


# -- poison ---------------------------------------------------------------------------------


def test_a_micro_batch_that_kills_two_workers_ends_the_job(world: World) -> None:
    world.train()
    world.die("gpt/0.0", -11, step=7, micro_batch=3)
    world.wait(0.02)
    world.resume(step=6)
    assert not world.job().give_up
    decided = world.die("gpt/1.0", -11, step=7, micro_batch=3)
    assert e.PoisonFound("gpt", 7, 3, skip=False) in decided
    (given_up,) = (d for d in decided if isinstance(d, e.JobGivenUp))
    assert given_up.reason.startswith("micro-batch 3 of step 7 was open on gpt/0.0, gpt/1.0\nkilled by SIGSEGV")
    saves = {worker: word.save for worker, word in world.directives(m.GiveUp)}
    assert saves == {"gpt/0.1": False, "gpt/2.0": True}, "the first living member saves what all have"


def test_a_job_that_two_micro_batches_have_killed_is_given_up_once(world: World) -> None:
    """Both are found at the same moment when nobody only observes any more."""
    world.train(size=2, observe=True)
    for worker in ("gpt/0.0", "gpt/1.0"):
        for number in (3, 4):
            world.tell(e.WorkerDying(worker, "mutex", m.Sample(worker, step=7, micro_batch=number)))
    assert world.decisions(e.PoisonFound) == []
    world.tell(e.ObserveSet(world.request(), "gpt", observe=False))
    assert len(world.decisions(e.PoisonFound)) == len(world.decisions(e.JobGivenUp)) == 1


def test_a_poisoned_micro_batch_is_skipped_if_the_job_says_so(world: World) -> None:
    world.train(skip_poison=True)
    world.die("gpt/0.0", -11, step=7, micro_batch=3)
    world.wait(0.02)
    world.resume(step=6)
    decided = world.die("gpt/1.0", -11, step=7, micro_batch=3)
    assert e.PoisonFound("gpt", 7, 3, skip=True) in decided
    assert any("micro-batch 3 of step 7 is skipped from now on" in line for line in world.incidents[-1].story)
    world.take()
    world.wait(0.02)
    assert {g.poison for _, g in world.directives(m.Granted)} == {(m.Poison(7, 3),)}
    assert not world.job().give_up


def test_who_hears_late_of_an_epoch_leaves_out_what_its_other_members_do(world: World) -> None:
    """Poison that is found afterwards counts from the next epoch on."""
    world.train(skip_poison=True)
    world.die("gpt/1.0", -11, step=7, micro_batch=3)
    world.wait(0.02)
    world.die("gpt/2.0", -11, step=7, micro_batch=3)
    assert world.decisions(e.PoisonFound)
    world.take()
    world.attach("n0", workers=("gpt/0.0",), gpt__0_0=Epoch(1, 1))
    ((_, granted),) = world.directives(m.Granted)
    assert (granted.epoch, granted.poison) == (Epoch(1, 2), ())


def fails_on(world: World, worker: str, step: int, micro_batch: int) -> None:
    failure = raised(step=step, micro_batch=micro_batch)
    world.tell(e.WorkerTold(worker, failure), e.WorkerExited(m.Exited(worker, 1, failure)))


def test_a_micro_batch_that_fails_every_worker_is_skipped_if_the_job_says_so(world: World) -> None:
    """The same exception everywhere is not the program's fault here, but the data's."""
    world.train(size=2, skip_poison=True)
    fails_on(world, "gpt/0.0", 7, 3)
    world.wait(0.02)
    world.resume(step=6)
    fails_on(world, "gpt/1.0", 7, 3)
    assert world.decisions(e.PoisonFound) == [e.PoisonFound("gpt", 7, 3, skip=True)]
    assert not world.job().give_up
    fails_on(world, world.job().alive()[0].name, 7, 4)
    assert not world.job().give_up, "one failure elsewhere is not everybody's"


def test_a_third_death_is_waited_for_if_poison_takes_three(world: World) -> None:
    world.train(size=2, skip_poison=True, poison_deaths=3)
    for worker in ("gpt/0.0", "gpt/1.0"):
        fails_on(world, worker, 7, 3)
    assert world.decisions(e.PoisonFound) == []
    assert not world.job().give_up


@pytest.mark.parametrize("skip", [True, False])
def test_the_same_exception_on_different_micro_batches_is_the_programs(world: World, skip: bool) -> None:
    world.train(size=2, skip_poison=skip)
    for number, worker in enumerate(("gpt/0.0", "gpt/1.0")):
        fails_on(world, worker, 7, number)
    (given_up,) = world.decisions(e.JobGivenUp)
    assert given_up.reason.startswith("every worker raised the same")


@pytest.mark.parametrize("second", [(7, 4), (8, 3), (7, -1)])
def test_two_deaths_on_different_micro_batches_are_no_poison(world: World, second: tuple[int, int]) -> None:
    world.train()
    world.die("gpt/0.0", -11, step=7, micro_batch=3)
    world.wait(0.02)
    world.resume(step=6)
    world.die("gpt/1.0", -11, step=second[0], micro_batch=second[1])
    assert world.decisions(e.PoisonFound) == []


# -- the budget -----------------------------------------------------------------------------


def test_a_job_is_given_up_when_its_restarts_are_spent(world: World) -> None:
    world.train(restarts_max=4)
    for _ in range(5):
        assert not world.job().give_up
        world.die(world.members()[-1])
        world.regroup()
    (given_up,) = world.decisions(e.JobGivenUp)
    assert given_up.reason.startswith(
        "restart budget spent: 5 failures in 600 s (limit 4), the last one process_killed"
    )


def test_restarts_are_counted_over_a_window(world: World) -> None:
    world.train(restarts_max=4)
    for _ in range(12):
        world.die(world.members()[-1])
        world.regroup()
        world.wait(151.0)
    assert not world.job().give_up


def test_restarts_on_one_node_are_delayed_more_and_more(new_world: NewWorld) -> None:
    world = new_world(nodes=2, restart_free=2)
    world.train()
    delays = []
    for _ in range(6):
        (victim,) = (w.name for w in world.job().living_members() if w.node == "n1")
        world.die(victim)
        died = world.now
        while not [w for w in world.job().alive() if w.node == "n1"]:
            world.wait(0.5)
        delays.append(round(world.worker(world.job().alive()[-1].name).ordered_at - died, 3))
        world.regroup()
    assert delays == [0.0, 0.0, 1.0, 2.0, 4.0, 8.0]


# -- observe mode ---------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["cluster", "job", "spec"])
def test_observe_mode_sees_everything_and_does_nothing(world: World, scope: str) -> None:
    world.train(observe=scope == "spec")
    if scope != "spec":
        world.tell(e.ObserveSet(world.request(), "gpt" if scope == "job" else "", observe=True))
    world.take()
    world.die("gpt/1.0")
    world.wait(60.0)
    assert set(kinds(world.decided)) == {"IncidentOpened", "IncidentRefined", "IncidentNoted"}
    assert world.acted == []
    assert world.incident().would_have
    assert any("would have granted a new epoch without gpt/1.0" in line for line in stories(world))


def test_observe_mode_would_have_killed_and_does_not(world: World) -> None:
    world.train(observe=True)
    world.tell(e.WorkerQuiet(m.Sample("gpt/1.0", quiet_seconds=12.0), 10.0))
    for _ in range(2):
        world.reading(("gpt/0.0", Phase.REDUCE, 5), ("gpt/1.0", Phase.COMPUTE, 5))
    world.wait(60.0)
    assert not world.said(m.StopWorker)
    assert sum("would have killed gpt/1.0" in line for line in stories(world)) == 1, "said once"


def test_observe_mode_of_one_job_leaves_the_others_healed(new_world: NewWorld) -> None:
    world = new_world(nodes=4)
    world.train("watched", size=2, observe=True)
    world.train("healed", size=2)
    world.die("watched/0.0")
    world.die("healed/0.0")
    world.wait(0.02)
    assert {g.job for g in world.decisions(e.EpochGranted)} == {"healed"}


def test_when_observe_mode_ends_what_was_only_watched_is_healed(world: World) -> None:
    world.train()
    world.tell(e.ObserveSet(world.request(), "", observe=True))
    world.die("gpt/1.0")
    world.wait(1.0)
    world.take()
    decided = world.tell(e.ObserveSet(world.request(), "", observe=False))
    assert {"EpochGranted", "WorkerOrdered"} <= set(kinds(decided))


# -- what does not end ----------------------------------------------------------------------


def test_a_failed_worker_that_does_not_end_is_ended(world: World) -> None:
    world.train()
    world.tell(e.WorkerTold("gpt/1.0", raised()))
    world.take()
    world.wait(9.9)
    assert not world.said(m.StopWorker)
    world.wait(0.2)
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/1.0"]
    assert len(world.decisions(e.WorkerOverstayed)) == 1


# -- what random histories have found -------------------------------------------------------


def test_the_last_member_that_has_the_state_can_not_leave(new_world: NewWorld) -> None:
    """Its node is drained while the others die: it goes on until somebody else has the state."""
    world = new_world(nodes=2)
    world.train(size=2)
    world.tell(e.NodeDrained(world.request(), "n1"))
    world.die("gpt/0.0")
    world.tell(e.WorkerTold("gpt/1.0", m.Leaving(5)))
    world.wait(0.02)
    assert world.members() == ["gpt/1.0"]
    world.resume(step=6)
    world.begin_all()
    world.tell(e.WorkerTold("gpt/1.0", m.Leaving(6)))
    world.resume(step=7)
    world.tell(e.WorkerTold("gpt/1.0", m.Leaving(7)))
    world.resume(step=8)
    assert world.members() == ["gpt/0.1"]


def test_who_ended_before_anybody_trained_is_missed_when_the_others_do(world: World) -> None:
    world.submit()
    world.tell(e.WorkerStarted("gpt/0.0", 1), e.WorkerExited(m.Exited("gpt/0.0", 0)))
    assert world.decisions(e.WorkerOrdered)[3:] == [], "it may have been meant to"
    world.begin("gpt/1.0")
    assert [o.worker for o in world.decisions(e.WorkerOrdered)[3:]] == ["gpt/0.1"]
    assert world.incident().cause == "left_the_loop_early"


def test_a_script_that_attaches_and_does_not_train_ends_well(world: World) -> None:
    world.submit()
    for name in list(world.job().workers):
        world.tell(e.WorkerStarted(name, 1), e.WorkerAttached(name), e.WorkerExited(m.Exited(name, 0)))
    assert (world.job().over, world.job().exit_code) == (True, 0)
    assert world.incidents == []


def test_a_symptom_of_a_worker_that_is_no_member_is_none(world: World) -> None:
    world.train(size=2)
    world.tell(e.ObserveSet(world.request(), "", observe=True))
    world.die("gpt/1.0")
    world.tell(e.WorkerTold("gpt/9.0", m.Symptom(world.job().epoch, "reset")))
    world.wait(60.0)
    assert [i.cause for i in world.incidents] == ["process_killed"]
