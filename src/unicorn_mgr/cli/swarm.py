"""`unicorn simulate --swarm-seed N`: hostile histories, and whether they break a rule."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.progress import track

from unicorn_mgr.cli.common import Problem
from unicorn_mgr.cli.show import count, say, show_json
from unicorn_mgr.simulator.swarm import Verdict, shrunk, swarm


def live_through(first: int, seeds: int, without: str, *, shrink: bool, as_json: bool) -> bool:
    """Live through the histories of these seeds and tell of them; whether they broke no rule.  Raises `Problem`."""
    left_out = _numbers(without)
    if seeds > 1 and (left_out or shrink):
        raise Problem("simulate: --seeds: with --without or --shrink it is one history; leave --seeds out")
    if shrink and left_out:
        raise Problem("simulate: --without: --shrink finds by itself what to leave out; give one of them")
    if shrink:
        verdicts = [shrunk(first)]
    elif seeds == 1:
        verdicts = [swarm(first, without=left_out)]
    else:
        verdicts = list(_lived_through(range(first, first + seeds)))
    if as_json:
        show_json([asdict(v) for v in verdicts])
    else:
        _tell(verdicts)
    return not any(v.violation for v in verdicts)


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
