"""What `unicorn demo` proves, from what the training script itself wrote down.

The records come from the script's own loop (`examples/gpt/train.py`), not from the library:
a line for each loss that was computed, and one for each step that was applied.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicorn_mgr.cli.common import Problem
from unicorn_mgr.messages import EventLine, IncidentStory, IncidentView

TOLERANCE = 1e-12
"""Largest difference from the undisturbed run, in float64.  Sums in another order differ by rounding."""


@dataclass(eq=False)
class Records:
    """What the workers of a run have written so far."""

    folder: Path
    computed: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """Per (step, micro-batch), who computed it; rehearsals apart."""
    applied: dict[str, set[int]] = field(default_factory=dict)
    """Per worker, the steps after which its optimizer had done its work."""
    losses: dict[int, float] = field(default_factory=dict)
    """Per step."""
    last_at: dict[str, float] = field(default_factory=dict)
    """Per worker, when it wrote its newest line, in seconds since 1970."""
    rehearsed: int = 0
    _read: dict[Path, int] = field(default_factory=dict)

    def read(self) -> Records:
        """Take in what has been written since."""
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in self._new_lines(path):
                self._take(json.loads(line))
        return self

    @property
    def newest_step(self) -> int:
        """The last step that somebody has applied, -1 before the first."""
        return max(self.losses, default=-1)

    @property
    def newest_loss(self) -> float:
        """That of the newest step."""
        return self.losses[self.newest_step]

    def _new_lines(self, path: Path) -> list[bytes]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            whole, newline, _ = file.read().rpartition(b"\n")  # a killed process may leave half a line
        self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
        return whole.splitlines()

    def _take(self, line: dict[str, Any]) -> None:
        worker, step = line["worker"], line["step"]
        self.last_at[worker] = line["at"]
        if line["rehearsal"]:
            self.rehearsed += "micro_batch" in line
        elif "micro_batch" in line:
            self.computed.setdefault((step, line["micro_batch"]), []).append(worker)
        else:
            self.applied.setdefault(worker, set()).add(step)
            self.losses[step] = line["loss"]

    @property
    def again(self) -> int:
        """Results that were computed although somebody had computed them before."""
        return sum(len(workers) - 1 for workers in self.computed.values())


@dataclass(frozen=True, slots=True)
class Cost:
    """An incident, in seconds since the last thing that its victim wrote before the fault."""

    incident: IncidentView
    named: float
    """Until its cause was known."""
    stepped: float | None
    """Until every member had finished the step that was hit."""
    full: float | None
    """Until the job had as many workers as there were slots for it."""


def cost(story: IncidentStory, struck_at: float) -> Cost:
    """From the coordinator's journal."""
    incident = story.incident
    named_at = incident.opened_at
    for line in story.events:
        if line.kind in ("IncidentOpened", "IncidentRefined", "IncidentExplained"):
            fact = json.loads(line.json)
            if fact["incident"] == incident.id and fact["cause"] == incident.cause:
                named_at = line.at
                break
    occurred_at = incident.opened_at - incident.seconds["detect"]
    total = incident.seconds.get("total")
    stepped = None if total is None else occurred_at + total - struck_at
    return Cost(
        incident,
        named_at - struck_at,
        stepped,
        incident.closed_at - struck_at if incident.closed_at else None,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """The planner has given a job another number of slots."""

    at: float
    """Seconds since 1970."""
    job: str
    before: int
    after: int
    reason: str


def changes(lines: Iterable[EventLine]) -> list[Change]:
    """From the coordinator's journal."""
    found: list[Change] = []
    sizes: dict[str, int] = {}
    for line in lines:
        if line.kind == "SlotsAssigned":
            fact = json.loads(line.json)
            before, after = sizes.get(fact["job"], 0), len(fact["seats"])
            sizes[fact["job"]] = after
            if before != after:
                found.append(Change(line.at, fact["job"], before, after, fact["reason"]))
    return found


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    name: str
    holds: bool
    text: str


def counted_once(records: Records, steps: int, micro_batches: int) -> Check:
    """Each micro-batch of each step went into the gradient exactly once.

    A worker that went on to apply the step has counted what it computed for it.  What was
    computed by a worker that died in the step may be lost with it; then another has computed
    it again.  So exactly one worker that applied the step must have computed it, or none has
    and it was computed once (by one that died when its part was already with the others).
    """
    wrong = list(_miscounted(records, steps, micro_batches))
    total = steps * micro_batches
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Check("micro-batches", False, f"{len(wrong)} of {total:,} are wrong: " + "; ".join(wrong[:3]) + more)
    return Check("micro-batches", True, f"{total:,} ({steps} steps of {micro_batches}), each counted exactly once")


def _miscounted(records: Records, steps: int, micro_batches: int) -> Iterator[str]:
    wanted = {(step, number) for step in range(steps) for number in range(micro_batches)}
    for step, number in sorted(records.computed.keys() - wanted):
        yield f"{number} of step {step} was computed, and there is none"
    for step, number in sorted(wanted):
        workers = records.computed.get((step, number), [])
        lasting = [w for w in workers if step in records.applied.get(w, ())]
        what = f"{number} of step {step}"
        if not workers:
            yield f"{what} was never computed"
        elif len(lasting) > 1:
            yield f"{what} was counted by each of {', '.join(lasting)}"
        elif not lasting and len(workers) > 1:
            yield f"{what} was computed by {', '.join(workers)}, who all died in this step"


def same_weights(script: Path, reference: Path, weights: list[Path], workers: int) -> Check:
    """All workers that came to the end have the weights of the undisturbed run."""
    if len(weights) != workers:
        return Check("weights", False, f"{len(weights)} of {workers} workers have left theirs")
    command = [sys.executable, str(script.parent / "compare.py"), str(reference), *map(str, weights)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise Problem(f"demo: the weights can't be compared: {(told.stderr.strip() or '?').splitlines()[-1]}", 1)
    far = [float(line.split()[0]) for line in told.stdout.splitlines()]
    worst = max(far, key=lambda d: math.inf if math.isnan(d) else d)
    text = f"all {workers} within {worst:.1e} of the undisturbed run (allowed: {TOLERANCE:.0e})"
    return Check("weights", len(far) == workers and worst <= TOLERANCE, text)


def healed(incidents: list[IncidentView], causes: list[str]) -> Check:
    """Each fault became one incident of its cause, all are closed, and no step was lost."""
    found, done = Counter(i.cause for i in incidents), Counter(causes)
    missing, extra = done - found, found - done
    still_open = [i.id for i in incidents if i.state != "closed"]
    lost = sum(i.steps_lost for i in incidents)
    for wrong, text in (
        (missing, f"no incident tells of {', '.join(missing)}"),
        (extra, f"nobody did this: {', '.join(extra)}"),
        (still_open, f"not healed: {', '.join(still_open)}"),
        (lost, f"{lost} steps were lost"),
    ):
        if wrong:
            return Check("incidents", False, text)
    return Check("incidents", True, f"{len(incidents)} for {len(causes)} faults, all healed; no step was lost")


def given_and_got_back(moves: list[Change], giver: str, taker: str) -> Check:
    """While a node was lost a slot went from one job to the other, and came back with the node."""
    mine = [m for m in moves if m.job == giver]
    gave = [m for m in mine if m.after < m.before]
    whole = bool(mine) and mine[-1].after == mine[0].after
    holds = len(gave) == 1 and gave[0].before - gave[0].after == 1 and taker in gave[0].reason and whole
    if holds:
        return Check("slots", True, f"{giver} gave 1 to {taker} when the node was lost, and has it back")
    told = ", ".join(f"{m.job} {m.before} to {m.after}" for m in moves)
    return Check("slots", False, f"{giver} did not give 1 to {taker} and get it back: {told}")
