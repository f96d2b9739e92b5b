"""What snapshots in memory cost a step, against none and against torch's ways at the same interval."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.cluster import SCRIPTS, Failed, environment
from benchmarks.numbers import interval, ratios
from benchmarks.records import traces
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, plain, words

TITLE = "step time with snapshots in memory, against none and against torch's ways"
AIM = 1.005


@dataclass(frozen=True, slots=True)
class Size:
    """Megabytes of state, rows in a micro-batch, and how much of each is measured."""

    megabytes: int
    rows: int
    rounds: int
    block: int
    rounds_apart: int
    """With as many steps between two as the budget gives."""


SIZES = (Size(10, 256, 40, 4, 20), Size(100, 256, 30, 2, 10))
SIZES_QUICK = (Size(10, 64, 3, 3, 2),)
SECONDS_MAX = 1200.0
WAYS = {
    "none": "none",
    "unicorn": "unicorn, into memory",
    "torch.save": "torch.save",
    "async_save": "torch.distributed.checkpoint.async_save",
}


def run(options: Options) -> Found:
    """Each size in a process of its own, all ways in turns."""
    tables: list[Table] = []
    notes: list[str] = []
    aims: list[Aim] = []
    samples: dict[str, Any] = {}
    for size in SIZES_QUICK if options.quick else SIZES:
        told = _measured(options, size)
        cost = next(t for t in told if t["what"] == "cost")
        first = next(t for t in told if t["what"] == "first")
        for every in dict.fromkeys((1, cost["every"])):
            found = [t for t in told if t["what"] == "round" and t["every"] == every]
            tables.append(_table(size, every, found))
            aims.append(_aim(size, every, found))
        blocked, sealed = median(cost["blocked"]), median(cost["sealed"])
        notes.append(
            words(f"""
                {size.megabytes} MB: the loop stands still {plain(blocked)} s for one of unicorn's, which is the copy;
                then a thread takes the checksums with {plain(sealed)} s of CPU beside training, which needs the same
                processor. Of both together a budget of 0.5 % makes one in {cost["every"]} steps. The first two also
                take the memory: {plain(first["seconds"][0])} and {plain(first["seconds"][1])} s.
            """)
        )
        samples[str(size.megabytes)] = told
    notes.append(
        words("""
            One process with one thread and no network: nothing is hidden behind a device. Each way is followed by as
            much time as it needs to end what it does in threads, whose CPU is counted. torch's ways write to a
            directory on this machine; torch.save does not sync its file.
        """)
    )
    return Found(tuple(tables), tuple(notes), tuple(aims), samples)


def _table(size: Size, every: int, found: list[dict[str, Any]]) -> Table:
    rows = []
    for way, name in WAYS.items():
        times = [_with_interval(_ratios(found, way, of)) if way != "none" else "1" for of in ("seconds", "cpu")]
        rows.append((name, *figures([t[way]["seconds"] for t in found]), *times))
    when = "before each step" if every == 1 else f"one in {every} steps"
    head = f"a step, {size.megabytes} MB of state, {when}"
    return Table((head, *FIGURES, "times none's (95 % interval)", "CPU, times none's"), tuple(rows))


def _ratios(found: list[dict[str, Any]], way: str, of: str) -> list[float]:
    return ratios([t[way][of] for t in found], [t["none"][of] for t in found])


def _aim(size: Size, every: int, found: list[dict[str, Any]]) -> Aim:
    middle = median(_ratios(found, "unicorn", "seconds"))
    when = "each step" if every == 1 else f"one in {every} steps, as the budget gives"
    text = f"{size.megabytes} MB, {when}: step time <= {AIM} of that without"
    return Aim(text, f"{middle:.4f}", middle <= AIM)


def _with_interval(ratio: list[float]) -> str:
    low, high = interval(ratio)
    return f"{median(ratio):.3f} ({low:.3f} to {high:.3f})"


def _measured(options: Options, size: Size) -> list[dict[str, Any]]:
    out = options.folder / str(size.megabytes)
    out.mkdir(parents=True)
    log = out / "log"
    command = [sys.executable, str(SCRIPTS / "snapshots.py"), "--out", str(out), "--block", str(size.block)]
    command += ["--megabytes", str(size.megabytes), "--rows", str(size.rows)]
    command += ["--rounds", str(size.rounds), str(size.rounds_apart)]
    alone = {k: v for k, v in environment().items() if not k.startswith("UNICORN_")}
    with log.open("wb") as output:
        ended = subprocess.run(
            command, env=alone, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=SECONDS_MAX, check=False
        )
    if ended.returncode:
        raise Failed(f"the loop with {size.megabytes} MB ended with {ended.returncode}; see {log}")
    return traces(out)["records"].others
