"""The coordinator's core: nodes fall silent, are lost, come back; a coordinator that hears nobody suspects itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.world import World, kinds, stories

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.state import NodePhase, WorkerPhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch

NewWorld = Callable[..., World]


def silence(world: World, *nodes: str) -> list[e.Event]:
    return [d for node in nodes for d in world.tell(e.NodeSilent(node, 2.6))]


# -- silent is not lost ---------------------------------------------------------------------


def test_a_silent_node_whose_job_goes_on_is_left_alone(world: World) -> None:
    """A step that completes proves every member alive."""
    world.train()
    assert silence(world, "n1") == []
    for second in range(600):
        world.tell(e.JobProgressed("gpt", second, 0.1))
        world.wait(1.0)
    assert world.node("n1").phase is NodePhase.SILENT
    assert world.decided == []
    assert world.incidents == []
    assert world.tell(e.NodeHeard("n1")) == []
    assert world.node("n1").phase is NodePhase.UP


def test_a_silent_node_is_lost_when_its_job_stops(world: World) -> None:
    world.train()
    silence(world, "n1")
    decided = world.tell(e.JobHalted("gpt", 1.1))
    assert kinds(decided)[:2] == ["IncidentOpened", "NodeLost"]
    incident = world.incident()
    assert (incident.cause, incident.severity, incident.node) == ("lost_connection", "SEV1", "n1")
    assert incident.detected_by == "node health monitoring"
    (granted,) = (d for d in world.wait(0.02) if isinstance(d, e.EpochGranted))
    assert granted.members == ("gpt/0.0", "gpt/2.0")
    world.resume(step=5)
    assert not incident.open
    assert any("2 of 3" in line for line in stories(world)), "as full as can be"


def test_a_job_is_healed_on_another_node_if_there_is_room(new_world: NewWorld) -> None:
    world = new_world(nodes=4)
    world.train()
    silence(world, "n1")
    world.tell(e.JobHalted("gpt", 1.1))
    assert [(o.worker, o.node) for o in world.decisions(e.WorkerOrdered)] == [("gpt/1.1", "n3")]
    world.wait(0.02)
    world.resume(step=5)
    world.begin_all()
    world.resume(step=6)
    assert world.members() == ["gpt/0.0", "gpt/2.0", "gpt/1.1"]
    assert not world.incident().open


def test_an_idle_node_is_lost_when_its_silence_outlasts_the_limit(world: World) -> None:
    silence(world, "n1")
    assert world.wait(27.0) == []
    decided = world.wait(1.0)
    assert kinds(decided) == ["IncidentOpened", "NodeLost"]
    decided = world.attach("n1")
    assert kinds(decided) == ["IncidentClosed"]
    assert world.node("n1").phase is NodePhase.UP


def test_a_job_out_of_reach_as_a_whole_is_started_elsewhere_only_after_the_fence(new_world: NewWorld) -> None:
    """Before that its agents have frozen it: two copies never train."""
    world = new_world(nodes=4, breaker_nodes_min=4)
    world.train(size=2)
    silence(world, "n0", "n1")
    assert world.wait(117.0) == []
    assert world.incidents == []
    world.wait(3.0)
    assert {n for n, node in world.state.nodes.items() if node.phase is NodePhase.LOST} == {"n0", "n1"}
    assert [o.node for o in world.decisions(e.WorkerOrdered)] == ["n2", "n3"]


def test_without_a_fence_a_job_out_of_reach_is_never_started_elsewhere(new_world: NewWorld) -> None:
    world = new_world(nodes=4, breaker_nodes_min=4, fence_seconds=0.0)
    world.train(size=2)
    silence(world, "n0", "n1")
    assert world.wait(86_400.0) == []


def test_no_job_grows_while_a_node_of_it_is_silent(new_world: NewWorld) -> None:
    world = new_world(nodes=2)
    world.train()
    silence(world, "n1")
    assert [d for d in world.attach("n2") if isinstance(d, e.WorkerOrdered)] == []
    decided = world.tell(e.NodeHeard("n1"))
    assert [d.node for d in decided if isinstance(d, e.WorkerOrdered)] == ["n2"]


def test_nothing_is_started_on_a_silent_node(new_world: NewWorld) -> None:
    world = new_world(nodes=2)
    silence(world, "n1")
    world.submit(size_max=2)
    assert [o.node for o in world.decisions(e.WorkerOrdered)] == ["n0"]


def test_an_empty_node_is_lost_at_the_moment_that_ends_its_time(new_world: NewWorld) -> None:
    """Nothing else may happen for long."""
    world = new_world(nodes=2)
    world.tell(e.NodeSilent("n1", 2.5))
    assert world.wait(27.25) == []
    world.now += 0.25
    assert "NodeLost" in kinds(world.tell(e.TimePassed()))


# -- the breaker ----------------------------------------------------------------------------


def test_a_coordinator_that_hears_a_third_of_the_nodes_no_more_suspects_itself(new_world: NewWorld) -> None:
    world = new_world(nodes=9)
    world.train(size=9)
    decided = silence(world, "n0", "n1", "n2", "n3")
    assert decided == [e.BreakerTripped(4, 9)]
    world.tell(e.JobHalted("gpt", 1.1))
    world.wait(600.0)
    assert world.decisions(e.NodeLost) == [], "verdicts are frozen"
    assert "4 of 9 nodes fell silent at once" in world.state.breaker
    decided = world.tell(e.NodeHeard("n0"))
    assert decided == [e.BreakerReset()], "three of nine are no more than a third"
    decided = world.tell(e.JobHalted("gpt", 1.1))
    assert "NodeLost" in kinds(decided), "the job waits for them still"


def test_nodes_that_come_back_together_are_all_spared(new_world: NewWorld) -> None:
    """They are heard one after the other, and the first one resets the breaker."""
    world = new_world(nodes=6)
    world.train(size=6)
    silence(world, "n3", "n4", "n5")
    world.tell(e.JobHalted("gpt", 1.1))
    decided = world.tell(*(e.NodeHeard(node) for node in ("n3", "n4", "n5")))
    assert decided == [e.BreakerReset()]
    assert {node.phase for node in world.state.nodes.values()} == {NodePhase.UP}
    assert silence(world, "n4") == [], "what was halted then says nothing of a silence now"


def test_nodes_that_nobody_counts_on_are_no_part_of_those_that_are_silent_at_once(new_world: NewWorld) -> None:
    world = new_world(nodes=9)
    for node in ("n6", "n7", "n8"):
        world.tell(e.NodeDrained(world.request(), node))
    world.tell(*(e.NodeSilent(f"n{i}", 3.0) for i in range(3)))
    assert world.state.breaker.startswith("3 of 6 nodes")


def test_the_time_that_a_silence_takes_begins_anew_when_the_breaker_resets(new_world: NewWorld) -> None:
    world = new_world(nodes=6)
    world.train(size=2)
    silence(world, "n0", "n1", "n2")
    world.wait(600.0)
    assert world.tell(e.NodeHeard("n2")) == [e.BreakerReset()]
    assert world.tell(e.NodeHeard("n1"), e.NodeHeard("n0")) == []
    assert world.incidents == []


def test_a_node_that_died_while_verdicts_were_frozen_is_lost_afterwards(new_world: NewWorld) -> None:
    """Its job has regrouped meanwhile, for another worker's death, and waits for it in the new epoch."""
    world = new_world(nodes=6)
    world.train(size=6)
    silence(world, "n3", "n4", "n5")
    world.tell(e.JobHalted("gpt", 1.1))
    world.die("gpt/0.0")
    world.wait(world.settings.death_batch_seconds)
    assert world.decisions(e.EpochGranted)
    assert world.tell(e.NodeHeard("n3"), e.NodeHeard("n4")) == [e.BreakerReset()]
    assert "NodeLost" in kinds(world.tell(e.JobHalted("gpt", 1.1)))
    assert world.node("n5").phase is NodePhase.LOST


