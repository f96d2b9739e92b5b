"""`unicorn cancel`, `set`, `drain`, `undrain`, `degrade`, `pause`, `resume`, `observe`: what operators ask for."""

from __future__ import annotations

import enum
import uuid
from pathlib import Path

import typer

from unicorn_mgr.cli.common import Client, CoordinatorOption, Problem, TlsOption
from unicorn_mgr.cli.show import say
from unicorn_mgr.messages import (
    CancelJob,
    Command,
    CommandDone,
    DegradeNode,
    DrainNode,
    OperatorCommand,
    SetObserve,
    SetPaused,
    SetWishes,
    UndrainNode,
)


class Switch(enum.StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    _register_jobs(app)
    _register_nodes(app)
    _register_modes(app)


def _register_jobs(app: typer.Typer) -> None:
    @app.command()
    def cancel(
        job: str = typer.Argument(..., metavar="JOB", help="Its name."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """End a job.

        Its workers are asked first, and killed 5 s later.
        """
        order(Client(coordinator, tls), CancelJob(job))
        say(f"{job} is cancelled; its workers are being ended")

    @app.command(name="set")
    def set_wishes(
        job: str = typer.Argument(..., metavar="JOB", help="Its name."),
        wishes: list[str] = typer.Argument(..., metavar="WISH=VALUE...", help="weight=2, priority=1, min=2, max=8."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Change what a job wants; `unicorn plan --what-if "job JOB weight=2"` says beforehand what that would do."""
        asked = dict(_wish(w) for w in wishes)
        if len(asked) < len(wishes):
            raise Problem(f"set: {' '.join(wishes)}: say each wish once")
        order(Client(coordinator, tls), SetWishes(job, asked))
        say(f"{job} now wants {', '.join(wishes)}")


def _register_nodes(app: typer.Typer) -> None:
    @app.command()
    def drain(
        node: str = typer.Argument(..., metavar="NODE", help="Its name."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Empty a node, to power it off.

        Its workers leave after their next step, and no new ones are started.  When `unicorn
        nodes` says drained it is safe to power off.
        """
        say(order(Client(coordinator, tls), DrainNode(node)))

    @app.command()
    def undrain(
        node: str = typer.Argument(..., metavar="NODE", help="Its name."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Give a drained, quarantined or isolated node back."""
        say(order(Client(coordinator, tls), UndrainNode(node)))

    @app.command()
    def degrade(
        node: str = typer.Argument(..., metavar="NODE", help="Its name."),
        speed: str = typer.Option("", "--speed", metavar="SHARE", help="Of what its slots should do, e.g. 0.5."),
        slots: str = typer.Option(
            "", "--slots", metavar="N|I,J,...", help="How many slots may be used, the first ones, or which."
        ),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Tell the planner that a node is slow or has slots that must not be used.

        Workers leave such slots after their next step.  What is not said stays as it is; speed 1 and
        the number of all its slots undo it.
        """
        say(order(Client(coordinator, tls), DegradeNode(node, speed, slots)))


def _wish(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise Problem(f"set: {text}: want WISH=VALUE, e.g. weight=2")
    return name, value


def _register_modes(app: typer.Typer) -> None:
    @app.command()
    def pause(coordinator: str | None = CoordinatorOption, tls: Path | None = TlsOption) -> None:
        """Detect failures and do nothing, until resumed."""
        order(Client(coordinator, tls), SetPaused(True))
        say("paused: failures are detected, nothing is done; `unicorn resume` ends it")

    @app.command()
    def resume(coordinator: str | None = CoordinatorOption, tls: Path | None = TlsOption) -> None:
        """End a pause.

        What was not done meanwhile is done now.
        """
        order(Client(coordinator, tls), SetPaused(False))
        say("resumed")

    @app.command()
    def observe(
        switch: Switch = typer.Argument(
            ..., metavar="on|off", help="on: detect failures, write down what would be done, do nothing."
        ),
        job: str = typer.Option("", "--job", help="Only this one; all if not given."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Switch observe mode, for a job or for all."""
        order(Client(coordinator, tls), SetObserve(job, switch is Switch.ON))
        say(f"observe mode is {switch.value} for {f'job {job}' if job else 'all jobs'}")


def order(client: Client, command: Command) -> str:
    """Have a command carried out, once; returns what the coordinator says of it."""
    return client.call("Command", OperatorCommand(uuid.uuid4().hex, command), CommandDone).text
