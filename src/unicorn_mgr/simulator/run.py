"""The steps of one epoch whose members have met.

Undisturbed, steps follow each other like the ticks of a clock: only the open one is kept, and caught up with when
somebody looks (`advance`).  Whatever disturbs it (`disturb`) settles who has seen which bucket reduced; from then
on each member has only its own share to compute, and waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from unicorn_mgr.model import Epoch
from unicorn_mgr.simulator.checkers import Applied
from unicorn_mgr.simulator.timeline import Timeline
from unicorn_mgr.simulator.trainer import Sum, Trainer
from unicorn_mgr.simulator.workload import Workload

SEEN_REDUCED = 0.5
"""Chance that a member has seen a bucket reduced which others wait for when they are disturbed."""

MOMENT = 1e-9
"""Seconds that sums of floats differ by."""


@dataclass(eq=False, slots=True)
class Run:
    """An epoch that trains."""

    epoch: Epoch
    members: tuple[Trainer, ...]
    poison: frozenset[tuple[int, int]]
    workload: Workload
    time: Timeline
    chance: Random
    happens: Callable[[Applied], None]
    ready: set[str] = field(default_factory=set)
    """Members that have done their part of the deal."""
    broken: bool = False
    """The open step is not finished in this epoch, or only by some."""
    severed: bool = False
    """Its members' connections are gone."""
    resumed: bool = False
    """Its members have told of the first step that they have finished in it."""
    stands_after: int | None = None
    """All stand still after this step."""
    appointment: int = 0
    """Number of the newest."""

    @property
    def going(self) -> bool:
        """Its steps follow each other."""
        return not self.broken and len(self.ready) == len(self.members)

    @property
    def applied(self) -> int:
        """The last step that all have applied, while it is going."""
        return self.members[0].applied

    @property
    def last_step(self) -> int:
        """After which nobody begins another."""
        last = self.workload.steps - 1
        return last if self.stands_after is None else min(last, self.stands_after)

    @property
    def pace(self) -> float:
        """Seconds a step takes from now on."""
        w, count = self.workload, len(self.members)
        shares = (len(range(i, w.micro_batches, count)) * t.seconds for i, t in enumerate(self.members))
        return max(shares) + w.reduce_seconds + w.update_seconds

    def over(self, applied: int) -> bool:
        """The end, or a standstill, is reached."""
        return applied >= self.last_step

    def share(self, rank: int, step: int) -> Sum:
        """A member's micro-batches of a step that begins in this epoch."""
        numbers = range(rank, self.workload.micro_batches, len(self.members))
        return tuple(n for n in numbers if (step, n) not in self.poison)

    def ends_at(self) -> float:
        """When the open step is applied everywhere."""
        return self._reduces_at()[1] + self.workload.update_seconds

    def _reduces_at(self) -> tuple[float, float]:
        """When the open step is computed everywhere, and when it is reduced."""
        computed = max(t.computed_at for t in self.members)
        lacking = any(None in t.reduced for t in self.members)
        return computed, computed + (self.workload.reduce_seconds if lacking else 0.0)

    def advance(self) -> None:
        """Catch up with the steps that have been finished by now."""
        while self.going and not self.over(self.applied):
            ends = self.ends_at()
            if ends > self.time.now + MOMENT:
                return
            self._reduce()
            for rank, trainer in enumerate(self.members):
                self.apply(trainer, self.share(rank, trainer.applied + 2), ends)
            self._skip_ahead()

    def _skip_ahead(self) -> None:
        """Whole steps that are like the one before, at once; not those in which something is skipped."""
        first, ends, pace = self.applied + 1, self.ends_at(), self.pace
        limit = min([self.last_step, *(step for step, _ in self.poison if step >= first)])
        count = min(int((self.time.now + MOMENT - ends) / pace) + 1, limit - first)
        if count <= 0 or ends > self.time.now:
            return
        self._reduce()
        for rank, trainer in enumerate(self.members):
            trainer.kept = [found for found in trainer.reduced if found is not None]
            trainer.applied += count
            trainer.open(self.share(rank, trainer.applied + 1), ends + (count - 1) * pace)

    def _total(self) -> Sum:
        return tuple(n for t in self.members for n in (*t.held, *t.todo))

    def _reduce(self) -> None:
        """All buckets that nobody has reduced are, over all that is held."""
        total = self._total()
        for trainer in self.members:
            trainer.reduced = [total if found is None else found for found in trainer.reduced]

    def apply(self, trainer: Trainer, todo: Sum, at: float) -> None:
        """The user's update, until then; the next step is begun."""
        step = trainer.applied + 1
        sums = tuple(found for found in trainer.reduced if found is not None)
        skipped = frozenset(n for s, n in self.poison if s == step)
        self.happens(Applied(trainer, step, sums, skipped))
        trainer.applied, trainer.kept = step, list(sums)
        trainer.open(todo, at)
        trainer.busy_until = at

    def disturb(self) -> None:
        """Somebody is gone, stands still, or acts on a newer epoch."""
        self.advance()
        if self.broken:
            return
        was_going, self.broken = self.going, True
        if not was_going or self.over(self.applied):
            return
        now, total = self.time.now, self._total()
        computed, reduced = self._reduces_at()
        if now < computed:
            return
        for rank, trainer in enumerate(self.members):
            for bucket, found in enumerate(trainer.reduced):
                if found is None and (now >= reduced or self.chance.random() < SEEN_REDUCED):
                    trainer.reduced[bucket] = total
            if None not in trainer.reduced:
                ends = max(now, reduced) + self.workload.update_seconds
                self.apply(trainer, self.share(rank, trainer.applied + 2), ends)
