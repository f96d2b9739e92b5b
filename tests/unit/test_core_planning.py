"""The coordinator's core and the planner: what is asked, when an answer counts, and how slots change hands."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
from unit.world import World, kinds

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.whatif import compared, what_if
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import JobSpec
from unicorn_mgr.planner.choices import sizes_of
from unicorn_mgr.planner.planner import plan
from unicorn_mgr.planner.problem import Plan, Problem
from unicorn_mgr.planner.sizing import sized
from unicorn_mgr.planner.table import Foreseen, Table


def in_time(problem: Problem) -> Plan:
    """The plan that is found if its time is never up, however slow the machine is."""
    return plan(problem, 10.0, clock=lambda: 0.0)


class Planned(World):
    """A world whose planner answers when it is told to."""

    planned = True

    def asked(self) -> list[int]:
        """Questions since the last `take`."""
        return [a.number for a in self.acted if isinstance(a, e.SolvePlan)]

    def answer(self, number: int | None = None) -> list[e.Event]:
        """The planner answers the newest question, or this one, with the problem of the moment."""
        made = in_time(self.core.problem)
        return self.tell(
            e.PlanReady(
                self.state.planning.number if number is None else number,
                {job: dict(seats) for job, seats in made.seats.items()},
                dict(made.reasons),
                made.value,
                made.bound,
                made.proven,
                made.solver,
                made.rung,
                shapes=dict(made.shapes),
            )
        )

    def imagine(self, *changes: str, job: JobSpec | None = None) -> dict[str, m.PlannedJob]:
        """What would be, by job.  It does not depend on what of the present problem can be used again."""
        asked, present = m.WhatIfRequest(changes, job), self.core.problem
        changed, prospects = what_if(self.state, self.settings, present, asked, self.now)
        assert what_if(self.state, self.settings, copy.deepcopy(present), asked, self.now) == (changed, prospects)
        return {j.job: j for j in compared(present, changed, in_time(changed), prospects).jobs}

    def sizes(self) -> dict[str, int]:
        return {name: len(job.seats) for name, job in self.state.jobs.items() if not job.over}

    def train_planned(self, name: str, size_min: int, size_max: int, **spec: object) -> None:
        self.submit(name, size_min, size_max, **spec)
        self.answer()
        self.settle()

    def settle(self) -> None:
        """All that is on its way comes, leaves or joins, until nothing happens any more."""
        for _ in range(100):
            before = len(self.journal)
            for name, job in sorted(self.state.jobs.items()):
                self.begin_all(name)
                if job.transition is not None:
                    self.resume(name, step=max(job.committed, 0) + 1)
                for worker in list(job.alive()):
                    if worker.retiring and worker.phase.value == "member":
                        self.tell(e.WorkerTold(worker.name, m.Leaving(job.committed + 1)))
                going = [w for w in job.workers.values() if not w.alive or w.phase.value == "leaving"]
                for worker in going:
                    if worker.exited is None and (worker.name not in job.members or worker.condemned):
                        self.tell(e.WorkerExited(m.Exited(worker.name, 0)))
            self.wait(1.1)
            if len(self.journal) == before:
                return
        raise AssertionError("it never comes to rest")


@pytest.fixture
def world() -> Iterator[Planned]:
    made = Planned(nodes=6)
    yield made
    made.check_replay()


# -- questions and answers ------------------------------------------------------------------


def test_a_job_that_is_submitted_waits_for_the_plan(world: Planned) -> None:
    world.submit("gpt", 1, 3)
    assert world.asked() == [1 + world.state.planning.number - 1]
    assert world.sizes() == {"gpt": 0}
    world.answer()
    assert world.sizes() == {"gpt": 3}


def test_who_loses_slots_before_it_has_begun_does_not_begin_with_too_few(world: Planned) -> None:
    world.submit("gpt", 2, 2)
    world.answer()
    world.begin("gpt/0.0")
    (node, _) = world.job().seats[1]
    world.tell(e.NodeSilent(node, 3.0))
    decided = world.wait(world.settings.fence_seconds)
    assert {"NodeLost", "SlotsAssigned"} <= set(kinds(decided))
    assert world.sizes() == {"gpt": 1}
    assert world.members() == []
    world.answer()
    world.begin_all()
    assert len(world.members()) == 2


def test_healing_waits_for_no_plan(world: Planned) -> None:
    """Survivors go on with what they have; who gets the rest is the planner's affair."""
    world.train_planned("gpt", 1, 6)
    world.take()
    world.tell(e.NodeSilent("n2", 2.6), e.JobHalted("gpt", 1.1))
    assert world.asked(), "the node is lost"
    assert world.sizes() == {"gpt": 5}
    (granted,) = (d for d in world.wait(0.02) if isinstance(d, e.EpochGranted))
    assert len(granted.members) == 5
    assert not world.state.planning.answered


