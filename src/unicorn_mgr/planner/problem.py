"""What a placement policy is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

Place = tuple[str, int]
"""(node, slot)"""


@dataclass(frozen=True, slots=True)
class Demand:
    """One job's wish.  Jobs come in order of submission."""

    job: str
    size_min: int
    size_max: int
    weight: float
    seats: Mapping[int, Place] = field(default_factory=dict)
    """What it has."""
    barred: frozenset[int] = frozenset()
    """Seats that must not be filled again."""
    occupied: frozenset[int] = frozenset()
    """Seats that still have a living worker, wherever it is."""
    may_grow: bool = True
    """False while it is not known yet whether a silent node of it comes back."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Slots that may be used, and who wants them."""

    places: tuple[Place, ...]
    """Sorted.  A seat on a place that is not here has to move."""
    demands: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Per job: its seats, and why it has these and no more."""

    seats: Mapping[str, Mapping[int, Place]]
    reasons: Mapping[str, str]


class Policy(Protocol):
    """Decides.  Pure: the same problem has the same plan."""

    def solve(self, problem: Problem) -> Plan:
        """A plan in which no place has two owners, and no job begins with less than its minimum.

        One that runs keeps what is left of it: its survivors go on.
        """
