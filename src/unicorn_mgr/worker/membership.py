"""Who the members are, and the group they reduce over.

Two implementations of one seam: `Alone` for a script without an agent, `Clustered` for a
worker of a job.  The main thread asks `newer` whether a membership has been heard of that
replaces the present one, forms it with `form`, and waits with `wait`, which returns early
when a newer one is heard: so the main thread is free 0.3 ms after the news, whatever it
was waiting for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from unicorn_mgr.messages import Fact, GiveUp, Granted, Leaving, Published, Symptom, Unreachable
from unicorn_mgr.model import Epoch, Holdings, WorkerName
from unicorn_mgr.phases import Phase
from unicorn_mgr.ring import RingWriter
from unicorn_mgr.transition.deal import column
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.groups import Group, sockets
from unicorn_mgr.worker.groups.local import LocalGroup
from unicorn_mgr.worker.link import Link
from unicorn_mgr.worker.transfer import Donor, answers_probe

if TYPE_CHECKING:
    from unicorn_mgr.worker.groups.gloo import Builder

PROBE_AFTER_SECONDS = 3.0
"""Connecting to members that have all published takes milliseconds; then ask each if it is there."""

PROBE_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Formation:
    """A membership whose members have all published, connected by a group.

    Where a replica has several workers, `members` are those at this worker's position in each replica, and
    what each holds is what its whole replica does.
    """

    epoch: Epoch
    members: tuple[str, ...]
    me: str
    group: Group
    holdings: Mapping[str, Holdings]
    peers: Mapping[str, sockets.Address] = field(default_factory=dict)
    """Where each member hands out state and buckets."""
    secret: str = ""
    poison: frozenset[tuple[int, int]] = frozenset()
    """(step, micro-batch) that are skipped, with weight 0."""
    suspends: bool = False
    """Its members finish the open step and stand still."""
    left: tuple[str, ...] = ()
    """Who has left as it should: nobody had computed yet what was to be theirs."""

    @property
    def rank(self) -> int:
        """This worker's place among the members."""
        return self.members.index(self.me)


class GivenUp(Exception):
    """The coordinator has given the job up; the message says why."""

    def __init__(self, word: GiveUp) -> None:
        super().__init__(word.reason)
        self.save = word.save


class Membership(Protocol):
    """The seam between the training loop and whoever decides who trains."""

    formation: Formation | None

    @property
    def donor(self) -> Donor | None:
        """Hands out state and buckets; None in a world of one."""

    fence_seconds: float
    regroup_seconds: float

    def newer(self) -> Epoch | None:
        """The newest membership heard of, if it replaces the present one."""

    def given_up(self) -> GiveUp | None:
        """The word that the job is given up, once it has been heard."""

    def overtaken(self) -> bool:
        """Nothing begun in the present membership will be of use.  Never raises: hooks ask."""

    def form(self, epoch: Epoch, holdings: Holdings) -> Formation | None:
        """Publish, wait for everybody, connect; None if a newer membership overtook this one."""

    def wait(self, ready: Callable[[], bool]) -> bool:
        """Block until `ready()`; False if a newer membership, or the end of the job, was heard first."""

    def wait_out(self, ready: Callable[[], bool]) -> None:
        """Block until `ready()`, whatever is heard."""

    def await_news(self) -> None:
        """Block until a newer membership, or the end of the job, is heard."""

    def asked_to_leave(self) -> bool:
        """This worker's slot is wanted for something else."""

    def leave(self, applied: int) -> bool:
        """Say that this worker leaves, and serve until the epoch without it; False: it is needed for one more."""

    def wake(self) -> None:
        """Something `wait` may wait for has changed."""

    def tell(self, fact: Fact) -> None:
        """Report a fact to the coordinator."""

    def abandon(self) -> None:
        """The present group is over."""


class Alone:
    """A world of one: no agent, nothing to agree on."""

    def __init__(self) -> None:
        self.formation: Formation | None = None
        self.donor: Donor | None = None
        self.fence_seconds = self.regroup_seconds = 0.0
        self._granted = False

    def newer(self) -> Epoch | None:
        """Only once, at the start."""
        return None if self._granted else Epoch(0, 1)

    def given_up(self) -> GiveUp | None:
        """Nobody gives it up."""
        return None

    def overtaken(self) -> bool:
        """Nobody overtakes it."""
        return False

    def form(self, epoch: Epoch, holdings: Holdings) -> Formation | None:
        """There is nobody to wait for."""
        self._granted = True
        self.formation = Formation(epoch, ("alone",), "alone", LocalGroup(), {"alone": holdings})
        return self.formation

    def wait(self, ready: Callable[[], bool]) -> bool:
        """Nothing takes time here."""
        assert ready(), "a world of one waits for something that nobody else does"
        return True

    def wait_out(self, ready: Callable[[], bool]) -> None:
        """Nothing takes time here."""
        assert ready(), "a world of one waits for something that nobody else does"

    def await_news(self) -> None:
        """There are none."""
        raise AssertionError("a world of one waits for a membership")

    def asked_to_leave(self) -> bool:
        """Nobody asks."""
        return False

    def leave(self, applied: int) -> bool:
        """Nobody has asked."""
        raise AssertionError(f"a world of one is left after step {applied}")

    def wake(self) -> None:
        """Nobody waits."""

    def tell(self, fact: Fact) -> None:
        """Nobody listens."""
        del fact

    def abandon(self) -> None:
        """The group has nothing open."""
        self.formation = None