def test_a_worker_that_dies_on_a_good_slot_is_replaced_without_any_plan(world: Planned) -> None:
    world.train_planned("gpt", 1, 6)
    world.take()
    world.tell(e.WorkerExited(m.Exited("gpt/2.0", -9)))
    assert world.asked() == []
    assert [o.worker for o in world.decisions(e.WorkerOrdered)] == ["gpt/2.1"]


def test_an_answer_to_an_older_question_changes_nothing(world: Planned) -> None:
    world.submit("gpt", 1, 3)
    first = world.state.planning.number
    world.submit("other", 1, 3)
    assert world.answer(first) == []
    assert world.sizes() == {"gpt": 0, "other": 0}
    world.answer()
    assert world.sizes() == {"gpt": 3, "other": 3}
    assert world.answer(first) == []
    assert world.state.planning.answered


def test_an_answer_that_does_not_fit_is_asked_for_again(world: Planned) -> None:
    world.submit("gpt", 1, 3)
    number = world.state.planning.number
    world.tell(e.PlanReady(number, {"gpt": {0: ("nowhere", 0)}}, {"gpt": "1 slots"}))
    assert world.state.planning.number == number + 1
    assert world.sizes() == {"gpt": 0}
    world.answer()
    assert world.sizes() == {"gpt": 3}


def test_a_solver_that_has_failed_is_tried_again_a_little_later(world: Planned) -> None:
    """What stood in for it is no optimum, and nothing else may ever ask again."""
    world.submit("gpt", 1, 3)
    number = world.state.planning.number
    world.tell(e.PlanReady(number, {"gpt": {0: ("n0", 0)}}, {"gpt": "1 slots"}, rung="shrink"))
    assert world.sizes() == {"gpt": 1}
    world.wait(4.9)
    assert world.state.planning.number == number
    world.wait(0.2)
    assert world.state.planning.number == number + 1
    assert world.sizes() == {"gpt": 1}, "until then everybody keeps what it has"
    world.answer()
    assert world.sizes() == {"gpt": 3}


def test_a_plan_is_asked_for_once(world: Planned) -> None:
    world.train_planned("gpt", 1, 3)
    number = world.state.planning.number
    world.wait(100.0)
    world.tell(e.JobProgressed("gpt", 7, 0.1))
    assert world.state.planning.number == number


def test_in_a_pause_nothing_is_asked_and_afterwards_it_is(world: Planned) -> None:
    world.tell(e.PauseSet(world.request(), paused=True))
    world.take()
    world.submit("gpt", 1, 3)
    assert world.asked() == []
    world.tell(e.PauseSet(world.request(), paused=False))
    assert len(world.asked()) == 1


# -- moves ----------------------------------------------------------------------------------


def test_slots_move_from_who_runs_to_who_comes_and_none_is_ever_shared(world: Planned) -> None:
    world.train_planned("first", 2, 6)
    assert world.sizes() == {"first": 6}
    world.submit("second", 2, 6, weight=3.0)
    world.take()
    world.answer()
    assert world.sizes() == {"first": 2, "second": 4}
    assert world.decisions(e.WorkerOrdered) == [], "the slots are not free yet"
    assert len(world.directives(m.Retire)) == 4
    world.settle()
    assert len(world.members("first")) == 2
    assert len(world.members("second")) == 4
    assert world.incidents == []
    assert world.job("first").steps_redone == 0


def test_a_slot_is_filled_as_soon_as_its_last_worker_has_left_it(world: Planned) -> None:
    world.train_planned("first", 1, 6)
    world.submit("second", 1, 1, weight=9.0)
    world.answer()
    ((_, place),) = world.job("second").seats.items()
    (leaver,) = (w for w in world.job("first").alive() if (w.node, w.slot) == place)
    world.tell(e.WorkerTold(leaver.name, m.Leaving(7)))
    world.resume("first", step=7)
    world.take()
    world.tell(e.WorkerExited(m.Exited(leaver.name, 0)))
    assert [o.worker for o in world.decisions(e.WorkerOrdered)] == ["second/0.0"]


def test_who_stays_gets_what_another_job_leaves(world: Planned) -> None:
    world.train_planned("first", 2, 6)
    world.train_planned("second", 2, 6, weight=3.0)
    world.tell(e.JobCancelled(world.request(), "second"))
    for worker in list(world.job("second").workers.values()):
        world.tell(e.WorkerExited(m.Exited(worker.name, -15)))
    world.answer()
    world.settle()
    assert len(world.members("first")) == 6


