"""The coordinator's core: nodes that keep getting lost are kept out of use, each time for longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.test_core_planning import Planned
from unit.world import STATE, World, kinds, new_core

from unicorn_mgr.coordinator.admission import Rejected, commanded
from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.state import NodePhase
from unicorn_mgr.coordinator.views import node_view
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import UndrainNode

NewWorld = Callable[..., World]
REASON = "lost 3 times within 3600 s"


def lose(world: World, node: str = "n1", times: int = 1, apart: float = 60.0) -> None:
    """It is lost and comes back as another, as after a reboot."""
    for _ in range(times):
        world.tell(e.NodeSilent(node, 2.6))
        world.wait(world.settings.silence_seconds_max)
        assert world.node(node).phase is NodePhase.LOST
        world.wait(apart)
        world.attach(node, incarnation=f"started at {world.now}")


def quarantines(world: World) -> list[float]:
    """How long each was to last, since the last `take`."""
    return [d.seconds for d in world.decisions(e.NodeQuarantined)]


def orders(world: World) -> list[str]:
    return [d.node for d in world.decisions(e.WorkerOrdered)]


# -- in and out by itself -------------------------------------------------------------------


def test_a_node_that_was_lost_three_times_in_an_hour_is_not_used_for_ten_minutes(world: World) -> None:
    lose(world, times=2)
    assert world.node("n1").phase is NodePhase.UP
    lose(world)
    assert (world.node("n1").phase, world.node("n1").reason) == (NodePhase.QUARANTINED, REASON)
    assert quarantines(world) == [600.0]
    world.submit(size_max=3)
    assert orders(world) == ["n0", "n2"]
    world.take()
    world.wait(599.0)
    assert world.decisions(e.NodeTrusted) == []
    world.wait(1.0)
    assert world.decisions(e.NodeTrusted) == [e.NodeTrusted("n1")]
    assert (world.node("n1").phase, world.node("n1").reason) == (NodePhase.UP, "")
    assert orders(world) == ["n1"], "it is used by itself"
    world.wait(7_200.0)
    assert quarantines(world) == [], "the same losses count once"


def test_losses_that_are_far_apart_have_nothing_to_do_with_each_other(world: World) -> None:
    lose(world, times=10, apart=1_800.0)
    assert quarantines(world) == []
    assert world.node("n1").phase is NodePhase.UP


def test_each_node_is_judged_by_its_own_losses(world: World) -> None:
    for node in ("n0", "n1", "n2"):
        lose(world, node, times=2)
    assert quarantines(world) == []


def test_whoever_was_away_for_hours_is_quarantined_all_the_same(world: World) -> None:
    lose(world, times=2)
    lose(world, apart=20_000.0)
    assert world.node("n1").phase is NodePhase.QUARANTINED


def test_each_further_quarantine_lasts_twice_as_long_up_to_a_maximum(new_world: NewWorld) -> None:
    world = new_world(quarantine_seconds_max=2_000.0)
    lose(world, times=2)
    for _ in range(4):
        lose(world)
        world.wait(world.node("n1").quarantined_until - world.now)
        assert world.node("n1").phase is NodePhase.UP
    assert quarantines(world) == [600.0, 1_200.0, 2_000.0, 2_000.0]


def test_after_a_good_hour_the_next_quarantine_is_as_short_as_the_first(world: World) -> None:
    lose(world, times=3)
    world.wait(600.0 + 3_601.0)
    lose(world, times=3)
    assert quarantines(world) == [600.0, 600.0]


def test_a_node_that_is_lost_in_quarantine_stays_longer(world: World) -> None:
    lose(world, times=3)
    lose(world)
    assert world.node("n1").phase is NodePhase.QUARANTINED
    assert quarantines(world) == [600.0, 1_200.0]
    world.wait(1_199.0)
    assert world.node("n1").phase is NodePhase.QUARANTINED
    world.wait(1.0)
    assert world.node("n1").phase is NodePhase.UP


def test_a_quarantine_that_ends_while_the_node_is_away_is_followed_by_a_longer_one(world: World) -> None:
    lose(world, times=3)
    lose(world, apart=700.0)
    assert quarantines(world) == [600.0, 1_200.0]
    assert world.node("n1").phase is NodePhase.QUARANTINED


def test_quarantines_can_be_switched_off(new_world: NewWorld) -> None:
    world = new_world(quarantine_seconds=0.0)
    lose(world, times=10)
    assert world.node("n1").phase is NodePhase.UP
    assert quarantines(world) == []


# -- what counts ----------------------------------------------------------------------------


def test_a_verdict_that_was_false_does_not_count(new_world: NewWorld) -> None:
    """The same agent is back with the same processes: nothing was lost but the coordinator's sight of it."""
    world = new_world(flap_losses=1)
    world.train()
    world.tell(e.NodeSilent("n1", 2.6), e.JobHalted("gpt", 1.1))
    assert world.node("n1").phase is NodePhase.LOST
    world.attach("n1", workers=("gpt/1.0",))
    assert world.node("n1").phase is NodePhase.UP
    assert world.state.counters.false_verdicts == 1
    assert quarantines(world) == []


