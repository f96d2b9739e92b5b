"""`unicorn status` and the listings."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import typer

from unicorn_mgr.cli.common import Client, CoordinatorOption, JsonOption, TlsOption


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def status(
        coordinator: str | None = CoordinatorOption, tls: Path | None = TlsOption, as_json: bool = JsonOption
    ) -> None:
        """Show the cluster."""
        view = Client(coordinator, tls).look()
        json.dump(dataclasses.asdict(view), sys.stdout, indent=2)
        sys.stdout.write("\n")