def test_a_job_that_waits_for_nobody_silent_is_not_halted(world: World) -> None:
    """The word of it has come after the node's."""
    world.train()
    world.tell(e.JobHalted("gpt", 1.1))
    assert silence(world, "n1") == []


def test_nodes_that_fall_silent_one_after_the_other_do_not_trip_it(new_world: NewWorld) -> None:
    world = new_world(nodes=9)
    for i in range(4):
        silence(world, f"n{i}")
        world.wait(10.0)
    assert world.decisions(e.BreakerTripped) == []
    assert [d.node for d in world.decisions(e.NodeLost)] == ["n0", "n1"]


def test_in_a_small_cluster_one_node_is_no_third(world: World) -> None:
    assert silence(world, "n0", "n1") == []


# -- coming back ----------------------------------------------------------------------------


def test_a_lost_node_that_comes_back_with_its_processes_was_a_false_verdict(world: World) -> None:
    world.train()
    silence(world, "n1")
    world.tell(e.JobHalted("gpt", 1.1))
    world.wait(0.02)
    world.resume(step=5)
    world.take()
    world.attach("n1", workers=("gpt/1.0",), gpt__1_0=Epoch(1, 1))
    assert world.state.counters.false_verdicts == 1
    assert [s.worker for _, s in world.said(m.StopWorker)] == ["gpt/1.0"], "it has lost its place"
    assert isinstance(world.said(m.Synced)[-1][1], m.Synced)
    assert world.directives(m.Granted) == []
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", -9)))
    assert [o.worker for o in world.decisions(e.WorkerOrdered)] == ["gpt/1.1"], "when its slot is free"


