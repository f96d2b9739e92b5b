"""What another shape has left in the memory of several nodes: each takes what it lacks, and no byte more."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker.checkpoints import MARKS, MODEL
from worker.test_errands import Line, errands
from worker.test_reshaping import Shaped, leave_behind, name_of

from unicorn_mgr.agent.backups import Backups
from unicorn_mgr.effects.agent import Gather, Lot
from unicorn_mgr.messages import Attached, FormerSnapshot, Holder, PieceWanted, SnapshotFetched, SnapshotWanted
from unicorn_mgr.model import Holdings, StatePart, said
from unicorn_mgr.pieces import size_of
from unicorn_mgr.seal import find
from unicorn_mgr.tokens import token
from unicorn_mgr.transition.layout import Piece, whole
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.exchange import Broken
from unicorn_mgr.worker.loop import Origin
from unicorn_mgr.worker.memory import Files, Memory
from unicorn_mgr.worker.reshaping import pieces_of
from unicorn_mgr.worker.siblings import place_of
from unicorn_mgr.worker.state import Progress

pytestmark = MARKS

SECRET = "of every node"
BYTES_MAX = 1 << 24
FOUR, TWO = {"shard": 4}, {"shard": 2}

CHANGES: list[tuple[dict[str, int], dict[str, int]]] = [
    (FOUR, TWO),
    (FOUR, {}),
    (FOUR, {"shard": 3}),
    (TWO, FOUR),
    ({"tensor": 2}, {"shard": 3}),
    ({"shard": 2, "tensor": 2}, TWO),
    (FOUR, {"shard": 2, "tensor": 2}),
    ({"pipeline": 3, "shard": 2}, {"tensor": 2}),
    ({"pipeline": 2}, {"pipeline": 2, "shard": 2}),
]


class Nodes:
    """Agents, each with what a worker of the other shape has left there, and what has moved between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: dict[str, Backups] = {}
        self.ports: dict[str, int] = {}
        self.asked: list[PieceWanted] = []
        self.files: list[int] = []

    def file(self) -> int:
        self.files.append(os.memfd_create("memory"))
        return self.files[-1]

    def agent(self, node: str) -> Backups:
        if node not in self.agents:
            made = self.agents[node] = Backups(node, None, BYTES_MAX, lambda _: None)
            self.ports[node] = made.open("127.0.0.1", self.folder / f"{node}.port")
            made._pier.key = SECRET
        return self.agents[node]

    def leave(self, node: str, file: int) -> None:
        self.agent(node).copies.add_own(f"on {node}", "job", (os.dup(file),))

    def holder(self, node: str, part: StatePart) -> Holder:
        return Holder(node, "127.0.0.1", self.ports[node], token(SECRET, part, "new"))

    def die(self, node: str) -> None:
        listener = self.agents[node]._pier._listener
        assert listener is not None
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    def moved(self) -> int:
        """Bytes, without those that say where the others are."""
        return sum(size_of(piece.runs) for piece in self.asked if piece.fingerprint)

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()
        for file in self.files:
            os.close(file)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.close()


