"""Who computes which micro-batch: shares of a step, in rounds that the workers of a replica make together.

A replica takes its micro-batches in rounds.  Along data-like axes its workers take different numbers of a
round, along the others the same one.  A round that is short is filled up: whoever has no number of its own
computes the first one again, without weight, so that collectives inside the replica stay in step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One micro-batch of this worker."""

    number: int
    round: tuple[int, ...]
    """What the replica holds once all its workers have done theirs."""
    counts: bool = True
    """False: it only keeps step with the others."""


def turns(numbers: Iterable[int], width: int = 1, coordinate: int = 0) -> deque[Turn]:
    """A replica's numbers, in order, as the turns of its worker at `coordinate` of `width`."""
    numbers = list(numbers)
    rounds = [tuple(numbers[i : i + width]) for i in range(0, len(numbers), width)]
    return deque(Turn(r[coordinate], r) if coordinate < len(r) else Turn(r[0], r, counts=False) for r in rounds)


def next_share(todo: deque[Turn], size: int) -> tuple[Turn, ...]:
    """Take `size` turns at once.  Where fewer are left the first one is made again and again, without weight."""
    share = [todo.popleft() for _ in range(min(size, len(todo)))]
    return (*share, *(Turn(share[0].number, (), counts=False) for _ in range(size - len(share))))


class Owners:
    """Who was to compute what of the open step, as far as is known here."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}

    def deal_evenly(self, members: Sequence[str], micro_batches: int) -> None:
        """A step begins with these members."""
        self._owners = {n: members[n % len(members)] for n in range(micro_batches)}

    def forget(self) -> None:
        """The state came from elsewhere."""
        self._owners = {}

    def redeal(
        self,
        accounted: Collection[str],
        held: Mapping[str, Sequence[int]],
        todo: Mapping[str, Sequence[int]],
        mine: Iterable[int],
    ) -> tuple[list[int], bool]:
        """After a change of members: which of `mine` were lost with somebody, and whether anybody was lost.

        `accounted` are the members, and whoever has left as it should before it began the step.
        """
        gone = set(self._owners.values()).difference(accounted)
        lost = [n for n in mine if self._owners.get(n) in gone]
        self._owners |= {n: m for m, numbers in held.items() for n in numbers}
        self._owners |= {n: m for m, numbers in todo.items() for n in numbers}
        return lost, bool(gone)