def test_a_rebooted_node_has_lost_its_processes(world: World) -> None:
    world.train()
    decided = world.attach("n1", incarnation="after the reboot")
    assert kinds(decided)[:1] == ["IncidentOpened"]
    assert world.state.counters.false_verdicts == 0
    world.regroup()
    assert world.members() == ["gpt/0.0", "gpt/2.0", "gpt/1.1"]


def test_an_agent_that_restarts_finds_its_workers_running_and_touches_nothing(world: World) -> None:
    world.train()
    decided = world.attach("n1", workers=("gpt/1.0",), incarnation="another", gpt__1_0=world.job().epoch)
    assert decided == []
    assert world.said(m.StopWorker) == []
    assert world.incidents == []


def test_what_an_agent_has_missed_is_said_again(world: World) -> None:
    world.train()
    old = world.job().epoch
    world.die("gpt/2.0")
    world.wait(0.02)
    world.take()
    world.attach("n1", workers=("gpt/1.0",), gpt__1_0=old)
    ((worker, granted),) = world.directives(m.Granted)
    assert (worker, granted.epoch) == ("gpt/1.0", world.job().epoch)


def test_an_order_that_never_came_is_given_again_and_is_nobodys_fault(world: World) -> None:
    world.submit()
    world.take()
    decided = world.attach("n1")
    (again,) = (d for d in decided if isinstance(d, e.WorkerOrdered))
    assert (again.worker, again.restarts) == ("gpt/1.1", 0), "the others of this start meet it"
    assert world.wait(60.0) == []
    assert world.incidents == []


def test_an_agent_with_processes_nobody_knows_is_told_to_stop_them(world: World) -> None:
    """Of another life of the cluster, or of a job that has ended meanwhile."""
    world.train()
    world.take()
    world.attach("n1", workers=("gpt/1.0", "forgotten/0.0"), gpt__1_0=world.job().epoch)
    assert [(n, s.worker) for n, s in world.said(m.StopWorker)] == [("n1", "forgotten/0.0")]


