"""`unicorn replay JOURNAL`: what a coordinator knew, from its journal alone.

The journal is only read, so that it can be asked while a coordinator writes it, and after
one has died.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from unicorn_mgr.cli import shapes
from unicorn_mgr.cli.common import JsonOption, Problem
from unicorn_mgr.cli.incidents import event_line, show_incidents, show_story
from unicorn_mgr.cli.jobs import show_job, show_jobs
from unicorn_mgr.cli.nodes import show_nodes
from unicorn_mgr.cli.show import count, say, show_json, when
from unicorn_mgr.coordinator.admission import unknown
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.record import record
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState
from unicorn_mgr.coordinator.store import JOURNAL, Entry, Store, StoreError
from unicorn_mgr.coordinator.stories import incident_story, lines_of
from unicorn_mgr.coordinator.views import cluster_view, job_view, node_view
from unicorn_mgr.messages import EventLine


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def replay(
        journal: Path = typer.Argument(
            ..., metavar="JOURNAL", help="A coordinator's data directory, or the journal in it."
        ),
        job: str = typer.Option("", "--job", help="The story of this job."),
        node: str = typer.Option("", "--node", help="The story of this node."),
        incident: str = typer.Option("", "--incident", metavar="ID", help="The story of this incident."),
        until: int | None = typer.Option(None, "--until", metavar="N", min=1, help="As it was after this entry."),
        as_json: bool = JsonOption,
    ) -> None:
        """Rebuild what a coordinator knew from its journal.

        Without --job, --node or --incident: everything at the end, or after --until.
        """
        if sum(map(bool, (job, node, incident))) > 1:
            raise Problem("replay: --job, --node and --incident: give one of them")
        try:
            replayed = read(journal, until)
        except StoreError as failed:
            raise Problem(str(failed)) from failed
        if incident:
            _tell_incident(replayed, incident, as_json)
        elif job:
            _tell_job(replayed, job, as_json)
        elif node:
            _tell_node(replayed, node, as_json)
        else:
            _tell_all(replayed, as_json)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A journal, up to an entry."""

    path: Path
    cluster: str
    state: ClusterState
    entries: list[Entry]
    """All that are kept, those before a snapshot too."""
    now: float
    """Core time of the last entry."""
    live: Liveness
    """Of nobody: heartbeats and samples are not in a journal."""


def read(journal: Path, until: int | None) -> Replayed:
    """Replay a journal.  Raises `StoreError`."""
    path = find(journal)
    store = Store(path.parent, read_only=True, name=path.name)
    try:
        found = store.recover() if until is None else store.recover_until(until)
        entries = list(store.entries()) if until is None else found.entries
    finally:
        store.close()
    for entry in found.entries:
        record(found.state, entry.event, entry.at)
    return Replayed(path, store.cluster, found.state, entries, found.at, Liveness(Settings()))


def beginning(path: Path) -> tuple[ClusterState, list[Entry]]:
    """The earliest state that a journal still leads from, and all entries after it.  Raises `StoreError`."""
    store = Store(path.parent, read_only=True, name=path.name)
    try:
        entries = list(store.entries())
        if entries and entries[0].number > 1:
            found = store.recover()
            return found.state, found.entries
        return ClusterState(), entries
    finally:
        store.close()


def find(journal: Path) -> Path:
    """The file: as given, or in the directory of a coordinator or of a local cluster."""
    for path in (journal, journal / JOURNAL, journal / "coordinator" / JOURNAL):
        if path.is_file():
            return path
    missing = f"there is no {JOURNAL} in it" if journal.is_dir() else "there is no such file or directory"
    raise StoreError(f"journal: {journal}: {missing}; give the --data directory of a coordinator")


def _tell_all(replayed: Replayed, as_json: bool) -> None:
    view = cluster_view(replayed.state, replayed.live, replayed.now, replayed.cluster, "", drills=False)
    last = replayed.entries[-1] if replayed.entries else None
    if as_json:
        show_json(shapes.of_journal(view, str(replayed.path), len(replayed.entries), last.number if last else 0))
        return
    end = f", the last one number {last.number} of {when(last.wall)}" if last else ""
    say(f"{replayed.path}: {count(len(replayed.entries), 'entry')}{end}")
    say(f"cluster {view.cluster}, term {view.term}", "bold")
    say()
    show_nodes(view.nodes)
    say()
    show_jobs(view.jobs, "no jobs")
    say()
    show_incidents(view.incidents, "no incidents")


def _tell_job(replayed: Replayed, name: str, as_json: bool) -> None:
    if name not in replayed.state.jobs:
        raise Problem(str(unknown("job", name, replayed.state.jobs)))
    view = job_view(replayed.state, replayed.live, replayed.state.jobs[name], replayed.now)
    story = list(lines_of(replayed.state, replayed.entries, name, ""))
    if as_json:
        _show_json(shapes.of_job(view), story)
        return
    show_job(view)
    _show_events(story)


def _tell_node(replayed: Replayed, name: str, as_json: bool) -> None:
    if name not in replayed.state.nodes:
        raise Problem(str(unknown("node", name, replayed.state.nodes)))
    view = replace(node_view(replayed.state, replayed.live, replayed.state.nodes[name], replayed.now), silent_seconds=0)
    story = list(lines_of(replayed.state, replayed.entries, "", name))
    if as_json:
        _show_json(shapes.of_node(view), story)
        return
    show_nodes([view])
    _show_events(story)


def _tell_incident(replayed: Replayed, name: str, as_json: bool) -> None:
    if name not in replayed.state.incidents:
        raise Problem(str(unknown("incident", name, replayed.state.incidents)))
    story = incident_story(replayed.state.incidents[name], replayed.entries, replayed.now)
    if as_json:
        show_json(shapes.of_story(story))
    else:
        show_story(story)


def _show_json(shape: dict[str, Any], story: list[EventLine]) -> None:
    show_json({**shape, "events": [shapes.of_event(line) for line in story]})


def _show_events(story: list[EventLine]) -> None:
    say()
    say("events", "bold")
    for line in story:
        say(f"  {event_line(line)}")
