"""`unicorn`: all commands."""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast

import typer

from unicorn_mgr import __version__
from unicorn_mgr.cli.common import EXIT_INTERRUPTED, Problem

MODULES = {
    "run": "unicorn_mgr.cli.run",
    "submit": "unicorn_mgr.cli.submit",
    "schema": "unicorn_mgr.cli.submit",
    "status": "unicorn_mgr.cli.status",
    "jobs": "unicorn_mgr.cli.jobs",
    "nodes": "unicorn_mgr.cli.nodes",
    "plan": "unicorn_mgr.cli.plan",
    "incidents": "unicorn_mgr.cli.incidents",
    "incident": "unicorn_mgr.cli.incidents",
    "events": "unicorn_mgr.cli.events",
    "logs": "unicorn_mgr.cli.logs",
    "cancel": "unicorn_mgr.cli.operate",
    "set": "unicorn_mgr.cli.operate",
    "drain": "unicorn_mgr.cli.operate",
    "undrain": "unicorn_mgr.cli.operate",
    "degrade": "unicorn_mgr.cli.operate",
    "pause": "unicorn_mgr.cli.operate",
    "resume": "unicorn_mgr.cli.operate",
    "observe": "unicorn_mgr.cli.operate",
    "inject": "unicorn_mgr.cli.inject",
    "replay": "unicorn_mgr.cli.replay",
    "simulate": "unicorn_mgr.cli.simulate",
    "settings": "unicorn_mgr.cli.settings",
    "local": "unicorn_mgr.cli.local",
    "demo": "unicorn_mgr.cli.demo",
    "coordinator": "unicorn_mgr.cli.coordinator",
    "agent": "unicorn_mgr.cli.agent",
    "certs": "unicorn_mgr.cli.certs",
}
"""Where each command is, in the order of the help."""

# Its module is typer's own in some versions and click's in others.
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Carry out a command line; returns the exit code.  A user's mistake is one line on stderr and code 2."""
    try:
        code = command(words[:1])(words, prog_name="unicorn", standalone_mode=False)
    except Problem as problem:
        sys.stderr.write(f"unicorn: {problem}\n")
        return problem.code
    except UsageError as wrong:
        sys.stderr.write(usage(wrong, words))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def command(asked: list[str]) -> typer.Typer:
    """The command that is asked for, or all: what the others need takes longer to read than to do."""
    app = typer.Typer(
        name="unicorn",
        help="A cluster-wide workload manager for LLM training that heals itself.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @app.callback(invoke_without_command=True)
    def top(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            typer.echo(__version__)
            raise typer.Exit

    names = [MODULES[name] for name in asked if name in MODULES] or MODULES.values()
    for name in dict.fromkeys(names):
        importlib.import_module(name).register(app)
    return app


def usage(wrong: Any, words: list[str]) -> str:
    """What the parser has to say, in one line; the help itself if nothing was asked for."""
    text = str(wrong.format_message()).strip()
    if "\n" in text:
        return f"{text}\n"
    value = given(getattr(wrong, "param", None), words)
    if value:
        text = f"{value}: {wrong.message}"
    text = text.replace("Value error, ", "")
    path = wrong.ctx.command_path if wrong.ctx is not None else "unicorn"
    return f"unicorn: {text[0].lower()}{text[1:].rstrip('.?')}; see `{path} --help`\n"


def given(parameter: Any, words: list[str]) -> str:
    """An option and its value as typed; empty if the trouble is not with the value of an option."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("-") and name in getattr(parameter, "opts", ()) and (equals or i + 1 < len(words)):
            return f"{name.lstrip('-')}: {value if equals else words[i + 1]}"
    return ""
