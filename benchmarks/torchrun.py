"""The same task under torchrun, which restarts all workers from the newest checkpoint."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks import peers
from benchmarks.cluster import SCRIPTS, environment
from benchmarks.records import Trace, durations, traces
from benchmarks.result import FIGURES, Found, Options, Table, figures, plain, words

TITLE = "the same kills under torchrun, which restarts from the newest checkpoint"
WORKERS = 4
KILLS, KILLS_QUICK = 10, 2
CALM_STEPS = 8
CHECKPOINT_EVERY_STEPS = 20


@dataclass(frozen=True, slots=True)
class Restarted:
    """What a kill has cost."""

    next_step: float
    """Seconds until all workers had finished some step again."""
    regained: float
    """Seconds until all had finished the step after the last one before the kill."""
    steps_lost: int


def run(options: Options) -> Found:
    """Kill, wait until all train again, kill again."""
    out, chance = options.folder / "torchrun", random.Random(options.seed)
    records, log = out / "records", out / "log"
    kills = []
    with peers.started(command(out, WORKERS), torchrun_environment(), log):
        for _ in range(KILLS_QUICK if options.quick else KILLS):
            calm = peers.wait_until_calm(records, WORKERS, CALM_STEPS, log)
            kills.append(peers.kill_one(calm, chance))
        # So many that the step after the newest one before the kill is among them.
        peers.wait_until_calm(records, WORKERS, CHECKPOINT_EVERY_STEPS + CALM_STEPS, log)
    seen = traces(records)
    ends = [k.at for k in kills[1:]] + [float("inf")]
    return _report([_restarted(k.at, end, seen) for k, end in zip(kills, ends, strict=True)], seen, kills[0].at)


def command(out: Path, workers: int, *options: str) -> list[str]:
    """The task on so many processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    script = [str(SCRIPTS / "ddp.py"), "--out", str(out), "--checkpoint-every", str(CHECKPOINT_EVERY_STEPS), *options]
    return [*torchrun, "--max-restarts=1000", *script]


def torchrun_environment() -> dict[str, str]:
    # Without it a restart on gloo reads the addresses of the dead and never recovers (pytorch issue 135712).
    return {**environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def _restarted(killed_at: float, until: float, seen: dict[str, Trace]) -> Restarted:
    newest = max(f.step for t in seen.values() for f in t.steps if f.at <= killed_at)
    back = [t for t in seen.values() if t.steps and killed_at < t.steps[0].at < until and _began_after(t, killed_at)]
    assert len(back) == WORKERS, f"{len(back)} workers came back"
    first = max(t.steps[0].at for t in back)
    # The next kill may strike first; then the step after it tells when progress was regained.
    regained = [at for t in back if (at := t.finished(newest + 1)) is not None]
    return Restarted(
        next_step=first - killed_at,
        regained=max(regained) - killed_at if len(regained) == WORKERS else float("nan"),
        steps_lost=newest + 1 - back[0].steps[0].step,
    )


def _began_after(trace: Trace, at: float) -> bool:
    return any(o["what"] == "started" and float(o["at"]) > at for o in trace.others)


def _report(found: Sequence[Restarted], seen: dict[str, Trace], first_kill: float) -> Found:
    quiet = [d for t in seen.values() for d in durations(t, [(0.0, first_kill)])]
    regained = [r.regained for r in found if r.regained == r.regained]
    lost = [r.steps_lost for r in found]
    rows = (
        ("an undisturbed step", quiet),
        ("kill to next finished step, all workers", [r.next_step for r in found]),
        ("kill until what was lost has been done again", regained),
    )
    return Found(
        tables=(Table(("", *FIGURES), tuple((name, *figures(values)) for name, values in rows)),),
        notes=(
            words(f"""
                Steps lost per kill: median {plain(median(lost))}, {min(lost)} to {max(lost)}, with a checkpoint
                every {CHECKPOINT_EVERY_STEPS} steps.
            """),
            "One torchrun agent with four workers, --standalone, default monitor interval: its quickest set-up.",
        ),
        samples={"restarted": [asdict(r) for r in found], "undisturbed_step_seconds": quiet},
    )
