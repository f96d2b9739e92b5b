"""How fast the real core lives through months in virtual time, how much memory that takes, and how both grow."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from benchmarks.result import Aim, Found, Options, Table, plain, words
from unicorn_mgr.simulator import costs, scenario_file
from unicorn_mgr.simulator.policies.ours import Ours
from unicorn_mgr.simulator.scenario import DAY, Fault, Kind, Scenario, Work

TITLE = "virtual days a second of the simulator with the real core, its events a second, memory, and how they grow"

LIMITS: Mapping[str, float] = {"unicron-trace-a": 10.0, "byterobust-9600": 120.0, "fthsdp-100k": 600.0}
"""By scenario, the seconds it may take."""
QUICK = ("unicron-trace-a",)

NODES, NODES_QUICK = (100, 300, 1_000, 3_000, 10_000), (30, 100, 300)
"""Of one slot each, for the curve."""
FEW, MANY = 20, 80
"""Faults: what the others cost is the difference."""
JOBS = 6


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one history, in a process of its own."""

    seconds: float
    """Of CPU."""
    memory_bytes: int
    """At most, of the whole process."""
    facts: int
    decisions: int

    @property
    def events(self) -> int:
        """All that the core has recorded."""
        return self.facts + self.decisions


def run(options: Options) -> Found:
    """The named scenarios, then the curve."""
    names = QUICK if options.quick else tuple(LIMITS)
    found = {name: apart(_named, name, options.seed) for name in names}
    grown = {
        nodes: (apart(_grown, nodes, FEW), apart(_grown, nodes, MANY))
        for nodes in (NODES_QUICK if options.quick else NODES)
    }
    return Found(
        tables=(_scenarios(found), _curve(grown)),
        notes=NOTES,
        aims=tuple(_aim(name, cost) for name, cost in found.items()),
        samples={
            "scenarios": {name: asdict(cost) for name, cost in found.items()},
            "curve": {str(nodes): [asdict(cost) for cost in pair] for nodes, pair in grown.items()},
        },
    )


NOTES = (
    words("""
        CPU seconds of one process, at middle costs, of policy `ours` alone, faults of one seed. Events are what the
        core is told and what it decides; beats and steps are none. Memory is that of the whole process, Python and
        solver included.
    """),
    words(f"""
        The curve: {JOBS} jobs share all nodes, of one slot each; {MANY} faults, of which half take a node for an hour,
        less what {FEW} cost, so that starting the jobs is not counted. A fault of a job is told by each of its members,
        so there are the more events to one the larger its job is.
    """),
)


def apart(function: object, *given: object) -> Cost:
    """Run it in a process of its own: its memory is nobody else's."""
    assert callable(function)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        cost: Cost = pool.submit(function, *given).result()
    return cost


def _named(name: str, seed: int) -> Cost:
    loaded = scenario_file.load(name)
    return _lived(loaded.scenario, loaded.faults(seed))


def _grown(nodes: int, faults: int) -> Cost:
    return _lived(*grown(nodes, faults))


def _lived(scenario: Scenario, faults: Sequence[Fault]) -> Cost:
    began = time.process_time()
    history = Ours().live(scenario, faults, costs.load(), 0)
    seconds = time.process_time() - began
    return Cost(seconds, _memory_bytes(), int(history.notes["facts"]), int(history.notes["decisions"]))


def _memory_bytes() -> int:
    """The most this process has had; `getrusage` would tell what the one that started it had, too."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def grown(nodes: int, faults: int) -> tuple[Scenario, list[Fault]]:
    """A cluster of so many nodes, and so many faults, an hour and more apart."""
    chance = Random(f"{nodes} nodes")
    most = nodes // JOBS
    least = max(1, most // 2)
    throughput = tuple((size, size * 1e15) for size in range(least, most + 1))
    jobs = tuple(Work(f"job-{i}", throughput, least, most) for i in range(JOBS))
    seconds = (faults + 1) * 2 * 3_600.0
    kinds = (Kind.NODE, Kind.PROCESS)
    hit = [
        Fault((i + 1) * 7_200.0, str(kinds[i % 2]), kinds[i % 2], (chance.randrange(nodes),), repair_seconds=3_600.0)
        for i in range(faults)
    ]
    return Scenario(f"{nodes} nodes", "", nodes, 1, 8, seconds, jobs), hit


def _scenarios(found: Mapping[str, Cost]) -> Table:
    rows = []
    for name, cost in found.items():
        scenario = scenario_file.load(name).scenario
        days = scenario.seconds / DAY
        rows.append(
            (
                name,
                f"{scenario.capacity * scenario.gpus_per_slot:,}",
                f"{days:g}",
                f"{plain(cost.seconds)} s",
                plain(days / cost.seconds),
                f"{cost.events:,}",
                f"{cost.events / cost.seconds:,.0f}",
                f"{cost.memory_bytes / 2**20:,.0f} MiB",
            )
        )
    head = ("scenario", "GPUs", "days", "CPU", "days a second", "events", "events a second", "memory")
    return Table(head, tuple(rows))


def _curve(grown: Mapping[int, tuple[Cost, Cost]]) -> Table:
    rows = []
    first = 0.0
    for nodes, (few, many) in grown.items():
        seconds, events = many.seconds - few.seconds, many.events - few.events
        each = seconds / max(1, events) * 1e6
        first = first or each
        faults = MANY - FEW
        rows.append(
            (
                f"{nodes:,}",
                f"{events / faults:,.0f}",
                f"{plain(seconds / faults * 1e3)} ms",
                f"{plain(each)} us",
                plain(each / first),
                f"{many.memory_bytes / 2**20:,.0f} MiB",
            )
        )
    head = ("nodes", "events a fault", "CPU a fault", "CPU an event", "over the smallest", "memory")
    return Table(head, tuple(rows))


def _aim(name: str, cost: Cost) -> Aim:
    return Aim(f"{name} in at most {LIMITS[name]:g} s", f"{plain(cost.seconds)} s of CPU", cost.seconds <= LIMITS[name])
