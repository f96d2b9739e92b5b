"""Step time without faults, against plain DistributedDataParallel in the same processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cluster import Cluster, Failed, Job, cluster
from benchmarks.numbers import interval, ratios
from benchmarks.records import traces
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, words

TITLE = "step time without faults, against DistributedDataParallel"
WORKERS = 4
PAIRS, PAIRS_QUICK = 60, 8
BLOCK_STEPS, BLOCK_STEPS_QUICK = 6, 3
AIM, UPPER_MAX = 1.01, 1.05
LOOK_SECONDS = 0.5
PAIR_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds per step of two blocks, one after the other."""

    ours: float
    theirs: float
    ours_cpu: float
    theirs_cpu: float

    @classmethod
    def of(cls, told: list[list[dict[str, Any]]], number: int) -> Pair:
        """From all ranks' records: a block has ended when the last rank has; CPU adds up."""
        ranks = [o for others in told for o in others if o.get("pair") == number]
        return cls(
            ours=max(o["ours"]["seconds"] for o in ranks),
            theirs=max(o["theirs"]["seconds"] for o in ranks),
            ours_cpu=sum(o["ours"]["cpu"] for o in ranks),
            theirs_cpu=sum(o["theirs"]["cpu"] for o in ranks),
        )


def run(options: Options) -> Found:
    """Blocks of steps in turns; pair by pair, ours over theirs."""
    pairs = PAIRS_QUICK if options.quick else PAIRS
    block = BLOCK_STEPS_QUICK if options.quick else BLOCK_STEPS
    with cluster(options.folder, WORKERS) as found:
        job = found.submit("paired", WORKERS, "paired.py", "--pairs", str(pairs), "--block", str(block))
        _await_pairs(job, 1)
        before, began = found.cpu_seconds(), time.monotonic()
        _await_pairs(job, pairs)
        used, seconds = _since(found, before), time.monotonic() - began
        job.ended()
    told = [t.others for t in traces(job.records).values()]
    measured = [Pair.of(told, pair) for pair in range(pairs)]
    distance = max(float(o["distance"]) for others in told for o in others if o["what"] == "ended")
    shares = {who: 100 * cpu / (WORKERS * seconds) for who, cpu in used.items()}
    return _report(measured, block, shares, distance)


def _await_pairs(job: Job, count: int) -> None:
    """By the workers' records: nobody asks the coordinator anything meanwhile."""
    deadline = time.monotonic() + PAIR_SECONDS_MAX * count
    while _pairs_written(job.records) < count:
        if time.monotonic() > deadline:
            raise Failed(f"only {_pairs_written(job.records)} of {count} pairs came; see {job.cluster.folder}")
        time.sleep(LOOK_SECONDS)


def _pairs_written(records: Path) -> int:
    found = traces(records).values()
    return min((sum(o["what"] == "pair" for o in t.others) for t in found), default=0) if len(found) == WORKERS else 0


def _since(found: Cluster, before: Mapping[str, float]) -> dict[str, float]:
    return {who: cpu - before[who] for who, cpu in found.cpu_seconds().items()}


def _report(pairs: list[Pair], block: int, shares: Mapping[str, float], distance: float) -> Found:
    ratio = ratios([p.ours for p in pairs], [p.theirs for p in pairs])
    cpu_ratio = ratios([p.ours_cpu for p in pairs], [p.theirs_cpu for p in pairs])
    middle, (_, high) = median(ratio), interval(ratio)
    rows = (
        ("unicorn", [p.ours for p in pairs]),
        ("DistributedDataParallel", [p.theirs for p in pairs]),
        ("unicorn, CPU of all four workers", [p.ours_cpu for p in pairs]),
        ("DistributedDataParallel, CPU of all four workers", [p.theirs_cpu for p in pairs]),
    )
    said = (
        ("time, ratio in a pair, median (95 % interval)", _with_interval(ratio)),
        ("CPU of the workers, ratio in a pair, median (95 % interval)", _with_interval(cpu_ratio)),
        *((f"CPU of the {who}, share of a worker's time", f"{share:.2f} %") for who, share in shares.items()),
    )
    return Found(
        tables=(
            Table(("a step", *FIGURES), tuple((name, *figures(values)) for name, values in rows)),
            Table(("", "figure"), said),
        ),
        notes=(
            words(f"""
                {len(ratio)} pairs of blocks of {block} steps in turns, each begun with a barrier; a step's time is that
                of the slowest rank. Both accumulate the same gradients (no_sync), clip and step; the parameters of the
                two differ by {distance:.1e} at the end.
            """),
            words("""
                Coordinator and agents run during both halves of a pair, so their CPU is not in the ratio: it is shown
                apart.
            """),
        ),
        aims=(
            Aim(f"step time <= {AIM} of DistributedDataParallel's", f"{middle:.3f}", middle <= AIM),
            Aim(f"upper end of its interval < {UPPER_MAX}", f"{high:.3f}", high < UPPER_MAX),
        ),
        samples={"pairs": [asdict(p) for p in pairs], "control_plane_percent": dict(shares)},
    )


def _with_interval(ratio: list[float]) -> str:
    low, high = interval(ratio)
    return f"{median(ratio):.3f} ({low:.3f} to {high:.3f})"