def test_a_node_that_comes_is_used(world: Planned) -> None:
    world.train_planned("gpt", 2, 8)
    world.attach("n6")
    world.answer()
    world.settle()
    assert len(world.members()) == 7


def test_a_lost_node_is_made_up_for_by_the_lighter_job(world: Planned) -> None:
    world.train_planned("light", 1, 3)
    world.train_planned("heavy", 1, 3, weight=4.0)
    lost = world.job("heavy").seats[0][0]
    world.tell(e.NodeSilent(lost, 2.6), e.JobHalted("heavy", 1.1))
    assert world.sizes() == {"light": 3, "heavy": 2}
    world.answer()
    assert world.sizes() == {"light": 2, "heavy": 3}
    world.settle()
    assert (len(world.members("light")), len(world.members("heavy"))) == (2, 3)
    assert all(not i.open for i in world.incidents)


def test_slots_that_micro_batches_do_not_keep_busy_go_to_who_can_use_them(world: Planned) -> None:
    """How many there are is known once the program says so."""
    world.submit("few", 1, 5, weight=9.0)
    world.answer()
    world.submit("many", 1, 6)
    world.answer()
    assert world.sizes() == {"few": 5, "many": 1}
    world.take()
    for worker in world.job("few").alive():
        world.begin(worker.name, {"micro_batches": "2"})
    assert world.asked(), "the plan was made for a job of which nobody knew that"
    world.answer()
    assert world.sizes() == {"few": 2, "many": 4}


def test_what_a_program_has_told_of_itself_outlasts_all_its_processes(world: Planned) -> None:
    """It is started again, and is the same: that is no news to plans."""
    world.submit("few", 1, 5)
    world.answer()
    for worker in world.job("few").alive():
        world.begin(worker.name, {"micro_batches": "2"})
    world.answer()
    world.settle()
    world.take()
    for worker in list(world.job("few").alive()):
        world.die(worker.name)
    world.wait(0.2)
    assert world.decisions(e.LifeEnded), "nobody is left"
    assert world.asked() == []


def test_a_weight_that_changes_moves_slots(world: Planned) -> None:
    world.train_planned("one", 1, 6)
    world.train_planned("other", 1, 6, weight=2.0)
    assert world.sizes() == {"one": 1, "other": 5}
    world.tell(e.WishesSet(world.request(), "one", 5.0, 0, 2, 6))
    world.answer()
    world.settle()
    assert (len(world.members("one")), len(world.members("other"))) == (5, 1)


def test_a_drained_node_is_left_and_the_job_made_whole_elsewhere(world: Planned) -> None:
    world.train_planned("gpt", 1, 4)
    left = world.job().seats[0][0]
    world.tell(e.NodeDrained(world.request(), left))
    world.answer()
    world.settle()
    assert world.node(left).phase.value == "drained"
    assert len(world.members()) == 4
    assert world.incidents == []


def test_a_gang_is_never_begun_anew_to_make_room(world: Planned) -> None:
    world.submit("plain", 1, 6)
    world.answer()
    for worker in list(world.job("plain").alive()):
        world.tell(e.WorkerStarted(worker.name, 1))
    world.submit("heavy", 1, 3, weight=9.0)
    world.answer()
    assert world.sizes() == {"plain": 6, "heavy": 0}


def test_survivors_go_on_below_their_minimum(world: Planned) -> None:
    """Nobody else has its slots, however much it would make of them."""
    world.train_planned("gpt", 6, 6)
    world.tell(e.NodeSilent("n2", 2.6), e.JobHalted("gpt", 1.1))
    world.submit("heavy", 1, 6, weight=9.0)
    world.answer()
    world.settle()
    assert (len(world.members("gpt")), len(world.members("heavy"))) == (5, 0)
    assert world.job("heavy").seats_reason == "waits for 1 slot more: its minimum is 1, and 0 are left: gpt needs 5"
    world.attach("n2", incarnation="rebooted")
    world.answer()
    world.settle()
    assert len(world.members("gpt")) == 6


# -- foresight ------------------------------------------------------------------------------


def foreseen(world: Planned) -> Table:
    """The plans for all that may happen next."""
    table = Table.of(world.core.problem)
    for key, problem in table.missing():
        sizes = sizes_of(problem)
        table.answers[key] = Foreseen.of(sizes, sized(sizes.knapsack, 10.0, "cbc", sizes.least))
    return table


