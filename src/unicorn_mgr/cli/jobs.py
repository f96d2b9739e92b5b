"""`unicorn jobs`: the training programs and how they do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from unicorn_mgr.cli import shapes
from unicorn_mgr.cli.common import Client, CoordinatorOption, JsonOption, Problem, TlsOption
from unicorn_mgr.cli.show import ago, one_line, say, show_json, show_table
from unicorn_mgr.messages import JobView
from unicorn_mgr.model import said

COLUMNS = (
    "JOB",
    "STATE",
    ">SIZE",
    ">STEP",
    "?>S/STEP",
    "?>EPOCH",
    "?>RESTARTS",
    "?>INCIDENTS",
    ">ETTR",
    "?>CHECKPOINT",
    "REASON",
)
WORKER_COLUMNS = ("WORKER", "NODE", ">SLOT", ">PID", "STATE", ">STEP", "PHASE")


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def jobs(
        job: str = typer.Argument("", metavar="[JOB]", help="Only this one, with its workers."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
        as_json: bool = JsonOption,
    ) -> None:
        """List the jobs, the newest ended ones too."""
        known = Client(coordinator, tls).look().jobs
        found = [j for j in known if job in ("", j.job)]
        if job and not found:
            raise Problem(f"job: {job}: there is no such job; known: {', '.join(j.job for j in known) or 'none'}")
        if as_json:
            show_json([shapes.of_job(j) for j in found])
        elif job:
            show_job(found[0])
        else:
            show_jobs(found, "no jobs; see `unicorn run --help`")


STATES = {"memory": "in memory", "stored": "stored", "complete": "stored, as all other parts are"}
"""Of parts of checkpoints, in words."""


def show_jobs(jobs: Sequence[JobView], nothing: str) -> None:
    """A table of them."""
    show_table(COLUMNS, [_row(j) for j in jobs], nothing)


def show_job(job: JobView) -> None:
    """One job, in full."""
    show_jobs([job], "")
    say()
    say(f"command: {job.command}")
    if job.replica:
        say(f"a copy of its model is split as {said(job.replica)}")
    if job.started_at:
        say(f"started {ago(job.started_at)}" + (f", ended {ago(job.ended_at)}" if job.ended_at else ""))
    if job.checkpoint_url:
        newest = f", the newest complete {ago(job.checkpoint_at)}" if job.checkpoint_at else ""
        say(f"checkpoints: {job.checkpoint_url}{newest}")
    for part in job.parts:
        where = f"what {part.worker} has left on {part.node} is {STATES[part.state]}"
        say(f"checkpoint of step {part.step}: {where}, for {part.seconds:.0f} s on its way")
    if job.checkpoint_error:
        say(f"storage: {job.checkpoint_error}")
    if job.backed_up_step >= 0:
        say(f"snapshots in memory: step {job.backed_up_step} has copies on other nodes")
    if job.backup_note:
        say(f"snapshots in memory: {job.backup_note}")
    if "\n" in job.reason:
        say(job.reason)
    say()
    show_table(WORKER_COLUMNS, [_worker_row(job, i) for i in range(len(job.workers))], "no workers")


def _row(job: JobView) -> tuple[str, ...]:
    return (
        job.job,
        f"{job.state} (observed)" if job.observe and job.state != "ended" else job.state,
        f"{job.size}/{job.size_wanted or job.size_max}" if job.state != "ended" else "",
        str(job.step) if job.step >= 0 else "",
        f"{job.step_seconds:.3g}" if job.step_seconds else "",
        str(job.epoch) if job.epoch.number else "",
        str(job.restarts),
        str(job.incidents),
        f"{job.ettr:.2%}" if job.started_at else "",
        str(job.checkpoint_step) if job.checkpoint_step >= 0 else "",
        one_line(f"exit code {job.exit_code}: {job.reason}" if job.state == "ended" else job.reason),
    )


def _worker_row(job: JobView, index: int) -> tuple[str, ...]:
    worker = job.workers[index]
    return (
        worker.worker,
        worker.node,
        str(worker.slot),
        str(worker.pid or ""),
        worker.state,
        str(worker.step) if worker.step >= 0 else "",
        worker.phase if worker.state in ("ready", "member", "leaving") else "",
    )
