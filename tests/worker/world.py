"""A whole job in this process: members in threads that take turns.  No cluster, no gloo, no timing.

Exactly one member runs at a time, and it hands over only where the training loop waits for
the others: torch's generators, which all threads share, belong to it in between.  States and
buckets move through the product's own sockets; only who is a member, and the reduction, are
played here.  A member that raises `DrillError` is lost: the others hear of an epoch without it.

Where a replica has several workers it is lost as a whole: the others of it end where they next agree.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from unicorn_mgr.messages import Attached, Fact, GiveUp
from unicorn_mgr.model import Drill, Epoch, Holdings, WorkerName
from unicorn_mgr.ring import SIZE_BYTES, RingWriter
from unicorn_mgr.transition.deal import merged
from unicorn_mgr.worker.attach import Job
from unicorn_mgr.worker.drills import DrillError
from unicorn_mgr.worker.groups import Operation
from unicorn_mgr.worker.membership import Formation
from unicorn_mgr.worker.siblings import Place, place_of
from unicorn_mgr.worker.transfer import Donor

T = TypeVar("T")


class Deserted(Exception):
    """Another member has failed in a way that nobody planned."""


class LostToo(BaseException):
    """Another worker of the same replica is lost."""


@dataclass(eq=False)
class _Sum:
    """One all-reduce: done when every member has brought its part."""

    parts: dict[int, tuple[torch.Tensor, _Part]] = field(default_factory=dict)


@dataclass(eq=False)
class _Part:
    done: bool = False
    error: str = ""


class SharedGroup:
    """One member's end of the reduction; the nth call of each belongs together."""

    def __init__(self, world: World, sums: list[_Sum], rank: int, size: int) -> None:
        self.size = size
        self._world = world
        self._sums = sums
        self._rank = rank
        self._calls = 0

    def all_reduce(self, tensor: torch.Tensor) -> Operation:
        part = _Part()
        if self._calls == len(self._sums):
            self._sums.append(_Sum())
        together = self._sums[self._calls]
        self._calls += 1
        together.parts[self._rank] = (tensor, part)
        if len(together.parts) == self.size:
            self._add_up(together)
        return part

    def _add_up(self, together: _Sum) -> None:
        tensors = [together.parts[rank][0] for rank in range(self.size)]
        assert len({(t.shape, t.dtype) for t in tensors}) == 1, "members reduce different things"
        total = torch.stack(tensors).sum(dim=0)
        with self._world.changed:
            for tensor, part in together.parts.values():
                tensor.copy_(total)
                part.done = True
            self._world.changed.notify_all()

    def bury(self) -> None:
        """Nothing is open."""


class Together:
    """How a worker agrees with the others of its replica.  Implements `Siblings`."""

    def __init__(self, world: World, name: str) -> None:
        self.place: Place = place_of(world.axes, world.position(name))
        self._world = world
        self._name = name
        self._calls = 0

    def largest(self, *values: int) -> tuple[int, ...]:
        brought = self._bring(f"largest of {len(values)}", torch.tensor(values, dtype=torch.int64))
        return tuple(brought.amax(dim=0).tolist())

    def add(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self._bring(f"add {tuple(tensor.shape)}", tensor.clone()).sum(dim=0))

    def _bring(self, what: str, mine: torch.Tensor) -> torch.Tensor:
        """What all of them have brought to this call: the nth of each belongs together."""
        world = self._world
        calls = world.agreements[world.replica(self._name)]
        if self._calls == len(calls):
            calls.append({})
        together = calls[self._calls]
        self._calls += 1
        together[self.place.position] = (what, mine)
        world.wake()
        world.hand_over(lambda: len(together) == self.place.size or self._name not in world.members)
        if self._name not in world.members:
            raise LostToo
        kinds = {kind for kind, _ in together.values()}
        assert len(kinds) == 1, f"the workers of a replica do different things: {kinds}"
        return torch.stack([tensor for _, (_, tensor) in sorted(together.items())])


class Seat:
    """The membership of one member: the product's seam, played by a `World`."""

    fence_seconds = regroup_seconds = 0.0

    def __init__(self, world: World, name: str) -> None:
        self.formation: Formation | None = None
        self.donor: Donor | None = Donor("127.0.0.1", world.wake)
        self.told: list[Fact] = []
        self.retire = False
        self._world = world
        self._name = name
        self._epoch = Epoch()

    def newer(self) -> Epoch | None:
        return self._world.epoch if self.overtaken() else None

    def given_up(self) -> GiveUp | None:
        return None

    def overtaken(self) -> bool:
        return self._world.epoch > self._epoch

    def form(self, epoch: Epoch, holdings: Holdings) -> Formation | None:
        world, donor = self._world, self.donor
        assert donor is not None
        self._epoch, members = epoch, world.members
        if world.epoch != epoch:
            return None
        donor.open(self._epoch, "secret")
        published = world.published.setdefault(self._epoch, {})
        with world.changed:
            published[self._name] = (holdings, donor.port)
            world.changed.notify_all()
        if not self.wait(lambda: len(published) == len(members)):
            return None
        position = world.position(self._name)
        column = tuple(m for m in members if world.position(m) == position)
        of_replica = defaultdict(list)
        for member, (held, _) in published.items():
            of_replica[world.replica(member)].append(held)
        sums = world.sums.setdefault((self._epoch, position), [])
        self.formation = Formation(
            self._epoch,
            column,
            self._name,
            SharedGroup(world, sums, column.index(self._name), len(column)),
            {member: merged(of_replica[world.replica(member)]) for member in column},
            {name: ("127.0.0.1", port) for name, (_, port) in published.items()},
            "secret",
            world.poison,
        )
        return self.formation

    def wait(self, ready: Callable[[], bool]) -> bool:
        return self._world.hand_over(lambda: ready() or self.overtaken()) and ready()

    def wait_out(self, ready: Callable[[], bool]) -> None:
        self._world.hand_over(ready)

    def await_news(self) -> None:
        self._world.hand_over(self.overtaken)

    def asked_to_leave(self) -> bool:
        return False

    def leave(self, applied: int) -> bool:
        raise AssertionError(f"nobody was asked to leave after step {applied}")

    def wake(self) -> None:
        self._world.wake()

    def tell(self, fact: Fact) -> None:
        self.told.append(fact)

    def abandon(self) -> None:
        assert self.donor is not None
        self.donor.withdraw()
        self.formation = None