class Left:
    """A snapshot of each worker of a replica of this shape, on some node or on the one where it is wanted."""

    def __init__(self, nodes: Nodes, written: Shaped, axes: dict[str, int], step: int, here: set[int]) -> None:
        self.nodes, self.written, self.axes, self.here = nodes, written, axes, here
        self.files = [nodes.file() for _ in written.benches]
        self.mark = leave_behind(self.files, written, step, axes=axes)
        self.holders = {p: [f"step {step}, part {p}"] for p in range(len(self.files)) if p not in here}
        for position, (node,) in self.holders.items():
            nodes.leave(node, self.files[position])

    def seen(self) -> tuple[FormerSnapshot, ...]:
        found = []
        for position in self.holders:
            head = find(self.files[position])
            assert head is not None
            found.append(FormerSnapshot(said(self.axes), position, self.mark, head.committed, head.body_at))
        return tuple(found)

    def memory(
        self,
        fresh: Shaped,
        position: int = 0,
        before: Callable[[SnapshotWanted], None] = lambda _: None,
        bytes_max: int = BYTES_MAX,
        own: int | None = None,
    ) -> Memory:
        """Of the worker at this position of the new shape, whose agent does as it is asked."""
        agent, worker = self.nodes.agent("new"), f"new/{position}"
        files = (self.nodes.file() if own is None else own, self.nodes.file())
        agent.copies.add_own(worker, "job", tuple(map(os.dup, files)))
        line = Line()

        def lot(piece: PieceWanted) -> Lot:
            part = StatePart("job", piece.shape, piece.position)
            holders = [self.nodes.holder(node, part) for node in self.holders.get(piece.position, ())]
            return Lot(part, piece.fingerprint, piece.runs, tuple(holders))

        def wanted(asked: SnapshotWanted) -> None:
            before(asked)
            self.nodes.asked += asked.pieces
            order = Gather(worker, asked.mark, asked.buffer, asked.at, tuple(map(lot, asked.pieces)))
            line.snapshot_fetched = SnapshotFetched(asked.mark, agent._gather(order, threading.Event()))

        line.on_wanted = wanted
        welcome = Attached(job_id="job", snapshot_bytes=bytes_max, former=self.seen())
        found = tuple(self.files[p] for p in self.here)
        siblings = fresh.benches[position].checkpointer._siblings
        made = Memory(welcome, Files(files, (*files, *found)), siblings, Drills(), errands(line, welcome))
        made.set_fingerprint(MODEL)
        return made


def least(left: Left, fresh: Shaped, position: int) -> int:
    """Bytes of what a worker wants that nobody on its node has; looked at element by element."""
    layouts = [pieces_of(bench.packed(3)) for bench in left.written.benches]
    bench = fresh.benches[position]
    mine, place = pieces_of(bench.packed(3)), bench.checkpointer._siblings.place
    alike = [p for p in range(len(layouts)) if _stage(place_of(left.axes, p)) == _stage(place)]
    total = 0
    for name, piece in mine.items():
        lacks = _mask(piece)
        for there in (alike, range(len(layouts))):  # who computes another stage may call something else the same
            held = {p: _mask(layouts[p][name]) & lacks for p in there if name in layouts[p]}
            somewhere = np.logical_or.reduce([np.zeros_like(lacks), *held.values()])
            near = np.logical_or.reduce([np.zeros_like(lacks), *(m for p, m in held.items() if p in left.here)])
            total += int((somewhere & ~near).sum()) * piece.element_bytes
            lacks &= ~somewhere
        assert not lacks.any()
    return total


def _stage(place: Any) -> tuple[int, int]:
    return place.stage, place.stages


def _mask(piece: Piece) -> Any:
    found = np.zeros(piece.shape, dtype=bool)
    found[piece.box.inside(whole(piece.shape).box)] = True
    return found


@pytest.mark.parametrize(("there", "new"), CHANGES, ids=name_of)
def test_each_takes_what_it_lacks_and_no_more(
    tmp_path: Path, nodes: Nodes, there: dict[str, int], new: dict[str, int]
) -> None:
    """Whatever lies on its own node already: nothing, the first part, the last, all but the last."""
    written, fresh = Shaped(str(tmp_path), there), Shaped(str(tmp_path), new)
    size = len(written.benches)
    for step, here in enumerate([set[int](), {0}, {size - 1}, set(range(size - 1))]):
        left = Left(nodes, written, there, step, here)
        for position, bench in enumerate(fresh.benches):
            memory = left.memory(fresh, position)
            assert memory.offer(Holdings()).elsewhere == (left.mark,)
            nodes.asked.clear()
            assert memory.load(bench.replica, left.mark) == Origin(Progress(step, -1, 0), 0, "peer")
            assert nodes.moved() == least(left, fresh, position)
        fresh.check(step)


# -- faults in the middle -------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Shaped:
    return Shaped(str(tmp_path_factory.mktemp("four")), FOUR)


@pytest.fixture
def fresh(tmp_path: Path) -> Shaped:
    return Shaped(str(tmp_path), {})


