"""Are mutants noticed?  One process collects the tests once; each mutant lives in a child of it that runs them.

    python -m mutation --seed 1 --count 100      draws so many mutants of the cores, and says which survive
    python -m mutation --planted                 the bugs of `planted.py`

A first child runs all tests unchanged and says which functions each of them calls.  Then each mutant gets the tests
that call its function, those that have found most so far first, and dies of the first that fails, of taking far more
time than that, or of too much memory.  What survives is listed with the reason that `reasons.txt` gives, if any.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from unicorn_mgr.coordinator import core

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "src"

TESTS = (
    *(f"tests/unit/test_{name}.py" for name in (
        "admission", "agent_backups", "agent_core", "agent_cutoff", "core_backups", "core_better_shapes",
        "core_deadlines", "core_escalation", "core_formation", "core_gang", "core_handed", "core_healing",
        "core_nodes", "core_parts", "core_places", "core_planning", "core_preparation", "core_quarantine",
        "core_recovery", "core_replicas", "core_restarts", "core_shapes", "core_stalls", "core_suspension",
        "core_times", "deal", "foresight", "known_defects", "liveness", "peers", "rendezvous", "simple_policy",
        "stalls", "throughput", "transfers", "triage", "what_if",
    )),
    "tests/planner",
    "tests/protocol",
    "tests/stories",
    "tests/worker/test_siblings.py",
    "tests/worker/test_snapshots.py",
    "tests/simulator/test_swarm.py",
)  # fmt: skip
"""Those of cores, that take no clusters and no processes."""

SWARM = "test_no_history_breaks_a_rule"
SWARM_SEEDS = 16

CPU_SECONDS_MIN = int(os.environ.get("MUTANTS_CPU_SECONDS", "10"))
CPU_FACTOR = 5
DECISIONS_MAX = 2_000
"""Rules that undo each other are noticed sooner."""
MEMORY_BYTES = 6 << 30
QUIET = Path(os.environ.get("MUTANTS_WAIT_FOR", "/nonexistent"))
"""While this file is there no further mutant is begun: somebody measures on this machine."""

QUIET_SECONDS = 5.0


@dataclass(frozen=True)
class Change:
    """Something to put in place, and whose tests to run."""

    name: str
    functions: tuple[str, ...]
    """As `module:qualified name`."""
    put: Callable[[], None]


@dataclass
class Fate:
    """What became of one change."""

    name: str
    killer: str = ""
    """The test that noticed it; empty: none did."""
    tests: int = 0
    seconds: float = 0.0


@dataclass
class Hunt:
    """A pytest plugin that runs the collected tests once for each change."""

    changes: Sequence[Change]
    fates: list[Fate] = field(default_factory=list)
    calls: dict[str, set[str]] = field(default_factory=dict)
    """By test, the functions that it calls."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By test, how long it takes."""
    kills: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    say: Callable[[str], None] = lambda line: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """No planted bugs of checkers, no processes, few histories."""
        histories = [i for i in items if i.name.startswith(SWARM)][:SWARM_SEEDS]
        _make_examples_the_same(items)
        items[:] = [i for i in items if i.path.name != "test_swarm.py" and "wherever" not in i.name] + histories

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of one run."""
        whole = self._in_child(lambda write: self._look(session, write), 0)
        if "failed" in whole or "calls" not in whole:
            raise pytest.UsageError(f"without any change a test fails: {whole.get('failed', 'all')}")
        self.calls, self.seconds = whole["calls"], whole["seconds"]
        self.say(f"{len(self.calls)} tests in {sum(self.seconds.values()):.0f} s")
        for change in self.changes:
            while QUIET.exists():
                time.sleep(QUIET_SECONDS)
            self.fates.append(self._fate(session, change))
            fate = self.fates[-1]
            self.say(f"{fate.seconds:6.1f} s  {fate.killer or 'SURVIVES'}  {change.name}")
        return True

    # -- unchanged -----------------------------------------------------------------------

    def _look(self, session: pytest.Session, write: Callable[[Any], None]) -> None:
        """Run all of them, and see what they call."""
        calls: dict[str, set[str]] = {}
        seconds: dict[str, float] = {}
        for item, following in _pairs(session.items):
            seen: set[str] = set()
            began = time.monotonic()
            sys.setprofile(_profiler(seen))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.setprofile(None)
            seconds[item.nodeid] = time.monotonic() - began
            calls[item.nodeid] = seen
            if session.testsfailed:
                write({"failed": item.nodeid})
                return
        write({"calls": calls, "seconds": seconds})

    # -- changed -------------------------------------------------------------------------

    def _fate(self, session: pytest.Session, change: Change) -> Fate:
        concerned = [i for i in session.items if self.calls[i.nodeid] & set(change.functions)]
        concerned.sort(key=lambda i: (SWARM in i.name, -self.kills[i.nodeid], self.seconds[i.nodeid]))
        limit = max(CPU_SECONDS_MIN, int(CPU_FACTOR * sum(self.seconds[i.nodeid] for i in concerned)))
        began = time.monotonic()

        def live(write: Callable[[Any], None]) -> None:
            core.DECISIONS_MAX = DECISIONS_MAX
            change.put()
            write({"put": True})
            for item, following in _pairs(concerned):
                write({"at": item.nodeid})
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    write({"killer": item.nodeid})
                    return
            write({"survived": True})

        told: dict[str, Any] = self._in_child(live, limit) if concerned else {"survived": True}
        if concerned and "put" not in told:
            raise pytest.UsageError(f"{change.name}: can't be put in place")
        killer: str = told.get("killer", "")
        if not killer and "survived" not in told:
            killer = f"{told.get('at', '')} (takes too much)"
        self.kills[killer] += 1
        return Fate(change.name, killer, len(concerned), time.monotonic() - began)

    def _in_child(self, do: Callable[[Callable[[Any], None]], None], cpu_seconds: int) -> dict[str, Any]:
        """What a child has written before it ended, however it did."""
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reads)
            _live(do, writes, cpu_seconds)
        os.close(writes)
        told: dict[str, Any] = {}
        with os.fdopen(reads, "rb") as stream, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                told.update(pickle.load(stream))
        os.waitpid(child, 0)
        return told


def _live(do: Callable[[Callable[[Any], None]], None], writes: int, cpu_seconds: int) -> None:
    """In the child: never returns."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    if cpu_seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    with contextlib.suppress(BaseException), os.fdopen(writes, "wb", buffering=0) as stream:

        def write(value: Any) -> None:
            stream.write(pickle.dumps(value))

        do(write)
    os._exit(0)


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


