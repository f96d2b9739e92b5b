"""What the measured processes wrote down, read from outside."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that a worker has finished, in seconds of the machine's monotonic clock."""

    step: int
    at: float
    size: int


@dataclass(eq=False, slots=True)
class Trace:
    """Everything that one process has written."""

    worker: str
    steps: list[Finished] = field(default_factory=list)
    micro_batches: list[tuple[int, int]] = field(default_factory=list)
    """(step, number), each time one was begun."""
    others: list[dict[str, Any]] = field(default_factory=list)

    def finished(self, step: int) -> float | None:
        """When it had finished a step."""
        return next((f.at for f in self.steps if f.step == step), None)

    def next_after(self, at: float) -> Finished | None:
        """The first step that it finished after a moment."""
        return next((f for f in self.steps if f.at > at), None)


def traces(folder: Path) -> dict[str, Trace]:
    """Per worker; a worker's name has its `/` written as `-`."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        trace = found[path.stem] = Trace(path.stem)
        for line in path.read_text().splitlines():
            _take(trace, line)
    return found


def _take(trace: Trace, line: str) -> None:
    try:
        said = json.loads(line)
    except json.JSONDecodeError:
        return  # the last line of a killed process
    if said["what"] == "step":
        trace.steps.append(Finished(said["step"], said["at"], said.get("size", 0)))
    elif said["what"] == "micro_batch":
        trace.micro_batches.append((said["step"], said["number"]))
    else:
        trace.others.append(said)


def durations(trace: Trace, windows: Sequence[tuple[float, float]]) -> list[float]:
    """How long steps took that lie in one of the windows from beginning to end."""
    pairs = zip(trace.steps, trace.steps[1:], strict=False)
    return [
        after.at - before.at
        for before, after in pairs
        if any(begin <= before.at and after.at <= end for begin, end in windows)
    ]


def redone(found: Iterable[Trace]) -> int:
    """Micro-batches begun by one worker although another had begun them before."""
    begun = [key for trace in found for key in trace.micro_batches]
    return len(begun) - len(set(begun))


def missing_steps(found: Iterable[Trace], last: int) -> int:
    """Steps up to `last` that no worker has finished."""
    return last + 1 - len({f.step for trace in found for f in trace.steps if f.step <= last})


def repeated_steps(found: Iterable[Trace]) -> int:
    """Steps that one worker finished twice."""
    return sum(len(trace.steps) - len({f.step for f in trace.steps}) for trace in found)