def test_a_process_of_the_same_name_on_another_node_is_a_leftover(world: World) -> None:
    world.train()
    world.take()
    world.attach("n0", workers=("gpt/0.0", "gpt/1.0"), gpt__0_0=world.job().epoch)
    assert [(n, s.worker) for n, s in world.said(m.StopWorker)] == [("n0", "gpt/1.0")]
    assert world.worker("gpt/1.0").phase is WorkerPhase.MEMBER


# -- draining and silence -------------------------------------------------------------------


def test_a_draining_node_that_loses_power_is_lost_like_any_other(world: World) -> None:
    world.train(size_min=3)
    world.tell(e.NodeDrained(world.request(), "n1"))
    silence(world, "n1")
    assert world.node("n1").phase is NodePhase.SILENT
    world.tell(e.JobHalted("gpt", 1.1))
    assert world.node("n1").phase is NodePhase.LOST
    world.attach("n1")
    assert world.node("n1").phase is NodePhase.DRAINED, "what the operator wanted still holds"
    assert world.tell(e.NodeUndrained(world.request(), "n1"))
    assert world.node("n1").phase is NodePhase.UP


def test_a_draining_node_that_is_heard_again_goes_on_draining(world: World) -> None:
    world.train(size_min=3)
    world.tell(e.NodeDrained(world.request(), "n1"))
    silence(world, "n1")
    world.tell(e.NodeHeard("n1"))
    assert world.node("n1").phase is NodePhase.DRAINING


# -- isolation ------------------------------------------------------------------------------


def test_an_isolated_node_stays_out_of_use_until_somebody_gives_it_back(new_world: NewWorld) -> None:
    world = new_world(nodes=2)
    world.train()
    world.tell(e.WorkerTold("gpt/1.0", m.Raised("RuntimeError", "uncorrectable ECC error")))
    assert world.node("n1").phase is NodePhase.ISOLATED
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 1)))
    world.attach("n1")
    world.wait(3_600.0)
    assert world.node("n1").phase is NodePhase.ISOLATED
    assert [o.node for o in world.decisions(e.WorkerOrdered)] == []
    world.tell(e.NodeUndrained(world.request(), "n1"))
    assert [o.node for o in world.decisions(e.WorkerOrdered)] == ["n1"]


def test_an_incident_isolates_its_node_once(new_world: NewWorld) -> None:
    """Given back by an operator while the incident is still open, the node stays in use."""
    world = new_world(nodes=3)
    world.train(size_min=3)
    world.tell(e.WorkerTold("gpt/1.0", m.Raised("RuntimeError", "uncorrectable ECC error")))
    world.tell(e.WorkerExited(m.Exited("gpt/1.0", 1)))
    world.wait(1.0)
    assert world.incident().open
    world.tell(e.NodeUndrained(world.request(), "n1"))
    assert world.node("n1").phase is NodePhase.UP
    assert len(world.decisions(e.NodeIsolated)) == 1


# -- observe and pause ----------------------------------------------------------------------


@pytest.mark.parametrize("whole_cluster", [True, False])
def test_in_observe_mode_a_node_would_have_been_lost(world: World, whole_cluster: bool) -> None:
    world.train()
    world.tell(e.ObserveSet(world.request(), "" if whole_cluster else "gpt", observe=True))
    world.take()
    silence(world, "n1")
    world.tell(e.JobHalted("gpt", 1.1))
    world.wait(600.0)
    assert world.node("n1").phase is NodePhase.SILENT
    assert [i.would_have for i in world.incidents] == [True]
    assert world.acted == []
    world.tell(e.NodeHeard("n1"))
    assert not world.incident().open


def test_in_observe_mode_an_idle_node_would_have_been_lost_once(world: World) -> None:
    world.tell(e.ObserveSet(world.request(), "", observe=True))
    silence(world, "n1")
    world.wait(600.0)
    assert [i.would_have for i in world.incidents] == [True]
    assert world.node("n1").phase is NodePhase.SILENT


