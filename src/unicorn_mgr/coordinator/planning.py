"""The planner's ladder, seen from the coordinator's loop: table, solver, and what never fails.

A question goes up to four rungs: what was foreseen costs a look-up; the solver's process proves an
optimum or answers with a certified gap at its time limit; and if that process crashes, hangs or can't
be started, the jobs that were hit shrink and free slots are given in turn.  Healing never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory

import structlog

from unicorn_mgr.planner.placement import Unplaceable
from unicorn_mgr.planner.planner import plan_of
from unicorn_mgr.planner.problem import Plan, Problem
from unicorn_mgr.planner.serve import ANSWER, QUESTION, Answer, Question
from unicorn_mgr.planner.simple import FirstComeFirstServed
from unicorn_mgr.planner.table import Table

START_SECONDS_MAX = 30.0
OVERRUN = 1.2
"""A solver that takes longer than this many times its limit is ended."""

SLACK_SECONDS = 2.0
"""Beside the limit, for building, placing and the way there and back on a busy machine: nobody waits for it."""

FORESEE_SECONDS = 1.0
"""Between two looks at whether what may happen next has changed."""

FORESEE_AGAIN_SECONDS = 5.0
"""After the process that foresees has failed."""

LINE_BYTES_MAX = 256 << 20

log = structlog.get_logger()


class SolverGone(Exception):
    """The solver's process can't be started, has died, or took too long."""


@dataclass(slots=True)
class Solver:
    """A process that solves, started when it is first needed and again when it has failed."""

    _process: asyncio.subprocess.Process | None = None
    _folder: TemporaryDirectory[str] | None = None
    """For the files between PuLP and a solver: whoever is ended in the middle leaves them behind."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, question: Question) -> Answer:
        """One question at a time.  Raises SolverGone."""
        async with self._turn:
            try:
                process = await self._running()
                assert process.stdin is not None and process.stdout is not None  # noqa: PT018 - both are pipes
                process.stdin.write(QUESTION.dump_json(question) + b"\n")
                async with asyncio.timeout(question.limit * OVERRUN + SLACK_SECONDS):
                    await process.stdin.drain()
                    line = await process.stdout.readline()
                if not line:
                    raise SolverGone(f"the solver's process has ended with code {await process.wait()}")
                return ANSWER.validate_json(line)
            except TimeoutError:
                await self.stop()
                raise SolverGone(f"no answer within {question.limit * OVERRUN + SLACK_SECONDS:.2g} s") from None
            except (OSError, ValueError) as error:
                await self.stop()
                raise SolverGone((str(error).splitlines() or [type(error).__name__])[0]) from error
            except SolverGone:
                await self.stop()
                raise

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._folder = TemporaryDirectory(prefix="unicorn-planner-", ignore_cleanup_errors=True)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "unicorn_mgr.planner.serve"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                env={**os.environ, "TMPDIR": self._folder.name},
                start_new_session=True,  # an interrupt from the terminal is the coordinator's to handle
            )
            assert self._process.stdout is not None
            async with asyncio.timeout(START_SECONDS_MAX):
                if await self._process.stdout.readline() != b"ready\n":
                    raise SolverGone("the solver's process could not be started")
        return self._process

    async def stop(self) -> None:
        """End the process, and a solver that it has started, at once."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


@dataclass(slots=True)
class Counts:
    """For the metrics."""

    table_hits: int = 0
    table_misses: int = 0
    table_entries: int = 0


class Planner:
    """Answers problems, and foresees the next ones."""

    def __init__(self, limit: float) -> None:
        self.counts = Counts()
        self._limit = limit
        self._solver = Solver()
        self._foresight = Solver()
        self._imagining = Solver()
        """Nobody's question of what would be holds up what is."""
        self._filled = False
        self._table: Table | None = None
        self._whole: Table | None = None
        """The newest one that was finished: until the next one is, what that foresees may still happen."""

    async def plan(self, problem: Problem, *, really: bool = True) -> Plan:
        """The plan for a problem, whatever happens to solvers; one that is only imagined is not counted."""
        began = time.monotonic()
        made = self._looked_up(problem)
        if made is None:
            try:
                solver = self._solver if really else self._imagining
                made = (await solver.ask(Question(self._limit, problem))).plan
            except SolverGone as gone:
                log.warning("the planner has failed", error=str(gone), consequence="jobs that were hit shrink")
                made = replace(FirstComeFirstServed().solve(problem), rung="shrink", note=str(gone))
        assert made is not None
        if really:
            self.counts.table_hits += made.rung == "table"
            self.counts.table_misses += made.rung != "table"
        return replace(made, seconds=time.monotonic() - began)

    def _looked_up(self, problem: Problem) -> Plan | None:
        tables = [t for t in (self._table, self._whole) if t is not None]
        foreseen = next((found for t in tables if (found := t.look_up(problem)) is not None), None)
        if foreseen is None:
            return None
        try:
            return replace(plan_of(problem, foreseen.sizes, foreseen.sizing), rung="table")
        except Unplaceable:
            return None

    async def foresee(self, present: Callable[[], Problem]) -> None:
        """Keep the table of next events full, for ever.  `present` is the same object while nothing has changed."""
        while True:
            await asyncio.sleep(FORESEE_SECONDS)
            base = present()
            if self._table is None or self._table.base is not base or not self._filled:
                await self._fill(base, present)

    async def _fill(self, base: Problem, present: Callable[[], Problem]) -> None:
        """The solver is told the problem once, and lists what may follow: that is too much for the loop."""
        self._table, self._filled = Table.of(base, self._table), False
        table = self._table
        self.counts.table_entries = 0
        question = Question(self._limit, base, foresee=True)
        while present() is base:
            try:
                answered = await self._foresight.ask(question)
            except SolverGone as gone:
                log.warning(
                    "nothing is foreseen", error=str(gone), consequence="until it is, plans take a solver's time"
                )
                await asyncio.sleep(FORESEE_AGAIN_SECONDS)
                return
            if answered.foreseen is None:
                self._whole, self._filled = table, True
                return
            table.answers[answered.situation] = answered.foreseen
            self.counts.table_entries = len(table.answers)
            question = Question(self._limit, foresee=True)

    async def start(self) -> None:
        """Have the solver ready before it is needed."""
        with contextlib.suppress(SolverGone):  # whoever asks is told
            await self._solver.ask(Question(self._limit, Problem((), ())))

    async def stop(self) -> None:
        """End its processes."""
        await self._solver.stop()
        await self._foresight.stop()
        await self._imagining.stop()
