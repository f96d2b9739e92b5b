"""`unicorn events`: the journal, as it is written."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import typer

from unicorn_mgr.cli import shapes
from unicorn_mgr.cli.common import Client, CoordinatorOption, JsonOption, Problem, TlsOption, Unreachable
from unicorn_mgr.cli.incidents import event_line
from unicorn_mgr.cli.show import note, say, show_json_line
from unicorn_mgr.messages import EventLine, FollowEventsRequest, IncidentRequest, IncidentStory

RETRY_SECONDS = 0.5


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def events(
        follow: bool = typer.Option(False, "--follow", "-f", help="Go on with those to come."),
        after: int = typer.Option(0, "--after", metavar="N", help="Only those with a higher number."),
        job: str = typer.Option("", "--job", help="Only of this job."),
        node: str = typer.Option("", "--node", help="Only of this node."),
        incident: str = typer.Option("", "--incident", metavar="ID", help="Only those around this incident."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
        as_json: bool = JsonOption,
    ) -> None:
        """List what has happened, one event a line.

        With --json, one object a line.
        """
        if incident and (job or node):
            raise Problem(f"incident: {incident}: it says which job and node; leave --job and --node out")
        client = Client(coordinator, tls)
        asked = FollowEventsRequest(after, follow, job, node)
        found = around(client, incident, asked) if incident else read(client, asked)
        for line in found:
            if as_json:
                show_json_line(shapes.of_event(line))
            else:
                say(event_line(line))
                sys.stdout.flush()


def read(client: Client, asked: FollowEventsRequest) -> Iterator[EventLine]:
    """Events, and those to come if that is asked, also across a restart of the coordinator."""
    told = False
    while True:
        try:
            for line in client.follow("FollowEvents", asked, EventLine):
                asked, told = replace(asked, after=line.number), False
                yield line
            return
        except Unreachable as away:
            if not asked.follow:
                raise
            if not told:
                note(f"{away}; waiting for it")
                told = True
            time.sleep(RETRY_SECONDS)


def around(client: Client, incident: str, asked: FollowEventsRequest) -> Iterator[EventLine]:
    """Events from shortly before an incident until it is closed."""
    story = client.call("FindIncident", IncidentRequest(incident), IncidentStory)
    newest = asked.after
    for line in story.events:
        if line.number > asked.after:
            newest = line.number
            yield line
    if not asked.follow or story.incident.state == "closed":
        return
    for line in read(client, replace(asked, after=newest, job=story.incident.job, node=story.incident.node)):
        yield line
        if line.kind == "IncidentClosed" and json.loads(line.json)["incident"] == incident:
            return