class Clustered:
    """Membership granted by the coordinator, heard over the agent's line."""

    def __init__(self, link: Link, host: str, ring: RingWriter, drills: Drills, replica: int = 1) -> None:
        self._replica = replica
        self.formation: Formation | None = None
        self._link = link
        self._host = host
        self._ring = ring
        self._drills = drills
        self._epoch = Epoch()
        self.donor = Donor(host, link.wake)
        self._group_sockets: tuple[sockets.Address, frozenset[sockets.Address]] | None = None
        self.fence_seconds = self.regroup_seconds = 0.0
        os.register_at_fork(after_in_child=self._close_in_child)

    def newer(self) -> Epoch | None:
        """The newest membership heard of, if it replaces the present one."""
        granted = self._link.granted
        return granted.epoch if granted is not None and granted.epoch > self._epoch else None

    def given_up(self) -> GiveUp | None:
        """The word that the job is given up, once it has been heard."""
        return self._link.give_up

    def overtaken(self) -> bool:
        """A newer membership, or the end of the job, has been heard of."""
        return self.newer() is not None or self._link.give_up is not None

    def wait(self, ready: Callable[[], bool]) -> bool:
        """Block until `ready()`; False if a newer membership, or the end of the job, was heard first."""
        if ready():
            return True
        with self._link.changed:
            self._link.changed.wait_for(lambda: ready() or self.overtaken())
        return ready()

    def wait_out(self, ready: Callable[[], bool]) -> None:
        """Block until `ready()`, whatever is heard."""
        with self._link.changed:
            self._link.changed.wait_for(ready)

    def await_news(self) -> None:
        """Block until a newer membership, or the end of the job, is heard."""
        with self._link.changed:
            self._link.changed.wait_for(self.overtaken)

    def asked_to_leave(self) -> bool:
        """This worker's slot is wanted for something else."""
        return self._link.retire is not None

    def leave(self, applied: int) -> bool:
        """Say that this worker leaves, and serve until the epoch without it.

        True: it is a member no more.  False: it is needed for one more epoch.
        """
        self._link.tell(Leaving(applied))
        with self._link.changed:
            self._link.changed.wait_for(lambda: self._excluded() or self.overtaken())
        return self._excluded()

    def _excluded(self) -> bool:
        return self._link.excluded is not None and self._link.excluded > self._epoch

    def wake(self) -> None:
        """Something `wait` may wait for has changed."""
        self._link.wake()

    def tell(self, fact: Fact) -> None:
        """Report a fact to the coordinator."""
        self._link.tell(fact)

    def abandon(self) -> None:
        """The present group is over: cut it now, drop it elsewhere."""
        self.donor.withdraw()
        if self.formation is not None:
            self.formation.group.bury()
            self.formation = None
        self._group_sockets = None

    def form(self, epoch: Epoch, holdings: Holdings) -> Formation | None:
        """Publish, wait for everybody, connect; None if a newer membership overtook this one.

        `epoch` is one that this worker or another of its replica has heard of.
        """
        self._epoch = epoch
        granted = self._await_granted(epoch)
        if granted is None or granted.epoch != epoch:
            return None
        self._ring.epoch = epoch.number
        self.donor.open(epoch, granted.secret)
        members = self._column(granted)
        if len(members) == 1:
            return self._form_alone(granted, holdings)
        from unicorn_mgr.worker.groups.gloo import Builder  # noqa: PLC0415 - alone, no torch.distributed is loaded

        started = time.monotonic()

        def exchange(blob: bytes, mine: sockets.Address) -> tuple[list[bytes], frozenset[sockets.Address]]:
            self._group_sockets = (mine, frozenset())
            self._drills.reach("constructor", holdings.applied + 1)
            note = Published(granted.epoch, blob, *mine, self.donor.port, holdings, self._link.worker)
            self._link.tell(note)
            self.fence_seconds = time.monotonic() - started
            self._drills.reach("gather", holdings.applied + 1)
            published = self._await_formed(granted, members)
            peers = frozenset((p.host, p.port) for p in published)
            self._group_sockets = (mine, peers)
            return [p.address for p in published], peers

        builder = Builder(members.index(self._link.worker), len(members), self._host, exchange, self._link.wake)
        self._ring.write(Phase.GATHER)
        if not self._await_built(builder, granted):
            builder.abandon()
            return None
        assert builder.group is not None
        self.regroup_seconds = time.monotonic() - started - self.fence_seconds
        return self._formed(granted, builder.group)

    def _form_alone(self, granted: Granted, holdings: Holdings) -> Formation | None:
        started = time.monotonic()
        self._link.tell(Published(granted.epoch, b"", self._host, 0, self.donor.port, holdings, self._link.worker))
        self._ring.write(Phase.GATHER)
        self._drills.reach("gather", holdings.applied + 1)
        if not self.wait(lambda: self._has_formed(granted.epoch)):
            return None
        self.fence_seconds, self.regroup_seconds = 0.0, time.monotonic() - started
        return self._formed(granted, LocalGroup())

    def _formed(self, granted: Granted, group: Group) -> Formation:
        formed = self._link.formed
        assert formed is not None
        seats = {WorkerName.parse(p.worker).seat: p.holdings for p in formed.members}
        held = column(seats, self._position(), self._replica)
        members = self._column(granted)
        self.formation = Formation(
            granted.epoch,
            members,
            self._link.worker,
            group,
            {m: held[WorkerName.parse(m).seat] for m in members},
            {p.worker: (p.host, p.data_port) for p in formed.members},
            granted.secret,
            frozenset((p.step, p.number) for p in granted.poison),
            granted.suspends,
            granted.left,
        )
        return self.formation

    def _await_granted(self, epoch: Epoch) -> Granted | None:
        """What a sibling has heard of is on its way here, too; None if the end of the job was heard first."""

        def found() -> Granted | None:
            granted = self._link.granted
            return granted if granted is not None and granted.epoch >= epoch else None

        with self._link.changed:
            self._link.changed.wait_for(lambda: found() or self._link.give_up is not None)
        return found()

    def _position(self) -> int:
        return WorkerName.parse(self._link.worker).seat % self._replica

    def _column(self, granted: Granted) -> tuple[str, ...]:
        """The members at this worker's position in each replica."""
        return tuple(m for m in granted.members if WorkerName.parse(m).seat % self._replica == self._position())

    def _has_formed(self, epoch: Epoch) -> bool:
        formed = self._link.formed
        return formed is not None and formed.epoch == epoch

    def _await_formed(self, granted: Granted, members: tuple[str, ...]) -> tuple[Published, ...]:
        """In the builder's thread: the publications of those who reduce together, in order of rank."""
        with self._link.changed:
            self._link.changed.wait_for(lambda: self._has_formed(granted.epoch) or self._link.newest() > granted.epoch)
            formed = self._link.formed
        if formed is None or formed.epoch != granted.epoch:
            raise RuntimeError(f"epoch {granted.epoch} is over")
        by_name = {p.worker: p for p in formed.members}
        return tuple(by_name[m] for m in members)

    def _await_built(self, builder: Builder, granted: Granted) -> bool:
        """True when the group is there; reports members that can't be reached meanwhile."""
        probed, told = False, ""
        while True:
            with self._link.changed:
                ended = self._link.changed.wait_for(lambda: builder.done or self.overtaken(), PROBE_AFTER_SECONDS)
            if self.overtaken():
                return False
            if builder.group is not None:
                return True
            if builder.connecting and self._ring.phase is not Phase.BUILD:
                self._ring.write(Phase.BUILD)
            if not probed and (builder.done or builder.connecting):
                probed, told = True, builder.error if self._report_unreachable(granted, builder.error) else ""
            if builder.done and ended:
                if builder.error != told:
                    self._link.tell(Symptom(granted.epoch, builder.error))
                self.await_news()

    def _report_unreachable(self, granted: Granted, error: str) -> bool:
        """False if there is nothing to report, or nobody to probe yet."""
        formed = self._link.formed
        if formed is None or formed.epoch != granted.epoch:
            return False
        deaf = [p.worker for p in formed.members if p.worker != self._link.worker and not _answers(p)]
        if deaf or error:
            self._link.tell(Unreachable(granted.epoch, tuple(deaf), error or "no answer to a probe"))
        return bool(deaf or error)

    def _close_in_child(self) -> None:
        """In a forked child of the user's code: what it inherits must not outlive this worker."""
        self._link.close_in_child()
        self.donor.close_in_child()
        if self._group_sockets is not None:
            sockets.close_in_child(*self._group_sockets)


def _answers(member: Published) -> bool:
    return answers_probe((member.host, member.data_port), PROBE_TIMEOUT_SECONDS)
