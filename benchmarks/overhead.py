"""Step time without faults, against plain DistributedDataParallel in the same processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cluster import Cluster, Failed, Job, cluster
from benchmarks.numbers import interval, ratios, with_interval
from benchmarks.records import traces
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, words

TITLE = "step time without faults, against DistributedDataParallel"
WORKERS = 4
LOADS = {1: (40, 6), 4: (30, 3)}
"""Pieces of text in a micro-batch; how many pairs of blocks, and steps of a block."""
LOADS_QUICK = {1: (6, 3), 4: (3, 1)}
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


@dataclass(frozen=True, slots=True)
class Load:
    """All pairs with micro-batches of one size."""

    batch_size: int
    pairs: list[Pair]
    distance: float
    """Between the parameters of the two at the end."""
    control_plane: Mapping[str, float]
    """Percent of a worker's time, by who computes."""

    @property
    def _ratios(self) -> list[float]:
        return ratios([p.ours for p in self.pairs], [p.theirs for p in self.pairs])

    def steps(self) -> Table:
        """How long they took."""
        rows = (
            ("unicorn", [p.ours for p in self.pairs]),
            ("DistributedDataParallel", [p.theirs for p in self.pairs]),
            ("unicorn, CPU of all workers", [p.ours_cpu for p in self.pairs]),
            ("DistributedDataParallel, CPU of all workers", [p.theirs_cpu for p in self.pairs]),
        )
        head = f"a step, micro-batches of {self.batch_size} x 64 bytes"
        return Table((head, *FIGURES), tuple((name, *figures(values)) for name, values in rows))

    def ratios(self) -> Table:
        """Ours over theirs, and who else computes."""
        cpu = ratios([p.ours_cpu for p in self.pairs], [p.theirs_cpu for p in self.pairs])
        rows = (
            ("time, ratio in a pair, median (95 % interval)", with_interval(self._ratios)),
            ("CPU of the workers, ratio in a pair, median (95 % interval)", with_interval(cpu)),
            *((f"CPU of the {who}, share of a worker's time", f"{s:.2f} %") for who, s in self.control_plane.items()),
        )
        return Table((f"micro-batches of {self.batch_size} x 64 bytes", "figure"), rows)

    def aims(self) -> tuple[Aim, ...]:
        """What was aimed at."""
        middle, (_, high) = median(self._ratios), interval(self._ratios)
        what = f"with micro-batches of {self.batch_size} x 64 bytes"
        return (
            Aim(f"step time {what} <= {AIM} of DistributedDataParallel's", f"{middle:.3f}", middle <= AIM),
            Aim(f"upper end of its interval < {UPPER_MAX}", f"{high:.3f}", high < UPPER_MAX),
        )


def run(options: Options) -> Found:
    """Blocks of steps in turns; pair by pair, ours over theirs.  Small micro-batches, then larger ones."""
    loads = [_measured(options, *load) for load in (LOADS_QUICK if options.quick else LOADS).items()]
    return Found(
        tables=tuple(table for load in loads for table in (load.steps(), load.ratios())),
        notes=(
            words(f"""
                Pairs of blocks in turns, each begun with a barrier; a step's time is that of the slowest rank. Both
                accumulate the same gradients (no_sync), clip and step; their parameters differ by at most
                {max(load.distance for load in loads):.1e} at the end.
            """),
            words("""
                What unicorn adds to a step is the same whatever the step computes, so its share is largest where steps
                are shortest.  All cores are busy here: nothing that it computes is hidden behind a network.
            """),
            words("""
                Coordinator and agents run during both halves of a pair, so their CPU is not in the ratio: it is shown
                apart.
            """),
        ),
        aims=tuple(aim for load in loads for aim in load.aims()),
        samples={str(load.batch_size): [asdict(p) for p in load.pairs] for load in loads},
    )


def _measured(options: Options, batch_size: int, size: tuple[int, int]) -> Load:
    pairs, block = size
    with cluster(options.folder / str(batch_size), WORKERS) as found:
        arguments = ("--pairs", str(pairs), "--block", str(block), "--batch-size", str(batch_size))
        job = found.submit("paired", WORKERS, "paired.py", *arguments)
        _await_pairs(job, 1)
        before, began = found.cpu_seconds(), time.monotonic()
        _await_pairs(job, pairs)
        used, seconds = _since(found, before), time.monotonic() - began
        job.ended()
    told = [t.others for t in traces(job.records).values()]
    return Load(
        batch_size,
        [Pair.of(told, pair) for pair in range(pairs)],
        max(float(o["distance"]) for others in told for o in others if o["what"] == "ended"),
        {who: 100 * cpu / (WORKERS * seconds) for who, cpu in used.items()},
    )


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
