"""By when an answer must be there: looked at before each piece of work, so that none is begun too late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on somebody's clock."""

    at: float
    clock: Clock

    @property
    def left(self) -> float:
        """Seconds until then; negative afterwards."""
        return self.at - self.clock()

    def passed(self) -> bool:
        """Whether nothing more may be begun."""
        return self.left <= 0

    def sooner(self, seconds: float) -> Deadline:
        """What leaves so much for what comes afterwards."""
        return replace(self, at=self.at - seconds)
