"""The coordinator's core: workers that hang or differ are found by comparing all of them."""

from __future__ import annotations

from unit.world import World, kinds

from unicorn_mgr import messages as m
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch
from unicorn_mgr.phases import Phase

# -- hangs ----------------------------------------------------------------------------------


def quiet(world: World, worker: str) -> list[e.Event]:
    return world.tell(e.WorkerQuiet(m.Sample(worker, quiet_seconds=12.0), 10.0))


def test_a_hanging_worker_is_named_read_twice_and_killed_with_its_stacks(world: World) -> None:
    world.train()
    assert quiet(world, "gpt/0.0") == [e.InquiryOpened("gpt", 1)]
    (asked,) = (a for a in world.acted if isinstance(a, e.TakeReadings))
    assert asked.workers == {"n0": ("gpt/0.0",), "n1": ("gpt/1.0",), "n2": ("gpt/2.0",)}
    world.take()
    places = (("gpt/0.0", Phase.REDUCE, 5), ("gpt/1.0", Phase.COMPUTE, 5), ("gpt/2.0", Phase.REDUCE, 5))
    world.reading(*places)
    assert world.decided == [], "before a kill there is a second reading"
    world.now += 1.0
    world.reading(*places)
    closed, opened = world.decided
    assert isinstance(closed, e.InquiryClosed)
    assert closed.culprit == "gpt/1.0"
    assert isinstance(opened, e.IncidentOpened)
    assert (opened.cause, opened.severity) == ("task_hang", "SEV2")
    assert opened.detected_by == "online statistical monitoring"
    assert "gpt/1.0: epoch 0, step 5, 0 collectives launched, compute, quiet for 12.0 s" in opened.evidence
    assert world.acted == [e.TakeEvidence("n1", "gpt/1.0")]
    world.take()
    world.tell(e.EvidenceTaken("gpt/1.0", "in forward()", "py-spy"))
    assert [(n, s.worker, s.gently) for n, s in world.said(m.StopWorker)] == [("n1", "gpt/1.0", False)]
    assert world.incident().evidence.endswith("stacks by py-spy:\nin forward()")
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", -9)))
    world.regroup()
    assert world.members() == ["gpt/0.0", "gpt/2.0", "gpt/1.1"]
    assert not world.incident().open
    assert world.incident().cause == "task_hang", "how it then ended is not its cause"


def test_a_culprit_whose_stacks_do_not_come_is_killed_all_the_same(world: World) -> None:
    world.train()
    quiet(world, "gpt/1.0")
    for _ in range(2):
        world.reading(("gpt/0.0", Phase.REDUCE, 5), ("gpt/1.0", Phase.COMPUTE, 5))
    assert not world.said(m.StopWorker)
    world.wait(3.0)
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/1.0"]


def test_a_newcomer_that_hangs_is_replaced_and_keeps_its_job_from_beginning_no_longer(world: World) -> None:
    world.submit(size_min=3, size_max=3)
    for name in ("gpt/0.0", "gpt/1.0"):
        world.begin(name)
    world.tell(e.WorkerStarted("gpt/2.0", 4000), e.WorkerAttached("gpt/2.0"))
    world.take()
    quiet(world, "gpt/2.0")
    (asked,) = (a for a in world.acted if isinstance(a, e.TakeReadings))
    assert asked.workers == {"n2": ("gpt/2.0",)}
    for _ in range(2):
        world.reading(("gpt/2.0", Phase.STARTING, 0), quiet=599.0)
    assert world.incidents == [], "it may still be loading its data"
    world.wait(10.0)
    quiet(world, "gpt/2.0")
    for _ in range(2):
        world.reading(("gpt/2.0", Phase.STARTING, 0), quiet=601.0)
    assert world.incident().cause == "task_hang"
    assert "stands in starting for 601.0 s and is no member yet (more than 600 s)" in world.incident().evidence
    world.wait(3.0)
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/2.0"]
    world.tell(e.WorkerExited(m.Exited("gpt/2.0", -9)))
    world.begin_all()
    assert world.members() == ["gpt/0.0", "gpt/1.0", "gpt/2.1"]
    world.resume()
    assert not world.incident().open


