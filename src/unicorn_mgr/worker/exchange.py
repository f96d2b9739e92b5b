"""Carrying out a deal: buckets and whole states move between members.

Only members that give or take have a part; the others go on.  Everything that is given is
offered first and everything that is wanted is asked for next, and only then does anybody
wait: whatever the order in which members come to it, nobody waits in a circle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from unicorn_mgr.transition.deal import Deal, LateBuckets, LateState
from unicorn_mgr.worker.buckets import Bucket
from unicorn_mgr.worker.membership import Formation, Membership
from unicorn_mgr.worker.state import Packed, ReplicaState
from unicorn_mgr.worker.transfer import Offer, Pull, bytes_of


class Overtaken(Exception):
    """A newer epoch was heard while something moved."""


class Broken(Exception):
    """A transfer failed, and no newer epoch has been heard yet."""


@dataclass(eq=False)
class Exchange:
    """What this member gives and takes in one epoch."""

    membership: Membership
    formation: Formation
    deal: Deal
    progressed: Callable[[], None] = lambda: None
    """Called when bytes have moved."""
    torn: bool = False
    """A state has begun to arrive over what was here."""
    _pulls: list[tuple[Pull, Callable[[], None]]] = field(default_factory=list)

    @property
    def route(self) -> LateBuckets | LateState | None:
        """How this member catches up; None if it is not late."""
        return self.deal.late.get(self.formation.me)

    # -- giving --------------------------------------------------------------------------

    def offer_buckets(self, buckets: Sequence[Bucket]) -> None:
        """What others lack and this member is the one to give."""
        me, late = self.formation.me, self.deal.late
        for b, bucket in enumerate(buckets):
            lag = sum(isinstance(r, LateBuckets) and r.sources[b] == me for r in late.values())
            self._offer(f"late/{b}", [bucket.reduced], lag)
            if b < len(self.deal.reduced) and self.deal.reduced[b] == me:
                self._offer(f"open/{b}", [bucket.reduced], sum(self._lacks(m, b) for m in self.formation.members))

    def offer_state(self, packed: Callable[[], Packed], skippable: bool) -> bool:
        """The whole state, to members that take it from this one; False if there is none.

        With `skippable` a taker whose own state is the same, bit by bit, declines.
        """
        me = self.formation.me
        takers = sum(isinstance(r, LateState) and r.source == me for r in self.deal.late.values())
        if takers:
            state = packed()
            checksum = state.checksum() if skippable else None
            header = json.dumps({**state.described(), "checksum": checksum})
            self._offer("state", state.tensors, takers, header.encode())
        return takers > 0

    def _offer(self, key: str, tensors: Sequence[torch.Tensor], takers: int, header: bytes = b"{}") -> None:
        donor = self.membership.donor
        if takers:
            assert donor is not None, "a world of one has nobody to give to"
            body = [bytes_of(t.detach().cpu().contiguous()) for t in tensors if t.numel()]
            donor.offer(key, Offer(header, body, takers))

    # -- taking --------------------------------------------------------------------------

    def ask_late_buckets(self, buckets: Sequence[Bucket]) -> None:
        """The sums of the step this member lags behind in."""
        assert isinstance(self.route, LateBuckets)
        for b, source in enumerate(self.route.sources):
            if source is not None:
                self._ask_bucket(buckets[b], source, f"late/{b}")

    def ask_buckets(self, buckets: Sequence[Bucket]) -> None:
        """The sums of the open step that somebody holds and this member lacks."""
        for b, source in enumerate(self.deal.reduced):
            if source not in (None, self.formation.me) and self._lacks(self.formation.me, b):
                assert source is not None
                self._ask_bucket(buckets[b], source, f"open/{b}")

    def take_state(self, state: ReplicaState, mine: Packed | None) -> Packed | None:
        """The whole state; None if it is bit by bit the same as `mine`.

        What is here is torn from the moment this begins until it returns.
        """
        assert isinstance(self.route, LateState)
        landing = Landing(state.homes(), mine.checksum() if mine is not None else None)

        def place(header: bytes) -> Sequence[memoryview] | None:
            views = landing.place(header)
            self.torn = self.torn or views is not None
            return views

        self._ask(self.route.source, "state", place, landing.land)
        self.wait()
        return landing.packed

    def _ask_bucket(self, bucket: Bucket, source: str, key: str) -> None:
        host = bucket.reduced if bucket.reduced.device.type == "cpu" else torch.empty_like(bucket.reduced, device="cpu")

        def landed() -> None:
            if host is not bucket.reduced:
                bucket.reduced.copy_(host)
            bucket.complete = True

        bucket.complete = bucket.kept = False
        self._ask(source, key, lambda _: [bytes_of(host)] if host.numel() else [], landed)

    def _ask(
        self,
        source: str,
        key: str,
        place: Callable[[bytes], Sequence[memoryview] | None],
        landed: Callable[[], None],
    ) -> None:
        f = self.formation
        pull = Pull(f.peers[source], (f.epoch, f.secret, key), place, self.membership.wake)
        self._pulls.append((pull, landed))

    # -- waiting -------------------------------------------------------------------------

    def wait(self) -> None:
        """Until all that was asked for has come and all that was offered is taken.

        Raises `Overtaken` or `Broken`; then nothing is being given or taken any more, and
        what had not come is not there.
        """
        pulls, self._pulls = self._pulls, []
        donor = self.membership.donor
        seen = 0

        def ended() -> bool:
            nonlocal seen
            moved = sum(p.moved_bytes for p, _ in pulls) + (donor.moved_bytes if donor is not None else 0)
            if moved != seen:
                seen = moved
                self.progressed()
            if any(p.error for p, _ in pulls):
                return True
            return all(p.done for p, _ in pulls) and (donor is None or donor.all_taken())

        reached = self.membership.wait(ended)
        for pull, _ in pulls:
            if not pull.done:
                pull.cancel()
        for pull, landed in pulls:
            if not pull.error:
                landed()
        if not reached:
            raise Overtaken
        failed = next((p.error for p, _ in pulls if p.error), "")
        if failed:
            raise Broken(failed)
        if donor is not None:
            donor.clear()

    def _lacks(self, member: str, bucket: int) -> bool:
        if member in self.deal.late:
            return True
        reduced = self.formation.holdings[member].reduced
        return bucket >= len(reduced) or not reduced[bucket]


class Landing:
    """Where an arriving state is put: in place where it fits, else in new tensors."""

    def __init__(self, homes: Mapping[str, torch.Tensor], checksum: int | None) -> None:
        self.packed: Packed | None = None
        self._homes = homes
        self._checksum = checksum
        self._staged: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._coming: Packed | None = None

    def place(self, header: bytes) -> Sequence[memoryview] | None:
        """In the pull's thread: buffers for what the header announces."""
        said = json.loads(header)
        if self._checksum is not None and said["checksum"] == self._checksum:
            return None
        device = next((t.device for t in self._homes.values() if t.device.type != "cpu"), torch.device("cpu"))
        tensors, views = [], []
        for name, dtype_name, shape, on_device in said["tensors"]:
            dtype = getattr(torch, dtype_name)
            home = self._homes.get(name)
            if home is None or home.dtype != dtype or list(home.shape) != shape:
                home = torch.empty(shape, dtype=dtype, device=device if on_device else "cpu")
            tensors.append(home)
            if home.numel():
                host = home if home.device.type == "cpu" else torch.empty(shape, dtype=dtype)
                views.append(bytes_of(host))
                if host is not home:
                    self._staged.append((home, host))
        self._coming = Packed(said["skeleton"], tuple(n for n, *_ in said["tensors"]), tuple(tensors))
        return views

    def land(self) -> None:
        """Everything has come."""
        with torch.no_grad():
            for home, host in self._staged:
                home.copy_(host)
        self.packed = self._coming
