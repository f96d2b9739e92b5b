"""What a benchmark found, as JSON to keep and as a section to read."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.numbers import summary

BUSY_SHARE = 0.1
"""With more of the machine's time than this used by others its figures say little."""

BUSY_SECONDS = 2.0
"""For so long that is watched."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a benchmark is run."""

    quick: bool
    seed: int
    folder: Path
    """For everything it writes while it runs."""
    soak_minutes: float
    data: Path | None = None
    """Of others, that a benchmark compares with."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Aim:
    """What was aimed at, and what has been reached."""

    text: str
    reached: str
    met: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What a benchmark says of itself."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    aims: tuple[Aim, ...] = ()
    samples: dict[str, Any] = field(default_factory=dict)
    """What the tables were made from."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it ran."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    torch: str
    busy_share: float
    """Of all cores' time, used by others just before it began or just after it ended, whichever is more."""

    @property
    def busy(self) -> bool:
        """Something else was running: its figures say little."""
        return self.busy_share > BUSY_SHARE


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one benchmark."""

    name: str
    title: str
    command: str
    quick: bool
    date: str
    took_seconds: float
    machine: Machine
    found: Found

    def write(self, folder: Path) -> Path:
        """Keep it as JSON and as markdown, in place of an earlier one."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        beside = path.with_suffix(".writing")
        beside.write_text(json.dumps(asdict(self), indent=1) + "\n")
        beside.rename(path)
        path.with_suffix(".md").write_text(markdown(self))
        return path


def read(path: Path) -> Result:
    """What `write` has kept."""
    kept = json.loads(path.read_text())
    found = kept["found"]
    return Result(
        **{
            **kept,
            "machine": Machine(**kept["machine"]),
            "found": Found(
                tuple(Table(tuple(t["head"]), tuple(map(tuple, t["rows"]))) for t in found["tables"]),
                tuple(found["notes"]),
                tuple(Aim(**a) for a in found["aims"]),
                found["samples"],
            ),
        }
    )


def this_machine() -> Machine:
    """What figures depend on."""
    import torch  # noqa: PLC0415 - costs a second, and reports are made without it

    cpu = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")]
    return Machine(
        cpu=cpu[0] if cpu else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory[0] / 2**20, 1) if memory else 0.0,
        kernel=platform.release(),
        python=platform.python_version(),
        torch=torch.__version__,
        busy_share=busy_share(),
    )


def today() -> str:
    """The date, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def markdown(result: Result) -> str:
    """The section of one result."""
    machine, found = result.machine, result.found
    lines = [f"### {result.name}: {result.title}", ""]
    for table in found.tables:
        lines += ["| " + " | ".join(table.head) + " |", "|" + " --- |" * len(table.head)]
        lines += ["| " + " | ".join(row) + " |" for row in table.rows] + [""]
    lines += [f"- {'Reached' if aim.met else '**Missed**'}: {aim.text}: {aim.reached}." for aim in found.aims]
    lines += [f"- {note}" for note in found.notes]
    if result.quick:
        lines.append("- A quick run: it shows that the benchmark works, its figures mean little.")
    if machine.busy:
        lines.append(f"- {machine.busy_share:.0%} of the machine was in use by others: do not trust the figures.")
    lines += [
        "",
        words(f"""
            `{result.command}`, {result.date}, {result.took_seconds:.0f} s, on {machine.cpu}, {machine.cores} cores,
            {machine.memory_gib:g} GiB, Linux {machine.kernel}, Python {machine.python}, torch {machine.torch}; others
            used {machine.busy_share:.0%} of it
        """),
        "",
    ]
    return "\n".join(lines)


# -- rows of figures ------------------------------------------------------------------------

FIGURES = ("n", "median (95 % interval)", "p95", "lowest to highest")


def figures(values: Sequence[float], unit: str = "s") -> tuple[str, ...]:
    """The columns `FIGURES` of one row; seconds below one are written as such, never as milliseconds."""
    if not values:
        return ("0", "-", "-", "-")
    s = summary(values)
    return (
        str(len(values)),
        f"{plain(s['median'])} {unit} ({plain(s['low'])} to {plain(s['high'])})",
        plain(s["p95"]),
        f"{plain(s['min'])} to {plain(s['max'])}",
    )


def words(text: str) -> str:
    """A paragraph, however it is wrapped in a source file."""
    return " ".join(text.split())


def plain(value: float) -> str:
    """Three digits that mean something."""
    if value == 0:
        return "0"
    size = abs(value)
    digits = 4 if size < 0.01 else 3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:.{digits}f}"


def busy_share() -> float:
    """What others use at this moment, while nothing is measured."""
    before = _cpu_times()
    time.sleep(BUSY_SECONDS)
    passed = [now - then for now, then in zip(_cpu_times(), before, strict=True)]
    idle, waiting = passed[3], passed[4]
    return round(1 - (idle + waiting) / sum(passed), 3)


def _cpu_times() -> list[int]:
    """Ticks of all cores: user, nice, system, idle, waiting for disks, and so on."""
    return [int(field) for field in _lines("/proc/stat")[0].split()[1:9]]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