def test_a_newcomer_that_hangs_beside_members_that_go_on_is_replaced(world: World) -> None:
    world.train(size_min=1)
    world.die("gpt/2.0")
    world.wait(world.settings.death_batch_seconds)
    world.resume(step=5)
    world.tell(e.WorkerStarted("gpt/2.1", 4000), e.WorkerAttached("gpt/2.1"))
    quiet(world, "gpt/2.1")
    number = world.job().inquiries
    for counter in (1, 2):
        going = tuple(m.Sample(f"gpt/{seat}.0", counter, step=5 + counter, phase=int(Phase.COMPUTE)) for seat in (0, 1))
        stands = m.Sample("gpt/2.1", 7, phase=int(Phase.USER), quiet_seconds=601.0)
        world.tell(e.ReadingTaken("gpt", number, (*going, stands)))
    world.wait(3.0)
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/2.1"]


def test_a_membership_that_nobody_answers_is_looked_into(world: World) -> None:
    """Its only member is deaf, and whoever waits for a membership is never quiet for too long."""
    world.submit(size_max=1)
    world.begin("gpt/0.0")
    assert world.members() == ["gpt/0.0"]
    world.take()
    world.wait(9.0)
    assert world.decided == []
    world.wait(2.0)
    assert world.decisions(e.InquiryOpened) == [e.InquiryOpened("gpt", 1)]
    for _ in range(2):
        world.reading(("gpt/0.0", Phase.RESTORE, 0))
    world.take()
    world.wait(16.0)
    assert [d.number for d in world.decisions(e.InquiryOpened)] == [2], "it may be reading what is stored; later again"
    for _ in range(2):
        world.reading(("gpt/0.0", Phase.WAITING, 0))
    assert world.incident().cause == "task_hang"
    world.wait(3.0)
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/0.0"]


def test_a_process_that_never_attaches_beside_others_that_have_is_ended(world: World) -> None:
    world.train(size_min=1)
    world.die("gpt/2.0")
    world.wait(world.settings.death_batch_seconds)
    world.resume(step=5)
    world.tell(e.WorkerStarted("gpt/2.1", 4000))
    world.take()
    world.wait(599.0)
    assert world.said(m.StopWorker) == []
    world.wait(1.0)
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/2.1"]
    assert "gpt/2.1 has not called attach() for 600 s" in world.incidents[-1].evidence
    world.tell(e.WorkerExited(m.Exited("gpt/2.1", -9)))
    world.begin("gpt/2.2")
    world.wait(2.0)
    world.resume(step=6)
    assert [i for i in world.incidents if i.open] == []


def test_whoever_may_have_called_attach_while_nobody_heard_it_has_its_time_anew(world: World) -> None:
    world.train(size=1)
    world.tell(e.WishesSet(world.request(), "gpt", 1.0, 0, 1, 2), e.WorkerStarted("gpt/1.0", 77))
    node = world.worker("gpt/1.0").node
    world.tell(e.NodeSilent(node, 3.0))
    world.wait(700.0)
    world.take()
    world.attach(node, workers=("gpt/1.0",))
    assert world.decided == [], "it is told next"
    world.wait(599.0)
    assert world.decided == []
    world.wait(2.0)
    assert [d.worker for d in world.decisions(e.WorkerCondemned)] == ["gpt/1.0"]


def test_nobody_can_tell_whether_a_script_will_ever_attach_before_one_of_its_processes_has(world: World) -> None:
    world.submit(size_min=3)
    for seat in range(3):
        world.tell(e.WorkerStarted(f"gpt/{seat}.0", 4000 + seat))
    assert world.wait(10_000.0) == []


