"""`unicorn nodes`: the machines and what they are good for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from unicorn_mgr.cli import shapes
from unicorn_mgr.cli.common import Client, CoordinatorOption, JsonOption, TlsOption
from unicorn_mgr.cli.show import duration, show_json, show_table
from unicorn_mgr.messages import NodeView

COLUMNS = ("NODE", "STATE", ">SLOTS", "?DOMAIN", "?ADDRESS", "WORKERS", "REASON")
WORKERS_SHOWN = 4


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def nodes(
        coordinator: str | None = CoordinatorOption, tls: Path | None = TlsOption, as_json: bool = JsonOption
    ) -> None:
        """List the nodes."""
        found = Client(coordinator, tls).look().nodes
        if as_json:
            show_json([shapes.of_node(n) for n in found])
        else:
            show_nodes(found)


def show_nodes(nodes: Iterable[NodeView]) -> None:
    """A table of them."""
    show_table(COLUMNS, [_row(n) for n in nodes], "no nodes; start `unicorn agent` on each")


def _row(node: NodeView) -> tuple[str, ...]:
    more = len(node.workers) - WORKERS_SHOWN
    workers = " ".join(node.workers[:WORKERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (node.node, node.state, f"{node.slots_used}/{node.slots}", node.domain, node.address, workers, _reason(node))


def _reason(node: NodeView) -> str:
    if node.state == "quarantined":
        return f"{node.reason}; used again in {duration(node.quarantine_seconds)}"
    silent = f"silent for {duration(node.silent_seconds)}" if node.silent_seconds else ""
    return node.reason or silent
