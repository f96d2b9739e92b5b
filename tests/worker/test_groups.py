"""What every process group must do: one suite for all implementations of the seam."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from unicorn_mgr.worker.groups import Group, Operation, sockets
from unicorn_mgr.worker.groups.gloo import Builder
from unicorn_mgr.worker.groups.local import LocalGroup

HERE = "127.0.0.1"
PATIENCE_SECONDS = 20.0
AT_ONCE_SECONDS = 5.0
"""A bound on what must not wait for anybody, however busy the machine is."""


@dataclass(eq=False)
class World:
    """Members of one epoch, all in this process."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    wakes: int = 0
    published: dict[int, tuple[bytes, sockets.Address]] = field(default_factory=dict)
    over: bool = False
    groups: list[Group] = field(default_factory=list)

    def wake(self) -> None:
        with self.changed:
            self.wakes += 1
            self.changed.notify_all()

    def wait(self, what: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, PATIENCE_SECONDS)

    def build(self, rank: int, size: int) -> Builder:
        """Begin to build one member's group."""

        def exchange(blob: bytes, mine: sockets.Address) -> tuple[list[bytes], frozenset[sockets.Address]]:
            with self.changed:
                self.published[rank] = (blob, mine)
                self.changed.notify_all()
                assert self.changed.wait_for(lambda: self.over or len(self.published) == size, PATIENCE_SECONDS)
                if self.over:
                    raise RuntimeError("the epoch is over")
            told = [self.published[r] for r in range(size)]
            return [b for b, _ in told], frozenset(address for _, address in told)

        return Builder(rank, size, HERE, exchange, self.wake)

    def end_epoch(self) -> None:
        with self.changed:
            self.over = True
            self.changed.notify_all()


def belongings() -> set[tuple[str, str]]:
    """Threads and descriptors of this process."""
    found = {("thread", entry) for entry in os.listdir("/proc/self/task")}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add((entry, str(Path(f"/proc/self/fd/{entry}").readlink())))
    return found


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """In the end there is no thread and no descriptor that was not there in the beginning."""
    before = belongings()
    yield
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := {thing for thing in belongings() - before if not thing[1].startswith("/proc/")}:
        assert time.monotonic() < deadline, f"left behind: {sorted(left)}"
        time.sleep(0.005)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < AT_ONCE_SECONDS


def built(size: int) -> World:
    """Members connected by gloo."""
    world = World()
    builders = [world.build(rank, size) for rank in range(size)]
    world.wait(lambda: all(b.done for b in builders))
    for builder in builders:
        assert builder.group is not None, builder.error
        world.groups.append(builder.group)
    return world


@contextlib.contextmanager
def gloo(size: int) -> Iterator[World]:
    with nothing_left():
        world = built(size)
        try:
            yield world
        finally:
            for group in world.groups:
                group.bury()


@contextlib.contextmanager
def local(size: int) -> Iterator[World]:
    assert size == 1
    with nothing_left():
        world = World(groups=[LocalGroup()])
        yield world
        world.groups[0].bury()


MAKERS = {
    "local": (local, 1),
    "gloo of one": (gloo, 1),
    "gloo of two": (gloo, 2),
    "gloo of three": (gloo, 3),
}


