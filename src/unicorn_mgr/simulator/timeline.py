"""Virtual time: it stands still while something happens, and jumps to what happens next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timeline:
    """What is going to happen, in order; of two things at one moment what was arranged first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def waiting(self) -> int:
        """So much has been arranged and has not happened yet."""
        return len(self._coming)

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have this happen then; what should have happened already happens next."""
        heapq.heappush(self._coming, (max(when, self.now), next(self._order), do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Have this happen that much later."""
        self.at(self.now + seconds, do)

    def run(self, until: float) -> None:
        """Let everything happen up to then."""
        while self._coming and self._coming[0][0] <= until:
            self.now, _, do = heapq.heappop(self._coming)
            self.happened += 1
            do()
        self.now = max(self.now, until)
