"""The agent's core: what is true on the node is kept and told in full; what is out of date is refused."""

from __future__ import annotations

import pytest

from unicorn_mgr import messages as m
from unicorn_mgr.agent.core import ESCAPE_SECONDS, AgentCore
from unicorn_mgr.effects import agent as a
from unicorn_mgr.model import Drill, Epoch, Holdings, Lineage

ORDER = m.StartWorker("gpt/0.0", "gpt", ("python", "train.py"), slot=3, welcome=m.Attached("gpt"))
FENCE_SECONDS = 120.0


def said(body: m.ToAgent) -> a.CoordinatorSaid:
    return a.CoordinatorSaid(body)


def core(*events: a.AgentEvent) -> AgentCore:
    made = AgentCore(m.Hello(node="n0", incarnation="1"))
    for event in (a.LinkOpened(m.Welcome("c", 1, 1.0, 2.5, FENCE_SECONDS)), *events):
        made.handle(event, 0.0)
    return made


def with_worker(*events: a.AgentEvent) -> AgentCore:
    """A worker runs and has attached."""
    return core(said(ORDER), a.Spawned("gpt/0.0", 77), a.WorkerSaid("gpt/0.0", m.Attach()), *events)


def truth(made: AgentCore) -> m.WorkerTruth:
    (found,) = made.say_hello("c", 1).workers
    return found


# -- starting and stopping ------------------------------------------------------------------


def test_a_worker_is_started_once_however_often_it_is_ordered() -> None:
    made = core()
    assert made.handle(said(ORDER), 0.0) == [a.Spawn(ORDER)]
    assert made.handle(said(ORDER), 0.0) == []
    assert made.handle(a.Spawned("gpt/0.0", 77), 0.1) == [a.Report(m.WorkerStarted("gpt/0.0", 77))]
    assert truth(made) == m.WorkerTruth("gpt/0.0", 77, slot=3)


def test_a_worker_that_is_only_being_made_is_ended_as_soon_as_it_is_there() -> None:
    made = core(said(ORDER))
    assert made.handle(said(m.StopWorker("gpt/0.0", "not wanted")), 0.0) == []
    assert made.handle(a.Spawned("gpt/0.0", 77), 0.1) == [
        a.Report(m.WorkerStarted("gpt/0.0", 77)),
        a.Kill("gpt/0.0", "not wanted"),
    ]


@pytest.mark.parametrize("gently", [True, False])
def test_a_running_worker_is_ended_when_it_is_told(gently: bool) -> None:
    made = with_worker()
    assert made.handle(said(m.StopWorker("gpt/0.0", "why", gently)), 0.0) == [a.Kill("gpt/0.0", "why", gently)]


def test_nobody_is_ended_twice_and_no_stranger() -> None:
    made = with_worker(a.Gone("gpt/0.0", 0, None, "", None, "pidfd"))
    assert made.handle(said(m.StopWorker("gpt/0.0", "why")), 0.0) == []
    assert made.handle(said(m.StopWorker("gpt/9.0", "why")), 0.0) == []


def test_a_process_that_can_not_be_made_has_ended_with_a_reason() -> None:
    made = core(said(ORDER))
    mistake = m.Mistake("command", "pithon", "no such program")
    told, exited = made.handle(a.NotSpawned("gpt/0.0", "no such file", mistake), 0.0)
    assert told == a.Report(m.WorkerFact("gpt/0.0", mistake))
    assert exited == a.Report(m.Exited("gpt/0.0", 127, m.Raised("NotStarted", "no such file"), witness="spawn"))


# -- ends -----------------------------------------------------------------------------------


