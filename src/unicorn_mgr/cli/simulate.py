"""`unicorn simulate`: the same brain in virtual time, under a swarm of faults."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict

import typer
from rich.console import Console
from rich.progress import track

from unicorn_mgr.cli.common import JsonOption, Problem
from unicorn_mgr.cli.show import count, say, show_json
from unicorn_mgr.simulator.swarm import Verdict, shrunk, swarm

EXIT_VIOLATION = 1


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def simulate(
        swarm_seed: int = typer.Option(..., "--swarm-seed", metavar="N", min=0, help="The history to live through."),
        seeds: int = typer.Option(1, "--seeds", metavar="K", min=1, help="That one and those after it."),
        without: str = typer.Option("", "--without", metavar="I,J", help="Leave these jobs and faults out of it."),
        shrink: bool = typer.Option(False, "--shrink", help="Leave out whatever a violation does not need."),
        as_json: bool = JsonOption,
    ) -> None:
        """Draw a cluster, jobs and faults from a seed, and see whether anything happens that must not.

        Coordinator, agents, planner and the deal of micro-batches are the real ones; time, network, machines and
        training are imitated.  Exit code 1 if a history breaks a rule: the same seed shows it again.
        """
        left_out = _numbers(without)
        if seeds > 1 and (left_out or shrink):
            raise Problem("simulate: --seeds: with --without or --shrink it is one history; leave --seeds out")
        if shrink and left_out:
            raise Problem("simulate: --without: --shrink finds by itself what to leave out; give one of them")
        if shrink:
            verdicts = [shrunk(swarm_seed)]
        elif seeds == 1:
            verdicts = [swarm(swarm_seed, without=left_out)]
        else:
            verdicts = list(_lived_through(range(swarm_seed, swarm_seed + seeds)))
        if as_json:
            show_json([asdict(v) for v in verdicts])
        else:
            _tell(verdicts)
        if any(v.violation for v in verdicts):
            raise typer.Exit(EXIT_VIOLATION)


def _numbers(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = next((word for word in words if not word.isdecimal()), None)
    if wrong is not None:
        raise Problem(f"without: {wrong}: want numbers with commas between them, as a shrunk history names them")
    return frozenset(map(int, words))


def _lived_through(seeds: range) -> Iterator[Verdict]:
    console = Console(stderr=True)
    for seed in track(seeds, "histories", console=console, disable=not sys.stderr.isatty()):
        yield swarm(seed)


def _tell(verdicts: list[Verdict]) -> None:
    if len(verdicts) == 1:
        for line in verdicts[0].story:
            say(line)
    for verdict in verdicts:
        if verdict.violation:
            say(f"seed {verdict.seed}: {verdict.violation}", style="bold red")
            left_out = "".join(f" --without {','.join(map(str, verdict.without))}" for _ in verdict.without[:1])
            say(f"  again: unicorn simulate --swarm-seed {verdict.seed}{left_out or ' --shrink'}")
    broken = sum(bool(v.violation) for v in verdicts)
    events, seconds = sum(v.events for v in verdicts), sum(v.virtual_seconds for v in verdicts)
    lived = f"{count(len(verdicts), 'history')}, {events} events, {seconds / 3600:.1f} virtual hours"
    say(f"{lived}: {count(broken, 'violation') if broken else 'no violation'}")
