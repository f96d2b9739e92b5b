"""Hostile histories, drawn from seeds: nothing that must not happen does, and in the end all is well."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from unicorn_mgr.agent import core as agent_core
from unicorn_mgr.coordinator import core, fence
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.outlook import Outlook
from unicorn_mgr.coordinator.rules import Context, allocation, epochs, stalls, suspension
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job, WorkerPhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, JobSpec
from unicorn_mgr.planner.problem import Plan, Problem
from unicorn_mgr.simulator import control, training, world
from unicorn_mgr.simulator.checkers import EpochsGrow, NothingUndone, OneOwner, Violation
from unicorn_mgr.simulator.swarm import Size, shrunk, swarm
from unicorn_mgr.simulator.workload import Workload
from unicorn_mgr.simulator.world import World
from unicorn_mgr.transition.deal import Deal, deal

SEEDS = 24
"""More of them: `make swarm SEEDS=1000`."""

PLANTED_IN = 12
"""Seeds in which a planted bug has to show."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_history_breaks_a_rule(seed: int) -> None:
    verdict = swarm(seed)
    assert not verdict.violation, "\n".join([*verdict.story, verdict.violation])


def test_a_seed_is_the_same_history_wherever_it_is_lived() -> None:
    """Sets of strings have another order in every process."""
    program = "from unicorn_mgr.simulator.swarm import swarm; print(swarm(3))"
    lived = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(lived) == 1


# -- each rule notices when it is broken ------------------------------------------------------


def found(**size: Any) -> Iterator[str]:
    """Violations of the first seeds."""
    how = replace(Size(), **size)
    return (violation for seed in range(PLANTED_IN) if (violation := swarm(seed, how).violation))


def deal_twice(*asked: Any) -> Deal:
    """By membership instead of by holdings: whoever holds something already computes its share again."""
    dealt = real_deal(*asked)
    members, _, micro_batches, _ = asked
    return replace(dealt, todo={m: tuple(range(i, micro_batches, len(members))) for i, m in enumerate(members)})


real_deal = deal
real_solved = control.solved


def on_one_slot(problem: Problem, *, fails: bool = False) -> Plan:
    """Everybody on the first slot."""
    plan = real_solved(problem, fails=fails)
    node = problem.nodes[0]
    return replace(
        plan, seats={job: dict.fromkeys(seats, (node.name, node.slots[0])) for job, seats in plan.seats.items()}
    )


def nothing(*asked: object) -> Iterator[Any]:
    """A rule that never has anything to say."""
    del asked
    return iter(())


def without(monkeypatch: pytest.MonkeyPatch, rule: Callable[..., Any]) -> None:
    monkeypatch.setattr(core, "JOB_RULES", tuple(nothing if r is rule else r for r in core.JOB_RULES))


def slots_change_hands() -> None:
    """From a job whose steps are long, so that it leaves late, to one that begins at once."""
    made = World(1, Settings(prepare_seconds=60.0), (OneOwner(),))
    for i in range(4):
        made.add_node(f"node-{i}")
    made.start()
    made.timeline.run(2.0)
    made.submit(JobSpec("slow", ("simulated",), size_max=4), Workload(1000, 4, micro_batch_seconds=5.0))
    made.timeline.run(30.0)
    fast = JobSpec("fast", ("simulated",), size_min=2, size_max=2, weight=100.0)
    made.submit(fast, Workload(1000, 4, micro_batch_seconds=0.1))
    made.timeline.run(60.0)
    run = made.training("fast").run
    assert run is not None
    assert run.applied > 0


def begun_anew_elsewhere() -> Epoch:
    """All of a job's nodes are cut off from the coordinator for long; in which epoch it trains in the end."""
    made = World(1, Settings(), (EpochsGrow(),))
    for i in range(4):
        made.add_node(f"node-{i}")
    made.start()
    made.timeline.run(2.0)
    spec = JobSpec("gpt", ("simulated",), size_min=2, size_max=2, checkpoint_url="simulated", checkpoint_every_steps=20)
    made.submit(spec, Workload(steps=100_000, micro_batches=4))
    made.timeline.run(20.0)
    for trainer in made.training("gpt").trainers.values():
        made.line(trainer.machine).part()
    made.timeline.run(400.0)
    made.training("gpt").advance()
    for trainer in made.training("gpt").trainers.values():
        made.line(trainer.machine).heal()
    made.timeline.run(500.0)
    run = made.training("gpt").run
    assert run is not None
    return run.epoch


def test_a_micro_batch_that_counts_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "deal", deal_twice)
    assert "bucket 0 has" in next(found())


def test_two_processes_on_one_slot_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newcomers become members before those whose slots they get have left."""
    slots_change_hands()
    monkeypatch.setattr(epochs, "holders", lambda state, worker: [])
    with pytest.raises(Violation, match="both train on"):
        slots_change_hands()


def test_a_part_of_a_job_that_goes_on_beside_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that are cut off don't stop their workers, and others have begun with the state in storage."""
    assert begun_anew_elsewhere() > Epoch(1, 1)
    monkeypatch.setattr(agent_core, "FREEZE_SHARE", 1e9)
    with pytest.raises(Violation, match=r"in 1\.1, after others did in 1\."):
        begun_anew_elsewhere()


