"""What is wrong with a description of a job's throughput, in one line for people."""

from __future__ import annotations


class ProfileError(ValueError):
    """A field of the user's that cannot be used: `field: what it is: what it should be`."""


def whole(field: str, value: int) -> None:
    """Refuse a count that is no whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ProfileError(f"{field}: {value!r}: want a whole number, 1 or more")
