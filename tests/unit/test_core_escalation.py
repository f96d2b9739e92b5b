"""The coordinator's core: retry in place, restart the process, isolate the node; each once, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.world import World, kinds, stories

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.state import NodePhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.phases import Phase

NewWorld = Callable[..., World]


def symptom(world: World, worker: str, error: str = "Connection closed by peer") -> list[e.Event]:
    """A collective has failed, and nothing explains it."""
    decided = world.tell(e.WorkerTold(worker, m.Symptom(world.job().epoch, error)))
    return decided + world.wait(world.settings.settle_seconds)


def gather(world: World) -> None:
    """The newest epoch's group is built, and no step is finished in it."""
    world.tell(e.GroupFormed("gpt", world.job().epoch))


# -- a symptom and its cause ----------------------------------------------------------------


def test_a_communication_error_waits_for_its_cause(world: World) -> None:
    world.train()
    assert world.tell(e.WorkerTold("gpt/0.0", m.Symptom(world.job().epoch, "closed"))) == []
    world.wait(0.1)
    world.die("gpt/1.0")
    world.wait(0.1)
    assert [(i.cause, i.severity) for i in world.incidents] == [("process_killed", "SEV2")]
    assert len(world.decisions(e.EpochGranted)) == 1


def test_a_cause_that_comes_late_joins_the_incident(world: World) -> None:
    world.train()
    symptom(world, "gpt/0.0")
    assert world.incident().cause == "communication_error"
    world.die("gpt/1.0")
    world.regroup()
    incident = world.incident()
    assert (incident.cause, incident.worker, incident.severity) == ("process_killed", "gpt/1.0", "SEV2")
    assert "first sign: gpt/0.0: Connection closed by peer" in incident.evidence
    assert not incident.open


def test_a_symptom_of_an_epoch_that_is_over_is_no_symptom(world: World) -> None:
    world.train()
    stale = world.job().epoch
    world.die("gpt/2.0")
    world.wait(0.02)
    assert world.tell(e.WorkerTold("gpt/0.0", m.Symptom(stale, "closed"))) == []
    world.wait(1.0)
    assert world.incident().cause == "process_killed"


# -- the ladder -----------------------------------------------------------------------------


def test_sev3_the_same_members_are_regrouped_once(world: World) -> None:
    world.train()
    (opened, granted) = symptom(world, "gpt/1.0")
    assert isinstance(opened, e.IncidentOpened)
    assert (opened.cause, opened.severity) == ("communication_error", "SEV3")
    assert isinstance(granted, e.EpochGranted)
    assert granted.members == ("gpt/0.0", "gpt/1.0", "gpt/2.0")
    assert granted.regrouped_for == opened.incident
    world.resume(step=5)
    assert not world.incident().open
    assert world.incident().escalations == []


def test_each_answer_that_fails_is_followed_by_the_next_at_most_once(world: World) -> None:
    world.train()
    symptom(world, "gpt/1.0")
    gather(world)
    world.take()

    decided = symptom(world, "gpt/1.0", "Connection reset")
    assert kinds(decided) == ["IncidentEscalated", "WorkerCondemned"]
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/1.0"]
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", -9)))
    world.wait(0.02)
    assert world.members() == ["gpt/0.0", "gpt/2.0"]
    gather(world)
    world.take()

    decided = symptom(world, "gpt/2.0", "Connection reset")
    assert kinds(decided)[:2] == ["IncidentEscalated", "NodeIsolated"]
    assert world.node("n2").phase is NodePhase.ISOLATED
    world.wait(0.02)
    assert world.members() == ["gpt/0.0"]

    incident = world.incident()
    assert incident.escalations == ["SEV2", "SEV1"]
    story = "\n".join(incident.story)
    assert "escalated to SEV2: gpt/1.0: Connection reset after a reattempt: gpt/1.0 is restarted" in story
    assert "escalated to SEV1: gpt/2.0: Connection reset after a restart: node n2 is isolated" in story
    world.resume(step=5)
    world.begin_all()
    world.resume(step=6)
    assert not incident.open


def test_a_step_that_completes_ends_the_ladder(world: World) -> None:
    """The next symptom is another incident, and begins with SEV3 again."""
    world.train()
    for turn in range(4):
        symptom(world, "gpt/1.0")
        world.resume(step=5 + turn)
    assert [i.severity for i in world.incidents] == ["SEV3"] * 4
    assert all(not i.open for i in world.incidents)
    assert world.decisions(e.WorkerCondemned) == []


def test_when_all_answers_have_failed_another_incident_begins(world: World) -> None:
    """However often links fail, something is done that has not been done yet."""
    world.train()
    for _ in range(4):
        symptom(world, world.members()[-1])
        world.wait(0.02)
        gather(world)
    assert len(world.incidents) == 2
    assert [i.escalations for i in world.incidents] == [["SEV2", "SEV1"], []]


