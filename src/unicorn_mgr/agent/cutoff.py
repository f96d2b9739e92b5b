"""For how long an agent has been cut off, kept for its next incarnation.

Its workers outlive an agent, and so must the clock that freezes them: begun anew with every
incarnation it would let them train on when their job has been given to others.  The clock is
the machine's monotonic one; workers do not outlive a reboot, and without any nothing is read.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import structlog

from unicorn_mgr.effects.agent import CutOff

log = structlog.get_logger()

_NAME = "cutoff.json"


def keep(data: Path, found: CutOff) -> None:
    """Write it down, in one piece: for a crash of this process, not for one of the machine."""
    fresh = data / f"{_NAME}.new"
    try:
        fresh.write_text(json.dumps(dataclasses.asdict(found)))
        fresh.rename(data / _NAME)
    except OSError as failed:  # a full disk is no reason to leave the workers alone
        log.warning("what the next incarnation should know can't be kept", why=str(failed))


def recall(data: Path) -> CutOff | None:
    """What the incarnation before has kept, if it has."""
    try:
        return CutOff(**json.loads((data / _NAME).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as wrong:
        log.warning("what the last incarnation has kept can't be read", why=str(wrong))
        return None