class World:
    """Who the members are, and whose turn it is."""

    def __init__(
        self, size: int, poison: frozenset[tuple[int, int]] = frozenset(), axes: Mapping[str, int] | None = None
    ) -> None:
        self.poison = poison
        self.axes = axes or {}
        self.members = tuple(f"test/{seat}.0" for seat in range(size))
        self.epoch = Epoch(1, 1)
        self.published: dict[Epoch, dict[str, tuple[Holdings, int]]] = {}
        self.sums: dict[tuple[Epoch, int], list[_Sum]] = {}
        """By epoch and position."""
        self.agreements: dict[int, list[dict[int, tuple[str, torch.Tensor]]]] = defaultdict(list)
        """By replica: what its workers have brought to each call, by position."""
        self.changed = threading.Condition()
        self.turn = threading.Lock()
        self.seats = {name: Seat(self, name) for name in self.members}
        self._deserted = False

    def hand_over(self, ready: Callable[[], bool]) -> bool:
        """Let others run until `ready()`."""
        if ready():
            return True
        self.turn.release()
        try:
            with self.changed:
                self.changed.wait_for(lambda: self._deserted or ready())
        finally:
            self.turn.acquire()
        if self._deserted:
            raise Deserted
        return True

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def replica(self, name: str) -> int:
        """Which one a member is of."""
        return WorkerName.parse(name).seat // math.prod(self.axes.values())

    def position(self, name: str) -> int:
        """A member's place in its replica."""
        return WorkerName.parse(name).seat % math.prod(self.axes.values())

    def lose(self, name: str) -> None:
        """A member is dead: an epoch without its replica."""
        with self.changed:
            self.members = tuple(m for m in self.members if self.replica(m) != self.replica(name))
            self.epoch = Epoch(1, self.epoch.number + 1)
            self.changed.notify_all()

    def desert(self) -> None:
        with self.changed:
            self._deserted = True
            self.changed.notify_all()

    def close(self) -> None:
        for seat in self.seats.values():
            assert seat.donor is not None
            seat.donor.withdraw()
            with contextlib.suppress(OSError):
                seat.donor._listener.shutdown(socket.SHUT_RDWR)
            seat.donor._listener.close()


@dataclass(eq=False)
class Played(Generic[T]):
    """How it went."""

    results: dict[str, T] = field(default_factory=dict)
    """Of the members that came to the end, in order."""
    lost: list[str] = field(default_factory=list)
    failed: dict[str, BaseException] = field(default_factory=dict)
    facts: dict[str, list[Fact]] = field(default_factory=dict)
    """What each member would have told the coordinator."""


def play(
    size: int,
    script: Callable[[Job], T],
    drills: dict[int, Sequence[Drill]] | None = None,
    poison: frozenset[tuple[int, int]] = frozenset(),
    axes: Mapping[str, int] | None = None,
) -> Played[T]:
    """Run `script` as every member of a job of `size`; raises what a member raised by itself."""
    played: Played[T] = Played()
    with _world(size, poison, axes) as world:

        def member(name: str, armed: Sequence[Drill]) -> None:
            with world.turn:
                job = Job(None, RingWriter(bytearray(SIZE_BYTES)), Attached("test", size_max=size, drills=tuple(armed)))
                job._membership = world.seats[name]
                if axes:
                    # How torch lays tensors out inside is not played, so `train` is to check nothing of it.
                    job._axes, job._inside = {"played": len(axes)}, Together(world, name)  # type: ignore[assignment]  # played
                try:
                    played.results[name] = script(job)
                except DrillError:
                    played.lost.append(name)
                    world.lose(name)
                except LostToo:
                    played.lost.append(name)
                except BaseException as failed:  # noqa: BLE001 - raised again below, in the test's own thread
                    played.failed[name] = failed
                    world.desert()

        threads = [
            threading.Thread(target=member, args=(name, (drills or {}).get(seat, ())), name=name, daemon=True)
            for seat, name in enumerate(world.members)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        played.facts = {name: seat.told for name, seat in world.seats.items()}
    played.results = dict(sorted(played.results.items()))
    for failed in played.failed.values():
        if not isinstance(failed, Deserted):
            raise failed
    return played


@contextlib.contextmanager
def _world(size: int, poison: frozenset[tuple[int, int]], axes: Mapping[str, int] | None) -> Iterator[World]:
    world = World(size, poison, axes)
    try:
        yield world
    finally:
        world.close()
