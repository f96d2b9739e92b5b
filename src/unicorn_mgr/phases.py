"""Where a worker's main thread can be, and how long it may stay there."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Phase(enum.IntEnum):
    """Where the main thread is."""

    STARTING = 0
    """Before the first library call: imports, building the model."""
    USER = 1
    """The user's code between steps."""
    WAITING = 2
    """Ready, and waiting to become a member."""
    COMPUTE = 3
    """A micro-batch is open: the user's forward, our backward."""
    REDUCE = 4
    """All is launched; waiting for the other members."""
    UPDATE = 5
    """The user's code between the reduced gradient and the next step."""
    PUBLISH = 6
    """A new epoch: holdings are being put together."""
    GATHER = 7
    """Holdings are published; waiting for the other members."""
    BUILD = 8
    """Connecting to the other members."""
    TRANSFER = 9
    """State or buckets are moving."""
    RESTORE = 10
    """Reading a checkpoint."""
    SNAPSHOT = 11
    """Copying the state for a checkpoint."""
    CLOSING = 12
    """The closing collective."""
    ENDED = 13
    """The loop has ended."""
    STAGE = 14
    """Between two micro-batches of a pipeline's schedule: waiting for other stages."""


WAITS_FOR_OTHERS = frozenset({Phase.WAITING, Phase.REDUCE, Phase.GATHER, Phase.BUILD, Phase.CLOSING, Phase.STAGE})
"""A worker in one of these is a victim of a stall, not its culprit."""

USER_TIME = frozenset({Phase.STARTING, Phase.USER, Phase.UPDATE, Phase.ENDED})
"""The user's own code, which may take as long as `user_seconds`."""

_NEVER_TOO_LONG = frozenset({Phase.WAITING, Phase.ENDED})
_AS_LONG_AS_IT_TAKES = USER_TIME | {Phase.RESTORE}


@dataclass(frozen=True, slots=True)
class Limits:
    """When quiet is too quiet, in seconds."""

    stall_seconds: float = 10.0
    stall_factor: float = 3.0
    user_seconds: float = 600.0

    def of(self, phase: int, step_seconds: float, stopped: bool) -> float:
        """The limit at a place, for a job whose typical step takes `step_seconds` (0: not known yet).

        A process that the kernel has stopped is in nobody's code.
        """
        if not stopped:
            if phase in _NEVER_TOO_LONG:
                return float("inf")
            if step_seconds <= 0 or phase in _AS_LONG_AS_IT_TAKES:
                return self.user_seconds
        return max(self.stall_factor * step_seconds, self.stall_seconds)
