"""`unicorn`: all commands."""

from __future__ import annotations

import sys
from typing import Any, cast

import typer

from unicorn_mgr import __version__
from unicorn_mgr.cli import (
    agent,
    certs,
    coordinator,
    demo,
    events,
    incidents,
    inject,
    jobs,
    local,
    logs,
    nodes,
    operate,
    replay,
    run,
    settings,
    status,
)
from unicorn_mgr.cli.common import EXIT_INTERRUPTED, Problem

app = typer.Typer(
    name="unicorn",
    help="A cluster-wide workload manager for LLM training that heals itself.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

COMMANDS = (
    *(run, status, jobs, nodes, incidents, events, logs),
    *(operate, inject, replay, settings),
    *(local, demo, coordinator, agent, certs),
)
for module in COMMANDS:
    module.register(app)

# Its module is typer's own in some versions and click's in others.
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


@app.callback(invoke_without_command=True)
def top(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Common to all commands."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The console script.  A user's mistake is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except Problem as problem:
        sys.stderr.write(f"unicorn: {problem}\n")
        code = problem.code
    except UsageError as wrong:
        sys.stderr.write(usage(wrong))
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def usage(wrong: Any) -> str:
    """What the parser has to say, in one line; the help itself if nothing was asked for."""
    text = str(wrong.format_message()).strip()
    if "\n" in text:
        return f"{text}\n"
    value = given(getattr(wrong, "param", None), sys.argv)
    if value:
        text = f"{value}: {wrong.message}"
    path = wrong.ctx.command_path if wrong.ctx is not None else "unicorn"
    return f"unicorn: {text[0].lower()}{text[1:].rstrip('.?')}; see `{path} --help`\n"


def given(parameter: Any, words: list[str]) -> str:
    """An option and its value as typed; empty if the trouble is not with the value of an option."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("-") and name in getattr(parameter, "opts", ()) and (equals or i + 1 < len(words)):
            return f"{name.lstrip('-')}: {value if equals else words[i + 1]}"
    return ""
