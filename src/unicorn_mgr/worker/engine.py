"""The training loop's side of the protocol: what is held, what is done next.

Theory of operation
-------------------
The main thread runs the user's code and calls in here at five places: the head of the loop
(`head`), the next micro-batch (`take`), a finished backward (`hold`), and the end of a turn
(`finish`).  Only at these places is a newer membership acted on.

A *turn* is one run through the body of the user's loop.  Usually it applies one step.  It
is *void* if what it does will be overwritten: the rehearsal of a joiner, or the turn of a
member whose missing buckets nobody has kept.  A void turn ends without a step, and the
worker then has no state (`NO_STATE`) until it has received one at the next head.

When a newer epoch is heard: reductions under way are abandoned, holdings are published and
frozen, the group is built, everybody derives the same deal, and this member does its part
of it (`_carry_out`), at once inside a step, or at the next head if it is late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from unicorn_mgr.model import INITIAL, NO_STATE, Epoch, Holdings, WorkerName
from unicorn_mgr.phases import Phase
from unicorn_mgr.ring import RingWriter
from unicorn_mgr.transition.deal import Deal, LateBuckets, LateState, deal, standstill
from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.buckets import Bucket
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.exchange import Broken, Exchange, Overtaken
from unicorn_mgr.worker.loop import Founder, FreshStartNeeded, LoopSettings
from unicorn_mgr.worker.membership import Formation, Membership
from unicorn_mgr.worker.opened import Opened
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.reports import Reports, odd_among
from unicorn_mgr.worker.shares import Owners, Turn, next_share, turns
from unicorn_mgr.worker.siblings import Siblings
from unicorn_mgr.worker.source import Endless
from unicorn_mgr.worker.state import Packed, Progress
from unicorn_mgr.worker.stopwatch import Stopwatch
from unicorn_mgr.worker.tail import Totals
from unicorn_mgr.worker.unison import Unison


class Engine:
    """One worker's part in completing steps."""

    def __init__(
        self,
        membership: Membership,
        replica: Replica,
        settings: LoopSettings,
        ring: RingWriter,
        drills: Drills,
        founder: Founder,
        siblings: Siblings,
    ) -> None:
        self.membership = membership
        self.place = siblings.place
        self.replica = replica
        self.settings = settings
        self.ring = ring
        self.drills = drills
        self.applied = NO_STATE
        self.ends_after = -1
        self._stands_after: int | None = None
        self.on_standing: Callable[[], None] = lambda: None
        self.generation = 0
        self.committed = NO_STATE
        self.dirty = False
        """The objects of this process have been through a void turn."""
        self.void = False
        self.totals: Totals | None = None
        self.votes_to_stop = False
        self.broken = ""
        """Why this process can't go on, if it can't."""
        self.count: int | None = None
        self.on_commit: Callable[[int], None] = lambda _: None
        self.on_disowned: Callable[[], None] = lambda: None
        self.watch = Stopwatch()
        self.reports = Reports(membership, replica.state.held_bytes)
        self._siblings = siblings
        self.unison = Unison(membership, siblings, self.reports)
        self.endless: dict[int, Endless] = {}
        """Sources that can't be addressed, by identity: they go on from step to step."""
        self._founder = founder
        self._held: list[int] = []
        self._todo: deque[Turn] = deque()
        self.opened = Opened(replica, settings.seed, siblings.place, ring)
        self._open = False
        self._turn_over = False
        self._owed: Exchange | None = None
        self._random_at_head = randomness.capture()
        self.newest_epoch = Epoch()
        self._owners = Owners()
        self._recomputed: list[int] = []
        self._redealt = False
        """Somebody was lost in the open step, and what is missing has been dealt again."""
        replica.gradients.on_ready = self._launch_ready

    # -- places in the loop --------------------------------------------------------------

    @property
    def step(self) -> int:
        """The open step."""
        return self.applied + 1

    @property
    def last_step(self) -> int | None:
        """The step after which the loop ends, None while that is open."""
        ends = [s for s in (self.ends_after, self.count - 1 if self.count is not None else -1) if s >= 0]
        if self.count == 0:
            return INITIAL
        return min(ends) if ends else None

    @property
    def over(self) -> bool:
        """The last step before the end, or a standstill, is applied; only the closing collective is left."""
        return self._is_over(self.applied)

    def _is_over(self, applied: int) -> bool:
        return any(s is not None and applied >= s for s in (self.last_step, self._stands_after))

    def head(self) -> bool:
        """At the head of the loop: catch up with the membership.  False: the loop has ended."""
        self._random_at_head = randomness.capture()
        self._turn_over = False
        self.drills.reach("head", self.step)
        while True:
            if (newer := self.unison.newer()) is not None:
                self._transit(newer)
            elif self._owed is not None and not self._lags(self._owed):
                self._carry_out(self._owed)
            elif self._owed is None and self.over:
                if self._close():
                    if self.last_step is not None and self.applied >= self.last_step:
                        return False
                    self.on_standing()
            else:
                if not self._open:
                    self._open_step(self._share(self.step) if self._owed is None else deque())
                return True

    def take(self, size: int = 1) -> tuple[Turn, ...]:
        """The next micro-batches to compute, `size` at once; none when the step is complete on this member."""
        while True:
            if self._turn_over:
                return ()
            if (newer := self.unison.newer()) is not None:
                self._transit(newer)
            elif self._owed is not None:
                self._carry_out_in_step(self._owed)
            elif self._todo:
                return self._yield(size)
            elif self._reduce():
                self._complete()
                return ()

    def expect_backward(self, last: bool = True, anew: bool = True) -> None:
        """A backward is about to run: if it is the last of its parameters', their buckets may go as they fill."""
        self.replica.gradients.expect(last and self.settings.overlap and not self._todo and not self.void, anew)

    def hold(self) -> None:
        """Backward of all that is open has returned: its gradients are in the local buffers."""
        self._held += self.opened.close()

    def finish(self) -> None:
        """The body of the user's loop has come to its end."""
        if self.void:
            self.applied, self.dirty, self.void = NO_STATE, True, False
            self.replica.forget()
        else:
            self.applied = self.step
            for bucket in self.replica.buckets:
                bucket.close()
            self._owners.deal_evenly(self._formation().members, self.settings.micro_batches)
            self.watch.step_ended()
            self.ring.set_step_seconds(self.watch.step_seconds)
            self.reports.resumed(self.applied, self._recomputed, self.watch, self.settings.exact)
        self._held, self._todo, self._open = [], deque(), False

    def upcoming(self) -> tuple[int, ...]:
        """Micro-batches of the open step that are still to be computed here, as far as is known."""
        return tuple(turn.number for turn in self._todo)

    def following(self) -> tuple[int, ...]:
        """Micro-batches of the next step, if the membership stays as it is."""
        return () if self.void else tuple(turn.number for turn in self._share(self.step + 1))

    # -- a void turn ---------------------------------------------------------------------

    def rehearse(self, step: int) -> None:
        """Begin a turn that nothing will remain of."""
        self.applied, self.void, self._turn_over = step - 1, True, False
        self.replica.open()
        self._todo = turns([0])
        self._open = True

    def take_rehearsed(self, size: int = 1) -> tuple[Turn, ...]:
        """As `take`, in a world of its own."""
        if self._todo:
            return self._yield(size)
        self.opened.leave()
        self.totals = self.replica.complete_alone()
        self.ring.write(Phase.UPDATE)
        return ()

    # -- a step --------------------------------------------------------------------------

    def _share(self, step: int) -> deque[Turn]:
        """This worker's micro-batches of `step`, if it begins in the present epoch."""
        formation = self._formation()
        return self._harmless(step, range(formation.rank, self.settings.micro_batches, len(formation.members)))

    def _harmless(self, step: int, numbers: Iterable[int]) -> deque[Turn]:
        """Without those that have killed too many workers: nobody computes them."""
        poison = self._formation().poison
        return turns((n for n in numbers if (step, n) not in poison), self.place.width, self.place.coordinate)

    def _open_step(self, todo: deque[Turn]) -> None:
        self.replica.open()
        self._held, self._todo, self._open = [], todo, True
        self._recomputed, self._redealt = [], False
        self.ring.sequence = 0
        self.watch.step_began()

    def _yield(self, size: int) -> tuple[Turn, ...]:
        self.opened.open(self.step, next_share(self._todo, size))
        self.drills.reach("rehearse" if self.void else "compute", self.step)
        if self._redealt:
            self.drills.reach("recompute", self.step)
        return self.opened.turns

    def _launch_ready(self) -> None:
        """A hook inside backward: launch what is ready.  Never raises."""
        if self.membership.overtaken() or self.void:
            return
        for bucket in self.replica.gradients.buckets[: self.replica.gradients.head()]:
            self._launch(bucket)

    def _launch(self, bucket: Bucket) -> None:
        if bucket.complete or bucket.operation is not None:
            return
        bucket.load()
        self.replica.gather(bucket, self._siblings)
        bucket.launch(self._formation().group)
        self.ring.sequence += 1

    def _reduce(self) -> bool:
        """Launch what is left and wait; True when every bucket is complete."""
        self.opened.leave()
        self.drills.reach("before_reduce", self.step)
        self.replica.seal(self.votes_to_stop, self._checksum_of_seat())
        buckets = self.replica.buckets
        for i, bucket in enumerate(buckets):
            self._launch(bucket)
            if i == 0 and self.drills.armed and self.membership.wait(buckets[0].settle):
                self.drills.reach("first_bucket", self.step)
        self.ring.write(Phase.REDUCE)
        self.drills.reach("in_reduce", self.step)
        return self._wait_for(buckets)

    def _wait_for(self, buckets: list[Bucket]) -> bool:
        """Until all are complete (True) or a newer epoch is heard (False)."""

        def ended() -> bool:
            return all(b.settle() for b in buckets) or any(b.operation and b.operation.error for b in buckets)

        self.membership.wait(ended)
        if self.unison.all_have(all(b.complete for b in buckets)):
            return True
        self.unison.news_after(next((b.operation.error for b in buckets if b.operation and b.operation.error), ""))
        return False

    def _complete(self) -> None:
        """Every bucket of the open step is complete: hand the gradient to the user."""
        self.drills.reach("reduced", self.step)
        self.totals = totals = self.replica.complete()
        if totals.stop:
            self.ends_after = self.step
        self._commit(self.step - 1)
        if len(set(totals.checksums.values())) > 1:
            self._differ(odd_among(totals.checksums))
        self._turn_over = True
        self.ring.step = self.step
        self.ring.write(Phase.UPDATE)
        self.drills.reach("optimizer", self.step)

    def _differ(self, odd: Collection[int]) -> None:
        """Replicas have different parameters; these are not what most have."""
        if self.place.position == 0:
            self.reports.checksums(self.step, odd, self.place.size)
        if WorkerName.parse(self._formation().me).seat // self.place.size in odd:
            self.on_disowned()

    def _close(self) -> bool:
        """The closing collective; False if a newer epoch was heard first."""
        formation = self._formation()
        self.ring.step = self.step
        self.ring.write(Phase.CLOSING)
        operation = formation.group.all_reduce(self.replica.closing_token())
        self.drills.reach("closing", self.step)
        self.membership.wait(lambda: operation.done)
        if not self.unison.all_have(operation.done and not operation.error):
            self.unison.news_after(operation.error)
            return False
        self._commit(self.applied)
        self.reports.resumed(self.applied, self._recomputed, self.watch, self.settings.exact)
        self.ring.write(Phase.ENDED)
        return True

    def _commit(self, step: int) -> None:
        """A collective of a later step has completed: `step` can't be lost by a fault any more."""
        self.committed = max(self.committed, step)
        self.ring.committed = self.committed
        self.on_commit(step)

    # -- a newer membership --------------------------------------------------------------

    def leaves(self) -> bool:
        """At the head of the loop: asked to leave, as a whole replica, and no member any more."""
        return not self.dirty and self.applied >= 0 and self.unison.leave(self.applied)

    def _transit(self, newer: Epoch) -> None:
        """Publish, connect, and derive the deal; `_owed` is then what this member has to do."""
        self.opened.leave()
        self.watch.fault_heard()
        self.ring.write(Phase.PUBLISH)
        for bucket in self.replica.buckets:
            bucket.abandon()
        self._owed, self.newest_epoch = None, newer
        self.membership.abandon()
        self.drills.reach("publish", self.step)
        formation = self.membership.form(newer, self._holdings())
        self.watch.formed()
        if formation is None:
            return
        self._keep_common(formation.holdings[formation.me])
        self.ring.sequence = 0
        self.drills.reach("deal", self.step)
        self._owed = Exchange(self.membership, formation, self._deal(formation), self._transferring)
        self.reports.formed(formation, self._owed.deal.voided)

    def _keep_common(self, held: Holdings) -> None:
        """What not all workers of the replica have none of them has."""
        if held.applied != self.applied:
            self._give_up_state()
        for bucket, complete in zip(self.replica.buckets, held.reduced, strict=False):
            bucket.complete = complete

    def _give_up_state(self) -> None:
        self.applied, self.dirty, self._open = NO_STATE, True, False

    def _transferring(self) -> None:
        self.ring.write(Phase.TRANSFER)

    def _holdings(self) -> Holdings:
        held = self.replica.holdings(self.applied, self._held if self._open else None)
        if self.applied > NO_STATE:
            return held
        self.ring.write(Phase.RESTORE)
        return self._founder.offer(held)

    def _deal(self, formation: Formation) -> Deal:
        top = max(h.applied for h in formation.holdings.values())
        self._stands_after = standstill(formation.holdings.values()) if formation.suspends else None
        if top > NO_STATE and self._is_over(top):
            return deal(formation.members, formation.holdings, 0, 0)
        return deal(formation.members, formation.holdings, self.settings.micro_batches, len(self.replica.buckets))

    def _carry_out_in_step(self, owed: Exchange) -> None:
        """This member's part of the deal, in the middle of a turn."""
        if isinstance(owed.route, LateState):
            self._void_turn()
        elif self._lags(owed):
            if self._together(lambda: self._catch_up(owed)):
                self._complete()
        else:
            self._together(lambda: self._exchange(owed))

    def _catch_up(self, owed: Exchange) -> None:
        self.ring.write(Phase.TRANSFER)
        owed.ask_late_buckets(self.replica.buckets)
        owed.wait()

    def _void_turn(self) -> None:
        """The rest of this turn will be overwritten; what is owed is done at the next head."""
        self.void = self._turn_over = True
        self.totals = self.replica.void(self.totals)
        self.ring.write(Phase.UPDATE)

    def _lags(self, owed: Exchange) -> bool:
        """One step late: the turn of that step comes first, then the rest of the deal."""
        return isinstance(owed.route, LateBuckets) and self.applied < owed.deal.step - 1

    def _carry_out(self, owed: Exchange) -> None:
        """This member's part of the deal, at the head of the loop."""
        done = self._together(lambda: self._prepare_and_exchange(owed))
        if not done and owed.deal.restored is not None and self.place.size > 1:
            self._give_up_state()  # perhaps a part of it is still missing, where memory can be asked again

    def _prepare_and_exchange(self, owed: Exchange) -> None:
        if isinstance(owed.route, LateState):
            self._take_state(owed)
        elif self.applied == NO_STATE:
            self._establish(owed)
        if not self.over and not self._open:
            self._open_step(deque())
        self._exchange(owed)

    def _together(self, part: Callable[[], None]) -> bool:
        """Do this worker's part of the deal; False unless its whole replica has done its own."""
        why: Overtaken | Broken | None = None
        try:
            part()
        except (Overtaken, Broken) as failed:
            why = failed
            if self._owed is not None and self._owed.torn:
                self.dirty = True
        if self.unison.all_have(why is None):
            return True
        self._owed = None
        self.unison.news_after(str(why) if isinstance(why, Broken) else "")
        return False

    def _exchange(self, owed: Exchange) -> None:
        """Give what others lack, take what is lacking here, accept the share of what is missing."""
        self.ring.write(Phase.TRANSFER)
        if owed.formation.me in owed.deal.voided:
            self._held = []
            self.replica.give_up_held()
        owed.offer_buckets(self.replica.buckets)
        founding = self.applied == INITIAL and self.reports.source == "initial"
        if owed.offer_state(self.packed, skippable=founding) and not founding:
            self.drills.reach("send_state", self.step)
        owed.ask_buckets(self.replica.buckets)
        owed.wait()
        self.watch.restored()
        self._todo = self._harmless(self.step, owed.deal.todo[owed.formation.me])
        held = {m: h.held for m, h in owed.formation.holdings.items() if h.applied == owed.deal.step - 1}
        mine = [turn.number for turn in self._todo if self.opened.counts(turn)]
        accounted = (*owed.formation.members, *owed.formation.left)
        self._recomputed, self._redealt = self._owners.redeal(accounted, held, owed.deal.todo, mine)
        self._owed = None

    def _take_state(self, owed: Exchange) -> None:
        self.ring.write(Phase.TRANSFER)
        mine = None if self.dirty or self.applied != NO_STATE else self._packed_as(INITIAL)
        self.applied = NO_STATE
        self.drills.reach("receive_state", owed.deal.step)
        packed = owed.take_state(self.replica.state, mine)
        self._begin_with("live", self.replica.state.adopt(packed) if packed is not None else None, self.generation)

    def _establish(self, owed: Exchange) -> None:
        """Nobody has any state: what memory or storage has, or this member's, becomes the job's."""
        self.ring.write(Phase.RESTORE)
        owed.torn = owed.deal.restored is not None
        origin = self._founder.restore(self.replica, owed.deal.restored, owed.deal.from_storage)
        if origin.progress is None and self.dirty:
            raise FreshStartNeeded
        owed.torn = False
        self._begin_with(origin.source, origin.progress, origin.generation)

    def _begin_with(self, source: str, progress: Progress | None, generation: int) -> None:
        """A state has come from there; or None has: the initial one is the job's."""
        found = progress or Progress(INITIAL, -1, generation)
        self.replica.forget()
        self.applied, self.ends_after, self.generation = found.applied, found.ends_after, found.generation
        self.dirty = self._open = False
        self._owners.forget()
        self._random_at_head = randomness.capture()
        self.watch.restored()
        size = self.packed().size_bytes if progress is not None else 0
        self.reports.restored(source if progress is not None else "initial", found.applied, size)

    def packed(self) -> Packed:
        """The state at the head of the open step, its tensors referred to and not copied."""
        return self._packed_as(self.applied)

    def _packed_as(self, applied: int) -> Packed:
        return self.replica.state.collect(Progress(applied, self.ends_after, self.generation), self._random_at_head)

    def _checksum_of_seat(self) -> tuple[int, int] | None:
        """This replica's checksum on a step that verifies, taken once per step."""
        every = self.settings.verify_every
        formation = self._formation()
        if every <= 0 or self.step == 0 or self.step % every != 0 or len(formation.members) == 1:
            return None
        return WorkerName.parse(formation.me).seat // self.place.size, self.replica.checksum_before(self.step)

    def _formation(self) -> Formation:
        formation = self.membership.formation
        assert formation is not None, "a step without a membership"
        return formation
