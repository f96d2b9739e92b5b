"""From samples to what is said of them: medians, percentiles, and how sure they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median

RESAMPLES = 4_000
CONFIDENCE = 0.95

Interval = tuple[float, float]


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the samples lie, straight lines between neighbours."""
    if not values:
        raise ValueError("no samples")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent: {percent}: want 0 to 100")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = median, seed: int = 0
) -> Interval:
    """95 % bootstrap interval of a statistic: where it falls when the samples are drawn anew."""
    if not values:
        raise ValueError("no samples")
    chance = random.Random(seed)
    return _middle([statistic(chance.choices(values, k=len(values))) for _ in range(RESAMPLES)])


def _middle(found: Sequence[float]) -> Interval:
    tail = 100 * (1 - CONFIDENCE) / 2
    return percentile(found, tail), percentile(found, 100 - tail)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours over theirs, pair by pair: what slows both down at the same moment cancels out."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} samples of ours, {len(theirs)} of theirs: not pairs")
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def ratio_of_medians(
    numerators: Sequence[float], denominators: Sequence[float], seed: int = 0
) -> tuple[float, Interval]:
    """Of two sets of samples that are no pairs, with its 95 % bootstrap interval."""
    if not numerators or not denominators:
        raise ValueError("no samples")
    chance = random.Random(seed)
    found = [
        median(chance.choices(numerators, k=len(numerators)))
        / median(chance.choices(denominators, k=len(denominators)))
        for _ in range(RESAMPLES)
    ]
    return median(numerators) / median(denominators), _middle(found)


def summary(values: Sequence[float]) -> dict[str, float]:
    """What is said of samples: how many, median with its interval, 95th percentile, extremes."""
    low, high = interval(values)
    return {
        "n": len(values),
        "median": median(values),
        "low": low,
        "high": high,
        "p95": percentile(values, 95),
        "min": min(values),
        "max": max(values),
    }


def with_interval(ratio: Sequence[float]) -> str:
    """The median, and where it lies."""
    low, high = interval(ratio)
    return f"{median(ratio):.3f} ({low:.3f} to {high:.3f})"