def _profiler(seen: set[str]) -> Callable[[FrameType, str, Any], None]:
    """Notes which of the product's functions are called."""
    names: dict[Any, str] = {}
    prefix = str(SOURCES)

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = names.get(code)
        if name is None:
            ours = code.co_filename.startswith(prefix)
            name = names[code] = f"{code.co_filename}:{outermost(code.co_qualname)}" if ours else ""
        if name:
            seen.add(name)

    return profile


def outermost(qualified: str) -> str:
    """The function or method that everything inside of it belongs to."""
    return qualified.partition(".<locals>")[0]


def module_of(path: str) -> Any:
    """The loaded module of a file, given from the root of the repository."""
    return importlib.import_module(Path(path).relative_to("src").with_suffix("").as_posix().replace("/", "."))


def place_of(path: str, function: str) -> str:
    """As the tests' calls name it."""
    return f"{REPOSITORY / path}:{function}"


def hunt(changes: Sequence[Change], say: Callable[[str], None], tests: Sequence[str] = TESTS) -> list[Fate]:
    """What becomes of each.  Raises `SystemExit` if tests fail without any change."""
    plugin = Hunt(changes, say=say)
    code = pytest.main(["-q", "--capture=sys", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], [plugin])
    if len(plugin.fates) < len(changes):
        raise SystemExit(f"the tests could not be run: pytest ended with {code}")
    return plugin.fates


def _make_examples_the_same(items: Sequence[pytest.Item]) -> None:
    """Property tests draw the same examples each time, and do not look for smaller ones."""
    import hypothesis  # noqa: PLC0415 - pytest refuses what has been imported before its plugin

    settings, phases = hypothesis.settings, (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
    settings.load_profile("mutants")
    for item in items:
        test = getattr(item, "obj", None)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None:
            vars(test)["_hypothesis_internal_use_settings"] = settings(
                own, derandomize=True, database=None, phases=phases
            )