@pytest.fixture(params=MAKERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    maker, size = MAKERS[request.param]
    with maker(size) as made:
        yield made


@pytest.fixture
def pair() -> Iterator[World]:
    """Two members, of an implementation whose members can be lost."""
    with gloo(2) as made:
        yield made


# -- every implementation -------------------------------------------------------------------


def test_it_knows_its_size(world: World) -> None:
    assert [g.size for g in world.groups] == [len(world.groups)] * len(world.groups)


BUCKET_DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", BUCKET_DTYPES, ids=str)
@pytest.mark.parametrize("numel", [0, 1, 1000])
def test_it_sums_over_all_members_in_place(world: World, dtype: torch.dtype, numel: int) -> None:
    tensors = [(torch.arange(numel) % 7 * (rank + 1)).to(dtype) for rank in range(len(world.groups))]
    expected = torch.stack(tensors).to(torch.complex128).sum(dim=0)
    operations = [g.all_reduce(t) for g, t in zip(world.groups, tensors, strict=True)]
    world.wait(lambda: all(o.done for o in operations))
    assert [o.error for o in operations] == [""] * len(operations)
    for tensor in tensors:
        assert tensor.dtype is dtype
        assert torch.equal(tensor.to(torch.complex128), expected)


def test_many_operations_run_side_by_side(world: World) -> None:
    tensors = [[torch.full((50_000,), float(rank + i)) for i in range(20)] for rank in range(len(world.groups))]
    operations = [g.all_reduce(tensors[rank][i]) for i in range(20) for rank, g in enumerate(world.groups)]
    world.wait(lambda: all(o.done for o in operations))
    assert not any(o.error for o in operations)
    size = len(world.groups)
    for i in range(20):
        total = float(sum(rank + i for rank in range(size)))
        assert all(t[i].eq(total).all() for t in tensors)


def test_an_operation_keeps_its_tensor(world: World) -> None:
    """The caller may drop it: what is under way writes to memory that is still there."""
    operations = [g.all_reduce(torch.ones(100_000)) for g in world.groups]
    world.wait(lambda: all(o.done for o in operations))
    assert not any(o.error for o in operations)


def test_burying_returns_at_once_and_again_is_nothing(world: World) -> None:
    with at_once():
        for _ in range(2):
            for group in world.groups:
                group.bury()


# -- implementations whose members can be lost ----------------------------------------------


def pending(world: World) -> Operation:
    """An operation of the first member that the other has not joined."""
    with at_once():
        operation = world.groups[0].all_reduce(torch.ones(1000))
    assert not operation.done
    return operation


def test_starting_does_not_wait_for_the_others(pair: World) -> None:
    operation = pending(pair)
    other = pair.groups[1].all_reduce(torch.ones(1000))
    pair.wait(lambda: operation.done and other.done)
    assert (operation.error, other.error) == ("", "")


def test_whoever_waits_is_woken_by_a_burial_in_another_thread(pair: World) -> None:
    operation = pending(pair)
    burial = threading.Thread(target=pair.groups[0].bury)
    burial.start()
    pair.wait(lambda: operation.done)
    burial.join()
    assert operation.error != ""
    assert "\n" not in operation.error


def test_the_loss_of_a_peer_ends_what_waits_for_it_with_an_error(pair: World) -> None:
    operation = pending(pair)
    with at_once():
        pair.groups[1].bury()
    pair.wait(lambda: operation.done)
    assert operation.error != ""


def test_what_is_started_after_the_loss_of_a_peer_fails_and_does_not_raise(pair: World) -> None:
    first = pending(pair)
    pair.groups[1].bury()
    pair.wait(lambda: first.done)
    with at_once():
        operation = pair.groups[0].all_reduce(torch.ones(10))
    pair.wait(lambda: operation.done)
    assert operation.error != ""


def test_what_is_started_after_the_burial_fails_and_does_not_raise(pair: World) -> None:
    group = pair.groups[0]
    group.bury()
    with at_once():
        operation = group.all_reduce(torch.ones(10))
    assert operation.done
    assert operation.error != ""


def test_a_large_operation_in_the_middle_is_cut(pair: World) -> None:
    operations = [g.all_reduce(torch.ones(1 << 22)) for g in pair.groups]
    pair.groups[1].bury()
    pair.wait(lambda: all(o.done for o in operations))


def test_a_new_group_works_beside_a_buried_one(pair: World) -> None:
    operation = pending(pair)
    pair.groups[0].bury()
    fresh = built(2)
    operations = [g.all_reduce(torch.ones(10)) for g in fresh.groups]
    fresh.wait(lambda: all(o.done for o in operations))
    assert not any(o.error for o in operations)
    pair.wait(lambda: operation.done)
    for group in fresh.groups:
        group.bury()


def test_the_scripts_own_connections_are_left_alone(pair: World) -> None:
    with socket.create_server((HERE, 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            operation = pending(pair)
            for group in pair.groups:
                group.bury()
            pair.wait(lambda: operation.done)
            client.sendall(b"x")
            assert server.recv(1) == b"x"


# -- building -------------------------------------------------------------------------------


def test_a_builder_whose_peer_never_comes_is_freed_when_the_epoch_ends() -> None:
    with nothing_left():
        world = World()
        builder = world.build(0, 2)
        world.wait(lambda: 0 in world.published)
        assert not builder.done
        assert not builder.connecting
        with at_once():
            builder.abandon()
        world.end_epoch()
        world.wait(lambda: builder.done)
        assert builder.group is None


@pytest.fixture
def short_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unicorn_mgr.worker.groups.gloo.CONNECT_SECONDS_MAX", 1.0)


@pytest.mark.parametrize("first", [0, 1])
def test_a_builder_whose_peer_does_not_answer_is_freed_when_it_is_abandoned(first: int, short_connect: None) -> None:
    """The peer has published and is gone.

    Who connects to whom is by gloo's addresses: if it is we, the socket is cut; if it is the peer, there is none and
    the constructor ends with its own limit.
    """
    with nothing_left():
        world = World()
        gone = World()
        dead = gone.build(first, 2)
        gone.wait(lambda: first in gone.published)
        world.published[first] = gone.published[first]
        builder = world.build(1 - first, 2)
        world.wait(lambda: builder.connecting)
        with at_once():
            builder.abandon()
        world.wait(lambda: builder.done)
        assert builder.group is None
        dead.abandon()
        gone.end_epoch()
        gone.wait(lambda: dead.done)


def test_an_operation_may_take_longer_than_connecting(short_connect: None, pair: World) -> None:
    """Its peer may be frozen, or wait for a coordinator: only a newer epoch ends it."""
    tensors = [torch.ones(3), torch.ones(3)]
    first = pair.groups[0].all_reduce(tensors[0])
    time.sleep(1.5)  # the limit for connecting passes, which nothing tells of
    assert not first.done, first.error
    second = pair.groups[1].all_reduce(tensors[1])
    pair.wait(lambda: first.done and second.done)
    assert (first.error, second.error) == ("", "")
    assert tensors[0].tolist() == [2.0, 2.0, 2.0]


def test_a_builder_abandoned_after_it_has_built_buries_the_group() -> None:
    with nothing_left():
        world = World()
        builders = [world.build(rank, 2) for rank in range(2)]
        world.wait(lambda: all(b.done for b in builders))
        with at_once():
            for builder in builders:
                builder.abandon()
        assert [b.group for b in builders] == [None, None]


def test_what_goes_wrong_in_the_rendezvous_is_told_in_one_line() -> None:
    def exchange(blob: bytes, mine: sockets.Address) -> tuple[list[bytes], frozenset[sockets.Address]]:
        raise RuntimeError("epoch 1.2 is over\nand more")

    with nothing_left():
        world = World()
        builder = Builder(0, 2, HERE, exchange, world.wake)
        world.wait(lambda: builder.done)
        assert builder.group is None
        assert "epoch 1.2 is over" in builder.error
        assert "\n" not in builder.error
