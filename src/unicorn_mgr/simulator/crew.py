"""One job of a simulated fleet: what it has done, how fast it goes, and what it loses when members die.

Steps are an interval: work grows at the rate of the present members until something happens.  What follows from
healing's rules is what survivors keep: of the open step all but the share of whoever is gone, and, when nobody is
left, the newest snapshot in memory, or the newest checkpoint in storage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.model import Epoch
from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.scenario import Work


@dataclass(frozen=True, slots=True)
class Reuse:
    """What of a job outlives a fault; all of it, unless an ablation leaves something out."""

    partial: bool = True
    """The micro-batches of the open step that survivors have computed."""
    live: bool = True
    """The state of survivors; without it everybody begins from a checkpoint."""
    snapshots: bool = True
    """The state after every step, in the memory of a second node."""


@dataclass(slots=True, eq=False)
class Process:
    """A worker, from its order to its end."""

    name: str
    job: str
    node: int
    slot: int
    seat: int
    ready: bool = False
    alive: bool = True
    has_state: bool = False
    hung: bool = False
    retiring: bool = False
    leaving: bool = False


@dataclass(slots=True, eq=False)
class Host:
    """A node."""

    number: int
    up: bool = True
    lives: int = 1
    slowness: float = 1.0
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the core knows it; sorts as its number does."""
        return f"node-{self.number:06d}"


@dataclass(slots=True, eq=False)
class Crew:
    """The processes of a job, and their work."""

    work: Work
    reuse: Reuse
    history: History
    began: float
    """When the scenario begins, in virtual time: what was before is not its history."""
    processes: dict[str, Process] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    epoch: Epoch = field(default_factory=Epoch)
    doing: Doing = Doing.WAITING
    cause: str = ""
    suspends: bool = False
    standing: bool = False
    done: float = 0.0
    """FLOP."""
    stored: float = 0.0
    """FLOP, as of the newest checkpoint in storage."""
    rate: float = 0.0
    slots: int = 0
    places: set[tuple[str, int]] = field(default_factory=set)
    """What it has been given."""
    resumed_at: float = 0.0
    _since: float = 0.0
    _told: tuple[Doing, int, float, str] = (Doing.WAITING, -1, 0.0, "")

    @property
    def name(self) -> str:
        """Of the job."""
        return self.work.name

    @property
    def step(self) -> int:
        """The last one that is finished; -1: none."""
        return int(self.done // self.work.step_flops + 1e-9) - 1

    @property
    def step_seconds(self) -> float:
        """At the present pace; 0: it does not train."""
        return self.work.step_flops / self.rate if self.rate else 0.0

    def living(self) -> list[Process]:
        """Members that are there."""
        found = (self.processes.get(name) for name in self.members)
        return [p for p in found if p is not None and p.alive]

    def advance(self, now: float) -> None:
        """Work up to now."""
        gained = self.rate * (now - self._since)
        self._since = now
        if gained:
            self.done += gained
            every = self.work.checkpoint_seconds * self.rate
            if every:
                self.stored = max(self.stored, self.done - (now - self.resumed_at) * self.rate % every)

    def until_step_ends(self) -> float:
        """Seconds."""
        return (self.work.step_flops - self.done % self.work.step_flops) / self.rate if self.rate else 0.0

    def becomes(self, now: float, doing: Doing, cause: str | None = None, rate: float = 0.0) -> None:
        """From now on it does this."""
        self.advance(now)
        if doing is Doing.TRAINING and self.doing is not Doing.TRAINING:
            self.resumed_at = now
        self.doing, self.rate = doing, rate
        if cause is not None:
            self.cause = cause
        told = (doing, self.slots, rate, self.cause)
        if told != self._told:
            self._told = told
            self.history.becomes(max(0.0, now - self.began), self.name, doing, self.slots, rate, self.cause)

    def loses(self, now: float, gone: int) -> None:
        """Of the replicas that the open step is held by so many are gone."""
        self.advance(now)
        replicas = max(1, len(self.members) // self.work.replica)
        open_work = self.done % self.work.step_flops
        share = min(1.0, gone / replicas) if self.reuse.partial else 1.0
        self._repeats(now, open_work * share)

    def begins_anew(self, now: float) -> None:
        """Nobody has the state any more."""
        self.advance(now)
        kept = self.stored
        if self.reuse.snapshots:
            finished = self.done - self.done % self.work.step_flops
            kept = max(kept, finished - self.work.step_flops)
        self._repeats(now, self.done - max(0.0, kept))

    def stores(self, now: float) -> None:
        """All of it is in storage."""
        self.advance(now)
        self.stored = self.done

    def _repeats(self, now: float, flop: float) -> None:
        self.done -= flop
        self.history.repeat(max(0.0, now - self.began), self.name, flop, self.cause)