def test_observe_mode_climbs_no_ladder(world: World) -> None:
    world.train(observe=True)
    world.take()
    for _ in range(3):
        symptom(world, "gpt/1.0")
    assert world.acted == []
    assert (world.incident().cause, world.incident().would_have) == ("communication_error", True)
    assert any("would have regrouped the same members" in line for line in stories(world))


def test_observe_mode_tells_of_a_stalled_link_once(world: World) -> None:
    world.train(observe=True)
    world.take()
    stall(world)
    world.wait(60.0)
    assert (world.incident().cause, world.incident().would_have) == ("link_stalled", True)
    assert not [a for a in world.acted if not isinstance(a, e.TakeReadings)]


# -- a process that keeps failing -----------------------------------------------------------


def test_replacements_that_fail_on_one_node_take_it_out_of_use(new_world: NewWorld) -> None:
    world = new_world(nodes=4)
    world.train()
    world.die("gpt/1.0")
    world.wait(0.02)
    world.resume(step=5)
    world.die("gpt/1.1", -9)
    assert world.decisions(e.IncidentEscalated) == [], "one may have been killed by chance"
    world.die("gpt/1.2", -9)
    (escalated,) = world.decisions(e.IncidentEscalated)
    assert (escalated.incident, escalated.severity) == ("inc-1", "SEV1")
    assert escalated.reason == "gpt/1.1 and gpt/1.2 failed before they could join"
    assert world.node("n1").phase is NodePhase.ISOLATED
    assert world.decisions(e.WorkerOrdered)[-1].node == "n3", "its slots are taken elsewhere"
    world.begin_all()
    world.resume(step=6)
    assert all(not i.open for i in world.incidents)


def test_replacements_that_failed_in_an_earlier_incident_are_not_counted_again(new_world: NewWorld) -> None:
    world = new_world(nodes=3)
    world.train()
    for first in ("gpt/1.0", "gpt/1.2"):
        world.die(first)
        world.wait(0.02)
        world.resume(step=5)
        world.die(world.job().alive()[1].name)
        world.wait(1.0)
        world.begin_all()
        world.resume(step=6)
    assert world.members() == ["gpt/0.0", "gpt/2.0", "gpt/1.4"]
    assert all(not i.open for i in world.incidents)
    assert world.decisions(e.IncidentEscalated) == []


def test_replacements_that_fail_by_the_users_fault_accuse_no_node(world: World) -> None:
    world.train()
    world.die("gpt/1.0")
    world.wait(0.02)
    world.resume(step=5)
    wrong = m.Raised("ImportError", "no module named user", "Traceback\n")
    for incarnation in (1, 2, 3):
        world.tell(e.WorkerExited(m.Exited(f"gpt/1.{incarnation}", 1, wrong)))
    assert world.decisions(e.IncidentEscalated) == []
    assert world.node("n1").phase is NodePhase.UP


def test_a_program_that_never_runs_accuses_no_node(world: World) -> None:
    """It is killed on every node before it has begun: isolating them all would help nobody."""
    world.submit()
    for incarnation in range(4):
        for seat in range(3):
            world.tell(e.WorkerExited(m.Exited(f"gpt/{seat}.{incarnation}", -9)))
        world.wait(60.0)
    assert world.decisions(e.NodeIsolated) == []


def test_a_broken_device_is_isolated_at_once(world: World) -> None:
    world.train()
    broken = m.Raised("RuntimeError", "CUDA error: uncorrectable ECC error encountered", "Traceback\n")
    decided = world.tell(e.WorkerTold("gpt/1.0", broken))
    assert kinds(decided)[:2] == ["IncidentOpened", "NodeIsolated"]
    assert world.node("n1").reason == "ecc_error (inc-1)"
    assert [s.worker for node, s in world.said(m.StopWorker) if node == "n1"] == ["gpt/1.0"]
    world.wait(0.02)
    assert world.members() == ["gpt/0.0", "gpt/2.0"]


def test_while_actions_are_paused_no_node_is_isolated(world: World) -> None:
    world.train()
    world.tell(e.PauseSet(world.request(), paused=True))
    broken = m.Raised("RuntimeError", "CUDA error: uncorrectable ECC error encountered", "Traceback\n")
    assert kinds(world.tell(e.WorkerTold("gpt/1.0", broken))) == ["IncidentOpened"]
    assert "NodeIsolated" in kinds(world.tell(e.PauseSet(world.request(), paused=False)))


def test_a_link_error_that_ended_its_process_is_answered_by_a_restart(world: World) -> None:
    world.train()
    reset = m.Raised("ConnectionResetError", "[Errno 104] Connection reset by peer", "Traceback\n")
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 1, reset)))
    incident = world.incident()
    assert (incident.cause, incident.severity) == ("connection_reset", "SEV2")
    assert incident.escalations == ["SEV2"]
    assert any("escalated to SEV2: gpt/1.0 has ended: its process is restarted" in line for line in stories(world))


