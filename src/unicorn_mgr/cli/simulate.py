"""`unicorn simulate`: policies compared in virtual time, and the same brain under a swarm of faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from unicorn_mgr.cli import comparison, swarm
from unicorn_mgr.cli.common import JsonOption, Problem

EXIT_VIOLATION = 1

FromJournalOption = typer.Option(
    None, "--from-journal", metavar="DIR", help="The faults that a real coordinator has seen, from its --data."
)
IncidentsOption = typer.Option(
    None, "--incidents", metavar="FILE", help="Write a row for each fault of each run: what it has cost."
)
SwarmSeedOption = typer.Option(
    None, "--swarm-seed", metavar="N", min=0, help="In place of a scenario: the hostile history to live through."
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def simulate(
        scenario: str = typer.Argument("", metavar="[SCENARIO.yaml|NAME]", help="A file, or one of --list."),
        from_journal: Path | None = FromJournalOption,
        policy: str = typer.Option("", "--policy", metavar="A,B|all", help="What is compared; --list names all."),
        baseline: str = typer.Option("", "--baseline", metavar="NAME", help="Over whose WAF others' is told."),
        seed: int | None = typer.Option(None, "--seed", metavar="N", min=0, help="Of the faults; 0 if not given."),
        seeds: int | None = typer.Option(None, "--seeds", metavar="K", min=1, help="That one and those after it."),
        costs: str = typer.Option("", "--costs", metavar="low|mid|high", help="Which end of all ranges; mid."),
        sensitivity: bool = typer.Option(False, "--sensitivity", help="Also tell which assumption moves it most."),
        csv: Path | None = typer.Option(None, "--csv", metavar="FILE", help="Write a row for each run."),
        incidents: Path | None = IncidentsOption,
        plot: Path | None = typer.Option(None, "--plot", metavar="DIR", help="Draw the first seed, as SVG and PNG."),
        schema: bool = typer.Option(False, "--schema", help="Print the JSON Schema of scenarios and leave."),
        listed: bool = typer.Option(False, "--list", help="Print scenarios and policies and leave."),
        swarm_seed: int | None = SwarmSeedOption,
        without: str = typer.Option("", "--without", metavar="I,J", help="Leave these jobs and faults out of it."),
        shrink: bool = typer.Option(False, "--shrink", help="Leave out whatever a violation does not need."),
        as_json: bool = JsonOption,
    ) -> None:
        """Live through a scenario's faults under several policies, and compare what becomes of the cluster.

        Ours is the very coordinator that runs a cluster, in virtual time.  With --swarm-seed: draw a cluster, jobs and
        hostile faults from a seed, and see whether anything happens that must not; exit code 1 if a rule is broken.
        """
        compares: dict[str, Any] = {"SCENARIO": scenario, "--from-journal": from_journal, "--policy": policy}
        compares |= {"--baseline": baseline, "--seed": seed, "--costs": costs, "--sensitivity": sensitivity}
        compares |= {"--csv": csv, "--incidents": incidents, "--plot": plot, "--schema": schema, "--list": listed}
        if swarm_seed is not None:
            _refuse(compares, "it belongs to a comparison, and --swarm-seed is none; give one of them")
            if not swarm.live_through(swarm_seed, seeds or 1, without, shrink=shrink, as_json=as_json):
                raise typer.Exit(EXIT_VIOLATION)
            return
        _refuse({"--without": without, "--shrink": shrink}, "it belongs to --swarm-seed N; leave it out")
        if schema or listed:
            comparison.show_schema() if schema else comparison.show_list(as_json=as_json)
            return
        asked = comparison.Asked(
            *(policy, baseline, seed, seeds, costs, sensitivity),
            csv=csv,
            incidents=incidents,
            plot=plot,
            as_json=as_json,
        )
        if bool(scenario) == (from_journal is not None):
            raise Problem("simulate: give one of SCENARIO (see --list), --from-journal DIR and --swarm-seed N")
        if from_journal is not None:
            comparison.of_journal(from_journal, asked)
        else:
            comparison.of_scenario(scenario, asked)


def _refuse(options: dict[str, Any], why: str) -> None:
    """None of these may be given."""
    for name, value in options.items():
        if value is not None and value is not False and value != "":
            raise Problem(f"simulate: {name}: {why}")
