"""Faults that have happened, from CSV.

A line a fault, in the order of time; the first names the columns, those that begin with # are for people:

    at            seconds since the scenario's beginning; or a date, or date and time (ISO 8601), counted from the
                  midnight before the first of them.  The only column that must be there
    cause         as reports name it
    kind          node, process, hang, link or slow
    nodes         numbers of those that it hits, from 0 on, with blanks between; empty: drawn
    slot          of the first of them, where one process is hit; empty: drawn
    repair_hours  until its nodes are as before, or never; empty: drawn
    slowness      of slow: a step takes so many times longer
    count         so many faults alike; 0: none, which lets a trace begin before its first fault

What a column does not say is as the scenario says beside `trace`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from unicorn_mgr.simulator.faults import Cause, Moment, Repairs
from unicorn_mgr.simulator.scenario import BadScenario, Kind

COLUMNS = ("at", "cause", "kind", "nodes", "slot", "repair_hours", "slowness", "count")
BYTES_MAX = 1 << 28
COUNT_MAX = 1_000_000
"""Faults of one line."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a trace has to fit, and what holds where it says nothing."""

    nodes: int
    slots: int
    cause: str
    kind: Kind | None
    repairs: Repairs | None
    slowness: float


def read(path: Path, frame: Frame) -> tuple[Moment, ...]:
    """All faults of a file.  Raises `BadScenario`."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise BadScenario(f"{path}: larger than {BYTES_MAX} bytes; is it a trace?")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as wrong:
        raise BadScenario(f"{path}: {getattr(wrong, 'strerror', None) or 'not text'}") from wrong
    found: list[Moment] = []
    zero: datetime | None = None
    columns: list[str] = []
    last, found_any = 0.0, False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], strict=True))]
            if not columns:
                columns = _columns(cells)
                continue
            row = _row(columns, cells)
            zero = zero if found_any else _midnight(row["at"])
            at, found_any = _at(row["at"], zero), True
            if at < last:
                raise ValueError(f"at: {row['at']}: before the line above it: want lines in the order of time")
            last = at
            found += [_moment(row, at, frame)] * _count(row)
        except (ValueError, csv.Error) as wrong:
            raise BadScenario(f"{path}:{number}: {wrong}") from wrong
    if not columns:
        raise BadScenario(f"{path}:1: want a first line of columns: {', '.join(COLUMNS)}")
    return tuple(found)


def _columns(cells: list[str]) -> list[str]:
    for name in cells:
        if name not in COLUMNS or cells.count(name) > 1:
            raise ValueError(f"column {name!r}: want each of {', '.join(COLUMNS)} once at most")
    if "at" not in cells:
        raise ValueError(f"no column at: want it, and any of {', '.join(COLUMNS[1:])}")
    return cells


def _row(columns: list[str], cells: list[str]) -> Mapping[str, str]:
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} values: want {len(columns)}, for {', '.join(columns)}")
    return dict(zip(columns, cells, strict=True))


def _date(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if "-" in text else None
    except ValueError:
        return None


def _midnight(text: str) -> datetime | None:
    date = _date(text)
    return date and date.replace(hour=0, minute=0, second=0, microsecond=0)


def _at(text: str, zero: datetime | None) -> float:
    date = _date(text) if zero is not None else None
    if zero is not None and date is not None:
        if (date.tzinfo is None) != (zero.tzinfo is None):
            raise ValueError(f"at: {text}: want a zone in all lines or in none")
        return (date - zero) / timedelta(seconds=1)
    if zero is not None:
        raise ValueError(f"at: {text!r}: want a date, as above")
    return _number("at", text, least=0.0)


def _number(column: str, text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        other = " or a date" if column == "at" else " or never" if column == "repair_hours" else ""
        raise ValueError(f"{column}: {text!r}: want a number of at least {least:g}{other}")
    return value


def _whole(column: str, text: str, below: int) -> int:
    if not text.isdecimal() or int(text) >= below:
        raise ValueError(f"{column}: {text!r}: want a whole number from 0 to {below - 1}")
    return int(text)


def _count(row: Mapping[str, str]) -> int:
    return _whole("count", row["count"], COUNT_MAX + 1) if row.get("count") else 1


def _moment(row: Mapping[str, str], at: float, frame: Frame) -> Moment:
    kinds = [str(kind) for kind in Kind]
    if row.get("kind") and row["kind"] not in kinds:
        raise ValueError(f"kind: {row['kind']!r}: want one of {', '.join(kinds)}")
    kind = Kind(row["kind"]) if row.get("kind") else frame.kind
    if kind is None:
        raise ValueError(f"no kind: want a column of it, or kind beside trace in the scenario: {', '.join(kinds)}")
    slowness = _number("slowness", row["slowness"], least=1.0) if row.get("slowness") else frame.slowness
    if kind is Kind.SLOW and slowness <= 1:
        raise ValueError(
            "no slowness: a slow node's steps take more than 1 times as long: want it here or beside trace"
        )
    hours = row.get("repair_hours")
    known = None if not hours else math.inf if hours == "never" else _number("repair_hours", hours, least=0.0) * 3_600
    if kind in {Kind.NODE, Kind.SLOW} and known is None and frame.repairs is None:
        raise ValueError("no repair_hours: want it here, or repair in the scenario")
    nodes = tuple(dict.fromkeys(_nodes(row.get("nodes", ""), frame)))
    cause = Cause(row.get("cause") or frame.cause or str(kind), kind, repairs=frame.repairs or Repairs())
    return Moment(
        at=at,
        cause=replace(cause, slowness=slowness),
        nodes=nodes or None,
        slot=_whole("slot", row["slot"], frame.slots) if row.get("slot") else None,
        repair_seconds=known if kind in {Kind.NODE, Kind.SLOW} else None,
    )


def _nodes(text: str, frame: Frame) -> Iterator[int]:
    for part in text.split():
        yield _whole("nodes", part, frame.nodes)
