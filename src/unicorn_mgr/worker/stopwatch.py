"""How long steps take, and what a fault has added to the one it hit."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

QUIET_STEPS = 20
"""The typical step is the median of this many newest ones in which nothing happened.

The median: an evaluation inside one of them must not change what counts as slow."""


class Stopwatch:
    """Times of one worker's loop, in seconds."""

    def __init__(self) -> None:
        self._quiet: deque[float] = deque(maxlen=QUIET_STEPS)
        self._began = 0.0
        self._in_step = False
        self._first_head = True
        self._heard: float | None = None
        self._expected = 0.0
        self._dealt = 0.0
        self._restored = 0.0
        self.added_seconds = self.restore_seconds = self.recompute_seconds = 0.0

    @property
    def step_seconds(self) -> float:
        """Typical duration of quiet steps, 0 while there are none."""
        return median(self._quiet) if self._quiet else 0.0

    def step_began(self) -> None:
        """The first micro-batch of a step is about to be yielded."""
        self._in_step = True
        if self._heard is None:
            self._began = time.monotonic()

    def fault_heard(self) -> None:
        """A newer epoch has been heard."""
        now = time.monotonic()
        if self._heard is None:
            self._heard = now
            self._expected = (self._began if self._in_step else now) + self.step_seconds

    def formed(self) -> None:
        """The group is built."""
        self._dealt = self._restored = time.monotonic()

    def restored(self) -> None:
        """State and buckets are here."""
        self._restored = time.monotonic()

    def step_ended(self) -> bool:
        """A step is applied; True if it was hit by a newer epoch."""
        now = time.monotonic()
        self._in_step = False
        if self._heard is None:
            # The first step pays for lazy initialisation of everything: it says nothing about the next.
            if not self._first_head:
                self._quiet.append(now - self._began)
            self._first_head = False
            return False
        self.added_seconds = max(0.0, now - self._expected)
        self.restore_seconds = max(0.0, self._restored - self._dealt)
        self.recompute_seconds = now - self._restored
        self._heard = None
        return True
