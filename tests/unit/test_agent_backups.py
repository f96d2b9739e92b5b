"""The agent's core and snapshots: what is copied to whom, and what a worker is told of it."""

from __future__ import annotations

from dataclasses import replace

from unit.sealed import PART, mark

from unicorn_mgr import messages as m
from unicorn_mgr.agent.core import AgentCore
from unicorn_mgr.effects import agent as a
from unicorn_mgr.model import Mark, Run, StatePart

WORKER = "gpt/5.0"
HOLDER = m.Holder("n1", "10.0.0.1", 7000, "token")
ORDER = m.StartWorker(
    WORKER,
    "gpt",
    welcome=m.Attached("gpt", job_id="id", replica=(m.Axis("shard", 2), m.Axis("tensor", 2))),
    holders=(HOLDER,),
)
TO = m.BackUp(WORKER, HOLDER)


def core() -> AgentCore:
    made = AgentCore(m.Hello(node="n0", incarnation="1"))
    for event in (a.CoordinatorSaid(ORDER), a.Spawned(WORKER, 77), a.WorkerSaid(WORKER, m.Attach())):
        made.handle(event, 0.0)
    return made


def tell(made: AgentCore, body: m.ToAgent) -> list[a.AgentAction]:
    return made.handle(a.CoordinatorSaid(body), 1.0)


def hear(made: AgentCore, body: m.Errand) -> list[a.AgentAction]:
    return made.handle(a.WorkerSaid(WORKER, body), 1.0)


def sent(step: int, to: m.Holder = HOLDER, base: Mark | None = None) -> a.SendBackup:
    return a.SendBackup(WORKER, PART, mark(step), base or Mark(), to)


def test_whichever_comes_first_the_snapshot_or_who_is_to_have_it() -> None:
    made = core()
    assert tell(made, TO) == []
    assert hear(made, m.SnapshotTaken(mark(7), mark(5))) == [sent(7, base=mark(5))]
    made = core()
    assert hear(made, m.SnapshotTaken(mark(7))) == [sent(7, m.Holder())]
    assert tell(made, TO) == [sent(7)]


def test_another_node_gets_what_is_on_its_way_and_the_same_word_again_changes_nothing() -> None:
    made = core()
    tell(made, TO)
    hear(made, m.SnapshotTaken(mark(7)))
    assert tell(made, TO) == []
    other = m.Holder("n2", "10.0.0.2", 7000, "another")
    assert tell(made, m.BackUp(WORKER, other)) == [sent(7, other)]


def test_the_worker_hears_once_how_it_ended() -> None:
    made = core()
    tell(made, TO)
    hear(made, m.SnapshotTaken(mark(7)))
    over = a.BackupOver(WORKER, mark(7), kept=True)
    assert made.handle(over, 2.0) == [a.Tell(WORKER, m.BackupEnded(mark(7), kept=True))]
    assert made.handle(over, 2.0) == []
    assert tell(made, m.BackUp(WORKER, m.Holder("n2"))) == [], "it is over"


def test_of_a_part_that_nobody_can_keep_the_worker_does_not_wait() -> None:
    """The copies of the other parts are of use nevertheless."""
    made = core()
    hear(made, m.SnapshotTaken(mark(7)))
    ended = [a.Tell(WORKER, m.BackupEnded(mark(7), kept=True))]
    assert tell(made, m.BackUp(WORKER, alone=True)) == ended
    assert hear(made, m.SnapshotTaken(mark(7))) == ended


def test_a_snapshot_is_fetched_from_those_who_may_have_it_and_nobody_else_hears_of_it() -> None:
    made = core()
    fetch = a.Fetch(WORKER, PART, mark(7), 1, (HOLDER,))
    assert hear(made, m.SnapshotWanted(mark(7), 1)) == [fetch]
    told = made.handle(a.Fetched(WORKER, mark(7), "no"), 2.0)
    assert told == [a.Tell(WORKER, m.SnapshotFetched(mark(7), "no"))]


def test_pieces_of_parts_of_another_shape_are_asked_of_those_who_may_have_them() -> None:
    made, other = core(), m.Holder("n2", "10.0.0.2", 7000, "another")
    former = (m.FormerPart("shard=2", 0, (HOLDER, other)), m.FormerPart("shard=2", 1, (other,)))
    made.workers[WORKER].order = replace(ORDER, former=former)
    runs = (Run(100, 8), Run(200, 4, 3, 10))
    asked = [m.PieceWanted("shard=2", 1, 77, runs), m.PieceWanted("shard=2", 0, 78, runs[:1])]
    asked.append(m.PieceWanted("shard=3", 0, 79, runs))
    parts = [StatePart("id", "shard=2", 1), StatePart("id", "shard=2", 0), StatePart("id", "shard=3", 0)]
    lots = (
        a.Lot(parts[0], 77, runs, (other,)),
        a.Lot(parts[1], 78, runs[:1], (HOLDER, other)),
        a.Lot(parts[2], 79, runs, ()),
    )
    wanted = m.SnapshotWanted(mark(7), 1, tuple(asked), 4096)
    assert hear(made, wanted) == [a.Gather(WORKER, mark(7), 1, 4096, lots)]
    assert hear(made, m.SnapshotWanted(Mark(), 1)) == [a.Fetch(WORKER, PART, Mark(), 1, (HOLDER,))], "that ends it"


def test_news_of_workers_that_are_gone_lead_nowhere() -> None:
    made = core()
    assert made.handle(a.BackupOver("gpt/9.0", mark(7), kept=True), 1.0) == []
    assert made.handle(a.Fetched("gpt/9.0", mark(7)), 1.0) == []
    assert tell(made, m.BackUp("gpt/9.0", HOLDER)) == []


def test_obsolete_copies_are_dropped() -> None:
    assert tell(core(), m.ForgetCopies("id", 1, PART.shape)) == [a.DropCopies(PART)]
    assert tell(core(), m.ForgetCopies("id", worker=WORKER)) == [a.DisownCopies("id", WORKER)]