def test_a_sentence_is_over_with_whoever_dies_before_it_is_carried_out(world: World) -> None:
    world.train()
    quiet(world, "gpt/1.0")
    for _ in range(2):
        world.reading(("gpt/0.0", Phase.REDUCE, 5), ("gpt/1.0", Phase.COMPUTE, 5))
    world.die("gpt/1.0")
    world.regroup()
    world.wait(10.0)
    world.take()
    quiet(world, "gpt/2.0")
    assert world.decisions(e.InquiryOpened), "the next one that hangs is looked for"


def test_a_newcomer_on_a_silent_node_keeps_nobody_from_a_verdict(world: World) -> None:
    world.train(size_min=1)
    world.die("gpt/2.0")
    world.wait(world.settings.death_batch_seconds)
    world.resume(step=5)
    world.tell(e.WorkerStarted("gpt/2.1", 4000), e.NodeSilent("n2", 3.0))
    world.take()
    quiet(world, "gpt/1.0")
    (asked,) = (a for a in world.acted if isinstance(a, e.TakeReadings))
    assert asked.workers == {"n0": ("gpt/0.0",), "n1": ("gpt/1.0",)}


def test_progress_between_the_readings_dispels_the_suspicion(world: World) -> None:
    world.train()
    quiet(world, "gpt/1.0")
    world.reading(("gpt/0.0", Phase.REDUCE, 5), ("gpt/1.0", Phase.COMPUTE, 5), counter=1)
    world.reading(("gpt/0.0", Phase.REDUCE, 6), ("gpt/1.0", Phase.COMPUTE, 6), counter=9)
    assert world.incidents == []
    assert world.state.counters.averted == 1
    assert world.wait(60.0) == []


def test_an_inquiry_that_is_not_answered_is_closed_without_a_verdict(world: World) -> None:
    world.train()
    quiet(world, "gpt/1.0")
    world.take()
    world.wait(7.0)
    assert world.decided == [e.InquiryClosed("gpt", 1, "not all agents answered")]
    assert world.incidents == []
    assert quiet(world, "gpt/1.0") == [], "the next one waits a little"
    assert e.InquiryOpened("gpt", 2) in world.wait(5.0)


def test_a_late_reading_of_an_inquiry_that_is_closed_says_nothing(world: World) -> None:
    world.train()
    quiet(world, "gpt/1.0")
    world.wait(7.0)
    for _ in range(2):
        world.reading(("gpt/0.0", Phase.REDUCE, 5), ("gpt/1.0", Phase.COMPUTE, 5))
    assert world.incidents == []


def test_a_death_ends_the_inquiry(world: World) -> None:
    world.train()
    quiet(world, "gpt/1.0")
    world.die("gpt/2.0")
    world.wait(0.02)
    assert world.job().inquiry is None


# -- checksums ------------------------------------------------------------------------------


def test_the_minority_is_restarted_from_the_majority(world: World) -> None:
    world.train()
    decided = world.tell(e.WorkerTold("gpt/0.0", m.ChecksumsDiffer(Epoch(1, 1), 100, ("gpt/2.0",))))
    assert kinds(decided)[:2] == ["IncidentOpened", "WorkerCondemned"]
    assert world.incident().cause == "checksum_mismatch"
    assert world.incident().worker == "gpt/2.0"
    world.tell(e.WorkerExited(m.Exited("gpt/2.0", -9)))
    world.regroup()
    assert not world.incident().open


def test_without_a_majority_nobody_is_restarted(world: World) -> None:
    world.train()
    decided = world.tell(e.WorkerTold("gpt/0.0", m.ChecksumsDiffer(Epoch(1, 1), 100, ())))
    assert kinds(decided)[0] == "IncidentOpened"
    assert world.decisions(e.WorkerCondemned) == []
    assert "there is no majority" in world.incidents[0].evidence