def test_a_node_that_is_back_without_its_processes_was_lost(new_world: NewWorld) -> None:
    world = new_world(flap_losses=1)
    world.train()
    world.tell(e.NodeSilent("n1", 2.6), e.JobHalted("gpt", 1.1))
    world.attach("n1")
    assert world.node("n1").phase is NodePhase.QUARANTINED


def test_what_counts_on_a_node_goes_on_whatever_the_settings_say_of_it_now(new_world: NewWorld) -> None:
    """Another coordinator takes over, and thinks less of such nodes."""
    world = new_world()
    lose(world)
    world.train()
    world.settings = world.settings.model_copy(update={"flap_losses": 1})
    world.core.settings = world.settings
    world.tell(e.TermStarted(2, 2_000.0))
    assert quarantines(world) == []
    assert len(world.members()) == 3
    world.tell(e.JobCancelled(world.request(), "gpt"))
    for name in [w.name for w in world.job().alive()]:
        world.die(name, -15)
    assert world.node("n1").phase is NodePhase.QUARANTINED


# -- with the rest of a node's life ---------------------------------------------------------


def test_a_quarantined_node_that_falls_silent_for_a_while_is_quarantined_still(world: World) -> None:
    lose(world, times=3)
    live = Liveness(world.settings)
    live.beat("n1", (), world.now)
    silent = [c for c in live.poll(world.state, world.now + 3.0) if isinstance(c, e.NodeSilent)]
    assert silent == [e.NodeSilent("n1", 3.0)]
    world.tell(*silent)
    world.submit(size_max=3)
    assert orders(world) == ["n0", "n2"], "silent or not, it has no slots to give"
    world.tell(e.NodeHeard("n1"))
    assert (world.node("n1").phase, world.node("n1").reason) == (NodePhase.QUARANTINED, REASON)
    assert orders(world) == ["n0", "n2"]


def test_a_quarantine_that_ends_in_silence_is_over_when_the_node_is_heard(world: World) -> None:
    lose(world, times=3)
    world.wait(590.0)
    world.tell(e.NodeSilent("n1", 2.6))
    world.wait(20.0)
    assert world.node("n1").phase is NodePhase.SILENT
    world.tell(e.NodeHeard("n1"))
    assert world.node("n1").phase is NodePhase.UP


def test_the_incident_of_the_loss_is_closed_when_the_node_is_back(world: World) -> None:
    lose(world, times=3)
    assert [i.open for i in world.incidents] == [False, False, False]
    assert world.incidents[-1].story[-1].endswith(f"closed: the node is back, and quarantined: {REASON}")


