"""The coordinator's core: a running job waits for slots, and comes back with nothing lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.test_core_planning import Planned
from unit.world import kinds

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.views import job_view
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, Lineage

STORE = "file:///store"


class Suspending(Planned):
    """A job that can be stored, and one that is worth more."""

    def stand(self, job: str = "low", step: int = 41) -> list[e.Event]:
        """The members finish the open step, and stand still."""
        return self.resume(job, step)

    def store(self, job: str = "low", step: int = 41) -> list[e.Event]:
        """The first member has put the state into storage."""
        first, epoch = self.members(job)[0], self.job(job).epoch
        written = m.CheckpointWritten(step, Lineage(0, epoch), STORE)
        return self.tell(
            e.WorkerTold(first, written),
            e.WorkerTold(first, m.CheckpointPublished(step, STORE)),
            e.WorkerTold(first, m.Suspended(epoch, step)),
        )

    def fail_to_store(self, error: str = "no space left on device") -> list[e.Event]:
        return self.tell(e.WorkerTold(self.members("low")[0], m.CheckpointFailed(41, error)))

    def end(self, job: str = "low", code: int = -15) -> list[e.Event]:
        """The last of its processes is gone."""
        left = [w.name for w in self.job(job).workers.values() if w.exited is None]
        return [d for name in left for d in self.tell(e.WorkerExited(m.Exited(name, code)))]

    def start_gang(self) -> None:
        """The low job's processes come up, and none attaches."""
        self.submit("low", 3, 6)
        self.answer()
        for seat in range(6):
            self.tell(e.WorkerStarted(f"low/{seat}.0", 4000 + seat))

    def fail_as_gang(self, job: str = "low") -> None:
        """One of its processes is killed, and the others are ended for it."""
        self.tell(e.WorkerExited(m.Exited(f"{job}/0.0", -9)))
        self.wait(0.2)
        self.end(job)

    def reason(self, job: str = "low") -> str:
        return job_view(self.state, Liveness(self.settings), self.job(job), self.now).reason

    def running_low(self, size_min: int = 3, **spec: object) -> None:
        self.train_planned("low", size_min, 6, checkpoint_url=STORE, **spec)
        self.take()

    def submit_high(self, size_min: int = 5, **spec: object) -> list[e.Event]:
        decided = self.submit("high", size_min, 6, priority=1, **spec)
        return decided + self.answer()

    def suspended(self) -> None:
        """The low job has given way, and the high one trains."""
        self.running_low()
        self.submit_high()
        self.stand()
        self.store()
        self.end()
        self.settle()
        assert (len(self.members("low")), len(self.members("high"))) == (0, 6)


@pytest.fixture
def world() -> Iterator[Suspending]:
    made = Suspending(nodes=6)
    yield made
    made.check_replay()


# -- giving way -----------------------------------------------------------------------------


def test_a_job_gives_way_to_one_of_higher_priority_step_by_step(world: Suspending) -> None:
    world.running_low()
    before = world.job("low").epoch
    decided = world.submit_high()
    assert {"SuspensionOrdered", "EpochGranted"} <= set(kinds(decided))
    assert world.sizes() == {"low": 0, "high": 6}
    told = world.directives(m.Granted)
    assert len(told) == 6
    assert all(granted.suspends and granted.epoch.number == before.number + 1 for _, granted in told)
    assert world.reason().startswith("gives its slots up as soon as its state is stored: waits for 2 slots more")

    world.stand()
    assert world.decisions(e.WorkerCondemned) == [], "what is not stored does not end"
    world.store()
    assert world.decisions(e.JobSuspended) == [e.JobSuspended("low", 41)]
    assert len(world.decisions(e.WorkerCondemned)) == 6
    assert world.decisions(e.WorkerOrdered) == [], "the slots are not free yet"

    world.end()
    low = world.job("low")
    assert (low.phase.value, low.members, low.suspension, low.committed) == ("waiting", (), None, 41)
    assert {o.worker.partition("/")[0] for o in world.decisions(e.WorkerOrdered)} == {"high"}
    assert len(world.decisions(e.WorkerOrdered)) == 6
    reason = "waits for 2 slots more: its minimum is 3, and 1 is left: high needs 5; its state after step 41 is stored"
    assert world.reason() == reason
    assert world.incidents == []


