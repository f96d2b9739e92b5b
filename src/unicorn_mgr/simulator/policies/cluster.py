"""Which nodes are there, and which slot belongs to which job: no slot ever has two owners."""

from __future__ import annotations

Place = tuple[int, int]
"""(node, slot)"""

Seat = tuple[int, int]
"""(number of a job, number of its seat)"""


class Cluster:
    """Slots of nodes that come and go."""

    def __init__(self, nodes: int, slots: int) -> None:
        self.slots = slots
        self.free = nodes * slots
        """Healthy slots that belong to nobody."""
        self._owners: list[list[Seat | None]] = [[None] * slots for _ in range(nodes)]
        self._free_of: dict[int, int] = dict.fromkeys(range(nodes), slots)
        """By node that is up and has any."""
        self._down: set[int] = set()

    @property
    def up(self) -> int:
        """Slots of nodes that are there."""
        return (len(self._owners) - len(self._down)) * self.slots

    def is_up(self, node: int) -> bool:
        """Whether it is there."""
        return node not in self._down

    def owner(self, place: Place) -> Seat | None:
        """Whose seat is there."""
        node, slot = place
        return self._owners[node][slot]

    def owners(self, node: int) -> list[Seat]:
        """Everybody's seats on a node."""
        return [seat for seat in self._owners[node] if seat is not None]

    def take(self, seats: list[Seat]) -> list[Place]:
        """Free slots for these seats: of the emptiest nodes first, so that few jobs share one."""
        assert len(seats) <= self.free
        places: list[Place] = []
        for node in sorted(self._free_of, key=lambda n: (-self._free_of[n], n)) if seats else ():
            for slot, owner in enumerate(self._owners[node]):
                if owner is None and len(places) < len(seats):
                    self._owners[node][slot] = seats[len(places)]
                    self._count(node, -1)
                    places.append((node, slot))
            if len(places) == len(seats):
                break
        return places

    def give(self, place: Place) -> None:
        """A slot belongs to nobody any more."""
        node, slot = place
        assert self._owners[node][slot] is not None
        self._owners[node][slot] = None
        self._count(node, 1)

    def renumber(self, place: Place, seat: Seat) -> None:
        """The same job has it as another of its seats."""
        node, slot = place
        before = self._owners[node][slot]
        assert before is not None
        assert before[0] == seat[0]
        self._owners[node][slot] = seat

    def fail(self, node: int) -> list[Seat]:
        """A node is gone; whose seats were there."""
        lost = self.owners(node)
        self.free -= self._free_of.pop(node, 0)
        self._owners[node] = [None] * self.slots
        self._down.add(node)
        return lost

    def heal(self, node: int) -> None:
        """It is back, and belongs to nobody."""
        self._down.remove(node)
        self._free_of[node] = self.slots
        self.free += self.slots

    def _count(self, node: int, more: int) -> None:
        left = self._free_of.get(node, 0) + more
        if left:
            self._free_of[node] = left
        else:
            self._free_of.pop(node, None)
        self.free += more
