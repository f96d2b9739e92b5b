"""The loop around the core: event in, stamped once, made durable, handled, acted upon.

All events that have come are handled together and committed in one transaction; no action
leaves before that.  A failure of the journal ends the process loudly: training goes on
without a coordinator, and what was acknowledged is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from sqlite3 import Error as SqliteError

import structlog

from unicorn_mgr.coordinator.core import CoordinatorCore
from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.keyvalue import KeyValueStores
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.orders import Orders
from unicorn_mgr.coordinator.planning import Planner
from unicorn_mgr.coordinator.rendezvous import Rendezvous
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.store import Store
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import CollectEvidence, Published, ReadNow, Sample, ToAgent, WorkerDirective
from unicorn_mgr.planner.problem import Plan, Policy, Problem

BATCH_MAX = 1_000
INBOX_MAX = 100_000
POLL_SECONDS = 0.25
OVERSLEPT_SECONDS = 0.5
"""A poll that comes later than this after its time means that this process has slept."""

log = structlog.get_logger()

Send = Callable[[str, ToAgent], None]


class JournalFailed(Exception):
    """The journal can't be written."""


@dataclass(eq=False, slots=True)
class _Queued:
    event: e.Fact
    at: float
    done: asyncio.Future[None] | None = None


@dataclass(slots=True)
class Lags:
    """How late things are, for the metrics."""

    loop_seconds: float = 0.0
    commit_seconds: float = 0.0
    slept_seconds: float = 0.0