def test_it_comes_back_from_storage_with_no_step_lost(world: Suspending) -> None:
    world.suspended()
    world.tell(e.JobCancelled(world.request(), "high"))
    world.end("high")
    world.answer()
    assert world.sizes() == {"low": 6}
    world.begin_all("low")
    world.resume("low", step=42, source="storage", restored_step=41)
    low = world.job("low")
    assert (low.phase.value, len(low.living_members()), low.steps_redone) == ("running", 6, 0)
    assert low.deaths == []
    assert world.incidents == []


@pytest.mark.parametrize(("source", "restored"), [("storage", 30), ("initial", -1)])
def test_what_cant_be_read_when_it_comes_back_is_an_incident(world: Suspending, source: str, restored: int) -> None:
    world.suspended()
    world.tell(e.JobCancelled(world.request(), "high"))
    world.end("high")
    world.answer()
    world.begin_all("low")
    world.take()
    world.resume("low", step=restored + 1, source=source, restored_step=restored)
    incident = world.incident()
    assert (incident.cause, incident.job, incident.steps_lost) == ("checkpoint_unreadable", "low", 41 - restored)
    assert f"goes on after step {restored}" in incident.evidence
    assert [s.source for s in incident.sources] == [source]
    assert not incident.open
    assert describe(world.decisions(e.IncidentOpened)[0]).startswith("inc-1 opened: job low, checkpoint_unreadable")
    world.die("low/0.1")
    assert [i.cause for i in world.incidents] == ["checkpoint_unreadable", "process_killed"]


def test_each_slot_is_used_as_soon_as_its_own_process_is_gone(world: Suspending) -> None:
    world.running_low()
    world.submit_high()
    world.stand()
    world.store()
    world.take()
    gone = world.worker("low/2.0")
    world.tell(e.WorkerExited(m.Exited(gone.name, -15)))
    (ordered,) = world.decisions(e.WorkerOrdered)
    assert (ordered.node, ordered.slot) == (gone.node, gone.slot)


def test_a_drained_cluster_is_emptied_once_the_state_is_stored(world: Suspending) -> None:
    world.running_low()
    for i in range(6):
        world.tell(e.NodeDrained(world.request(), f"n{i}"))
    world.answer()
    world.stand()
    world.store()
    world.end()
    assert {n.phase.value for n in world.state.nodes.values()} == {"drained"}
    assert world.job("low").phase.value == "waiting"


# -- who keeps what it has ------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0, -1])
def test_nobody_gives_way_to_a_job_of_no_higher_priority(world: Suspending, priority: int) -> None:
    world.running_low()
    world.submit("other", 5, 6, weight=9.0, priority=priority)
    world.answer()
    assert world.sizes() == {"low": 6, "other": 0}
    assert world.decisions(e.SuspensionOrdered) == []


def test_a_job_without_storage_keeps_its_minimum(world: Suspending) -> None:
    world.train_planned("low", 3, 6)
    world.take()
    world.submit_high()
    assert world.sizes() == {"low": 6, "high": 0}
    assert world.decisions(e.SuspensionOrdered) == []


def test_who_fits_beside_it_takes_only_what_it_can_spare(world: Suspending) -> None:
    world.running_low()
    world.submit_high(size_min=3)
    assert sum(world.sizes().values()) == 6
    assert world.sizes()["low"] >= 3
    assert world.decisions(e.SuspensionOrdered) == []


def test_of_equals_none_gives_way_because_another_has_lost_a_slot(world: Suspending) -> None:
    world.train_planned("first", 3, 3, checkpoint_url=STORE)
    world.train_planned("second", 3, 3, checkpoint_url=STORE)
    lost = world.job("first").seats[0][0]
    world.take()
    world.tell(e.NodeSilent(lost, 2.6), e.JobHalted("first", 1.1))
    world.answer()
    assert world.sizes() == {"first": 2, "second": 3}
    assert world.decisions(e.SuspensionOrdered) == []


