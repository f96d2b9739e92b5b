"""One row's knapsack solved exactly, without a solver: a dynamic programme over what the bound leaves.

By the identity that heads `knapsack`, the best allocation is the one that loses least against the
bound, by its choices' losses and by slots left over.  A state is slots used so far, and the least loss
that leads there.  It is dropped once it must lose more than the room, and where another one uses no
more slots for no less value.  The room starts at a fraction of the gap that is known and grows until
something lies within it, whose best is the best of all: a core that is as small as the instance is
easy (Pisinger 1995, the multiple-choice knapsack).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from unicorn_mgr.planner.knapsack import Choices, Knapsack, Relaxation, nets

ROOM_FIRST = 1 / 1024
ROOM_GROWS = 2.0
STEPS_MAX = 2_000_000
"""States by options, over all jobs: some tenths of a second.  Beyond that an integer programme is quicker."""

STATES_BETWEEN_LOOKS = 256


class TooLarge(Exception):
    """It has more states than pay, or the time was up."""


class Option(NamedTuple):
    """A choice, seen from the bound."""

    loss: float
    size: int
    choice: int


class Way(NamedTuple):
    """How a state was reached."""

    loss: float
    before: Way | None
    choice: int
    """Of the choice of the job that came last."""


def best_of(
    knapsack: Knapsack, relaxed: Relaxation, known: float, stop: Callable[[], bool], row: int = 0
) -> list[int] | None:
    """The best allocation; None: no better one than of value `known`.  Raises TooLarge, also if `stop` says so.

    Of several rows only `row` is looked at, and the others must have no price.
    """
    whole = max(0.0, relaxed.bound - known)
    jobs = [_options(choices, relaxed.prices, whole, row) for choices in knapsack.jobs]
    search = _Search(knapsack.capacities[row], relaxed.prices[row], jobs, stop)
    room = whole * ROOM_FIRST
    while True:
        found = search.within(min(room, whole))
        if found is not None or room >= whole:
            return found
        room *= ROOM_GROWS


def _options(choices: Choices, prices: tuple[float, ...], room: float, row: int) -> list[Option]:
    """Those that may be in a better allocation, the one that loses nothing first."""
    mine = nets(choices, prices)
    best = max(mine)
    return sorted(
        Option(best - net, choices[i].size * (row in choices[i].rows), i)
        for i, net in enumerate(mine)
        if best - net <= room
    )


class _Search:
    """The dynamic programme, for a room at a time."""

    def __init__(self, capacity: int, price: float, jobs: Sequence[list[Option]], stop: Callable[[], bool]) -> None:
        self._capacity = capacity
        self._price = price
        self._jobs = jobs
        self._stop = stop
        self._steps = 0

    def within(self, room: float) -> list[int] | None:
        """The best allocation of those that lose no more than `room`."""
        jobs = [[o for o in options if o.loss <= room] for options in self._jobs]
        # Who has few options comes first: states multiply late.
        order = sorted(range(len(jobs)), key=lambda j: (len(jobs[j]), j))
        lightest = _after([min(o.size for o in jobs[j]) for j in order])
        heaviest = _after([max(o.size for o in jobs[j]) for j in order])
        states: dict[int, Way] = {0: Way(0.0, None, 0)}
        for j, light, heavy in zip(order, lightest, heaviest, strict=True):
            states = self._extended(states, jobs[j], room, self._capacity - light, self._capacity - heavy)
        if not states:
            return None
        slots = min(states, key=lambda s: states[s].loss + self._price * (self._capacity - s))
        chosen = [0] * len(jobs)
        way: Way | None = states[slots]
        for j in reversed(order):
            assert way is not None
            chosen[j] = way.choice
            way = way.before
        return chosen

    def _extended(
        self, states: dict[int, Way], options: list[Option], room: float, most: int, least: int
    ) -> dict[int, Way]:
        """After one job more.  With over `most` slots the others don't fit, below `least` some stay unused."""
        self._steps += len(states) * len(options)
        if self._steps > STEPS_MAX:
            raise TooLarge
        price = self._price
        found: dict[int, Way] = {}
        for number, (before, way) in enumerate(states.items()):
            if number % STATES_BETWEEN_LOOKS == 0 and self._stop():
                raise TooLarge
            for loss, size, choice in options:
                total, slots = way.loss + loss, before + size
                if total > room:
                    break
                if slots > most or (slots < least and total + price * (least - slots) > room):
                    continue
                other = found.get(slots)
                if other is None or total < other.loss:
                    found[slots] = Way(total, way, choice)
        return _undominated(found, price)


def _undominated(states: dict[int, Way], price: float) -> dict[int, Way]:
    """Without states that are worth no more than one of fewer slots."""
    kept: dict[int, Way] = {}
    best = -float("inf")
    for slots in sorted(states):
        worth = price * slots - states[slots].loss
        if worth > best:
            best = worth
            kept[slots] = states[slots]
    return kept


def _after(sizes: Sequence[int]) -> list[int]:
    """Per job, the sum over all later ones."""
    return list(accumulate(reversed(sizes), initial=0))[-2::-1]