def test_an_end_is_told_once_and_kept_until_it_is_forgotten() -> None:
    made = with_worker()
    sample = m.Sample("gpt/0.0", step=7)
    assert made.handle(a.Dying("gpt/0.0", "mutex", sample), 1.0) == [
        a.Report(m.WorkerDying("gpt/0.0", "mutex", sample))
    ]
    assert made.handle(a.Dying("gpt/0.0", "socket"), 1.0) == []
    exited = m.Exited("gpt/0.0", -9, None, "", sample, "pidfd")
    assert made.handle(a.Gone("gpt/0.0", -9, None, "", sample, "pidfd"), 1.1) == [
        a.Report(exited),
        a.Sweep("gpt/0.0"),
    ]
    assert made.handle(a.Gone("gpt/0.0", -9, None, "", sample, "pidfd"), 1.2) == []
    assert truth(made).exited == exited
    assert made.handle(said(m.ForgetWorker("gpt/0.0")), 2.0) == [a.Forget("gpt/0.0")]
    assert made.say_hello("c", 1).workers == ()


def test_a_living_worker_is_not_forgotten() -> None:
    made = with_worker()
    assert made.handle(said(m.ForgetWorker("gpt/0.0")), 0.0) == []
    assert truth(made).pid == 77


def test_a_socket_that_ends_without_an_exit_is_an_escape_and_is_killed() -> None:
    made = with_worker()
    assert made.handle(a.LineLost("gpt/0.0"), 10.0) == []
    assert made.next_deadline() == 10.0 + ESCAPE_SECONDS
    assert made.handle(a.TimePassed(), 10.0 + ESCAPE_SECONDS / 2) == []
    assert made.handle(a.TimePassed(), 10.0 + ESCAPE_SECONDS) == [
        a.Kill("gpt/0.0", "its socket has ended and it still runs")
    ]
    assert made.handle(a.TimePassed(), 20.0) == [], "once"


@pytest.mark.parametrize(
    "event", [a.Gone("gpt/0.0", 0, None, "", None, "pidfd"), a.WorkerSaid("gpt/0.0", m.Attach())], ids=["exit", "back"]
)
def test_an_exit_or_a_new_socket_explains_the_old_one(event: a.AgentEvent) -> None:
    made = with_worker(a.LineLost("gpt/0.0"))
    made.handle(event, 0.5)
    assert made.next_deadline() is None
    assert made.handle(a.TimePassed(), 60.0) == []


# -- what is true ---------------------------------------------------------------------------


FACTS: list[tuple[str, m.Fact]] = [
    ("ready", m.Ready({"script": "abc"})),
    ("published", m.Published(Epoch(1, 2), b"address", holdings=Holdings(5), worker="gpt/0.0")),
    ("resumed", m.Resumed(Epoch(1, 2), 6)),
    ("loop_ended", m.LoopEnded(99)),
    ("leaving", m.Leaving(7)),
    ("mistake", m.Mistake("seed", "1", "want 2")),
    ("fresh_start", m.FreshStart("spoilt")),
    ("symptom", m.Symptom(Epoch(1, 2), "closed")),
    ("unreachable", m.Unreachable(Epoch(1, 2), ("gpt/1.0",), "timed out")),
    ("handed", m.CheckpointHanded(20, Lineage(), "/checkpoints")),
    ("written", m.CheckpointWritten(20, Lineage(), "/checkpoints")),
    ("checkpoint_published", m.CheckpointPublished(20, "/checkpoints")),
    ("checkpoint_failed", m.CheckpointFailed(20, "overtaken", superseded=True)),
]


@pytest.mark.parametrize(("name", "fact"), FACTS, ids=[name for name, _ in FACTS])
def test_what_a_worker_tells_is_passed_on_and_told_again_to_the_next_coordinator(name: str, fact: m.Fact) -> None:
    made = with_worker()
    assert made.handle(a.WorkerSaid("gpt/0.0", fact), 1.0) == [a.Report(m.WorkerFact("gpt/0.0", fact))]
    assert getattr(truth(made), name) == fact


def test_whoever_attaches_is_welcomed_with_what_was_ordered() -> None:
    made = core(said(ORDER), a.Spawned("gpt/0.0", 77))
    assert made.handle(a.WorkerSaid("gpt/0.0", m.Attach()), 1.0) == [
        a.Tell("gpt/0.0", ORDER.welcome),
        a.Report(m.WorkerAttached("gpt/0.0")),
    ]
    assert truth(made).attached


