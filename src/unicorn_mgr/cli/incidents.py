"""`unicorn incidents` and `unicorn incident ID`: what failed, why, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from unicorn_mgr.cli import shapes
from unicorn_mgr.cli.common import Client, CoordinatorOption, JsonOption, Problem, TlsOption
from unicorn_mgr.cli.show import ago, clock, count, duration, lately, say, show_json, show_table, when
from unicorn_mgr.messages import ClusterView, EventLine, IncidentRequest, IncidentStory, IncidentView, StateSource

COLUMNS = (
    "INCIDENT",
    "STATE",
    "OPENED",
    "WHO",
    "CAUSE",
    "?SEVERITY",
    "?DETECTED BY",
    "?>DETECT S",
    ">HEAL S",
    ">LOST",
    ">REDONE",
)
SOURCES = {
    "live": "a live replica",
    "memory": "snapshots in memory of the workers' own nodes",
    "peer": "snapshots in memory of other nodes",
    "initial": "nowhere: the job began anew",
}
PHASES = {
    "detect": "the failure, to its first sign",
    "settle": "the first sign, to the new epoch",
    "fence": "the new epoch, until every survivor has stopped the old one",
    "regroup": "building the group of survivors",
    "restore": "moving state",
    "recompute": "redoing lost micro-batches",
    "total": "the failure, to the end of the step it hit",
    "added": "what the slowest survivor lost against the step it expected",
    "resize": "from then on, to full size",
}


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def incidents(
        job: str = typer.Option("", "--job", help="Only of this job."),
        node: str = typer.Option("", "--node", help="Only on this node."),
        only_open: bool = typer.Option(False, "--open", help="Only those that are not closed."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
        as_json: bool = JsonOption,
    ) -> None:
        """List the incidents, oldest first."""
        view = Client(coordinator, tls).look()
        _check_known(view, job, node)
        found = [
            i
            for i in view.incidents
            if job in ("", i.job) and node in ("", i.node) and (i.state == "open" or not only_open)
        ]
        if as_json:
            show_json([shapes.of_incident(i) for i in found])
        else:
            show_incidents(found, "no incidents")

    @app.command()
    def incident(
        name: str = typer.Argument(..., metavar="ID", help="Its name, e.g. inc-3."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
        as_json: bool = JsonOption,
    ) -> None:
        """Tell the story of an incident, with its evidence."""
        story = Client(coordinator, tls).call("FindIncident", IncidentRequest(name), IncidentStory)
        if as_json:
            show_json(shapes.of_story(story))
        else:
            show_story(story)


def show_incidents(incidents: Sequence[IncidentView], nothing: str) -> None:
    """A table of them."""
    show_table(COLUMNS, [_row(i) for i in incidents], nothing)


def show_story(story: IncidentStory) -> None:
    """Everything that is known, the conclusion first."""
    told = story.incident
    say(f"{told.id}: {told.cause} of {hit_by(told)}, {told.severity}, {told.state}", "bold")
    if told.would_have:
        say("observe mode: nothing was done about it", "yellow")
    say(f"job {told.job or '-'}, node {told.node or '-'}, worker {told.worker or '-'}")
    say(f"detected by {told.detected_by}")
    closed = f", closed after {duration(told.closed_at - told.opened_at)}" if told.closed_at else ", still open"
    say(f"opened {when(told.opened_at)} ({ago(told.opened_at)}){closed}")
    if told.job:
        after = told.epoch_after or "none yet"
        say(f"epoch {told.epoch_before} before, {after} after")
        redone = count(told.micro_batches_recomputed, "micro-batch")
        say(f"{count(told.steps_lost, 'step')} lost, {redone} recomputed")
        if told.source:
            say(f"state from {SOURCES.get(told.source, told.source)}")
    _section("what happened (seconds since it was opened)", told.story)
    seconds = [f"{told.seconds[p]:9.3f}  {p:<10} {words}" for p, words in PHASES.items() if p in told.seconds]
    _section("seconds", seconds)
    _section("where state has come from", [_source(of, len({s.position for s in told.sources})) for of in told.sources])
    _section("evidence", told.evidence.splitlines())
    _section("events around it", [event_line(e) for e in story.events])


def event_line(event: EventLine) -> str:
    """One event of the journal."""
    return f"{clock(event.at)}  {event.number:>6}  {event.text}"


def _source(of: StateSource, parts: int) -> str:
    part = f"part {of.position + 1} of {parts}: " if parts > 1 else ""
    taken = f"{count(of.workers, 'worker')}, {of.size_bytes / 1e6:.1f} MB, {of.seconds:.3f} s"
    return f"{part}{SOURCES.get(of.source, of.source)}: {taken}"


def _section(title: str, lines: Sequence[str]) -> None:
    if lines:
        say()
        say(title, "bold")
        for line in lines:
            say(f"  {line}")


def _row(incident: IncidentView) -> tuple[str, ...]:
    return (
        incident.id,
        f"{incident.state} (observed)" if incident.would_have else incident.state,
        lately(incident.opened_at),
        hit_by(incident),
        incident.cause,
        incident.severity,
        incident.detected_by,
        f"{incident.seconds.get('detect', 0.0):.3f}",
        f"{incident.seconds['total']:.3f}" if "total" in incident.seconds else "",
        str(incident.steps_lost),
        str(incident.micro_batches_recomputed),
    )


def hit_by(incident: IncidentView) -> str:
    """Whom it is about: a worker, a node or a whole job."""
    return incident.worker or (f"node {incident.node}" if incident.node else f"job {incident.job}")


def _check_known(view: ClusterView, job: str, node: str) -> None:
    jobs = {j.job for j in view.jobs} | {i.job for i in view.incidents if i.job}
    nodes = {n.node for n in view.nodes} | {i.node for i in view.incidents if i.node}
    for field, value, known in (("job", job, jobs), ("node", node, nodes)):
        if value and value not in known:
            raise Problem(f"{field}: {value}: there is no such {field}; known: {', '.join(sorted(known)) or 'none'}")
