"""Step time of a model split by FSDP2, against torch's own hybrid sharding on the same mesh."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import peers
from benchmarks.cluster import SCRIPTS, Failed, cluster, environment
from benchmarks.numbers import interval, ratios, with_interval
from benchmarks.records import traces
from benchmarks.result import FIGURES, Aim, Found, Options, Table, figures, words

TITLE = "step time of a model split by FSDP2, against torch's own hybrid sharding (HSDP)"
REPLICAS, SHARDS = 2, 2
WORKERS = REPLICAS * SHARDS
BATCH_SIZE = 4
PAIRS, PAIRS_QUICK = 40, 4
BLOCK_STEPS = 4
AIM = 1.02
LOOK_SECONDS = 0.02
BLOCK_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Block:
    """Per step of one block, in seconds: until the last worker was done, and the CPU of all."""

    seconds: float
    cpu: float


def run(options: Options) -> Found:
    """Two trainings side by side, of which only one computes at a time."""
    pairs = PAIRS_QUICK if options.quick else PAIRS
    theirs = options.folder / "torch"
    arguments = ("--pairs", str(pairs), "--block", str(BLOCK_STEPS), "--batch-size", str(BATCH_SIZE))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
    script = [str(SCRIPTS / "hsdp.py"), "--out", str(theirs), *arguments, "--shards", str(SHARDS)]
    with cluster(options.folder, REPLICAS, slots=SHARDS) as found:
        spec: dict[str, Any] = {"replica": {"shard": SHARDS}, "replica_size": SHARDS, "size_min": WORKERS}
        job = found.submit("split", WORKERS, "hsdp.py", *arguments, **spec)
        _until_written(job.out, "ready", 1)
        with peers.started([*torchrun, *script], environment(), theirs / "log") as process:
            _until_written(theirs, "ready", 1)
            sides = {"ours": job.out, "theirs": theirs}
            for pair in range(pairs):
                for name in sorted(sides, reverse=pair % 2 == 1):
                    (sides[name] / f"go-{pair}").touch()
                    _until_written(sides[name], "pair", pair + 1)
            process.wait(BLOCK_SECONDS_MAX)
        job.ended()
    return _report(_blocks(job.out, pairs), _blocks(theirs, pairs), _distance(job.out, theirs))


def _until_written(out: Path, what: str, count: int) -> None:
    deadline = time.monotonic() + BLOCK_SECONDS_MAX
    while True:
        written = [sum(o["what"] == what for o in t.others) for t in traces(out / "records").values()]
        if len(written) == WORKERS and min(written) >= count:
            return
        if time.monotonic() > deadline:
            raise Failed(f"no {what} {count} of all workers; see {out}")
        time.sleep(LOOK_SECONDS)


def _blocks(out: Path, pairs: int) -> list[Block]:
    told = [o for t in traces(out / "records").values() for o in t.others if o["what"] == "pair"]
    blocks = [[o for o in told if o["pair"] == pair] for pair in range(pairs)]
    return [
        Block(
            (max(o["at"] for o in block) - min(o["began"] for o in block)) / BLOCK_STEPS,
            sum(o["cpu"] for o in block) / BLOCK_STEPS,
        )
        for block in blocks
    ]


def _distance(*folders: Path) -> float:
    """Largest between parameters of the two at their ends."""
    ours, theirs = (torch.load(next(iter(sorted(f.glob("*.pt")))), weights_only=True) for f in folders)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def _report(ours: list[Block], theirs: list[Block], distance: float) -> Found:
    times = ratios([b.seconds for b in ours], [b.seconds for b in theirs])
    cpu = ratios([b.cpu for b in ours], [b.cpu for b in theirs])
    middle, (_, high) = median(times), interval(times)
    rows = (
        ("unicorn", [b.seconds for b in ours]),
        ("HSDP", [b.seconds for b in theirs]),
        ("unicorn, CPU of all workers", [b.cpu for b in ours]),
        ("HSDP, CPU of all workers", [b.cpu for b in theirs]),
    )
    ratio = (
        ("time, ratio in a pair, median (95 % interval)", with_interval(times)),
        ("CPU of the workers, ratio in a pair, median (95 % interval)", with_interval(cpu)),
    )
    return Found(
        tables=(
            Table((f"a step, micro-batches of {BATCH_SIZE} x 64 bytes", *FIGURES), _rows(rows)),
            Table(("", "figure"), ratio),
        ),
        notes=(
            words(f"""
                {REPLICAS} replicas of {SHARDS} workers; the two trainings take turns, a block of {BLOCK_STEPS} steps
                each. Both scatter the gradients inside a replica after each micro-batch and reduce them between
                replicas once a step. Their parameters differ by at most {distance:.1e} at the end.
            """),
        ),
        aims=(
            Aim(f"step time <= {AIM} of HSDP's", f"{middle:.3f}", middle <= AIM),
            Aim(f"upper end of its interval <= {AIM}", f"{high:.3f}", high <= AIM),
        ),
        samples={"unicorn": [asdict(b) for b in ours], "hsdp": [asdict(b) for b in theirs]},
    )


def _rows(rows: tuple[tuple[str, list[float]], ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((name, *figures(values)) for name, values in rows)