def test_in_observe_mode_a_broken_device_would_have_been_isolated(world: World) -> None:
    world.train(observe=True)
    world.take()
    world.tell(e.WorkerTold("gpt/1.0", m.Raised("RuntimeError", "uncorrectable ECC error")))
    world.wait(60.0)
    assert world.node("n1").phase is NodePhase.UP
    assert sum("would have isolated node n1" in line for line in stories(world)) == 1
    assert world.acted == []


def test_in_a_pause_no_node_is_lost(world: World) -> None:
    world.train()
    world.tell(e.PauseSet(world.request(), paused=True))
    world.take()
    silence(world, "n1")
    world.tell(e.JobHalted("gpt", 1.1))
    world.wait(600.0)
    assert world.decided == []
    decided = world.tell(e.PauseSet(world.request(), paused=False))
    assert "NodeLost" in kinds(decided)


def test_a_job_out_of_reach_is_fenced_though_its_node_is_lost_for_another_jobs_sake(new_world: NewWorld) -> None:
    """Cut off, its only member may well train on, until its agent freezes it."""
    world = new_world(nodes=4, slots=2)
    world.train("pair", 2, checkpoint_url="file:///store")
    world.submit("lone", 1, 1, checkpoint_url="file:///store")
    world.begin_all("lone")
    world.resume("lone")
    world.take()
    node = world.worker("lone/0.0").node
    assert node in {w.node for w in world.job("pair").workers.values()}
    world.tell(e.NodeSilent(node, 3.0), e.JobHalted("pair", 3.0))
    assert world.decisions(e.NodeLost), "the other job goes on at once"
    assert world.decisions(e.LifeEnded) == []
    world.begin_all("lone")
    world.wait(world.settings.fence_seconds - world.settings.lease_seconds - 1.0)
    assert world.decisions(e.LifeEnded) == []
    world.wait(2.0)
    assert [d.job for d in world.decisions(e.LifeEnded)] == ["lone"]
    assert world.members("lone") == ["lone/0.1"]


@pytest.mark.parametrize("silent", [True, False])
def test_a_job_is_fenced_though_its_node_is_isolated_for_another_jobs_sake(new_world: NewWorld, silent: bool) -> None:
    """Whether its agent has heard that, nobody knows before it tells that the worker has ended."""
    world = new_world(nodes=4, slots=2)
    world.train("pair", 2, checkpoint_url="file:///store")
    world.train("lone", 1, checkpoint_url="file:///store")
    node = world.worker("lone/0.0").node
    assert node in {w.node for w in world.job("pair").workers.values()}
    world.take()
    if silent:
        world.tell(e.NodeSilent(node, 3.0))
    (there,) = (w.name for w in world.job("pair").workers.values() if w.node == node)
    world.tell(e.WorkerTold(there, m.Raised("RuntimeError", "uncorrectable ECC error")))
    assert world.node(node).phase is NodePhase.ISOLATED
    world.begin_all("lone")
    world.wait(world.settings.fence_seconds - world.settings.lease_seconds - 1.0)
    assert world.decisions(e.LifeEnded) == []
    if silent:
        world.wait(2.0)
    else:
        world.tell(e.WorkerExited(m.Exited("lone/0.0", -9)))
    assert [d.job for d in world.decisions(e.LifeEnded)] == ["lone"]


def test_newcomers_without_state_wait_until_the_only_member_that_has_it_is_fenced(new_world: NewWorld) -> None:
    """It is cut off in the middle of their joining, and may never have heard of them: it trains on by itself."""
    world = new_world(nodes=2)
    world.train("gpt", 1, checkpoint_url="file:///store")
    world.tell(e.WishesSet(world.request(), "gpt", 1.0, 0, 1, 2))
    world.begin_all()
    assert world.members() == ["gpt/0.0", "gpt/1.0"]
    world.take()
    world.tell(e.NodeSilent(world.worker("gpt/0.0").node, 3.0), e.JobHalted("gpt", 3.0))
    assert world.decisions(e.NodeLost)
    world.wait(world.settings.fence_seconds - world.settings.lease_seconds - 1.0)
    assert world.decisions(e.EpochGranted) == []
    world.wait(2.0)
    assert [d.members for d in world.decisions(e.EpochGranted)] == [("gpt/1.0",)]


