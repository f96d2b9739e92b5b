"""People's side of the server: submit, command, look, follow."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from sqlite3 import Error as SqliteError
from typing import Any

import grpc

from unicorn_mgr.codec import encode
from unicorn_mgr.coordinator.admission import Rejected, commanded, job_submitted, unknown
from unicorn_mgr.coordinator.authority import Authority
from unicorn_mgr.coordinator.driver import Driver
from unicorn_mgr.coordinator.logbook import LogBook, Watch
from unicorn_mgr.coordinator.sessions import Agents
from unicorn_mgr.coordinator.store import Entry
from unicorn_mgr.coordinator.stories import incident_story, lines_of
from unicorn_mgr.coordinator.views import cluster_view, job_view
from unicorn_mgr.coordinator.whatif import compared, what_if
from unicorn_mgr.effects.coordinator import DrillOrdered, Event, JobSubmitted, NodeDegraded, NodeDrained, NodeUndrained
from unicorn_mgr.messages import (
    ClusterView,
    CommandDone,
    FollowEventsRequest,
    FollowJobRequest,
    IncidentRequest,
    IncidentStory,
    JobUpdate,
    JobView,
    LookRequest,
    OperatorCommand,
    SubmitJob,
    Submitted,
    WhatIfAnswer,
    WhatIfRequest,
)
from unicorn_mgr.tls import Role

SNAPSHOT_BYTES_MAX = 64 << 20
EVENTS_PER_READ = 500
UPDATE_SECONDS = 0.2
QUIET_SECONDS_MAX = 5.0
"""An agent that has more output, and sends none for this long, is not waited for."""

Context = grpc.aio.ServicerContext[Any, Any]


class Clients:
    """Unary calls and watches.  Nothing is acknowledged before it is durable."""

    def __init__(
        self, driver: Driver, agents: Agents, logs: LogBook, authority: Authority, metrics: str, drills: bool
    ) -> None:
        self._driver = driver
        self._agents = agents
        self._logs = logs
        self._authority = authority
        self._metrics = metrics
        self._drills = drills

    # -- changing ------------------------------------------------------------------------

    async def submit(self, asked: SubmitJob, context: Context) -> Submitted:
        """Accept a job.  A repeated request is answered as the first one was."""
        await self._authority.require(context, Role.SUBMITTER)
        state = self._driver.core.state
        if asked.request_id in state.requests:
            return Submitted(state.requests[asked.request_id])
        await self._check_archive(asked, context)
        event = await self._submission(asked, context)
        if asked.snapshot:
            await self._keep(asked, context)
        await self._driver.submit(event)
        if asked.request_id not in state.requests:  # somebody else's job of this name came between
            await self._submission(asked, context)
        return Submitted(event.job)

    async def _submission(self, asked: SubmitJob, context: Context) -> JobSubmitted:
        try:
            return job_submitted(self._driver.core.state, asked.request_id, asked.spec, self._drills)
        except Rejected as rejected:
            await _refuse(context, rejected)
            raise

    async def _check_archive(self, asked: SubmitJob, context: Context) -> None:
        digest, data = asked.spec.snapshot, asked.snapshot
        if len(data) > SNAPSHOT_BYTES_MAX:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"snapshot: {len(data)} bytes: too large")
        if data and hashlib.sha256(data).hexdigest() != digest:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "snapshot: its digest does not fit; submit again")
        if digest and not data and self._driver.store.file(digest) is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"snapshot: {digest}: not here; send it along")

    async def _keep(self, asked: SubmitJob, context: Context) -> None:
        store = self._driver.store
        try:
            wanted = {job.spec.snapshot for job in self._driver.core.state.jobs.values() if not job.over}
            await asyncio.to_thread(store.keep_file, asked.spec.snapshot, asked.snapshot, time.time(), wanted)
        except SqliteError as failed:
            why = f"workdir: its files can't be kept in {store.folder} of the coordinator ({failed}); free space there"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)

    async def command(self, asked: OperatorCommand, context: Context) -> CommandDone:
        """Carry out an operator's command, once."""
        await self._authority.require(context, Role.OPERATOR)
        state = self._driver.core.state
        if asked.request_id in state.requests:
            return CommandDone("done before")
        try:
            event = commanded(state, asked.request_id, asked.body, self._drills)
        except Rejected as rejected:
            await _refuse(context, rejected)
            raise
        await self._driver.submit(event)
        return CommandDone(self._done(event))

    def _done(self, event: Event) -> str:
        match event:
            case NodeDrained(_, name) | NodeUndrained(_, name):
                node = self._driver.core.state.nodes[name]
                return f"node {name} is {node.phase}" + (f": {node.reason}" if node.reason else "")
            case NodeDegraded(_, name):
                node = self._driver.core.state.nodes[name]
                return f"node {name} offers {len(node.offered)} of {len(node.slots)} slots at speed {node.speed:g}"
            case DrillOrdered(_, _, worker, drill):
                return f"{drill.fault} is ordered for {worker}" + (f" in step {drill.step}" if drill.step >= 0 else "")
            case _:
                return "done"

    # -- looking -------------------------------------------------------------------------

    async def look(self, asked: LookRequest, context: Context) -> ClusterView:
        """Everything at this moment."""
        del asked
        await self._authority.require(context, Role.VIEWER)
        driver = self._driver
        return cluster_view(
            driver.core.state,
            driver.liveness,
            driver.now(),
            driver.store.cluster,
            self._metrics,
            self._drills,
        )

    async def what_if(self, asked: WhatIfRequest, context: Context) -> WhatIfAnswer:
        """What would be planned if something were otherwise.  Nothing is changed."""
        await self._authority.require(context, Role.VIEWER)
        driver = self._driver
        present = driver.core.problem
        try:
            changed, prospects = what_if(driver.core.state, driver.settings, present, asked, driver.now())
        except Rejected as rejected:
            await _refuse(context, rejected)
            raise
        return compared(present, changed, await driver.imagine(changed), prospects)

    async def find_incident(self, asked: IncidentRequest, context: Context) -> IncidentStory:
        """One incident, and everything that happened around it."""
        await self._authority.require(context, Role.VIEWER)
        state, now = self._driver.core.state, self._driver.now()
        incident = state.incidents.get(asked.id)
        if incident is None:
            newest = ", ".join(list(state.incidents)[-3:]) or "none"
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"incident: {asked.id}: there is no such incident; newest: {newest}"
            )
            raise AssertionError
        entries = await asyncio.to_thread(lambda: list(self._driver.store.entries()))
        return incident_story(incident, entries, now)

    # -- following -----------------------------------------------------------------------

    async def follow_events(self, asked: FollowEventsRequest, context: Context) -> AsyncGenerator[bytes, None]:
        """Events after a number, and with `follow` those to come."""
        await self._authority.require(context, Role.VIEWER)
        state, after = self._driver.core.state, asked.after
        for field, value, known in (("job", asked.job, state.jobs.keys()), ("node", asked.node, state.nodes.keys())):
            if value and value not in known:
                await _refuse(context, unknown(field, value, known))
        while True:
            changed = self._driver.changed
            entries = await asyncio.to_thread(self._read, after)
            for line in lines_of(state, entries, asked.job, asked.node):
                yield encode(line)
            after = entries[-1].number if entries else after
            if len(entries) < EVENTS_PER_READ:
                if not asked.follow:
                    return
                await changed.wait()

    def _read(self, after: int) -> list[Entry]:
        return list(self._driver.store.entries(after, EVENTS_PER_READ))

    async def follow_job(self, asked: FollowJobRequest, context: Context) -> AsyncGenerator[bytes, None]:
        """A job's state whenever it changes, and its output, until it has ended."""
        await self._authority.require(context, Role.VIEWER)
        if asked.job not in self._driver.core.state.jobs:
            await _refuse(context, unknown("job", asked.job, self._driver.core.state.jobs))
        watch = self._watch(asked)
        try:
            shown = None
            while True:
                if watch is not None:
                    for update in self._drain(watch):
                        yield encode(update)
                view = self._job_view(asked.job)
                if view != shown:
                    shown = view
                    yield encode(JobUpdate(view))
                if view.state == "ended" or asked.until_now:
                    break
                await self._pause(watch)
            if watch is not None:
                if watch.waits_for is None:
                    self._logs.finish(watch, self._agents.sessions, self._agents.send_all)
                async for update in self._last_output(watch):
                    yield encode(update)
        finally:
            if watch is not None:
                self._logs.close(watch, self._agents.send_all)

    def _watch(self, asked: FollowJobRequest) -> Watch | None:
        if not asked.logs:
            return None
        core = self._driver.core
        job_id = core.orders.job_id(core.state.jobs[asked.job])
        if asked.until_now:
            return self._logs.open_until_now(asked.job, self._agents.sessions, self._agents.send_all, job_id)
        return self._logs.open(asked.job, asked.from_start, self._agents.send_all, job_id)

    def _job_view(self, job: str) -> JobView:
        driver = self._driver
        return job_view(driver.core.state, driver.liveness, driver.core.state.jobs[job], driver.now())

    async def _pause(self, watch: Watch | None) -> None:
        """Until something may have changed, but not for ever: samples change without events."""
        changed = asyncio.create_task(self._driver.changed.wait())
        waits: set[asyncio.Task[Any]] = {changed}
        if watch is not None and watch.chunks.empty():
            waits.add(asyncio.create_task(watch.wait()))
        elif watch is not None:
            changed.cancel()
            return
        _, pending = await asyncio.wait(waits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.sleep(UPDATE_SECONDS if watch is None else 0)

    def _drain(self, watch: Watch) -> list[JobUpdate]:
        updates = []
        while not watch.chunks.empty():
            chunk = watch.chunks.get_nowait()
            if chunk.data:
                updates.append(JobUpdate(None, chunk.worker, chunk.data, chunk.offset))
        return updates

    async def _last_output(self, watch: Watch) -> AsyncIterator[JobUpdate]:
        """What the agents still have, until each has said that this is all."""
        deadline = time.monotonic() + QUIET_SECONDS_MAX
        while time.monotonic() < deadline:
            for update in self._drain(watch):
                deadline = time.monotonic() + QUIET_SECONDS_MAX
                yield update
            if not (watch.waits_for or set()) & self._agents.sessions.keys() and watch.chunks.empty():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UPDATE_SECONDS):
                    await watch.wait()


async def _refuse(context: Context, rejected: Rejected) -> None:
    code = grpc.StatusCode.NOT_FOUND if rejected.missing else grpc.StatusCode.INVALID_ARGUMENT
    await context.abort(code, str(rejected.mistake))