def test_the_loss_of_a_node_and_its_return_are_foreseen(world: Planned) -> None:
    """By the time the planner is asked, survivors have kept what is left to them."""
    world.train_planned("light", 1, 6)
    world.train_planned("heavy", 1, 6, weight=4.0)
    lost = world.job("heavy").seats[0][0]
    table = foreseen(world)
    world.tell(e.NodeSilent(lost, 2.6), e.JobHalted("heavy", 1.1))
    assert world.asked()
    assert table.look_up(world.core.problem) is not None
    world.answer()
    world.settle()
    table = foreseen(world)
    world.attach(lost, incarnation="rebooted")
    assert table.look_up(world.core.problem) is not None


# -- pace -----------------------------------------------------------------------------------


def progressed(world: Planned, job: str, seconds: float, times: int = 64) -> None:
    for _ in range(times):
        world.tell(e.JobProgressed(job, world.job(job).committed + 1, seconds))


def test_slots_that_are_measured_to_gain_nothing_go_to_who_comes(world: Planned) -> None:
    """At six slots its steps take as long as at three."""
    world.train_planned("flat", 1, 3)
    progressed(world, "flat", 1.0)
    assert world.job("flat").paces == {3: 1.0}
    assert not world.state.planning.answered, "a first measurement is news"
    world.answer()
    world.tell(e.WishesSet(world.request(), "flat", 5.0, 0, 1, 6))
    world.answer()
    world.settle()
    assert len(world.members("flat")) == 6
    progressed(world, "flat", 1.0)
    assert world.job("flat").paces == {3: 1.0, 6: 1.0}
    world.answer()
    assert world.sizes() == {"flat": 6}, "nobody else wants them"
    world.submit("new", 1, 2)
    world.answer()
    world.settle()
    assert (len(world.members("flat")), len(world.members("new"))) == (4, 2), "nobody has measured four yet"


def test_noise_is_no_news(world: Planned) -> None:
    world.train_planned("gpt", 1, 3)
    progressed(world, "gpt", 1.0)
    world.answer()
    number = world.state.planning.number
    for seconds in (0.97, 1.05, 9.0, 1.02, 0.99) * 12:
        progressed(world, "gpt", seconds, times=1)
    assert world.state.planning.number == number


# -- standstills ----------------------------------------------------------------------------


def costs(world: Planned) -> tuple[float, float, float]:
    (demand,) = world.core.problem.demands
    return demand.costs.shrink, demand.costs.grow, demand.costs.start


def begin_again(world: Planned, seconds: float, source: str) -> None:
    """All processes of the job are new, and its first step is done so many seconds after they were ordered."""
    world.begin_all()
    world.now += seconds
    world.resume(source=source, added_seconds=0.0)


def test_changes_are_charged_what_they_have_cost(world: Planned) -> None:
    """A few samples make a figure, of which a single slow one changes little."""
    world.submit("gpt", 1, 3)
    world.answer()
    begin_again(world, 5.0, "initial")
    assert costs(world) == pytest.approx((1.0, 2.0, (5.0 + 2 * 60.0) / 3)), "what is usual, and what it has shown once"
    for shrinking, growing in ((0.3, 0.2), (9.0, 8.0), (0.5, 0.4)):
        world.die(world.members()[-1])
        world.wait(0.02)
        world.resume(step=5, added_seconds=shrinking)
        world.begin_all()
        world.wait(1.0)
        world.resume(step=6, added_seconds=growing)
    assert costs(world)[:2] == (0.5, 0.4)


def test_beginning_anew_is_charged_what_it_has_taken_and_a_restart_of_the_coordinator_forgets_nothing(
    world: Planned,
) -> None:
    world.submit("gpt", 1, 3)
    world.answer()
    begin_again(world, 5.0, "initial")
    for seconds in (7.0, 11.0):
        for name in list(world.members()):
            world.die(name)
        world.wait(0.02)
        begin_again(world, seconds, "storage")
    assert costs(world)[2] == pytest.approx(7.0, abs=0.1)
    assert world.replayed().jobs["gpt"].standstills == world.job().standstills


def test_a_move_that_was_cut_short_is_counted_once_as_all_that_it_was(world: Planned) -> None:
    world.submit("gpt", 1, 3)
    world.answer()
    begin_again(world, 5.0, "initial")
    world.die("gpt/2.0")
    world.wait(0.02)
    world.resume(step=5, added_seconds=0.3)
    world.begin_all()
    world.wait(1.0)
    world.die("gpt/1.0")
    world.wait(0.02)
    world.resume(step=6, added_seconds=1.5)
    assert world.job().standstills == {"start": [5.0], "shrink": [0.3], "grow": [1.5]}