class Driver:
    """Runs one core under one journal.  `send` says something to the agent of a node, if it is attached."""

    def __init__(
        self, store: Store, settings: Settings, policy: Policy | None, send: Send, planner: Planner | None = None
    ) -> None:
        self.store = store
        self.settings = settings
        self.core = CoordinatorCore(settings, policy, Orders(settings, store.secret))
        self.liveness = Liveness(settings)
        self.rendezvous = Rendezvous()
        self.stores = KeyValueStores()
        self.lags = Lags()
        self.changed = asyncio.Event()
        """Set after each commit; whoever waits clears nothing but takes the next one."""
        self.planner = planner
        """Solves problems where the core has no policy that answers at once."""
        self._send = send
        self._inbox: asyncio.Queue[_Queued] = asyncio.Queue(INBOX_MAX)
        self._readings: dict[str, dict[str, tuple[Sample, ...]]] = {}
        self._reading_done: dict[str, asyncio.Event] = {}
        self._writer = ThreadPoolExecutor(1, "unicorn-journal")
        self._base = 0.0
        self._started = time.monotonic()
        self._tasks: asyncio.TaskGroup | None = None

    # -- time ----------------------------------------------------------------------------

    def now(self) -> float:
        """Core time: seconds since the first term, carried on from the journal."""
        return self._base + time.monotonic() - self._started

    # -- in ------------------------------------------------------------------------------

    async def tell(self, event: e.Fact) -> None:
        """Give the core a fact."""
        await self._inbox.put(_Queued(event, time.monotonic()))

    async def submit(self, event: e.Fact) -> None:
        """Give the core a fact; returns when it is durable and its actions have been performed."""
        queued = _Queued(event, time.monotonic(), asyncio.get_running_loop().create_future())
        await self._inbox.put(queued)
        assert queued.done is not None
        await queued.done

    def reading(self, node: str, request: str, samples: tuple[Sample, ...]) -> None:
        """An agent has answered a request for its rings."""
        if request in self._readings:
            self._readings[request][node] = samples
            self._reading_done[request].set()

    # -- the loop ------------------------------------------------------------------------

    def recover(self) -> None:
        """Replay the journal and begin a new term.  Raises `StoreError`, and `JournalFailed`."""
        recovered = self.store.recover()
        self.core.state = recovered.state
        for entry in recovered.entries:
            self.core.replay(entry.event, entry.at)
        self._base, self._started = recovered.at, time.monotonic()
        try:
            term = self.store.next_term()
            now, wall = self.now(), time.time()
            outcome = self.core.handle(e.TermStarted(term, wall), now)
            self.store.append([(now, wall, entry) for entry in outcome.entries])
        except SqliteError as failed:
            raise self._journal_failed(failed) from failed
        for action in outcome.actions:
            if isinstance(action, e.OpenRendezvous):
                self.rendezvous.open(action.job, action.epoch, action.members)
        self._reopen_rendezvous()
        self.liveness.start(self.core.state, now)

    def _reopen_rendezvous(self) -> None:
        """Members of an epoch that has not ended its transition may still publish."""
        for job in self.core.state.jobs.values():
            if job.transition is not None and job.name not in self.rendezvous.meetings:
                self.rendezvous.open(job.name, job.epoch, job.members)

    async def run(self) -> None:
        """Handle events for ever.  Raises `JournalFailed`."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._poll())
            if self.planner is not None:
                tasks.create_task(self._plan_for_ever(self.planner))
            while True:
                batch = await self._next_batch()
                await self._handle(batch)

    async def _next_batch(self) -> list[_Queued]:
        now = self.now()
        deadline = self.core.next_deadline(now)
        first: _Queued | None = None
        if self._inbox.empty() and deadline is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, deadline - now)):
                    first = await self._inbox.get()
            if first is None:
                return [_Queued(e.TimePassed(), time.monotonic())]
        batch = [first or await self._inbox.get()]
        while len(batch) < BATCH_MAX and not self._inbox.empty():
            batch.append(self._inbox.get_nowait())
        return batch

    async def _handle(self, batch: list[_Queued]) -> None:
        now, wall = self.now(), time.time()
        self.lags.loop_seconds = time.monotonic() - batch[0].at
        outcome = self.core.handle_all((queued.event for queued in batch), now)
        lines = [(now, wall, entry) for entry in outcome.entries]
        if lines:
            await self._commit(lines, now)
        for action in outcome.actions:
            self._perform(action)
        for queued in batch:
            if queued.done is not None and not queued.done.done():
                queued.done.set_result(None)
        if lines:
            self.changed.set()
            self.changed = asyncio.Event()

    async def _commit(self, lines: list[tuple[float, float, e.Event]], now: float) -> None:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            number = await loop.run_in_executor(self._writer, self.store.append, lines)
            if self.store.wants_snapshot:
                await loop.run_in_executor(self._writer, self.store.snapshot, self.core.state, now)
        except SqliteError as failed:
            raise self._journal_failed(failed) from failed
        self.lags.commit_seconds = time.monotonic() - began
        for offset, (_, _, event) in enumerate(lines):
            _log_event(number + offset, event)

    def _journal_failed(self, why: SqliteError) -> JournalFailed:
        return JournalFailed(
            f"data: {self.store.folder}: the journal can't be written ({why}); free space there and start again"
        )

    # -- out -----------------------------------------------------------------------------

    def _perform(self, action: e.Action) -> None:
        match action:
            case e.SendToAgent(node, body):
                self._send(node, body)
            case e.OpenRendezvous(job, epoch, members):
                self.rendezvous.open(job, epoch, members)
            case e.ForgetJob(job):
                self.rendezvous.close(job)
                self.stores.forget(job)
                self.liveness.forget_job(job)
            case e.TakeReadings():
                assert self._tasks is not None
                self._tasks.create_task(self._take_readings(action))
            case e.SolvePlan(number):
                assert self._tasks is not None
                self._tasks.create_task(self._solve(number))
            case e.TakeEvidence(node, worker):
                self._send(node, CollectEvidence(f"evidence {worker}", worker))

    def publish(self, worker: str, note: Published) -> e.GroupFormed | None:
        """A member has published; returns the fact to tell if everybody has now."""
        job = worker.rpartition("/")[0]
        formed, to, completed = self.rendezvous.publish(job, note)
        for name in to:
            member = self.core.state.worker(name)
            if member is not None and formed is not None:
                self._send(member.node, WorkerDirective(name, formed))
        return e.GroupFormed(job, note.epoch) if completed else None

    async def _plan_for_ever(self, planner: Planner) -> None:
        """Answer what was asked before this process began, and foresee what may be asked next."""
        try:
            await planner.start()
            planning = self.core.state.planning
            if planning.number and not planning.answered:
                await self._solve(planning.number)
            await planner.foresee(lambda: self.core.problem)
        finally:
            await planner.stop()

    async def imagine(self, problem: Problem) -> Plan:
        """The plan for a problem that is not there."""
        if self.core.policy is not None:
            return self.core.policy.solve(problem)
        assert self.planner is not None
        return await self.planner.plan(problem, really=False)

    async def _solve(self, number: int) -> None:
        """Answer a question with the problem of this moment, unless another one has been asked since."""
        if self.planner is None or self.core.state.planning.number != number:
            return
        plan = await self.planner.plan(self.core.problem)
        await self.tell(
            e.PlanReady(
                number,
                {job: dict(seats) for job, seats in plan.seats.items()},
                dict(plan.reasons),
                plan.value,
                plan.bound,
                plan.proven,
                plan.solver,
                plan.rung,
                plan.seconds,
                plan.note,
                dict(plan.shapes),
            )
        )

    async def _take_readings(self, asked: e.TakeReadings) -> None:
        for which in (1, 2):
            request = f"{asked.job}#{asked.number}.{which}"
            self._readings[request] = {}
            self._reading_done[request] = asyncio.Event()
            for node, workers in asked.workers.items():
                self._send(node, ReadNow(request, workers))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.reading_timeout_seconds):
                    while len(self._readings[request]) < len(asked.workers):
                        self._reading_done[request].clear()
                        await self._reading_done[request].wait()
            answers = self._readings.pop(request)
            del self._reading_done[request]
            samples = tuple(s for _, node_samples in sorted(answers.items()) for s in node_samples)
            if len(answers) == len(asked.workers):
                await self.tell(e.ReadingTaken(asked.job, asked.number, samples))
            if which == 1:
                await asyncio.sleep(self.settings.second_reading_seconds)

    async def _poll(self) -> None:
        """Look at leases and samples; notice that this process itself has slept."""
        due = time.monotonic() + POLL_SECONDS
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            slept = time.monotonic() - due
            self.lags.slept_seconds = slept
            if slept > OVERSLEPT_SECONDS:
                log.warning("overslept", seconds=round(slept, 3), consequence="every lease is credited")
                self.liveness.credit(slept)
                # What agents have said meanwhile waits in the sockets: hear it before judging.
                await asyncio.sleep(POLL_SECONDS)
            due = time.monotonic() + POLL_SECONDS
            for change in self.liveness.poll(self.core.state, self.now()):
                await self.tell(change)


def _log_event(number: int, event: e.Event) -> None:
    incident = getattr(event, "incident", None)
    quiet = isinstance(event, e.JobProgressed | e.WorkerStarted | e.WorkerAttached)
    say = log.debug if quiet else log.info
    extra = {"incident": incident} if isinstance(incident, str) else {}
    say(describe(event), number=number, kind=type(event).__name__, **extra)