def test_a_job_that_has_not_begun_yet_is_simply_ended(world: Suspending) -> None:
    world.submit("low", 3, 6, checkpoint_url=STORE)
    world.answer()
    for seat in range(6):
        world.tell(e.WorkerStarted(f"low/{seat}.0", 4000 + seat), e.WorkerAttached(f"low/{seat}.0"))
    world.answer()
    world.take()
    world.submit_high()
    assert world.decisions(e.SuspensionOrdered) == []
    assert len(world.decisions(e.WorkerCondemned)) == 6


def test_a_job_that_has_not_attached_yet_yields_as_soon_as_it_can_be_told_from_a_gang(world: Suspending) -> None:
    """Nothing is lost by ending it then; a moment later it trains, and can't be stored."""
    world.start_gang()
    world.submit_high()
    assert world.sizes() == {"low": 6, "high": 0}, "it may have run for days"
    world.take()
    world.tell(e.WorkerAttached("low/0.0"))
    assert world.asked()
    world.answer()
    assert world.sizes() == {"low": 0, "high": 6}
    assert len(world.decisions(e.WorkerCondemned)) == 6
    assert world.decisions(e.SuspensionOrdered) == []
    world.end()
    world.settle()
    assert len(world.members("high")) == 6


def test_a_gang_that_has_failed_is_not_begun_anew_while_a_job_of_higher_priority_waits(world: Suspending) -> None:
    world.start_gang()
    world.submit_high()
    world.take()
    world.fail_as_gang()
    assert world.asked(), "it can be stopped now"
    world.wait(10.0)
    assert world.decisions(e.WorkerOrdered) == [], "who gets its slots is not known yet"
    world.answer()
    assert world.sizes() == {"low": 0, "high": 6}
    world.settle()
    assert len(world.members("high")) == 6
    assert world.job("low").phase.value != "ended"


def test_a_gang_that_has_failed_is_begun_anew_beside_a_job_of_its_own_priority_that_waits(world: Suspending) -> None:
    world.start_gang()
    world.submit("equal", 5, 6)
    world.answer()
    world.take()
    world.fail_as_gang()
    world.wait(10.0)
    assert world.asked() == []
    assert len(world.decisions(e.WorkerOrdered)) == 6


# -- storage fails --------------------------------------------------------------------------


@pytest.mark.parametrize("standing", [False, True])
def test_what_cannot_be_stored_goes_on(world: Suspending, standing: bool) -> None:
    world.running_low()
    places = dict(world.job("low").seats)
    world.submit_high()
    if standing:
        world.stand()
    world.take()
    world.fail_to_store()
    (withdrawn,) = world.decisions(e.SuspensionWithdrawn)
    assert withdrawn.reason == "it can't wait, as its state can't be stored: no space left on device"
    assert world.job("low").seats == places
    assert world.sizes()["high"] == 0
    world.stand()
    assert not world.directives(m.Granted)[-1][1].suspends
    world.answer()
    assert world.sizes() == {"low": 6, "high": 0}
    assert world.decisions(e.WorkerCondemned) == []
    assert world.job("high").seats_reason.startswith("waits for 2 slots more"), "its turn comes when storage is mended"


def test_it_is_asked_again_once_a_checkpoint_has_gone_well(world: Suspending) -> None:
    world.running_low()
    world.submit_high()
    world.stand()
    world.fail_to_store()
    world.stand()
    world.answer()
    world.take()
    first = world.members("low")[0]
    world.tell(e.WorkerTold(first, m.CheckpointWritten(50, Lineage(0, world.job("low").epoch), STORE)))
    world.answer()
    assert [d.job for d in world.decisions(e.SuspensionOrdered)] == ["low"]
    assert world.sizes() == {"low": 0, "high": 6}


def test_storage_that_says_nothing_is_not_waited_for_for_ever(world: Suspending) -> None:
    world.running_low()
    world.submit_high()
    world.stand()
    world.take()
    world.wait(world.settings.suspend_seconds - 1.0)
    assert world.decisions(e.SuspensionWithdrawn) == []
    world.wait(2.0)
    (withdrawn,) = world.decisions(e.SuspensionWithdrawn)
    assert withdrawn.reason == "it can't wait, as its state was not stored within 300 s"
    world.stand()
    world.answer()
    assert world.sizes() == {"low": 6, "high": 0}


