"""How listings look: tables on a terminal, aligned columns elsewhere, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

REASON_CHARACTERS_MAX = 100

_STYLES = {
    "up": "green",
    "running": "green",
    "member": "green",
    "closed": "green",
    "silent": "yellow",
    "starting": "yellow",
    "waiting": "yellow",
    "ending": "yellow",
    "draining": "yellow",
    "quarantined": "yellow",
    "drained": "cyan",
    "ended": "dim",
    "lost": "bold red",
    "isolated": "bold red",
    "open": "bold red",
}


def show_json(value: Any) -> None:
    """A listing for programs."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def show_json_line(value: Any) -> None:
    """One item of a stream for programs."""
    json.dump(value, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def say(text: str = "", style: str = "") -> None:
    """A line for people."""
    if sys.stdout.isatty():
        Console(highlight=False, soft_wrap=True).print(Text(text, style=style))
    else:
        sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """A line of the command's own, beside the output it shows."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"unicorn: {text}", style="dim"))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> None:
    """Rows under their columns; `nothing` is said if there are none.

    A title says how its column is shown: > aligns it to the right, and ? leaves it out, the
    last one first, where the terminal is too narrow for all.
    """
    cells = [list(row) for row in rows]
    found = [_Column(c.strip(">?"), ">" in c, "?" in c, [row[i] for row in cells]) for i, c in enumerate(columns)]
    if not cells:
        say(nothing, "dim")
    elif sys.stdout.isatty():
        _show_on_terminal(found)
    else:
        _show_aligned(found)


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    right: bool
    optional: bool
    cells: list[str]

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells)))


def _show_on_terminal(columns: list[_Column]) -> None:
    console = Console(highlight=False)
    while sum(c.width + 2 for c in columns) > console.width and any(c.optional for c in columns):
        columns.remove([c for c in columns if c.optional][-1])
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        wraps = column is columns[-1]
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold", no_wrap=not wraps)
    for row in zip(*(c.cells for c in columns), strict=True):
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(table)


def _show_aligned(columns: list[_Column]) -> None:
    """Never cut and never wrapped: one row is one line, for grep and awk."""
    padded = [
        [cell.rjust(c.width) if c.right else cell.ljust(c.width) for cell in (c.title, *c.cells)] for c in columns
    ]
    for line in zip(*padded, strict=True):
        sys.stdout.write(f"{'  '.join(line).rstrip()}\n")


# -- words ----------------------------------------------------------------------------------


def when(at: float) -> str:
    """Seconds since 1970 as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def lately(at: float) -> str:
    """The same, without today's date."""
    date, _, hour = when(at).partition(" ")
    return hour if date == when(time.time()).partition(" ")[0] else f"{date} {hour}"


def clock(at: float) -> str:
    """The same with milliseconds."""
    milliseconds = int(at * 1000 + 0.5)
    return f"{when(milliseconds // 1000)}.{milliseconds % 1000:03d}"


def ago(at: float) -> str:
    """How long since, in one unit."""
    return f"{duration(max(0.0, time.time() - at))} ago"


def duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    for name, unit in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2f} s"


def one_line(text: str) -> str:
    """The first line, not too long."""
    first = text.partition("\n")[0]
    return first if len(first) <= REASON_CHARACTERS_MAX else f"{first[: REASON_CHARACTERS_MAX - 3]}..."


def count(number: int, what: str) -> str:
    """1 worker, 2 workers."""
    if number == 1:
        return f"1 {what}"
    if what.endswith("y"):
        return f"{number} {what[:-1]}ies"
    return f"{number} {what}es" if what.endswith("ch") else f"{number} {what}s"
