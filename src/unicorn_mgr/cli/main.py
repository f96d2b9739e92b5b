"""`unicorn`: all commands."""

from __future__ import annotations

import sys

import typer

from unicorn_mgr import __version__
from unicorn_mgr.cli import agent, certs, coordinator, demo, local, run, status
from unicorn_mgr.cli.common import Problem

app = typer.Typer(
    name="unicorn",
    help="A cluster-wide workload manager for LLM training that heals itself.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for module in (coordinator, agent, certs, demo, local, run, status):
    module.register(app)


@app.callback(invoke_without_command=True)
def top(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Common to all commands."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The console script.  A user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except Problem as problem:
        sys.stderr.write(f"unicorn: {problem}\n")
        sys.exit(problem.code)
