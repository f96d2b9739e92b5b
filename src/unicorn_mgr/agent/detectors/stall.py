"""A worker that makes no progress.

Intuition: a step takes nearly the same time again and again, so a worker whose ring has not
moved for three typical steps is stuck.  That bare rule (Unicron, section 3) is wrong on real
machines: at steps of 50 to 80 ms it gave 6 to 10 false alarms a minute.  So there is a floor
of seconds under it; the user's own code between steps (an evaluation, an upload) has a limit
of its own; and while no typical step is known (compilation, first allocation) that larger
limit holds everywhere.  A process that the kernel has stopped is in nobody's code.

What is reported is only a suspicion about *this* worker.  Whoever waits for others is quiet,
too; the coordinator finds who they are waiting for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.messages import Sample, WorkerQuiet
from unicorn_mgr.phases import Limits

REPEAT_SECONDS = 5.0
"""A worker that stays quiet is reported again after this long: the first report may have been lost."""


@dataclass(slots=True)
class StallDetector:
    """Follows one worker's ring."""

    limits: Limits
    _reported_at: float = field(default=float("-inf"))

    def observe(self, sample: Sample, now: float) -> WorkerQuiet | None:
        """A suspicion, if the newest record is older than its place allows."""
        limit = self.limits.of(sample.phase, sample.step_seconds, sample.stopped)
        if sample.quiet_seconds < limit:
            self._reported_at = float("-inf")
            return None
        if now - self._reported_at < REPEAT_SECONDS:
            return None
        self._reported_at = now
        return WorkerQuiet(sample, limit)
