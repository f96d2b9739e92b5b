"""Places at which an agent's errands stand still on purpose: where there is a gate, and as long as it is closed.

A closed gate is a file by the name of the place; whoever has come to it says so by another.  Only drills have any.
"""

from __future__ import annotations

import time
from pathlib import Path

GATE_SECONDS = 0.005


class Gates:
    """All of one agent.  `folder` is where they are; None: there are none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def reach(self, place: str) -> None:
        """In a thread of its own: an errand has come to a place."""
        if self._folder is None or not (gate := self._folder / place).exists():
            return
        gate.with_suffix(".reached").touch()
        while gate.exists():
            time.sleep(GATE_SECONDS)
