"""`unicorn coordinator`: the service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from unicorn_mgr.cli.common import Problem, TlsOption, host_and_port, set_up_logging, state_folder


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def coordinator(
        listen: str = typer.Option("127.0.0.1:7077", "--listen", metavar="HOST:PORT", help="Where to serve."),
        data: Path | None = typer.Option(None, "--data", metavar="DIR", help="The journal's directory."),
        metrics: str = typer.Option(
            "127.0.0.1:7078",
            "--metrics",
            metavar="HOST:PORT",
            help="Where Prometheus scrapes; empty: nowhere.",
        ),
        tls: Path | None = TlsOption,
        allow_drills: bool = typer.Option(False, "--allow-drills", help="Faults may be injected."),
        observe: bool = typer.Option(False, "--observe", help="Begin in observe mode: detect, never act."),
        setting: list[str] = typer.Option(
            [], "--set", metavar="NAME=VALUE", help="A setting, e.g. lease_seconds=5; see `unicorn settings`."
        ),
        ready_file: Path | None = typer.Option(
            None, "--ready-file", metavar="FILE", help="Write the addresses here when serving."
        ),
        json_logs: bool = typer.Option(False, "--json-logs", help="Log JSON."),
        verbose: bool = typer.Option(False, "--verbose", help="Log more."),
    ) -> None:
        """Run the coordinator: one for a cluster."""
        set_up_logging(json_logs, verbose)
        _serve(
            listen=host_and_port("listen", listen),
            data=data or state_folder() / "coordinator",
            metrics=host_and_port("metrics", metrics) if metrics else "",
            tls=tls,
            drills=allow_drills,
            observe=observe,
            settings=parse_settings(setting),
            ready_file=ready_file,
        )


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs as keyword arguments for the settings."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise Problem(f"set: {pair}: want NAME=VALUE")
        found[name] = value
    return found


def _serve(
    *,
    listen: str,
    data: Path,
    metrics: str,
    tls: Path | None,
    drills: bool,
    observe: bool,
    settings: dict[str, Any],
    ready_file: Path | None,
) -> None:
    # The other commands need neither the server nor its libraries, which take long to load.
    from unicorn_mgr.coordinator.driver import JournalFailed  # noqa: PLC0415 - see above
    from unicorn_mgr.coordinator.service import ServiceConfig, ServiceError, run  # noqa: PLC0415 - see above
    from unicorn_mgr.coordinator.settings import Settings  # noqa: PLC0415 - see above
    from unicorn_mgr.coordinator.store import StoreError  # noqa: PLC0415 - see above

    try:
        checked = Settings.model_validate(settings)
    except ValidationError as wrong:
        raise Problem(setting_problem(wrong)) from wrong
    config = ServiceConfig(
        listen=listen,
        data=data,
        metrics_listen=metrics,
        tls=tls,
        drills=drills,
        observe=observe,
        settings=checked,
    )

    def ready(address: str, metrics_address: str) -> None:
        if ready_file is not None:
            fresh = ready_file.with_suffix(".new")
            fresh.write_text(f"{address}\n{metrics_address}\n")
            fresh.rename(ready_file)

    try:
        asyncio.run(run(config, ready))
    except (ServiceError, StoreError, JournalFailed) as failed:
        raise Problem(str(failed)) from failed
    except BaseExceptionGroup as group:
        journal = group.subgroup(JournalFailed)
        if journal is None:
            raise
        raise Problem(str(_first(journal))) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def setting_problem(wrong: ValidationError) -> str:
    """One line: the field, the value, what would be right."""
    first = wrong.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"set: {name}: there is no such setting; see `unicorn settings`"
    text = first["msg"].removeprefix("Value error, ")
    return f"set: {name}: {first['input']}: {text}" if name else f"set: {text}"
