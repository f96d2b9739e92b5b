"""Faults on purpose, at an address: (step, place).

Tests and drills name where a fault strikes instead of sleeping and hoping.  `reach` is
called at each place of the training loop; it costs an attribute look-up unless a drill is
armed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from unicorn_mgr.model import Drill

GATES = "UNICORN_GATES"
"""Folder for the fault `gate`: the worker says there that it has come to a place, and waits to be let on."""

GATE_SECONDS = 0.005


class DrillError(RuntimeError):
    """The exception that an armed drill raises in the user's code."""


class Drills:
    """The drills armed in this process."""

    def __init__(self, armed: Sequence[Drill] = ()) -> None:
        self.armed = list(armed)

    def reach(self, place: str, step: int) -> None:
        """The loop has come to `place` in `step`: strike if a drill is addressed here."""
        if not self.armed:
            return
        for drill in list(self.armed):
            if step >= drill.step and drill.phase in ("", place):
                if drill.fault != "slow":  # which strikes in every step, and beside others
                    self.armed.remove(drill)
                _strike(drill, place, step)

    def pass_on(self, places: Collection[str], step: int) -> list[Drill]:
        """Those that are due in `step` at places to which another process comes: they strike there, and not here."""
        found = [d for d in self.armed if step >= d.step and d.phase in places]
        self.armed[:] = [d for d in self.armed if d not in found or d.fault == "slow"]
        return found


def _strike(drill: Drill, place: str, step: int) -> None:
    match drill.fault:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exception":
            raise DrillError(f"drill: an exception at {place} in step {step}")
        case "hang":
            while True:
                time.sleep(3600)
        case "slow":
            time.sleep(drill.seconds)
        case "exit":
            os._exit(0)
        case "gate":
            _wait_at_gate(place)
        case _:
            raise AssertionError(f"no drill strikes by {drill.fault!r}")
    # SIGKILL is delivered before the next instruction in user mode, SIGSTOP ends here too.


def _wait_at_gate(place: str) -> None:
    gate = Path(os.environ[GATES]) / place
    gate.with_suffix(".reached").touch()
    while not gate.with_suffix(".open").exists():
        time.sleep(GATE_SECONDS)