def test_word_of_a_standstill_that_is_over_ends_nobody(world: Suspending) -> None:
    world.running_low()
    world.submit_high()
    world.stand()
    over = world.job("low").epoch
    world.fail_to_store()
    world.tell(e.WorkerTold(world.members("low")[0], m.Suspended(over, 41)))
    assert world.decisions(e.JobSuspended) == []
    assert len(world.job("low").living_members()) == 6


# -- faults in the middle -------------------------------------------------------------------


def test_a_member_that_dies_before_the_state_is_stored_is_done_without(world: Suspending) -> None:
    world.running_low()
    world.submit_high()
    world.stand()
    world.die("low/0.0")
    world.take()
    world.wait(world.settings.death_batch_seconds)
    told = world.directives(m.Granted)
    assert len(told) == 5
    assert all(granted.suspends for _, granted in told)
    world.stand()
    world.store()
    world.end()
    assert world.job("low").phase.value == "waiting"
    assert not world.incident().open
    assert world.incident().steps_lost == 0


def test_when_all_die_before_the_state_is_stored_the_loss_is_told(world: Suspending) -> None:
    world.running_low()
    world.tell(e.WorkerTold("low/0.0", m.CheckpointWritten(30, Lineage(0, Epoch(1, 1)), STORE)))
    world.tell(e.JobProgressed("low", 40, 0.1))
    world.submit_high()
    for seat in range(6):
        world.die(f"low/{seat}.0")
    world.answer()
    world.settle()
    assert world.job("low").phase.value == "waiting"
    assert world.reason().endswith("its state after step 30 is stored")
    world.tell(e.JobCancelled(world.request(), "high"))
    world.end("high")
    world.answer()
    world.begin_all("low")
    world.wait(61.0)
    world.resume("low", step=31, source="storage", restored_step=30)
    assert world.job("low").steps_redone == 10
    assert max(i.steps_lost for i in world.incidents) == 10


@pytest.mark.parametrize("when", ["ordered", "standing", "stored", "waiting"])
def test_a_coordinator_that_starts_anew_goes_on_with_it(world: Suspending, when: str) -> None:
    world.running_low()
    world.submit_high()
    if when != "ordered":
        world.stand()
    if when in ("stored", "waiting"):
        world.store()
    if when == "waiting":
        world.end()
    world.check_replay()
    world.tell(e.TermStarted(2, 2_000.0))
    for i in range(6):
        here = tuple(w.name for w in world.state.on_node(f"n{i}") if w.exited is None)
        world.attach(f"n{i}", workers=here)
    if when == "ordered":
        assert world.directives(m.Granted)[-1][1].suspends
        world.stand()
    if when in ("ordered", "standing"):
        world.store()
    world.answer()
    world.end()
    world.settle()
    assert (len(world.members("low")), len(world.members("high"))) == (0, 6)
    assert world.job("low").phase.value == "waiting"
    assert world.incidents == []


@pytest.mark.parametrize("when", ["standing", "stored", "waiting"])
def test_a_job_may_be_cancelled_at_any_time(world: Suspending, when: str) -> None:
    world.running_low()
    world.submit_high()
    world.stand()
    if when != "standing":
        world.store()
    if when == "waiting":
        world.end()
    world.tell(e.JobCancelled(world.request(), "low"))
    world.end()
    low = world.job("low")
    assert (low.over, low.exit_code, low.end_reason) == (True, 130, "cancelled")


def test_slots_that_come_back_too_early_are_taken_after_the_state_is_stored(world: Suspending) -> None:
    """What has begun is brought to its end: a job that has its slots again starts from what it has stored."""
    world.running_low()
    world.submit_high()
    world.stand()
    world.tell(e.JobCancelled(world.request(), "high"))
    world.answer()
    assert world.sizes() == {"low": 6}
    assert [o for o in world.decisions(e.WorkerOrdered) if o.worker.startswith("low")] == []
    world.store()
    world.end()
    world.settle()
    assert len(world.members("low")) == 6
    assert world.incidents == []


def test_a_loop_that_ends_first_needs_no_suspension(world: Suspending) -> None:
    world.running_low()
    world.submit_high()
    for name in world.members("low"):
        world.tell(e.WorkerTold(name, m.LoopEnded(41)))
    world.end(code=0)
    assert (world.job("low").over, world.job("low").exit_code) == (True, 0)
    assert world.decisions(e.SuspensionWithdrawn) == []