def test_what_came_while_a_worker_was_away_is_told_when_it_attaches() -> None:
    """A restarted agent hears its coordinator before its workers have found it."""
    newest = m.Granted(Epoch(2, 3), ("gpt/0.0",))
    complete, retire = m.CheckpointComplete(20, Lineage()), m.Retire("asked before")
    give_up, formed = m.GiveUp("no slots", save=True), m.Formed(Epoch(2, 3))
    came = (complete, retire, m.Granted(Epoch(1, 1), ("gpt/0.0",)), give_up, Drill("hang"), newest, formed)
    made = core(a.Adopted(ORDER, 77), *(said(m.WorkerDirective("gpt/0.0", body)) for body in came))
    for _ in range(2):
        assert made.handle(a.WorkerSaid("gpt/0.0", m.Attach()), 1.0) == [
            *(a.Tell("gpt/0.0", body) for body in (ORDER.welcome, newest, formed, retire, give_up, complete)),
            a.Report(m.WorkerAttached("gpt/0.0")),
        ]


def test_workers_of_an_earlier_agent_are_this_ones() -> None:
    made = core(a.Adopted(ORDER, 77))
    assert truth(made) == m.WorkerTruth("gpt/0.0", 77, slot=3)
    assert made.handle(said(ORDER), 0.0) == [], "it runs: it is not started again"


def test_a_strangers_word_is_dropped() -> None:
    made = core()
    for event in (
        a.WorkerSaid("gpt/9.0", m.Attach()),
        a.Spawned("gpt/9.0", 1),
        a.Dying("gpt/9.0", "mutex"),
        a.LineLost("gpt/9.0"),
        a.Sampled((m.Sample("gpt/9.0", quiet_seconds=1e6),)),
        said(m.WorkerDirective("gpt/9.0", m.Retire("why"))),
    ):
        assert made.handle(event, 0.0) == []


# -- epochs ---------------------------------------------------------------------------------


def test_an_older_epoch_is_refused_at_the_door() -> None:
    made = with_worker()
    newest, older = m.Granted(Epoch(2, 3), ("gpt/0.0",)), m.Granted(Epoch(1, 9), ("gpt/0.0",))
    assert made.handle(said(m.WorkerDirective("gpt/0.0", newest)), 0.0) == [a.Tell("gpt/0.0", newest)]
    assert made.handle(said(m.WorkerDirective("gpt/0.0", older)), 0.0) == []
    assert made.handle(said(m.WorkerDirective("gpt/0.0", newest)), 0.0) == [a.Tell("gpt/0.0", newest)], "said again"
    assert truth(made).epoch == Epoch(2, 3)


def test_a_drill_from_outside_needs_no_help_of_the_worker() -> None:
    made = with_worker()
    for drill, action in (
        (Drill("kill"), a.Strike("gpt/0.0", "kill")),
        (Drill("stop"), a.Strike("gpt/0.0", "stop")),
        (Drill("kill", 7), a.Tell("gpt/0.0", Drill("kill", 7))),
        (Drill("hang"), a.Tell("gpt/0.0", Drill("hang"))),
    ):
        assert made.handle(said(m.WorkerDirective("gpt/0.0", drill)), 0.0) == [action]


# -- suspicions -----------------------------------------------------------------------------


def test_suspicions_are_reported_and_nothing_is_done() -> None:
    made = with_worker()
    quiet = m.Sample("gpt/0.0", phase=3, quiet_seconds=12.0, step_seconds=0.1)
    assert made.handle(a.Sampled((quiet,)), 1.0) == [a.Report(m.WorkerQuiet(quiet, 10.0))]


# -- cut off --------------------------------------------------------------------------------


def test_an_agent_that_is_cut_off_freezes_its_workers_before_others_take_over() -> None:
    made = with_worker()
    made.handle(a.LinkLost(answered=False), 100.0)
    assert made.next_deadline() == 180.0
    assert made.handle(a.TimePassed(), 179.0) == []
    assert made.handle(a.TimePassed(), 180.0) == [a.Freeze()]
    assert made.handle(a.TimePassed(), 300.0) == [], "once"


