"""The coordinator's core: jobs begin, grow, shrink, are drained, paused and cancelled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.world import FINGERPRINT, World, kinds

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.state import JobPhase, NodePhase, WorkerPhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, Lineage

NewWorld = Callable[..., World]


# -- beginning ------------------------------------------------------------------------------


def test_a_job_gets_slots_and_processes(world: World) -> None:
    assert kinds(world.submit()) == ["SlotsAssigned", "WorkerOrdered", "WorkerOrdered", "WorkerOrdered"]
    started = world.said(m.StartWorker)
    assert [(node, s.worker, s.rank, s.world_size) for node, s in started] == [
        ("n0", "gpt/0.0", 0, 3),
        ("n1", "gpt/1.0", 1, 3),
        ("n2", "gpt/2.0", 2, 3),
    ]
    assert world.job().phase is JobPhase.STARTING


def test_the_first_epoch_is_granted_when_all_are_ready(world: World) -> None:
    world.submit()
    world.begin("gpt/0.0")
    world.begin("gpt/1.0")
    world.take()
    members = ("gpt/0.0", "gpt/1.0", "gpt/2.0")
    assert world.begin("gpt/2.0") == [e.EpochGranted("gpt", Epoch(1, 1), members, "begins with 3 workers")]
    opened, *granted = world.acted
    assert opened == e.OpenRendezvous("gpt", Epoch(1, 1), members)
    assert [(a.node, a.body.worker) for a in granted if isinstance(a, e.SendToAgent) and hasattr(a.body, "worker")] == [
        ("n0", "gpt/0.0"),
        ("n1", "gpt/1.0"),
        ("n2", "gpt/2.0"),
    ]
    secrets = {g.secret for _, g in world.directives(m.Granted)}
    assert len(secrets) == 1, "members know each other by what is derived from the cluster's secret"
    assert world.resume() == [e.TransitionEnded("gpt", Epoch(1, 1))]
    assert world.job().phase is JobPhase.RUNNING


def test_a_job_starts_with_fewer_if_the_others_take_too_long(world: World) -> None:
    world.submit(size_min=2)
    world.begin("gpt/0.0")
    world.begin("gpt/1.0")
    assert world.wait(59.9) == []
    (granted,) = world.wait(0.2)
    assert isinstance(granted, e.EpochGranted)
    assert granted.members == ("gpt/0.0", "gpt/1.0")


def test_a_job_never_starts_below_its_minimum(world: World) -> None:
    world.submit(size_min=3)
    world.begin("gpt/0.0")
    world.begin("gpt/1.0")
    assert not [d for d in world.wait(3_600.0) if isinstance(d, e.EpochGranted)]
    assert kinds(world.begin("gpt/2.0")) == ["EpochGranted"]


def test_a_job_without_room_waits_for_it(new_world: NewWorld) -> None:
    world = new_world(nodes=1)
    assert kinds(world.submit(size_min=2)) == ["SlotsAssigned"]
    assert world.job().phase is JobPhase.WAITING
    assert world.job().seats_reason == "waits for 2 slots more: its minimum is 2, and 1 of 1 slot is free"
    assert kinds(world.attach("n1")) == ["SlotsAssigned", "WorkerOrdered", "WorkerOrdered"]


ONE_MODEL = "build the same model on every worker, whatever its node, its rank and its environment"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"parameters": "x", "order": "x"}, f"parameters is x here and p there; {ONE_MODEL}"),
        (
            {"parameters": "x", "buffers": "x"},
            f"buffers is x here and b there; parameters is x here and p there; {ONE_MODEL}",
        ),
        (
            {"order": "x"},
            (
                "order is x here and o there; create parameters in the same order on every worker, not as they come "
                "out of a set"
            ),
        ),
        (
            {"code": "x"},
            "code is x here and c there; keep the files that the job runs on as they are, or submit a snapshot of them",
        ),
        ({"seed": "x"}, "seed is x here and absent there; give job.train and training.steps the same on every worker"),
    ],
)
def test_a_first_worker_with_another_program_ends_the_job(world: World, other: dict[str, str], said: str) -> None:
    """With one line that says what to change."""
    fingerprint = {"code": "c", "parameters": "p", "buffers": "b", "order": "o"}
    world.submit()
    world.begin("gpt/0.0", fingerprint)
    (given_up, *_) = world.begin("gpt/1.0", {**fingerprint, **other})
    assert isinstance(given_up, e.JobGivenUp)
    assert given_up.exit_code == 2
    assert given_up.reason == f"gpt/1.0 differs from gpt/0.0: {said}"


def test_a_users_mistake_ends_a_job_that_has_not_begun(world: World) -> None:
    world.submit()
    mistake = m.Mistake("micro_batches", "0", "want at least 1")
    (given_up, *_) = world.tell(e.WorkerTold("gpt/0.0", mistake))
    assert given_up == e.JobGivenUp("gpt", 2, "micro_batches: 0: want at least 1")


# -- joining --------------------------------------------------------------------------------


def test_a_new_node_is_joined_while_the_others_train(new_world: NewWorld) -> None:
    world = new_world(nodes=2)
    world.train()
    assert kinds(world.attach("n2")) == ["SlotsAssigned", "WorkerOrdered"]
    ((_, start),) = world.said(m.StartWorker)
    assert start.welcome.job_running
    (granted,) = world.begin("gpt/2.0")
    assert isinstance(granted, e.EpochGranted)
    assert granted.members == ("gpt/0.0", "gpt/1.0", "gpt/2.0")
    assert granted.reason == "with gpt/2.0"
    world.resume(step=9)
    assert world.incidents == [], "a planned join is no incident"


def test_whoever_is_about_to_be_ready_is_waited_for_a_little(new_world: NewWorld) -> None:
    world = new_world(nodes=1)
    world.train()
    world.attach("n1")
    world.attach("n2")
    world.tell(e.WorkerStarted("gpt/2.0", 5), e.WorkerAttached("gpt/2.0"))
    assert world.begin("gpt/1.0") == []
    assert world.wait(0.9) == []
    (granted,) = world.wait(0.2)
    assert isinstance(granted, e.EpochGranted)
    assert granted.members == ("gpt/0.0", "gpt/1.0")


def test_nobody_is_admitted_once_the_loop_has_ended(new_world: NewWorld) -> None:
    world = new_world(nodes=2)
    world.train()
    world.attach("n2")
    world.tell(e.WorkerStarted("gpt/2.0", 5), e.WorkerAttached("gpt/2.0"))
    decided = world.tell(e.WorkerTold("gpt/0.0", m.LoopEnded(99)))
    assert decided == [e.WorkerCondemned("gpt/2.0", "the loop has ended without it", gently=True)]
    assert world.tell(e.WorkerTold("gpt/2.0", m.Ready(dict(FINGERPRINT)))) == []


@pytest.mark.parametrize("has_exited", [False, True])
def test_an_epoch_that_a_member_had_come_to_its_end_before_is_formed_without_it(world: World, has_exited: bool) -> None:
    """It will never publish; the others do the closing collective once more."""
    world.train()
    world.die("gpt/2.0")
    world.wait(0.02)
    assert world.members() == ["gpt/0.0", "gpt/1.0"]
    world.take()
    world.tell(e.WorkerTold("gpt/0.0", m.LoopEnded(99)))
    if has_exited:
        world.tell(e.WorkerExited(m.Exited("gpt/0.0", 0)))
    (granted,) = world.decisions(e.EpochGranted)
    assert (granted.members, granted.reason) == (("gpt/1.0",), "without gpt/0.0: it has come to the end")
    world.tell(e.GroupFormed("gpt", world.job().epoch), e.WorkerTold("gpt/1.0", m.LoopEnded(99)))
    assert world.job().transition is None
    assert world.members() == ["gpt/1.0"], "now there is nobody to wait for"


def test_a_member_that_comes_to_its_end_after_the_group_was_formed_is_nobody_to_do_without(world: World) -> None:
    world.train()
    world.die("gpt/2.0")
    world.wait(0.02)
    world.tell(e.GroupFormed("gpt", world.job().epoch))
    world.take()
    for name in world.members():
        world.tell(e.WorkerTold(name, m.LoopEnded(99)))
    assert world.decisions(e.EpochGranted) == []
    assert world.job().transition is None


def test_whoever_is_admitted_while_the_loop_ends_does_not_begin_anew(new_world: NewWorld) -> None:
    """Those who would have handed it the state have come to their end meanwhile."""
    world = new_world(nodes=2)
    world.train()
    world.attach("n2")
    world.begin("gpt/2.0")
    assert world.members() == ["gpt/0.0", "gpt/1.0", "gpt/2.0"]
    world.take()
    for name in ("gpt/0.0", "gpt/1.0"):
        world.tell(e.WorkerTold(name, m.LoopEnded(99)), e.WorkerExited(m.Exited(name, 0)))
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/2.0"]
    assert [d.members for d in world.decisions(e.EpochGranted)] == [("gpt/1.0",)]
    world.tell(e.WorkerExited(m.Exited("gpt/2.0", -15)))
    assert e.JobEnded("gpt", 0, "finished after step 99") in world.decided


def test_a_joiner_with_another_program_never_joins(new_world: NewWorld) -> None:
    world = new_world(nodes=2)
    world.train()
    world.attach("n2")
    decided = world.begin("gpt/2.0", {**FINGERPRINT, "torch": "2.14"})
    assert "IncidentOpened" in kinds(decided)
    (barred,) = (d for d in decided if isinstance(d, e.SeatBarred))
    assert (
        barred.reason
        == "gpt/2.0 differs from gpt/0.0: torch is 2.14 here and 2.13 there; install the same torch on all nodes"
    )
    assert "WorkerCondemned" in kinds(decided)
    world.tell(e.WorkerExited(m.Exited("gpt/2.0", -15)))
    assert not [w for w in world.job().alive() if w.seat == 2], "the seat is not filled again"
    assert world.members() == ["gpt/0.0", "gpt/1.0"]


# -- ending ---------------------------------------------------------------------------------


def test_a_job_ends_when_all_its_processes_have(world: World) -> None:
    world.train()
    for name in world.members():
        world.tell(e.WorkerTold(name, m.LoopEnded(99)))
    for name in world.members()[:-1]:
        world.tell(e.WorkerExited(m.Exited(name, 0)))
    assert not world.job().over
    decided = world.tell(e.WorkerExited(m.Exited("gpt/2.0", 0)))
    assert e.JobEnded("gpt", 0, "finished after step 99") in decided
    assert kinds(decided).count("WorkerDismissed") == 3
    assert len(world.said(m.ForgetWorker)) == 3
    assert e.ForgetJob("gpt") in world.acted
    assert world.incidents == []


@pytest.mark.parametrize(("code", "ends_with"), [(3, 3), (-11, 139)])
def test_what_happens_after_the_loop_counts_for_the_exit_code(world: World, code: int, ends_with: int) -> None:
    world.train()
    for name in world.members():
        world.tell(e.WorkerTold(name, m.LoopEnded(99)))
    for name in world.members():
        world.tell(e.WorkerExited(m.Exited(name, code if name == "gpt/1.0" else 0)))
    assert world.job().exit_code == ends_with
    assert "a worker then ended with" in world.job().end_reason


def test_cancel_ends_every_process_gently_and_then_the_job(world: World) -> None:
    world.train()
    decided = world.tell(e.JobCancelled(world.request(), "gpt"))
    assert kinds(decided) == ["WorkerCondemned"] * 3
    assert all(stop.gently for _, stop in world.said(m.StopWorker))
    for name in list(world.members()):
        world.tell(e.WorkerExited(m.Exited(name, -15)))
    assert (world.job().phase, world.job().exit_code) == (JobPhase.ENDED, 130)
    assert world.incidents == [], "what was wanted is no incident"


def test_a_job_is_cancelled_before_it_has_begun(new_world: NewWorld) -> None:
    world = new_world(nodes=1)
    world.submit(size_min=2)
    decided = world.tell(e.JobCancelled(world.request(), "gpt"))
    assert decided == [e.JobEnded("gpt", 130, "cancelled")]


def test_a_name_can_be_used_again_when_its_job_has_ended(world: World) -> None:
    world.train()
    world.tell(e.JobCancelled(world.request(), "gpt"))
    for name in list(world.job().workers):
        world.tell(e.WorkerExited(m.Exited(name, -15)))
    world.take()
    assert kinds(world.submit()) == ["SlotsAssigned"] + ["WorkerOrdered"] * 3
    assert world.job().epoch == Epoch()


# -- drain ----------------------------------------------------------------------------------


def test_a_drained_node_is_left_before_it_is_empty(new_world: NewWorld) -> None:
    """Its worker goes when its replacement has come: the job never shrinks."""
    world = new_world(nodes=4)
    world.train()
    decided = world.tell(e.NodeDrained(world.request(), "n1"))
    assert kinds(decided) == ["SlotsAssigned", "WorkerOrdered"]
    assert world.node("n1").phase is NodePhase.DRAINING
    world.begin("gpt/3.0")
    world.resume(step=7)
    assert world.members() == ["gpt/0.0", "gpt/1.0", "gpt/2.0", "gpt/3.0"]
    assert [(w, type(r)) for w, r in world.directives(m.Retire)] == [("gpt/1.0", m.Retire)]
    world.take()
    decided = world.tell(e.WorkerTold("gpt/1.0", m.Leaving(8)))
    (granted,) = (d for d in decided if isinstance(d, e.EpochGranted))
    assert granted.members == ("gpt/0.0", "gpt/2.0", "gpt/3.0")
    assert granted.reason == "without gpt/1.0: it leaves"
    assert "gpt/1.0" in [worker for worker, _ in world.directives(m.Granted)], "it serves until it hears of this"
    assert {g.left for _, g in world.directives(m.Granted)} == {("gpt/1.0",)}, "what is its nobody has computed"
    world.resume(step=9)
    decided = world.tell(e.WorkerExited(m.Exited("gpt/1.0", 0)))
    assert e.NodeEmptied("n1") in decided
    assert world.node("n1").phase is NodePhase.DRAINED
    assert world.incidents == []


def test_a_job_without_room_elsewhere_shrinks_to_leave_a_drained_node(world: World) -> None:
    world.train(size_min=2)
    world.tell(e.NodeDrained(world.request(), "n1"))
    assert [w for w, _ in world.directives(m.Retire)] == ["gpt/1.0"]


def test_a_job_at_its_minimum_stays_until_there_is_room(world: World) -> None:
    world.train(size_min=3)
    world.tell(e.NodeDrained(world.request(), "n1"))
    assert world.directives(m.Retire) == []
    world.attach("n3")
    assert [s.worker for _, s in world.said(m.StartWorker)] == ["gpt/3.0"]


def test_an_undrained_node_is_used_again(world: World) -> None:
    world.tell(e.NodeDrained(world.request(), "n1"))
    assert world.node("n1").phase is NodePhase.DRAINED, "nothing ran there"
    world.submit()
    assert len(world.job().seats) == 2
    decided = world.tell(e.NodeUndrained(world.request(), "n1"))
    assert kinds(decided) == ["SlotsAssigned", "WorkerOrdered"]


# -- pause ----------------------------------------------------------------------------------


def test_a_pause_stops_every_action_and_a_resume_makes_up_for_it(world: World) -> None:
    world.train()
    world.tell(e.PauseSet(world.request(), paused=True))
    world.take()
    world.die("gpt/1.0")
    world.wait(60.0)
    assert set(kinds(world.decided)) == {"IncidentOpened", "IncidentRefined"}, "seen, and nothing done"
    assert world.acted == []
    decided = world.tell(e.PauseSet(world.request(), paused=False))
    assert {"EpochGranted", "WorkerOrdered"} <= set(kinds(decided))


def test_jobs_that_are_submitted_in_a_pause_wait(world: World) -> None:
    world.tell(e.PauseSet(world.request(), paused=True))
    assert world.submit() == []
    assert kinds(world.tell(e.PauseSet(world.request(), paused=False))) == ["SlotsAssigned"] + ["WorkerOrdered"] * 3


# -- checkpoints ----------------------------------------------------------------------------


def test_a_checkpoint_is_complete_when_the_coordinator_says_so(world: World) -> None:
    world.train()
    lineage = Lineage(0, Epoch(1, 1))
    written = m.CheckpointWritten(20, lineage, "/checkpoints")
    (committed,) = world.tell(e.WorkerTold("gpt/1.0", written))
    assert committed == e.CheckpointCommitted("gpt", 20, lineage, "/checkpoints", ("gpt/1.0",))
    told = world.directives(m.CheckpointComplete)
    assert [worker for worker, _ in told] == ["gpt/0.0", "gpt/1.0", "gpt/2.0"]
    world.take()
    assert world.tell(e.WorkerTold("gpt/1.0", written)) == [], "told again, it is not committed again"
    assert world.directives(m.CheckpointComplete) == [("gpt/1.0", m.CheckpointComplete(20, lineage))]
    world.take()
    older = m.CheckpointWritten(30, Lineage(0, Epoch(1, 0)), "/checkpoints")
    assert world.tell(e.WorkerTold("gpt/2.0", older)) == []
    assert world.directives(m.CheckpointComplete) == [("gpt/2.0", m.CheckpointComplete(20, lineage))]


def test_an_agent_that_attaches_hears_which_checkpoint_is_complete(world: World) -> None:
    """The word was lost with the agent before, or with the coordinator that would have said it."""
    world.train()
    lineage = Lineage(0, Epoch(1, 1))
    (worker,) = [w.name for w in world.job().living_members() if w.node == "n1"]
    world.tell(e.WorkerTold(worker, m.CheckpointWritten(20, lineage, "/checkpoints")))
    world.take()
    world.attach("n1", workers=(worker,), incarnation="the next agent")
    assert world.directives(m.CheckpointComplete) == [(worker, m.CheckpointComplete(20, lineage))]


def test_a_checkpoint_of_a_worker_that_does_not_count_is_not_committed(world: World) -> None:
    world.train()
    world.die("gpt/1.0")
    assert world.tell(e.WorkerTold("gpt/1.0", m.CheckpointWritten(20, Lineage(), "/checkpoints"))) == []


# -- commands without attach() --------------------------------------------------------------


def test_a_gang_lives_and_dies_together(world: World) -> None:
    world.submit()
    for name in ("gpt/0.0", "gpt/1.0", "gpt/2.0"):
        world.tell(e.WorkerStarted(name, 1))
    world.take()
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 3)))
    world.wait(0.2)
    assert {d.worker for d in world.decisions(e.WorkerCondemned)} == {"gpt/0.0", "gpt/2.0"}
    assert world.decisions(e.WorkerOrdered) == [], "the one before must be gone to the last process"
    world.tell(e.WorkerExited(m.Exited("gpt/0.0", -15)), e.WorkerExited(m.Exited("gpt/2.0", -15)))
    world.wait(0.2)
    ordered = world.decisions(e.WorkerOrdered)
    assert [o.worker for o in ordered] == ["gpt/0.1", "gpt/1.1", "gpt/2.1"]
    assert {o.restarts for o in ordered} == {1}


def test_a_gang_ends_well_when_every_process_has(world: World) -> None:
    world.submit()
    for name in ("gpt/0.0", "gpt/1.0", "gpt/2.0"):
        world.tell(e.WorkerStarted(name, 1))
    for name in ("gpt/0.0", "gpt/1.0", "gpt/2.0"):
        world.tell(e.WorkerExited(m.Exited(name, 0)))
    assert (world.job().over, world.job().exit_code) == (True, 0)
    assert world.incidents == []
    assert WorkerPhase.GONE not in {w.phase for w in world.job().workers.values()}


def test_a_process_that_comes_late_to_its_gang_belongs_to_the_same_start(new_world: NewWorld) -> None:
    """Its node is made to wait before it may restart; the others have begun to meet without it."""
    world = new_world(nodes=2, restart_free=0)
    world.submit()
    world.tell(e.WorkerStarted("gpt/0.0", 1), e.WorkerStarted("gpt/1.0", 2))
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 3)))
    world.wait(0.2)
    world.take()
    world.tell(e.WorkerExited(m.Exited("gpt/0.0", -15)))
    world.wait(0.2)
    assert [(o.worker, o.restarts) for o in world.decisions(e.WorkerOrdered)] == [("gpt/0.1", 1)]
    world.wait(1.0)
    assert [(o.worker, o.restarts) for o in world.decisions(e.WorkerOrdered)][1:] == [("gpt/1.1", 1)]
