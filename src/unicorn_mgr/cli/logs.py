"""`unicorn logs JOB`: what its workers have written."""

from __future__ import annotations

from pathlib import Path

import typer

from unicorn_mgr.cli.common import Client, CoordinatorOption, Problem, TlsOption
from unicorn_mgr.cli.output import Output, follow
from unicorn_mgr.cli.show import note
from unicorn_mgr.messages import FollowJobRequest, JobView


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def logs(
        job: str = typer.Argument(..., metavar="JOB", help="Its name."),
        follow_on: bool = typer.Option(False, "--follow", "-f", help="Go on until the job ends."),
        worker: str = typer.Option("", "--worker", metavar="SEAT[.N]", help="Only of this worker, e.g. 2 or 2.1."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Show what a job's workers have written.

        Each line has its worker before it.  Output is kept on the nodes, the newest 64 MiB of
        each worker, until another job takes the name.
        """
        output = Output(only=worker_filter(worker))
        client = Client(coordinator, tls)
        asked = FollowJobRequest(job, True, True, until_now=not follow_on)
        for view in follow(client, asked, output):
            check_worker(worker, view)
        away = [n.node for n in client.look().nodes if n.state in ("silent", "lost")]
        if away:
            note(f"what workers wrote on {', '.join(away)} is missing: out of reach")


def worker_filter(text: str) -> str:
    """The seat, or seat and incarnation, of a worker: 2, 2.1, gpt/2.1."""
    seat = text.rpartition("/")[2]
    if text and not all(part.isdecimal() for part in seat.split(".", 1)):
        raise Problem(f"worker: {text}: want its seat, e.g. 2, or one process of it, e.g. 2.1")
    return seat


def check_worker(text: str, job: JobView) -> None:
    """Raise `Problem` if the job can't have such a worker."""
    if text and int(worker_filter(text).partition(".")[0]) >= job.size_max:
        raise Problem(f"worker: {text}: job {job.job} has seats 0 to {job.size_max - 1}")
