"""The same kills under torchft, if somebody has installed it: it is no dependency of this project."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import random
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import peers
from benchmarks.cluster import SCRIPTS, Failed, environment
from benchmarks.records import Trace, durations, traces
from benchmarks.result import FIGURES, Found, Options, Table, figures, words

TITLE = "the same kills under torchft, where survivors go on with the next step"
WORKERS = 4
KILLS, KILLS_QUICK = 10, 1
CALM_STEPS = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """What the lighthouse and gloo are told."""

    name: str
    lighthouse: tuple[str, ...]
    gloo_seconds: float


SETTINGS = (
    Setting(
        "as its README has it", ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"), 5.0
    ),
    Setting(
        "tuned",
        (
            *("--min_replicas", "1", "--quorum_tick_ms", "20"),
            *("--join_timeout_ms", "2000", "--heartbeat_timeout_ms", "1000"),
        ),
        1.0,
    ),
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a kill has cost, in seconds."""

    next_step: float
    """Until every survivor had finished a step after it."""
    full: float
    """Until the killed one had finished its first step again."""


def run(options: Options) -> Found:
    """Kill, wait until all train again, kill again; for each setting."""
    program = Path(sys.executable).with_name("torchft_lighthouse")
    if importlib.util.find_spec("torchft") is None or not program.exists():
        return Found(tables=(), notes=("torchft is not installed here: not measured.",))
    rows: list[tuple[str, ...]] = []
    samples = {}
    for setting in SETTINGS:
        recovered, quiet = _recovered(options, setting, program)
        samples[setting.name] = [asdict(r) for r in recovered]
        rows += [
            (f"{setting.name}: an undisturbed step", *figures(quiet)),
            (
                f"{setting.name}: kill to next finished step, all survivors",
                *figures([r.next_step for r in recovered]),
            ),
            (f"{setting.name}: kill until all four train again", *figures([r.full for r in recovered])),
        ]
    return Found(
        tables=(Table(("", *FIGURES), tuple(rows)),),
        notes=(
            words(f"""
                {_version()}, one torchrun a replica group.  The step that was hit is thrown away and the samples of
                the dead replica are skipped; a step that was already reduced when the kill came counts as the next.
            """),
        ),
        samples=samples,
    )


def _recovered(options: Options, setting: Setting, program: Path) -> tuple[list[Recovered], list[float]]:
    out, chance = options.folder / setting.name.split()[0], random.Random(options.seed)
    records, kills = out / "records", []
    address = f"localhost:{_free_port()}"
    with contextlib.ExitStack() as stack:
        bind = ["--bind", f"[::]:{address.rpartition(':')[2]}"]
        stack.enter_context(
            peers.started([str(program), *setting.lighthouse, *bind], environment(), out / "lighthouse.log")
        )
        for replica in range(WORKERS):
            ours = {
                "REPLICA_GROUP_ID": str(replica),
                "NUM_REPLICA_GROUPS": str(WORKERS),
                "TORCHFT_LIGHTHOUSE": f"http://{address}",
            }
            log = out / f"replica-{replica}.log"
            stack.enter_context(peers.started(_command(out, setting), {**environment(), **ours}, log))
        for _ in range(KILLS_QUICK if options.quick else KILLS):
            kills += [peers.kill_one(peers.wait_until_calm(records, WORKERS, CALM_STEPS, out), chance)]
        peers.wait_until_calm(records, WORKERS, CALM_STEPS, out)
    seen = traces(records)
    quiet = [d for t in seen.values() for d in durations(t, [(0.0, kills[0].at)])]
    return [_of(kill, seen) for kill in kills], quiet


def _command(out: Path, setting: Setting) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    script = [str(SCRIPTS / "ft.py"), "--out", str(out), "--timeout", str(setting.gloo_seconds)]
    return [*torchrun, "--max-restarts=1000", *script]


def _of(kill: peers.Kill, seen: dict[str, Trace]) -> Recovered:
    nexts = [seen[survivor].next_after(kill.at) for survivor in kill.survivors]
    backs = [t.steps[0].at for t in seen.values() if t.steps and t.steps[0].at > kill.at]
    if not all(nexts) or not backs:
        raise Failed("a survivor has not finished another step, or nobody came back")
    return Recovered(max(n.at for n in nexts if n is not None) - kill.at, min(backs) - kill.at)


def _version() -> str:
    found: Sequence[str] = importlib.metadata.packages_distributions().get("torchft", ["torchft"])
    return f"{found[0]} {importlib.metadata.version(found[0])}"


def _free_port() -> int:
    with socket.create_server(("localhost", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