def test_a_plan_that_does_not_fit_is_never_applied_and_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "solved", on_one_slot)
    assert not [violation for violation in found(calm_seconds=0.0) if "seat" in violation]
    monkeypatch.setattr(Outlook, "fits", lambda *_: True)
    assert any("seat" in violation for violation in found(calm_seconds=0.0))


def test_an_answer_to_an_older_question_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come in any order, and the door lets them in."""

    def admits(state: ClusterState, event: e.Fact) -> bool:
        return isinstance(event, e.PlanReady) or real_admits(state, event)

    real_admits = fence.admits
    monkeypatch.setattr(world.World, "plan_seconds", lambda self: 1.0)
    assert not list(found(jobs=2))
    monkeypatch.setattr(control.Control, "_is_asked", lambda self, number: True)
    monkeypatch.setattr(core, "admits", admits)
    assert any("is an answer to an older question" in violation for violation in found(jobs=2))


def test_a_job_that_begins_with_too_few_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(c: Context, job: Job) -> Iterator[Any]:
        ready = [w.name for w in job.alive() if w.phase is WorkerPhase.READY]
        if not job.members and ready and not job.over and job.give_up is None:
            return iter([e.EpochGranted(job.name, Epoch(c.state.term, job.epoch.number + 1), tuple(ready), "hasty")])
        return epochs.granted(c, job)

    monkeypatch.setattr(core, "JOB_RULES", tuple(hasty if r is epochs.granted else r for r in core.JOB_RULES))
    assert any("begins with" in violation for violation in found())


def test_samples_that_are_kept_for_ever_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Liveness, "forget_job", lambda self, job: None)
    monkeypatch.setattr(Liveness, "forget", lambda self, worker: None)
    assert any("are kept, and job" in violation for violation in found())


def test_what_is_not_in_the_journal_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaky(list[Any]):
        def append(self, line: tuple[float, e.Event]) -> None:
            if not isinstance(line[1], e.WorkerAttached):
                super().append(line)

    real = control.Control.__init__

    def made(self: control.Control, *asked: Any) -> None:
        real(self, *asked)
        self.journal = Leaky()

    monkeypatch.setattr(control.Control, "__init__", made)
    assert any("the journal does not lead to" in violation for violation in found())


def makes_room() -> None:
    """A job gives its slots to one that comes before it, and goes on when that has ended."""
    made = World(1, Settings(), (NothingUndone(),))
    made.add_node("node-0", slots=2)
    made.start()
    spec = JobSpec("gpt", ("simulated",), size_min=2, size_max=2, checkpoint_url="simulated")
    made.submit(spec, Workload(steps=100_000, micro_batches=4))
    made.timeline.run(20.0)
    urgent = JobSpec("urgent", ("simulated",), size_min=2, size_max=2, priority=1)
    made.submit(urgent, Workload(steps=20, micro_batches=4))
    made.timeline.run(60.0)
    made.training("gpt").advance()


def test_stored_work_that_is_done_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is said to be suspended when it stands still, before its state is in storage."""

    def hasty(c: Context, job: Job) -> Iterator[Any]:
        if job.standing and job.transition is None and job.suspension is not None:
            job.suspension.stored_step = max(job.suspension.stored_step or 0, 50)
        return suspension.ended(c, job)

    makes_room()
    monkeypatch.setattr(core, "JOB_RULES", tuple(hasty if r is suspension.ended else r for r in core.JOB_RULES))
    with pytest.raises(Violation, match="again: what was after step 50 was stored"):
        makes_room()


def test_processes_that_are_never_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, allocation.dismissed)
    monkeypatch.setattr("unicorn_mgr.simulator.checkers.PROCESSES_PER_SLOT", 2)
    assert any("remembers" in violation for violation in found())


def test_a_fault_that_nobody_heals_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, stalls.inquired)
    assert any("still open" in violation or "stands still" in violation for violation in found())


def test_a_core_that_raises_is_found_and_its_story_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(c: object, job: Any) -> Iterator[Any]:
        if any(w.incident for w in job.workers.values()):
            raise ValueError("planted")
        return iter(())

    monkeypatch.setattr(core, "JOB_RULES", (*core.JOB_RULES, raises))
    seed = next(seed for seed in range(PLANTED_IN) if swarm(seed).violation)
    whole, short = swarm(seed), shrunk(seed)
    assert whole.violation == short.violation == "ValueError: planted"
    assert len(short.without) > 0
    assert swarm(seed, without=frozenset(short.without)) == short
    faults = [line for line in short.story if "-- fault" in line]
    assert len(faults) <= 2, short.story