def test_an_operator_can_empty_a_quarantined_node(world: World) -> None:
    lose(world, times=3)
    world.tell(e.NodeDrained(world.request(), "n1"))
    assert world.node("n1").phase is NodePhase.DRAINED
    world.wait(600.0)
    assert world.node("n1").phase is NodePhase.DRAINED, "what the operator wanted still holds"


def test_an_operator_can_give_it_back_at_once(world: World) -> None:
    lose(world, times=3)
    world.submit(size_max=3)
    world.take()
    world.tell(commanded(world.state, world.request(), UndrainNode("n1"), drills_allowed=False))
    assert world.node("n1").phase is NodePhase.UP
    assert orders(world) == ["n1"]
    world.tell(e.JobCancelled(world.request(), "gpt"))
    for name in [w.name for w in world.job().alive()]:
        world.die(name, -15)
    lose(world, times=2)
    assert world.node("n1").phase is NodePhase.UP, "the operator vouched for it: it begins anew"
    lose(world)
    assert quarantines(world) == [600.0]


def test_a_lost_node_that_is_given_back_is_lost_until_it_attaches(world: World) -> None:
    lose(world, times=3)
    world.tell(e.NodeSilent("n1", 2.6))
    world.wait(world.settings.silence_seconds_max)
    world.tell(commanded(world.state, world.request(), UndrainNode("n1"), drills_allowed=False))
    assert world.node("n1").phase is NodePhase.LOST
    world.attach("n1", incarnation="rebooted")
    assert world.node("n1").phase is NodePhase.UP


def test_a_node_that_is_not_kept_out_cannot_be_given_back(world: World) -> None:
    lose(world, times=2)
    with pytest.raises(Rejected, match="it is up, neither drained, quarantined nor isolated"):
        commanded(world.state, world.request(), UndrainNode("n1"), drills_allowed=False)


# -- a new coordinator, planners and people -------------------------------------------------


def test_a_coordinator_that_starts_again_forgets_neither_losses_nor_quarantines(world: World) -> None:
    lose(world, times=2)
    _start_again(world)
    lose(world)
    assert world.node("n1").phase is NodePhase.QUARANTINED
    _start_again(world)
    world.attach("n1", incarnation=world.node("n1").incarnation)
    assert world.node("n1").phase is NodePhase.QUARANTINED
    world.wait(600.0)
    assert world.node("n1").phase is NodePhase.UP


def _start_again(world: World) -> None:
    """From a snapshot, as the service does."""
    world.core = new_core(world.settings)
    world.core.state = STATE.validate_json(STATE.dump_json(world.replayed()))
    world.tell(e.TermStarted(world.state.term + 1, 2_000.0))


def test_no_plan_counts_on_a_quarantined_node_and_one_is_asked_for_when_it_is_trusted() -> None:
    world = Planned(nodes=3)
    lose(world, times=3)
    world.submit("gpt", 1, 3)
    world.answer()
    world.settle()
    assert (len(world.members()), world.sizes()) == (2, {"gpt": 2})
    world.take()
    world.wait(600.0)
    assert world.asked()
    world.answer()
    world.settle()
    assert len(world.members()) == 3
    world.check_replay()


def test_people_see_why_and_for_how_long(world: World) -> None:
    lose(world, times=3)
    world.wait(200.0)
    view = node_view(world.state, Liveness(world.settings), world.node("n1"), world.now)
    assert (view.state, view.reason, view.quarantine_seconds) == ("quarantined", REASON, 400.0)
    world.wait(400.0)
    view = node_view(world.state, Liveness(world.settings), world.node("n1"), world.now)
    assert (view.state, view.reason, view.quarantine_seconds) == ("up", "", 0.0)
    told = [describe(d) for d in world.decided if type(d).__name__ in ("NodeQuarantined", "NodeTrusted")]
    assert told == [
        f"node n1 is quarantined for 600 s: {REASON}",
        "node n1 may be used again: its quarantine is over",
    ]
    assert kinds(world.decided).count("NodeTrusted") == 1
