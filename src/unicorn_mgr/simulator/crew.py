"""One job of a simulated fleet: what it has done, how fast it goes, and what it loses when members die.

Steps are an interval: work grows at the rate of the present members until something happens.  What follows from
healing's rules is what survivors keep: of the open step all but the share of whoever is gone, and, when nobody is
left, the newest snapshot in the memory of a node that is, or the newest checkpoint in storage.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    back_at: float = 0.0
    """If it is down."""
    slow: list[tuple[float, str]] = field(default_factory=list)
    """By what a step takes how many times longer."""
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
    memory: dict[int, dict[int, int]] = field(default_factory=dict)
    """By position in a replica, nodes with snapshots of that part, and which of their lives that was in."""
    unsaved_seconds: float = 0.0
    """Of training, since the newest checkpoint."""
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
        seconds, self._since = now - self._since, now
        gained = self.rate * seconds
        if gained:
            self.done += gained
            self.unsaved_seconds += seconds
            if self.unsaved_seconds >= self.work.checkpoint_seconds:
                self.unsaved_seconds %= self.work.checkpoint_seconds
                self.stored = max(self.stored, self.done - self.unsaved_seconds * self.rate)

    def until_step_ends(self) -> float:
        """Seconds."""
        return (self.work.step_flops - self.done % self.work.step_flops) / self.rate if self.rate else 0.0

    def becomes(self, now: float, doing: Doing, cause: str | None = None, rate: float = 0.0) -> None:
        """From now on it does this."""
        self.advance(now)
        self.doing, self.rate = doing, rate
        if cause is not None:
            self.cause = cause
        told = (doing, self.slots, rate, self.cause)
        if told != self._told and now >= self.began:
            self._told = told
            self.history.becomes(now - self.began, self.name, doing, self.slots, rate, self.cause)

    def loses(self, now: float, gone: int) -> None:
        """Of the replicas that the open step is held by so many are gone."""
        self.advance(now)
        replicas = max(1, len(self.members) // self.work.replica)
        open_work = self.done % self.work.step_flops
        share = min(1.0, gone / replicas) if self.reuse.partial else 1.0
        self._repeats(now, open_work * share)

    def begins_anew(self, now: float, *, from_memory: bool) -> None:
        """No member has the state any more."""
        self.advance(now)
        kept = self.stored
        if from_memory:
            finished = self.done - self.done % self.work.step_flops
            kept = max(kept, finished - self.work.step_flops)
        else:
            self.unsaved_seconds = 0.0
        self._repeats(now, self.done - max(0.0, kept))

    def remembers(self, hosts: Sequence[Host], domain_nodes: int) -> None:
        """Each member's node has snapshots of its part; of what is on one node alone, one of the next rack has, too."""
        self.memory = {}
        for process in self.living():
            homes = self.memory.setdefault(process.seat % self.work.replica, {})
            homes[process.node] = hosts[process.node].lives
        for homes in self.memory.values():
            if len(homes) == 1:
                first = min(homes) + max(1, domain_nodes)
                turn = (hosts[(first + i) % len(hosts)] for i in range(len(hosts)))
                peer = next((host for host in turn if host.up and host.number not in homes), None)
                if peer is not None:
                    homes[peer.number] = peer.lives

    def copies_again(self, hosts: Sequence[Host], domain_nodes: int) -> None:
        """What nodes had that are lost now is copied to others, if the job trains on."""
        lost = any(hosts[n].lives != lives for homes in self.memory.values() for n, lives in homes.items())
        if lost and self.doing is Doing.TRAINING:
            self.remembers(hosts, domain_nodes)

    def is_in_memory(self, hosts: Sequence[Host]) -> bool:
        """Of every part there are snapshots on a node that has not been lost since."""
        return all(any(hosts[n].lives == lives for n, lives in homes.items()) for homes in self.memory.values())

    def stores(self, now: float) -> None:
        """All of it is in storage."""
        self.advance(now)
        self.stored, self.unsaved_seconds = self.done, 0.0

    def _repeats(self, now: float, flop: float) -> None:
        self.done -= flop
        if now >= self.began:
            self.history.repeat(now - self.began, self.name, flop, self.cause)
