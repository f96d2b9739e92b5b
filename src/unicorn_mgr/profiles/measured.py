"""Throughput measured while a job runs: step times by size, robust to noise.

The figure of a size is the median of its newest steps: a checkpoint, a slow read or a hiccup
of the network makes single steps many times longer, and fewer than half of them do not move it.
Its error is the interval that covers the true median nineteen times out of twenty whatever the
distribution, from the ranks of the samples.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from unicorn_mgr.profiles.problem import ProfileError
from unicorn_mgr.profiles.profile import Entry, Profile
from unicorn_mgr.profiles.sizes import Sizes

WINDOW = 64
"""Newest steps that count: a job changes its speed with its data and its neighbours."""

ENOUGH = 8
"""Fewer steps say nothing: the first ones after a change of size warm up."""

RANKS = 0.98
"""Half the normal quantile for 95 %: the ranks of the interval are n / 2 -+ 0.98 sqrt(n)."""

TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and how far off it may be."""

    value: float
    error: float
    """Relative, of nineteen out of twenty."""


class Measured:
    """The newest step times of one job, by size.  Time is told to it; it has no clock."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def add(self, size: int, seconds: float) -> None:
        """A step on so many slots took so long.  What is no duration is not counted."""
        if size >= 1 and math.isfinite(seconds) and seconds > 0:
            self._seconds.setdefault(size, deque(maxlen=WINDOW)).append(seconds)

    def step_seconds(self, size: int) -> Estimate | None:
        """Of a step at this size; None before there are enough."""
        ordered = sorted(self._seconds.get(size, ()))
        count = len(ordered)
        if count < ENOUGH:
            return None
        rank = max(0, math.floor(count / 2 - RANKS * math.sqrt(count)))
        middle = median(ordered)
        low, high = ordered[rank], ordered[count - 1 - rank]
        return Estimate(middle, max(high / middle - 1, middle / low - 1))

    def throughput(self, size: int, work: float) -> Estimate | None:
        """FLOP/s at this size, when a step does so much useful work."""
        seconds = self.step_seconds(size)
        return Estimate(work / seconds.value, seconds.error) if seconds else None

    def profile(self, sizes: Sizes, work: float) -> Profile:
        """Of all sizes with enough steps that the job may still have."""
        found = {size: self.throughput(size, work) for size in self._seconds if size in sizes}
        return Profile({size: Entry(e.value, "measured") for size, e in found.items() if e})

    def plain(self) -> dict[str, list[float]]:
        """All that it knows, for a journal; `restored` reads it."""
        return {str(size): list(self._seconds[size]) for size in sorted(self._seconds)}


def restored(plain: Mapping[str, Sequence[float]]) -> Measured:
    """What `Measured.plain` told."""
    measured = Measured()
    for size, samples in plain.items():
        if not size.isdecimal():
            raise ProfileError(f"measured: {size!r} is no number of slots: want what was written")
        for seconds in samples:
            measured.add(int(size), seconds)
    return measured


def departs(profile: Profile, size: int, measured: Estimate, tolerance: float = TOLERANCE) -> bool:
    """Whether a measured throughput surely differs from the profile's by more than the tolerance."""
    promised = profile.at(size)
    if promised <= 0:
        return False
    off = max(measured.value / promised, promised / measured.value) - 1
    return off - measured.error > tolerance