@pytest.fixture
def left(nodes: Nodes, written: Shaped) -> Left:
    """Of which the first part lies where it is wanted."""
    return Left(nodes, written, FOUR, 3, {0})


def at_the_tensors(harm: Callable[[], object]) -> Callable[[SnapshotWanted], None]:
    """When it is known where everything is, and before anything of it comes."""

    def before(asked: SnapshotWanted) -> None:
        if asked.pieces[0].fingerprint:
            harm()

    return before


def refused(memory: Memory, fresh: Shaped, left: Left, why: str) -> None:
    """It is not begun with, and not offered again."""
    assert memory.offer(Holdings()).elsewhere == (left.mark,)
    with pytest.raises(Broken, match=why):
        memory.load(fresh.benches[0].replica, left.mark)
    assert memory.offer(Holdings()).elsewhere == ()
    assert not memory.has(left.mark)


def test_another_node_that_has_the_same_is_asked(nodes: Nodes, left: Left, fresh: Shaped) -> None:
    """As the first one goes."""
    nodes.leave("another", left.files[2])
    (first,) = left.holders[2]
    left.holders[2].append("another")
    memory = left.memory(fresh, before=at_the_tensors(lambda: nodes.die(first)))
    memory.offer(Holdings())
    assert memory.load(fresh.benches[0].replica, left.mark).source == "peer"
    fresh.check(3)


def test_without_any_there_is_none(nodes: Nodes, left: Left, fresh: Shaped) -> None:
    memory = left.memory(fresh, before=at_the_tensors(lambda: nodes.die(left.holders[2][0])))
    refused(memory, fresh, left, "Connection refused")


def flip(file: int) -> None:
    head = find(file)
    assert head is not None
    at = head.blocks_at - 1000
    (byte,) = os.pread(file, 1, at)
    os.pwrite(file, bytes([byte ^ 1]), at)


def write_over(left: Left, nodes: Nodes) -> None:
    other = [nodes.file(), nodes.file(), left.files[2], nodes.file()]
    leave_behind(other, left.written, 4)


def another(left: Left, nodes: Nodes) -> None:
    (group,) = left.written.benches[2].optimizer.param_groups
    before, group["betas"] = group["betas"], (0.5, 0.5)
    leave_behind([nodes.file(), nodes.file(), left.files[2], nodes.file()], left.written, 3)
    group["betas"] = before


HARMS: dict[str, tuple[Callable[[Left, Nodes], object], str]] = {
    "corrupt": (lambda left, _: flip(left.files[2]), "its body is not as it was written"),
    "written over": (write_over, "it is not here any more"),
    "torn": (lambda left, _: os.pwrite(left.files[2], bytes(8), 0), "it is not here any more"),
    "given up": (lambda left, _: os.ftruncate(left.files[2], 0), "it is not here any more"),
    "another of the same step": (another, "there is another one here"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_not_as_it_was_is_never_taken(nodes: Nodes, left: Left, fresh: Shaped, harm: str) -> None:
    act, why = HARMS[harm]
    refused(left.memory(fresh, before=at_the_tensors(lambda: act(left, nodes))), fresh, left, why)


def test_one_of_another_model_is_refused(nodes: Nodes, written: Shaped, fresh: Shaped) -> None:
    left = Left(nodes, written, FOUR, 3, set())
    memory = left.memory(fresh)
    memory.set_fingerprint({**MODEL, "parameters": "other"})
    refused(memory, fresh, left, "part 0 of step 3 on another node is of something else")


def test_too_little_memory_is_one_clear_line(left: Left, fresh: Shaped) -> None:
    refused(left.memory(fresh, bytes_max=5000), fresh, left, r"\d+ bytes .* are needed, and a slot may have 5000")


def test_what_others_may_want_is_not_written_over(left: Left, fresh: Shaped) -> None:
    """A part in this worker's own memory, perhaps the only copy of it."""
    memory = left.memory(fresh, own=left.files[0])
    memory.offer(Holdings())
    memory.load(fresh.benches[0].replica, left.mark)
    kept = find(left.files[0])
    assert kept is not None
    assert kept.mark == left.mark
