"""What is wrong with a description of a job's throughput, in one line for people."""

from __future__ import annotations


class ProfileError(ValueError):
    """A field of the user's that cannot be used: `field: what it is: what it should be`."""


COUNT_MAX = 10**9


def whole(field: str, value: int) -> None:
    """Refuse a count that is no whole number from 1 on, or larger than anything is counted in."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ProfileError(f"{field}: {value!r}: want a whole number, 1 or more")
    if value > COUNT_MAX:
        raise ProfileError(f"{field}: {value!r}: want at most {COUNT_MAX:,}")