def test_repeated_attempts_do_not_put_off_the_freeze() -> None:
    made = with_worker()
    for second in range(80):
        made.handle(a.LinkLost(answered=False), 100.0 + second)
    assert made.handle(a.TimePassed(), 180.0) == [a.Freeze()]


def test_a_coordinator_that_is_only_down_freezes_nobody() -> None:
    """Something at its address has answered: nobody has given our job to others."""
    made = with_worker()
    made.handle(a.LinkLost(answered=False), 100.0)
    made.handle(a.LinkLost(answered=True), 150.0)
    assert made.next_deadline() is None
    assert made.handle(a.TimePassed(), 1_000.0) == []


def test_workers_thaw_only_when_those_that_lost_their_place_have_been_stopped() -> None:
    made = with_worker()
    made.handle(a.LinkLost(answered=False), 100.0)
    made.handle(a.TimePassed(), 180.0)
    assert made.handle(a.LinkOpened(m.Welcome(fence_seconds=FENCE_SECONDS)), 400.0) == []
    assert made.handle(said(m.StopWorker("gpt/0.0", "it does not count any more")), 400.1) == [
        a.Kill("gpt/0.0", "it does not count any more")
    ]
    assert made.handle(said(m.Synced()), 400.2) == [a.Thaw()]
    assert made.handle(said(m.Synced()), 400.3) == []


def test_the_next_incarnation_goes_on_with_the_clock() -> None:
    before = with_worker()
    before.handle(a.LinkLost(answered=False), 100.0)
    made = AgentCore(m.Hello(node="n0", incarnation="2"))
    made.handle(a.Adopted(ORDER, 77), 170.0)
    made.handle(a.Recalled(before.cut_off), 170.0)
    made.handle(a.LinkLost(answered=False), 171.0)
    assert made.next_deadline() == 180.0
    assert made.handle(a.TimePassed(), 180.0) == [a.Freeze()]


def test_the_next_incarnation_thaws_what_is_frozen() -> None:
    before = with_worker()
    before.handle(a.LinkLost(answered=False), 100.0)
    before.handle(a.TimePassed(), 180.0)
    made = AgentCore(m.Hello(node="n0", incarnation="2"))
    made.handle(a.Adopted(ORDER, 77), 200.0)
    assert made.handle(a.Recalled(before.cut_off), 200.0) == [a.Freeze()], "the last one may have died before it could"
    assert made.next_deadline() is None
    made.handle(a.LinkOpened(m.Welcome(fence_seconds=FENCE_SECONDS)), 400.0)
    assert made.handle(said(m.Synced()), 400.1) == [a.Thaw()]


def test_without_a_fence_nobody_is_frozen() -> None:
    made = core(a.LinkOpened(m.Welcome(fence_seconds=0.0)))
    made.handle(a.LinkLost(answered=False), 0.0)
    assert made.next_deadline() is None
    assert made.handle(a.TimePassed(), 1e9) == []


def test_a_failure_that_is_tried_again_or_of_an_older_part_is_no_truth() -> None:
    made = with_worker()
    made.handle(a.WorkerSaid("gpt/0.0", m.CheckpointFailed(20, "no space left on device")), 1.0)
    assert truth(made).checkpoint_failed is None
    made.handle(a.WorkerSaid("gpt/0.0", m.CheckpointFailed(20, "overtaken", superseded=True)), 1.0)
    made.handle(a.WorkerSaid("gpt/0.0", m.CheckpointHanded(30, Lineage(), "/checkpoints")), 1.0)
    assert truth(made).checkpoint_failed is None


def test_what_a_worker_has_left_is_told_of_when_it_is_gone() -> None:
    made = with_worker()
    made.handle(a.Gone("gpt/0.0", -9, None, "", None, "pidfd"), 1.0)
    written = m.CheckpointWritten(20, Lineage(), "/checkpoints", handed=True)
    assert made.handle(a.WorkerSaid("gpt/0.0", written), 1.0) == [a.Report(m.WorkerFact("gpt/0.0", written))]
    complete = m.CheckpointComplete(20, Lineage())
    assert made.handle(said(m.WorkerDirective("gpt/0.0", complete)), 1.0) == [a.Tell("gpt/0.0", complete)]