def test_a_lost_node_that_is_drained_is_waited_for_all_the_same(new_world: NewWorld) -> None:
    """Its agent does not hear of that, and lets its workers train on until it stops them."""
    world = new_world(nodes=2)
    world.train("gpt", 1, checkpoint_url="file:///store")
    lost = world.worker("gpt/0.0").node
    world.tell(e.NodeSilent(lost, 3.0))
    world.wait(world.settings.fence_seconds)
    assert world.node(lost).phase is NodePhase.LOST
    world.tell(e.NodeDrained(world.request(), lost))
    assert world.node(lost).phase is NodePhase.LOST
    world.attach(lost, workers=("gpt/0.0",))
    assert world.node(lost).phase is NodePhase.DRAINING


def test_a_member_on_a_draining_node_has_ended_when_it_is_said_to_have(new_world: NewWorld) -> None:
    """Until then it may train, whatever is wanted of its node."""
    world = new_world(nodes=2)
    world.train("gpt", 1, checkpoint_url="file:///store")
    world.tell(e.NodeDrained(world.request(), world.worker("gpt/0.0").node))
    world.tell(e.WorkerTold("gpt/0.0", m.Raised("ValueError", "no", "train.py")))
    world.wait(5.0)
    assert world.decisions(e.LifeEnded) == []
    world.tell(e.WorkerExited(m.Exited("gpt/0.0", 1)))
    assert [d.job for d in world.decisions(e.LifeEnded)] == ["gpt"]


def test_a_node_that_an_observed_job_keeps_from_being_lost_is_no_incident_of_the_others(new_world: NewWorld) -> None:
    """One that is opened and closed again without anything done about it would be opened for ever."""
    world = new_world(nodes=2, slots=2)
    world.train("watched", 2, observe=True)
    world.train("other", 2)
    node = world.worker("other/0.0").node
    assert node in {w.node for w in world.job("watched").workers.values()}
    world.tell(e.NodeSilent(node, 3.0), e.JobHalted("watched", 3.0))
    assert [(i.job, i.would_have) for i in world.incidents] == [("watched", True)]
    world.wait(3_600.0)
    assert world.decisions(e.NodeLost) == []
    world.tell(e.NodeHeard(node))
    assert not world.incident().open


def test_a_job_whose_last_member_turns_out_to_have_finished_ends_without_its_successor(new_world: NewWorld) -> None:
    """Its node was given up while it came to the end of its loop, and is back before it would have been fenced."""
    world = new_world(nodes=2, slots=2)
    world.train("pair", 2)
    world.train("lone", 1)
    node = world.worker("lone/0.0").node
    world.tell(e.NodeSilent(node, 3.0), e.JobHalted("pair", 3.0))
    assert world.node(node).phase is NodePhase.LOST
    world.begin_all("lone")
    assert world.worker("lone/0.1").phase is WorkerPhase.READY
    world.attach(node, 2, workers=("lone/0.0",))
    world.tell(e.WorkerTold("lone/0.0", m.LoopEnded(9)), e.WorkerExited(m.Exited("lone/0.0", 0)))
    assert [s.worker for _, s in world.said(m.StopWorker)][-1] == "lone/0.1"
    world.tell(e.WorkerExited(m.Exited("lone/0.1", -15)))
    assert (world.job("lone").over, world.job("lone").end_reason) == (True, "finished after step 9")
    assert not [i for i in world.incidents if i.open and i.job == "lone"]
