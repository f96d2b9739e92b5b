"""`unicorn status`: the cluster at a glance."""

from __future__ import annotations

from pathlib import Path

import typer

from unicorn_mgr.cli import shapes
from unicorn_mgr.cli.common import Client, CoordinatorOption, JsonOption, TlsOption
from unicorn_mgr.cli.incidents import show_incidents
from unicorn_mgr.cli.jobs import show_jobs
from unicorn_mgr.cli.nodes import show_nodes
from unicorn_mgr.cli.show import say, show_json
from unicorn_mgr.messages import ClusterView


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def status(
        coordinator: str | None = CoordinatorOption, tls: Path | None = TlsOption, as_json: bool = JsonOption
    ) -> None:
        """Show nodes, running jobs and open incidents."""
        view = Client(coordinator, tls).look()
        if as_json:
            show_json(shapes.of_cluster(view))
        else:
            show_status(view)


def show_status(view: ClusterView) -> None:
    """What needs attention first."""
    say(f"cluster {view.cluster}, term {view.term}, version {view.version}", "bold")
    if view.alarm:
        say(f"ALARM: {view.alarm}", "bold red")
    if view.paused:
        say("paused: failures are detected, nothing is done; `unicorn resume` ends it", "yellow")
    if view.observe:
        say("observe mode: failures are detected, nothing is done; `unicorn observe off` ends it", "yellow")
    if view.metrics_address:
        say(f"metrics: http://{view.metrics_address}/metrics", "dim")
    say()
    show_nodes(view.nodes)
    say()
    show_jobs([j for j in view.jobs if j.state != "ended"], "no jobs; see `unicorn run --help`")
    say()
    show_incidents([i for i in view.incidents if i.state == "open"], "no open incidents")
