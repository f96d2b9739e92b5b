"""`python -m benchmarks`: measure, and report what was measured."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.cluster import ROOT, Failed
from benchmarks.result import Options, Result, busy_share, markdown, this_machine, today
from unicorn_mgr.cli.common import Problem

NAMES = (
    *("kill", "torchrun", "torchft", "join", "churn", "overhead", "detect", "soak", "checkpoint", "snapshot"),
    *("restore", "reshape", "move", "plan", "plan_value", "simulate", "kill_split", "hsdp"),
)
WITH_DATA = ("fit_throughput",)
"""Run only when they are named: their data is not part of the project."""

RESULTS = ROOT / "benchmarks" / "results"
SOAK_MINUTES = 10.0
RESULTS_QUICK = ROOT / "runs" / "benchmarks"


def main() -> int:
    """Run what is asked for; returns the exit code."""
    args = arguments()
    if args.report:
        print(report.write(args.out or RESULTS, (*NAMES, *WITH_DATA)))
        return 0
    unknown = [name for name in args.names if name not in (*NAMES, *WITH_DATA)]
    if unknown:
        sys.stderr.write(f"benchmarks: names: {', '.join(unknown)}: want some of {', '.join((*NAMES, *WITH_DATA))}\n")
        return 2
    out = args.out or (RESULTS_QUICK if args.quick else RESULTS)
    failed = [name for name in args.names or NAMES if not measure(name, args, out)]
    if failed:
        sys.stderr.write(f"benchmarks: not carried out: {', '.join(failed)}\n")
    return 1 if failed else 0


_WHICH = f"which: {', '.join(NAMES)}; all of these if none is given; with --data: {', '.join(WITH_DATA)}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, and report what was measured.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=_WHICH)
    parser.add_argument("--quick", action="store_true", help="under a minute each: shows that they work, no more")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results are kept")
    parser.add_argument("--seed", type=int, default=1, help="of random moments and victims")
    parser.add_argument("--soak-minutes", type=float, default=SOAK_MINUTES, help="how long soak runs")
    parser.add_argument("--data", type=Path, metavar="FILE", help="published figures, for fit_throughput (CSV)")
    parser.add_argument("--report", action="store_true", help="write the newest results into benchmarks/README.md")
    return parser.parse_args()


def measure(name: str, args: argparse.Namespace, out: Path) -> bool:
    """Run one and keep what it found."""
    module = importlib.import_module(f"benchmarks.{name}")
    machine = this_machine()
    folder = Path(tempfile.mkdtemp(prefix="ub-"))
    print(f"{name}: {module.TITLE} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        found = module.run(Options(args.quick, args.seed, folder / "c", args.soak_minutes, args.data))
    except (Failed, Problem) as why:
        sys.stderr.write(f"benchmarks: {name}: {why}\n")
        return False
    except Exception:  # noqa: BLE001 - a bug in one must not cost the figures of the others
        traceback.print_exc()
        return False
    seconds = time.monotonic() - began
    machine = replace(machine, busy_share=max(machine.busy_share, busy_share()))
    flags = " --quick" * args.quick + (f" --seed {args.seed}" if args.seed != 1 else "")
    if name == "soak" and args.soak_minutes != SOAK_MINUTES:
        flags += f" --soak-minutes {args.soak_minutes:g}"
    if name in WITH_DATA:
        flags += " --data FILE"
    command = f".venv/bin/python -m benchmarks {name}{flags}"
    result = Result(name, module.TITLE, command, args.quick, today(), seconds, machine, found)
    if found.tables:  # What could not be measured here must not replace what once was.
        result.write(out)
    shutil.rmtree(folder)
    print(markdown(result), flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