@pytest.mark.parametrize("spec", [{}, {"observe": True}], ids=["paused", "observed"])
def test_nothing_is_escalated_where_nothing_is_to_be_done(world: World, spec: dict[str, Any]) -> None:
    world.train(**spec)
    if not spec:
        world.tell(e.PauseSet(world.request(), paused=True))
    reset = m.Raised("ConnectionResetError", "[Errno 104] Connection reset by peer", "Traceback\n")
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 1, reset)))
    assert (world.incident().severity, world.incident().escalations) == ("SEV3", [])


# -- the link -------------------------------------------------------------------------------


def stall(world: World) -> None:
    """Nobody makes progress and nobody is behind."""
    members = world.members()
    world.tell(e.WorkerQuiet(m.Sample(members[0], quiet_seconds=12.0), 10.0))
    world.wait(world.settings.second_reading_seconds + 5.0 if world.job().inquiry is None else 0.0)
    for _ in range(2):
        world.reading(*((name, Phase.REDUCE, 5) for name in members))


def test_a_stall_without_a_culprit_is_the_link_and_is_retried_once(world: World) -> None:
    world.train()
    stall(world)
    assert (world.incident().cause, world.incident().severity) == ("link_stalled", "SEV3")
    (granted,) = world.decisions(e.EpochGranted)
    assert granted.members == ("gpt/0.0", "gpt/1.0", "gpt/2.0")
    world.resume(step=5)
    assert not world.incident().open


def test_a_stall_that_a_reattempt_does_not_end_is_escalated(world: World) -> None:
    world.train()
    stall(world)
    gather(world)
    stall(world)
    assert world.incident().escalations == ["SEV2"]
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/2.0"]
    world.wait(0.02)
    gather(world)
    stall(world)
    assert world.incident().escalations == ["SEV2", "SEV1"]
    assert world.node("n1").phase is NodePhase.ISOLATED


def test_who_is_behind_in_a_stalled_link_is_suspected_rather_than_who_came_last() -> None:
    """A replica of two workers waits for itself, in a collective of its own."""
    world = World(nodes=3, slots=2)
    world.train(size=6, size_min=2, replica={"shard": 2}, replica_size=2)
    for _ in range(2):
        world.tell(e.WorkerQuiet(m.Sample("gpt/0.0", quiet_seconds=12.0), 10.0))
        world.wait(0.0 if world.job().inquiry is not None else 5.0)
        for _ in range(2):
            world.reading(*((name, Phase.REDUCE, 5 if name < "gpt/2" else 6) for name in world.members()))
    assert [(i.escalations, i.node) for i in world.incidents] == [(["SEV2"], "n0")]
    assert sorted(d.worker for d in world.decisions(e.WorkerCondemned)) == ["gpt/0.0", "gpt/1.0"]
    world.check_replay()


def unreachable(world: World, **who: tuple[str, ...]) -> list[e.Event]:
    decided: list[e.Event] = []
    for seat, others in who.items():
        fact = m.Unreachable(world.job().epoch, others, "timed out")
        decided += world.tell(e.WorkerTold(f"gpt/{seat.removeprefix('w')}.0", fact))
    return decided + world.wait(world.settings.settle_seconds)


def test_after_one_reattempt_the_node_that_most_others_name_is_isolated(world: World) -> None:
    world.train()
    world.die("gpt/2.0")
    world.wait(0.02)
    world.begin_all()
    world.resume(step=5)
    assert world.members() == ["gpt/0.0", "gpt/1.0", "gpt/2.1"]
    symptom(world, "gpt/0.0")
    world.take()
    decided = unreachable(world, w0=("gpt/1.0",), w1=("gpt/0.0", "gpt/2.1"))
    (escalated,) = (d for d in decided if isinstance(d, e.IncidentEscalated))
    assert escalated.severity == "SEV1"
    assert world.node(escalated.node).phase is NodePhase.ISOLATED
    isolated = [n for n, node in world.state.nodes.items() if node.phase is NodePhase.ISOLATED]
    assert len(isolated) == 1, "never both ends of a link"


@pytest.mark.parametrize("epoch_passes", [True, False])
def test_members_that_can_not_reach_each_other_try_again_first(world: World, epoch_passes: bool) -> None:
    world.train()
    world.die("gpt/2.0")
    world.wait(0.02)
    world.take()
    decided = unreachable(world, w0=("gpt/1.0",))
    assert [k for k in kinds(decided) if k != "WorkerOrdered"][-2:] == ["IncidentNoted", "EpochGranted"]
    if epoch_passes:
        world.resume(step=5)
        world.begin_all()
        world.resume(step=6)
        assert all(not i.open for i in world.incidents)
    else:
        unreachable(world, w0=("gpt/1.0",))
        assert world.node("n1").phase is NodePhase.ISOLATED
