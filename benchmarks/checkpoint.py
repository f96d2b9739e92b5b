"""How long a checkpoint keeps the training loop from going on."""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from typing import Any

from benchmarks.cluster import SCRIPTS, Failed, environment
from benchmarks.records import traces
from benchmarks.result import FIGURES, Found, Options, Table, figures, plain, words

TITLE = "seconds that the loop is blocked per checkpoint, by state size"
TIMES = {10: 12, 100: 10, 500: 6}
"""Megabytes of state, and how often."""
TIMES_QUICK = {10: 3, 100: 2}
SECONDS_MAX = 400.0


def run(options: Options) -> Found:
    """Each size in a process of its own, all ways in turns."""
    rows: list[tuple[str, ...]] = []
    notes = []
    samples: dict[str, Any] = {}
    for megabytes, times in (TIMES_QUICK if options.quick else TIMES).items():
        told = _measured(options, megabytes, times)
        ways = {name: [t["blocked"] for t in told if t["what"] == name] for name in _names(told)}
        heads = next(t["seconds"] for t in told if t["what"] == "head")
        ours = [t for t in told if t["what"] == "unicorn"]
        for name, blocked in ways.items():
            ratio = median(blocked) / median(ways["unicorn"])
            rows.append((f"{megabytes} MB, {name}", *figures(blocked), f"{ratio:.1f}"))
        notes.append(
            f"{megabytes} MB: unicorn's was stored {plain(median(t['stored'] for t in ours))} s after it was due, and "
            f"the steps meanwhile took {plain(median(t['slowed'] for t in ours))} s longer than as many others; the "
            f"head of a step without a checkpoint takes {plain(median(heads))} s, which is contained."
        )
        samples[str(megabytes)] = told
    return Found(
        tables=(Table(("state, by", *FIGURES, "times unicorn's"), tuple(rows)),),
        notes=(
            *notes,
            words("""
                To a directory on this machine. unicorn's and torch.distributed.checkpoint's files are synced to
                disk before they count, torch.save's are not.
            """),
        ),
        samples=samples,
    )


def _names(told: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(t["what"] for t in told if "blocked" in t))


def _measured(options: Options, megabytes: int, times: int) -> list[dict[str, Any]]:
    out = options.folder / str(megabytes)
    out.mkdir(parents=True)
    log = out / "log"
    command = [sys.executable, str(SCRIPTS / "blocked.py"), "--out", str(out)]
    command += ["--megabytes", str(megabytes), "--times", str(times)]
    alone = {k: v for k, v in environment().items() if not k.startswith("UNICORN_")}
    with log.open("wb") as output:
        # A process that ends its loop by leaving it says so and exits well.
        ended = subprocess.run(
            command, env=alone, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=SECONDS_MAX, check=False
        )
    if ended.returncode:
        raise Failed(f"the loop with {megabytes} MB ended with {ended.returncode}; see {log}")
    return traces(out)["records"].others
