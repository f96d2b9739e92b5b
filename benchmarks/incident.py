"""What a look-up in the table of next events costs the coordinator, and filling it: a core with all its workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

from benchmarks.cluster import Failed
from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.core import CoordinatorCore
from unicorn_mgr.coordinator.orders import Orders
from unicorn_mgr.coordinator.planning import Planner
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, JobSpec, Slot
from unicorn_mgr.planner.choices import sizes_of
from unicorn_mgr.planner.problem import Problem
from unicorn_mgr.planner.sizing import sized
from unicorn_mgr.planner.table import Foreseen, Table, situation, without_slots

SLOTS_OF_NODE = 8
MICRO_BATCHES = "1024"
PATIENCE_SECONDS = 10.0
REPEATS = 20
ENTRIES = 8
NOW = 100.0

T = TypeVar("T")


def incident(nodes: int, jobs: int) -> dict[str, float]:
    """CPU seconds from the word that a job waits for a silent node to the plan without that node."""
    core = _running(nodes, jobs)
    settled = core.problem
    node = settled.nodes[nodes // 2]
    victim = next(d.job for d in settled.demands if any(name == node.name for name, _ in d.seats.values()))
    planner = Planner(PATIENCE_SECONDS)
    planner._table = table = Table.of(settled)
    after = without_slots(settled, node, node.slots)
    sizes = sizes_of(after)
    table.answers[situation(after)] = Foreseen.of(sizes, sized(sizes.knapsack, PATIENCE_SECONDS, fallback=sizes.least))
    core.handle(e.NodeSilent(node.name, 2.5), NOW)
    outcome, whole = _timed(lambda: core.handle(e.JobHalted(victim, 1.1), NOW))
    lost = next((entry for entry in outcome.entries if isinstance(entry, e.NodeLost)), None)
    if lost is None or not any(isinstance(action, e.SolvePlan) for action in outcome.actions):
        raise Failed("the loss of a node has made nobody ask for a plan")

    def looked_again() -> None:
        core._outlook.heed(lost)
        core.problem  # noqa: B018 - a property that does what is measured

    again = median(_timed(looked_again)[1] for _ in range(REPEATS))
    look_up = median(_timed(lambda: table.look_up(core.problem))[1] for _ in range(REPEATS))
    made, placing = _timed(lambda: planner._looked_up(core.problem))
    if made is None:
        raise Failed("the plan without the node is not in the table")
    base, entry = asyncio.run(_foreseeing(settled, core.problem))
    return {"whole": whole, "problem": again, "look_up": look_up, "plan": placing, "base": base, "entry": entry}


async def _foreseeing(settled: Problem, after: Problem) -> tuple[float, float]:
    """CPU seconds that the loop pays for the first entry of a table, once there was one, and for each other."""
    planner = Planner(Settings().plan_seconds)
    marks: list[float] = []

    async def filled(base: Problem) -> None:
        def present() -> Problem:
            marks.append(time.process_time())
            return base if len(marks) <= ENTRIES + 1 else Problem((), ())

        marks[:] = [time.process_time()]
        await planner._fill(base, present)

    try:
        await filled(settled)
        await filled(after)
    finally:
        await planner.stop()
    if planner.counts.table_entries < ENTRIES:
        raise Failed("the table could not be filled")
    return marks[2] - marks[0], (marks[-1] - marks[2]) / (len(marks) - 3)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    done = work()
    return done, time.process_time() - began


def _running(nodes: int, jobs: int) -> CoordinatorCore:
    """All slots are used, by jobs that have all they want: only the loss moves anybody."""
    settings = Settings()
    core = CoordinatorCore(settings, None, Orders(settings, b"secret"))
    slots = tuple(Slot(i) for i in range(SLOTS_OF_NODE))
    names = [f"n{i:05d}" for i in range(nodes)]
    core.replay(e.TermStarted(1, 0.0), NOW)
    for name in names:
        core.replay(e.NodeAttached(name, "agent", slots, "10.0.0.1", (), {}, drills=False), NOW)
    places = [(name, slot.index) for name in names for slot in slots]
    share = len(places) // jobs
    for i in range(jobs):
        mine = places[i * share : (i + 1) * share if i + 1 < jobs else len(places)]
        _begun(core, f"job-{i}", dict(enumerate(mine)))
    problem = core.problem
    seats = {job: dict(core.state.jobs[job].seats) for job in core.state.jobs}
    core.replay(e.PlanWanted(1, core._outlook.situation(core.state), ""), NOW)
    core.replay(e.PlanReady(1, seats, {d.job: "" for d in problem.demands}), NOW)
    return core


def _begun(core: CoordinatorCore, job: str, seats: dict[int, tuple[str, int]]) -> None:
    workers = [f"{job}/{seat}.0" for seat in seats]
    core.replay(e.JobSubmitted(job, job, JobSpec(job, size_min=8, size_max=len(seats))), NOW)
    core.replay(e.SlotsAssigned(job, seats, ""), NOW)
    for worker, (node, slot) in zip(workers, seats.values(), strict=True):
        core.replay(e.WorkerOrdered(worker, node, slot, 0, len(seats), 0, (), False, 0, ""), NOW)
        core.replay(e.WorkerStarted(worker, 1), NOW)
        core.replay(e.WorkerAttached(worker), NOW)
        core.replay(e.WorkerTold(worker, m.Ready({"micro_batches": MICRO_BATCHES})), NOW)
    core.replay(e.EpochGranted(job, Epoch(1, 1), tuple(workers), ""), NOW)
    core.replay(e.TransitionEnded(job, Epoch(1, 1)), NOW)
