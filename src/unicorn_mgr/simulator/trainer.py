"""One simulated training process: what it holds, and what it has heard.

It follows the healing protocol as the training library's loop does (`worker/engine.py`): holdings are published
when a newer epoch is heard, at the next place where the loop looks; the deal is the real one.  Where the library
has gradients, it has the numbers of the micro-batches in them: a sum is right if it has each number once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_mgr.messages import Attached, Fact, GiveUp, Granted, Sample
from unicorn_mgr.model import INITIAL, NO_STATE, Epoch, Holdings, Mark, WorkerName
from unicorn_mgr.phases import Phase
from unicorn_mgr.simulator.workload import Workload

if TYPE_CHECKING:
    from unicorn_mgr.simulator.machine import Machine

Sum = tuple[int, ...]
"""The micro-batches in a reduced bucket."""


@dataclass(eq=False, slots=True)
class Trainer:
    """A process on a slot."""

    name: str
    machine: Machine
    workload: Workload
    pid: int
    slowness: float = 1.0
    """How many times longer than it should its slot takes."""
    alive: bool = True
    hung: bool = False
    stopped: bool = False
    """By a signal, or with its whole machine."""
    welcome: Attached | None = None
    ready: bool = False
    granted: Granted | None = None
    """The newest epoch heard of."""
    published: Epoch = field(default_factory=Epoch)
    """The newest one that it has told its holdings for."""
    formed: Epoch = field(default_factory=Epoch)
    """The newest one that it has met the others in."""
    phase: Phase = Phase.STARTING
    """Where it is, while it computes nothing."""
    moved_at: float = 0.0
    """When its ring was written last, as far as `phase` is concerned."""
    applied: int = NO_STATE
    held: Sum = ()
    todo: Sum = ()
    began: float = 0.0
    """When it began with `todo`."""
    busy_until: float = 0.0
    """Inside the user's update, until then."""
    reduced: list[Sum | None] = field(default_factory=list)
    """Per bucket of the open step, the sum, where it is here."""
    kept: list[Sum] = field(default_factory=list)
    """Per bucket of the step `applied`."""
    retiring: bool = False
    give_up: GiveUp | None = None
    dirty: bool = False
    """It has been through a step whose outcome it has lost."""
    over: bool = False
    """It has come to the end of its loop, or has left it."""
    still: tuple[Phase, float] | None = None
    """Where and since when it makes no progress, hung or stopped."""
    told: dict[type[Fact], Fact] = field(default_factory=dict)
    """Newest of each kind, for an agent that begins anew."""

    @property
    def job(self) -> str:
        """Whose it is."""
        return self.name.rpartition("/")[0]

    @property
    def seat(self) -> int:
        """Which of the job's it fills."""
        return WorkerName.parse(self.name).seat

    @property
    def acts(self) -> bool:
        """Its main thread runs."""
        return self.alive and not self.hung and not self.stopped

    @property
    def heard(self) -> Epoch:
        """The newest epoch heard of."""
        return self.granted.epoch if self.granted is not None else Epoch()

    @property
    def seconds(self) -> float:
        """A micro-batch takes here."""
        return self.workload.micro_batch_seconds * self.slowness

    # -- the open step -------------------------------------------------------------------

    @property
    def computed_at(self) -> float:
        """When it will have computed its share of the open step."""
        return max(self.began, self.busy_until) + len(self.todo) * self.seconds

    def done_at(self, now: float) -> int:
        """How many of `todo` it has computed by then."""
        passed = now - max(self.began, self.busy_until)
        return max(0, min(len(self.todo), math.floor(passed / self.seconds + 1e-9)))

    def stop_here(self, now: float) -> None:
        """What has been computed is held, the rest is not begun."""
        self.held += self.todo[: self.done_at(now)]
        self.todo, self.began = (), now

    def go_on(self, now: float) -> None:
        """What has been computed is held, the rest takes its time from here."""
        done = self.done_at(now)
        self.held, self.todo, self.began = self.held + self.todo[:done], self.todo[done:], now

    def looks_at(self, now: float) -> float:
        """The next moment at which the loop looks for a newer epoch."""
        if now < self.busy_until:
            return self.busy_until
        if not self.todo or now >= self.computed_at or now < self.began:
            return now
        begun = max(self.began, self.busy_until) + self.done_at(now) * self.seconds
        return now if now - begun < 1e-9 else begun + self.seconds

    def open(self, todo: Sum, began: float) -> None:
        """Begin the step after `applied`."""
        self.held, self.todo, self.began = (), todo, began
        self.reduced = [None] * self.workload.buckets

    def lose_state(self) -> None:
        """Nothing that it has is of use any more."""
        self.applied, self.held, self.todo, self.reduced, self.kept = NO_STATE, (), (), [], []

    def holdings(self, stored: Mark | None) -> Holdings:
        """What it tells the others."""
        if self.applied == NO_STATE:
            return Holdings(NO_STATE, stored=stored)
        reduced = tuple(r is not None for r in self.reduced)
        return Holdings(self.applied, self.held, reduced, (True,) * len(self.kept))

    # -- as its ring tells it ------------------------------------------------------------

    def enter(self, phase: Phase, now: float) -> None:
        """It is there now, and waits."""
        self.phase, self.moved_at = phase, now

    def sample(self, now: float, step_seconds: float) -> Sample:
        """The newest record of its ring."""
        phase, moved, number = *self.place_at(now), -1
        if phase is Phase.COMPUTE and self.done_at(now) < len(self.todo):
            number = self.todo[self.done_at(now)]
        return Sample(
            self.name,
            counter=int(moved * 1000),
            epoch=self.published.number,
            step=max(self.applied, INITIAL) + 1,
            committed=self.applied - 1,
            micro_batch=number,
            phase=int(phase),
            quiet_seconds=max(0.0, now - moved),
            step_seconds=step_seconds,
            stopped=self.stopped,
        )

    def place_at(self, now: float) -> tuple[Phase, float]:
        """Where its main thread is, and since when."""
        if self.still is not None:
            return self.still
        if self.phase is not Phase.COMPUTE:
            return self.phase, self.moved_at
        if now < self.busy_until:
            return Phase.UPDATE, max(self.moved_at, self.busy_until - self.workload.update_seconds)
        if now < self.computed_at:
            begun = max(self.began, self.busy_until) + self.done_at(now) * self.seconds
            return Phase.COMPUTE, max(self.moved_at, begun)
        return Phase.REDUCE, max(self.moved_at, self.computed_at)
