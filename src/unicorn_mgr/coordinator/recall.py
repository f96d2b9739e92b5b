"""What rules ask of a job again and again: no part of its state, and never older than that.

A job may have ten thousand workers, and a dozen rules look at it after every event, each for those that live, or
train, or are lost.  While they look nothing is recorded, so that one answer is as good as the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Recall:
    """Base of what is asked.  Its slots are no fields: they are neither compared nor stored."""

    __slots__ = ("_found", "_named")

    _found: dict[str, list[Any]] | None
    _named: dict[str, tuple[Sequence[str], set[str]]]

    def remember(self, *, on: bool) -> None:
        """Nothing of it changes from now on, until this is taken back."""
        self._found = {} if on else None

    def found(self, what: str, look: Callable[[], list[Any]]) -> list[Any]:
        """What has been found before, or is found now.  It is not to be changed."""
        known: dict[str, list[Any]] | None = getattr(self, "_found", None)
        if known is None:
            return look()
        if what not in known:
            known[what] = look()
        return known[what]

    def is_among(self, what: str, names: Sequence[str], name: str) -> bool:
        """Whether it is one of them, which are replaced, or grow at their end, and change in no other way."""
        if not hasattr(self, "_named"):
            self._named = {}
        known = self._named.get(what)
        if known is None or known[0] is not names:
            self._named[what] = known = names, set(names)
        elif len(known[1]) < len(names):
            known[1].update(names[len(known[1]) :])
        return name in known[1]


def unchanging(asked: Sequence[Recall], look: Callable[[], T]) -> T:
    """What is seen while nothing is recorded."""
    for one in asked:
        one.remember(on=True)
    try:
        return look()
    finally:
        for one in asked:
            one.remember(on=False)
