"""`unicorn submit` and `unicorn schema`: jobs from files."""

from __future__ import annotations

from pathlib import Path

import typer

from unicorn_mgr.cli.common import Client, CoordinatorOption, TlsOption
from unicorn_mgr.cli.jobfile import JobFile, read_job
from unicorn_mgr.cli.run import check, launch
from unicorn_mgr.cli.show import note, show_json


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def submit(
        file: Path = typer.Argument(..., metavar="FILE", help="A job file; `unicorn schema` prints what it may say."),
        no_snapshot: bool = typer.Option(False, "--no-snapshot", help="Run on the files as they are, not on a copy."),
        follow: bool = typer.Option(False, "--follow", help="Stay, as `unicorn run` does."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Submit the job of a file and leave."""
        spec = read_job(file)
        check(spec)
        launch(spec, Client(coordinator, tls), not no_snapshot, detach=not follow)
        if not follow:
            note(f"`unicorn plan` says what {spec.name} gets, `unicorn logs {spec.name} --follow` shows what it does")

    @app.command()
    def schema() -> None:
        """Print the JSON Schema of job files."""
        show_json(JobFile.model_json_schema())
