"""The planner's process: whatever becomes of it, a question is answered, in time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from unicorn_mgr.coordinator import planning
from unicorn_mgr.coordinator.planning import Planner
from unicorn_mgr.planner.problem import Demand, Node, Plan, Problem
from unicorn_mgr.planner.table import Table, without_slots

NODES = tuple(Node(f"n{i}", (0,)) for i in range(6))


def demand(job: str, weight: float, **what: Any) -> Demand:
    stairs = {"cpu": tuple((k, float(k)) for k in range(1, 7))}
    return Demand(job, 1, 6, weight, stairs, **what)


PROBLEM = Problem(NODES, (demand("light", 1.0), demand("heavy", 2.0)))


@asynccontextmanager
async def planner(limit: float = 5.0) -> AsyncIterator[Planner]:
    made = Planner(limit)
    try:
        yield made
    finally:
        await made.stop()


def run(test: Callable[[Planner], Awaitable[None]], limit: float = 5.0) -> None:
    async def tested() -> None:
        async with planner(limit) as made:
            await test(made)

    asyncio.run(tested())


def sizes(plan: Plan) -> dict[str, Any]:
    return {job: len(seats) for job, seats in plan.seats.items()}


def test_it_solves_in_a_process_of_its_own() -> None:
    async def test(made: Planner) -> None:
        plan = await made.plan(PROBLEM)
        assert sizes(plan) == {"light": 1, "heavy": 5}
        assert plan.proven
        assert plan.rung == "ilp"
        assert plan.seconds > 0
        assert (made.counts.table_hits, made.counts.table_misses) == (0, 1)

    run(test)


def test_a_process_that_was_killed_costs_one_answer_its_proof() -> None:
    async def test(made: Planner) -> None:
        await made.plan(PROBLEM)
        process = made._solver._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        shrunk = await made.plan(PROBLEM)
        assert shrunk.rung == "shrink"
        assert "ended" in shrunk.note or "Broken" in shrunk.note or "lost" in shrunk.note
        assert sum(sizes(shrunk).values()) == 6
        assert (await made.plan(PROBLEM)).proven, "another process has been started"

    run(test)


def test_a_process_that_hangs_is_ended_at_its_limit() -> None:
    async def test(made: Planner) -> None:
        await made.start()
        process = made._solver._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        plan = await made.plan(PROBLEM)
        assert plan.rung == "shrink"
        assert "no answer within" in plan.note
        assert await process.wait() == -signal.SIGKILL

    run(test, limit=0.2)


STUCK = """#!/bin/sh
sleep 1000 &
echo $! > "$TMPDIR/model.mps"
cp "$TMPDIR/model.mps" {told}
echo "$TMPDIR" >> {told}
echo ready
wait
"""
"""A planner whose solver never comes back, with what lies between the two."""


def runs(pid: int) -> bool:
    """It is there, and no corpse that nobody has fetched."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_solver_that_hangs_is_ended_with_the_process_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, told = tmp_path / "planner", tmp_path / "told"
    program.write_text(STUCK.format(told=told))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    async def test(made: Planner) -> None:
        assert (await made.plan(PROBLEM)).rung == "shrink"
        solver, folder = told.read_text().split()
        while runs(int(solver)):  # killed, and for a moment not yet gone
            await asyncio.sleep(0.01)
        assert not Path(folder).exists()

    run(test, limit=0.1)


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
def test_a_process_that_cannot_be_started_leaves_the_simple_answer(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)

    async def test(made: Planner) -> None:
        await made.start()
        assert (await made.plan(PROBLEM)).rung == "shrink"

    run(test)


SETTLED = Problem(
    NODES,
    (
        demand("light", 1 / 3, seats={0: ("n0", 0)}, members=1),
        demand("heavy", 2 / 3, seats={i: (f"n{i + 1}", 0) for i in range(5)}, members=5),
    ),
)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before what may happen next is looked at again."""
    monkeypatch.setattr(planning, "FORESEE_SECONDS", 0.0)


async def foreseen(made: Planner, present: Callable[[], Problem], until: Callable[[], bool]) -> None:
    """Tables are filled until this is so."""
    enough = asyncio.Event()

    def looked_at() -> Problem:
        if until():
            enough.set()
        return present()

    foreseeing = asyncio.create_task(made.foresee(looked_at))
    await enough.wait()
    foreseeing.cancel()


def whole(made: Planner, base: Problem) -> bool:
    return made._whole is not None and made._whole.base is base


@pytest.mark.usefixtures("at_once")
def test_what_was_foreseen_needs_no_process() -> None:
    async def test(made: Planner) -> None:
        await foreseen(made, lambda: SETTLED, lambda: whole(made, SETTLED))
        assert made.counts.table_entries == len(list(Table.of(SETTLED).missing()))
        await made._solver.stop()
        plan = await made.plan(without_slots(SETTLED, NODES[3], (0,)))
        assert plan.rung == "table"
        assert plan.proven
        assert sizes(plan) == {"light": 1, "heavy": 4}

    run(test)


@pytest.mark.usefixtures("at_once")
def test_a_newer_problem_is_foreseen_before_the_rest_of_the_one_before() -> None:
    lost = without_slots(SETTLED, NODES[3], (0,))

    async def test(made: Planner) -> None:
        entries: list[int] = []

        def present() -> Problem:
            entries.append(made.counts.table_entries)
            return lost if any(entries) else SETTLED

        await foreseen(made, present, lambda: whole(made, lost))
        assert max(entries[: entries.index(0, entries.index(1))]) == 1
        assert (await made.plan(without_slots(lost, NODES[4], (0,)))).rung == "table"

    run(test)


@pytest.mark.usefixtures("at_once")
def test_foresight_that_was_killed_goes_on_with_the_next_problem() -> None:
    lost = without_slots(SETTLED, NODES[3], (0,))

    async def test(made: Planner) -> None:
        killed: list[asyncio.subprocess.Process] = []

        def present() -> Problem:
            process = made._foresight._process
            if not killed and made.counts.table_entries and process is not None:
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process)
            return lost if killed and process is not killed[0] else SETTLED

        await foreseen(made, present, lambda: whole(made, lost))
        assert killed[0].returncode == -signal.SIGKILL
        assert (await made.plan(SETTLED)).proven, "who solves what has happened is another process"

    run(test)
