"""`unicorn settings`: every number the coordinator decides by."""

from __future__ import annotations

from pathlib import Path

import typer

from unicorn_mgr.cli import shapes
from unicorn_mgr.cli.common import Client, CoordinatorOption, JsonOption, TlsOption
from unicorn_mgr.cli.show import show_json, show_table

COLUMNS = ("NAME", ">VALUE", ">DEFAULT", "MEANING")


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def settings(
        coordinator: str | None = CoordinatorOption, tls: Path | None = TlsOption, as_json: bool = JsonOption
    ) -> None:
        """List the coordinator's settings.

        Without --coordinator only the defaults.  They are set with `unicorn coordinator --set NAME=VALUE`.
        """
        running = Client(coordinator, tls).look().settings if coordinator else {}
        found = shapes.of_settings(running)
        if as_json:
            show_json(found)
            return
        rows = [(s["name"], _number(s["value"]), _number(s["default"]), s["meaning"]) for s in found]
        show_table(COLUMNS, rows, "none")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
