"""T(job, x): how much useful work a job does per second on each number of slots it may have.

Better sources lie over weaker ones.  Where the better one knows some sizes only, the others are
the weaker one's, scaled by how far it is off at the nearest size that both know: what makes one
job faster than described (its kernels, its network, its data) acts at all sizes nearly alike,
and most at like sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from unicorn_mgr.profiles.predict import staircase, throughput
from unicorn_mgr.profiles.problem import ProfileError
from unicorn_mgr.profiles.shape import ModelShape
from unicorn_mgr.profiles.sizes import Sizes

Source = Literal["measured", "given", "predicted"]

HOLES_SHOWN = 3
ROUNDING = 1e-9
"""Relative: less than this is no loss of throughput."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Of one size."""

    flops: float
    """Useful FLOP/s of all slots together."""
    source: Source


@dataclass(frozen=True)
class Profile:
    """Useful FLOP/s by size.  Sizes that are not in it do no work at all."""

    entries: Mapping[int, Entry]
    """Ascending by size."""

    def __post_init__(self) -> None:
        """Nobody changes a profile that others hold."""
        object.__setattr__(self, "entries", MappingProxyType(dict(sorted(self.entries.items()))))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those that the job may have, ascending."""
        return tuple(self.entries)

    def at(self, size: int) -> float:
        """FLOP/s on exactly so many slots, 0 if the job may not have so many."""
        entry = self.entries.get(size)
        return entry.flops if entry else 0.0

    def source(self, size: int) -> Source | None:
        """Where the figure is from; None if the job may not have so many."""
        entry = self.entries.get(size)
        return entry.source if entry else None

    @cached_property
    def rising(self) -> tuple[tuple[int, float], ...]:
        """(size, FLOP/s) without sizes that do no more than a smaller one."""
        found: list[tuple[int, float]] = []
        for size, entry in self.entries.items():
            if not found or entry.flops > found[-1][1] * (1 + ROUNDING):
                found.append((size, entry.flops))
        return tuple(found)

    def best(self, slots: int) -> int:
        """The size with the most throughput that so many slots allow, the smallest of equals; 0 if none."""
        fitting = [size for size in self.entries if size <= slots]
        return max(fitting, key=lambda size: (self.at(size), -size), default=0)


# -- sources --------------------------------------------------------------------------------


def predicted(shape: ModelShape, sizes: Sizes, slots: int) -> Profile:
    """What a model of a step says, for sizes of up to so many slots."""
    return Profile({size: Entry(throughput(shape, size), "predicted") for size in sizes.up_to(slots)})


def proportional(micro_batches: int, sizes: Sizes, slots: int, flops_per_slot: float = 1.0) -> Profile:
    """Where nothing is known of the model: as many replicas' work as the micro-batches keep busy."""
    busy = {size: sizes.replica * staircase(micro_batches, size // sizes.replica) for size in sizes.up_to(slots)}
    return Profile({size: Entry(flops_per_slot * slots_busy, "predicted") for size, slots_busy in busy.items()})


def given(
    table: Mapping[int, float],
    sizes: Sizes,
    *,
    flops_per_unit: float = 1.0,
    partial: bool = False,
    field: str = "throughput",
) -> Profile:
    """A user's table of slots and FLOP/s (or tokens/s, with FLOPs per token as `flops_per_unit`).

    Unless it is `partial`, because a prediction fills it up, it names every allowed size up to its largest.
    """
    if not table:
        raise ProfileError(f"{field}: the table is empty: want slots and throughput, such as {{8: 3.2e15}}")
    for size, value in table.items():
        if not isinstance(size, int) or isinstance(size, bool) or size not in sizes:
            raise ProfileError(f"{field}: {size!r} slots are not allowed: take them out; sizes are {sizes.rule}")
        if not _is_positive(value):
            raise ProfileError(f"{field}[{size}]: {value!r}: want a number above 0")
    ordered = sorted(table)
    holes = [] if partial else [size for size in sizes.up_to(ordered[-1]) if size not in table]
    if holes:
        more = f" and {len(holes) - HOLES_SHOWN} more" if len(holes) > HOLES_SHOWN else ""
        raise ProfileError(
            f"{field}: nothing for {', '.join(map(str, holes[:HOLES_SHOWN]))}{more} slots: add them, or set "
            f"sizes: [{', '.join(map(str, ordered))}]"
        )
    for smaller, larger in pairwise(ordered):
        if table[larger] < table[smaller] * (1 - ROUNDING):
            raise ProfileError(
                f"{field}[{larger}]: {table[larger]:g} is less than {table[smaller]:g} with {smaller} slots: "
                f"want at least that, or {larger} left out of table and sizes"
            )
    return Profile({size: Entry(table[size] * flops_per_unit, "given") for size in ordered})


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


# -- combination ----------------------------------------------------------------------------


def combined(profiles: Sequence[Profile]) -> Profile:
    """Profiles of one job, best first, as one."""
    return reduce(overlaid, profiles, Profile({}))


def overlaid(better: Profile, base: Profile) -> Profile:
    """The better where it knows, else the base scaled to it."""
    both = [size for size in better.sizes if base.at(size) > 0]
    scaled = {
        size: Entry(entry.flops * _off(better, base, both, size), entry.source) for size, entry in base.entries.items()
    }
    return Profile({**scaled, **better.entries})


def _off(better: Profile, base: Profile, both: Sequence[int], size: int) -> float:
    """How many times the base's the truth is, at the nearest size that both know, as ratios go."""
    if not both:
        return 1.0
    nearest = min(both, key=lambda known: (abs(math.log(known / size)), known))
    return better.at(nearest) / base.at(nearest)
