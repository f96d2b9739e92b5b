"""How a job gets on, in lines on stderr: what changed, where it is, what failed and healed."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

from unicorn_mgr.cli.common import Client, Unreachable
from unicorn_mgr.cli.incidents import hit_by
from unicorn_mgr.cli.show import count, note
from unicorn_mgr.messages import IncidentView, JobView

STEP_SECONDS = 10.0
"""Between two lines that only say at which step a job is."""


@dataclass(slots=True)
class Progress:
    """Says each change once."""

    client: Client
    _view: JobView = field(default_factory=JobView)
    _shown: object = None
    _step: int = -1
    _step_at: float = field(default_factory=time.monotonic)
    _open: set[str] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)
    _skipped: int = 0

    def show(self, view: JobView) -> None:
        """A newer view of the job."""
        self._view = view
        if view.incidents > len(self._told) or self._open:
            self._show_incidents(view)
        for left_out in view.skipped[self._skipped :]:
            note(
                f"{view.job} goes on without micro-batch {left_out.number} of step {left_out.step}: "
                "workers have died on it"
            )
        self._skipped = len(view.skipped)
        line, state = state_line(view), (view.state, view.epoch, view.reason if view.state == "waiting" else "")
        if line and state != self._shown:
            self._shown = state
            note(line)
        elif view.step > self._step and time.monotonic() >= self._step_at + STEP_SECONDS:
            pace = f", {view.step_seconds:.3g} s a step" if view.step_seconds else ""
            note(f"{view.job} has finished step {view.step}{pace}")
        else:
            return
        self._step, self._step_at = view.step, time.monotonic()

    def end(self) -> int:
        """The last line; returns the job's exit code."""
        view = self._view
        note(f"{view.job} ended with exit code {view.exit_code}: {view.reason}")
        return view.exit_code

    def _show_incidents(self, view: JobView) -> None:
        found: list[IncidentView] = []
        with contextlib.suppress(Unreachable):
            # An earlier job of the same name has incidents, too.
            found = [i for i in self.client.look().incidents if i.job == view.job][-view.incidents :]
        for incident in found:
            if incident.id not in self._told:
                self._told.add(incident.id)
                self._open.add(incident.id)
                note(opened_line(incident))
            if incident.id in self._open and incident.state == "closed":
                self._open.discard(incident.id)
                note(closed_line(incident))


def state_line(job: JobView) -> str:
    """What a job is doing; empty if that is said elsewhere."""
    match job.state:
        case "waiting":
            return f"{job.job} {job.reason}" if job.reason.startswith("waits") else f"{job.job} waits"
        case "starting":
            return f"{job.job} is starting {count(job.size_wanted, 'worker')}"
        case "running":
            if not job.epoch.number:
                return f"{job.job} runs on {count(job.size_wanted, 'worker')}"
            return f"{job.job} runs on {job.size} of {count(job.size_max, 'worker')}, epoch {job.epoch}"
        case "ending":
            return f"{job.job} is ending"
        case _:
            return ""


def opened_line(incident: IncidentView) -> str:
    """A failure has shown its first sign."""
    nothing = "; observe mode: nothing is done" if incident.would_have else ""
    return f"{incident.id}: {_what(incident)} ({incident.severity}, by {incident.detected_by}){nothing}"


def closed_line(incident: IncidentView) -> str:
    """It is healed, or over in another way; its cause may be better known by now."""
    if "total" not in incident.seconds:
        how = incident.story[-1].partition("closed: ")[2] if incident.story else ""
        return f"{incident.id}: {_what(incident)} is closed: {how}"
    redone = count(incident.micro_batches_recomputed, "micro-batch")
    return (
        f"{incident.id}: {_what(incident)} is healed: {incident.seconds['total']:.2f} s to the next finished step, "
        f"{count(incident.steps_lost, 'step')} lost, {redone} redone"
    )


def _what(incident: IncidentView) -> str:
    return f"{incident.cause} of {hit_by(incident)}"
