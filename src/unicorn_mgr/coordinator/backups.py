"""Second copies of a job's snapshots in memory: what is known of them, and what each fact changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from unicorn_mgr.effects.coordinator import BackupsPlaced, CopiesReleased
from unicorn_mgr.model import Epoch

HOMES_MAX = 4
"""Nodes on which a part has been that are remembered."""
DISOWNED_MAX = 256


@dataclass(slots=True)
class Backups:
    """Of one job."""

    shape: str = ""
    """Of the job's replicas."""
    epoch: Epoch = field(default_factory=Epoch)
    """The membership that they were placed for."""
    sources: dict[int, str] = field(default_factory=dict)
    """By position, the worker whose snapshots are copied."""
    peers: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By position, the node that keeps its copy, and the port there."""
    keepers: int = 0
    """Nodes that there were to choose from."""
    reason: str = ""
    """Why it is not as safe as it could be."""
    step: int = -1
    """The last one of which all parts have their copies."""
    gone_until: int = -1
    """Of this step, and of those before it, some copies are gone."""
    shaken: bool = False
    """Some are gone, perhaps of steps that nobody has told of yet."""
    disowned: list[str] = field(default_factory=list)
    """Workers whose state was not that of most replicas: of their snapshots there may be no copies."""
    older: list[tuple[str, int, str]] = field(default_factory=list)
    """(shape, position, node) of copies that stay until all parts have newer ones."""
    older_until: int = -1
    """Until copies of a later step than this are there."""
    homes: dict[int, list[str]] = field(default_factory=dict)
    """By position, nodes on which it has been last: their memory may have snapshots of it."""

    def heed(self, event: BackupsPlaced | CopiesReleased) -> None:
        """They lie elsewhere from now on; what moves away stays where it was until it is released."""
        if isinstance(event, CopiesReleased):
            self.older = []
            return
        moved = [(self.shape, p, node) for p, (node, _) in self.peers.items() if _node(event, p) != node]
        kept = [(of, p, node) for of, p, node in self.older if of != self.shape or _node(event, p) != node]
        self.older = list(dict.fromkeys([*kept, *moved]))
        self.older_until = self.step if moved else self.older_until
        self.epoch, self.sources, self.peers = event.epoch, event.sources, event.peers
        self.keepers, self.reason = event.keepers, event.reason
        self.step = self.step if self.sources else -1

    def told(self, step: int) -> None:
        """Of this step workers know that all its parts have been copied, but not whether they are there still."""
        if self.shaken:
            self.gone_until, self.shaken = step, False
        self.step = max(self.step, self.counting(step)) if self.sources else -1

    def counting(self, step: int) -> int:
        """A step that workers tell of, if its copies are known to be there still."""
        return step if step > self.gone_until and not self.shaken else -1

    def go_back(self, committed: int) -> None:
        """The job goes on after this step."""
        self.step, self.gone_until = min(self.step, committed), min(self.gone_until, committed)

    def lose(self, node: str) -> None:
        """What this node has had is gone."""
        if any(peer == node for peer, _ in self.peers.values()):
            self.step, self.shaken = -1, True

    def disown(self, workers: Sequence[str]) -> None:
        """Their state is not that of most replicas."""
        self.disowned = [*self.disowned, *workers][-DISOWNED_MAX:]
        if not set(workers).isdisjoint(self.sources.values()):
            self.step, self.shaken = -1, True

    def nodes(self) -> list[str]:
        """All whose memory may have snapshots of the job."""
        homes = (node for nodes in self.homes.values() for node in nodes)
        peers = (node for node, _ in self.peers.values())
        return sorted({*homes, *peers, *(node for _, _, node in self.older)})

    def change_shape(self, shape: str) -> None:
        """Its parts are others from now on; those that were stay, as all that moves away."""
        peers = [(self.shape, p, node) for p, (node, _) in self.peers.items()]
        homes = [(self.shape, p, node) for p, nodes in self.homes.items() for node in reversed(nodes)]
        self.older = list(dict.fromkeys([*self.older, *homes, *peers]))
        self.shape, self.older_until, self.epoch = shape, self.step, Epoch()
        self.sources, self.peers, self.homes, self.reason = {}, {}, {}, ""

    def at_home(self, position: int, node: str) -> None:
        """A member on this node has the part, and will have snapshots of it."""
        homes = [home for home in self.homes.get(position, ()) if home != node]
        self.homes[position] = [*homes, node][-HOMES_MAX:]

    def nodes_with(self, shape: str, position: int) -> Iterator[str]:
        """Nodes whose memory may have snapshots of a part of a replica of this shape, each once."""
        found = [node for of, p, node in self.older if (of, p) == (shape, position)]
        if shape == self.shape:
            peer = (self.peers[position][0],) if position in self.peers else ()
            found = [*reversed(self.homes.get(position, [])), *peer, *found]
        yield from dict.fromkeys(found)


def _node(event: BackupsPlaced, position: int) -> str:
    return event.peers.get(position, ("", 0))[0]
