"""The loop around the core: durable before it leaves, and not fooled by its own sleep."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from unicorn_mgr.coordinator.driver import OVERSLEPT_SECONDS, Driver, JournalFailed
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import NodePhase
from unicorn_mgr.coordinator.store import Store
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import StartWorker, ToAgent
from unicorn_mgr.model import JobSpec, Slot
from unicorn_mgr.planner.simple import FirstComeFirstServed

QUICK = Settings(beat_seconds=0.2, lease_seconds=1.0, fence_seconds=10.0, breaker_nodes_min=100)


@contextlib.asynccontextmanager
async def running(
    folder: Path, send: Callable[[str, ToAgent], None] = lambda _node, _body: None
) -> AsyncIterator[Driver]:
    """A driver in its loop, ended with the block."""
    store = Store(folder)
    driver = Driver(store, QUICK, FirstComeFirstServed(), send)
    driver.recover()
    loop = asyncio.create_task(driver.run())
    try:
        yield driver
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
            await loop
        store.close()


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())


def attached(node: str) -> e.NodeAttached:
    return e.NodeAttached(node, "1", (Slot(),), "10.0.0.1", ())


async def until(found: Callable[[], bool]) -> None:
    while not found():
        await asyncio.sleep(0.01)


def submitted(name: str = "gpt") -> e.JobSubmitted:
    return e.JobSubmitted(f"request of {name}", name, JobSpec(name, ("true",), directory="/w"))


def test_nothing_leaves_before_its_cause_is_durable(tmp_path: Path) -> None:
    durable_when_sent: list[list[str]] = []

    async def test() -> None:
        def send(_: str, body: ToAgent) -> None:
            if isinstance(body, StartWorker):
                with sqlite3.connect(f"file:{tmp_path}/journal.sqlite?mode=ro", uri=True) as db:
                    durable_when_sent.append([kind for (kind,) in db.execute("SELECT kind FROM entries")])
                db.close()

        async with running(tmp_path, send) as driver:
            await driver.submit(attached("n0"))
            await driver.submit(submitted())

    run(test())
    (kinds,) = durable_when_sent
    assert kinds[-3:] == ["JobSubmitted", "SlotsAssigned", "WorkerOrdered"]


def test_a_journal_that_can_not_be_written_ends_it_before_anything_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[ToAgent] = []

    def full(_store: Store, _lines: Sequence[object]) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    async def test() -> None:
        store = Store(tmp_path)
        driver = Driver(store, QUICK, FirstComeFirstServed(), lambda _, body: sent.append(body))
        driver.recover()
        await driver.tell(attached("n0"))
        await driver.tell(submitted())
        monkeypatch.setattr(Store, "append", full)
        with pytest.raises(BaseExceptionGroup) as ended:
            await driver.run()
        (failed,) = ended.value.exceptions
        assert isinstance(failed, JournalFailed)
        why = "the journal can't be written (database or disk is full); free space there and start again"
        assert str(failed) == f"data: {tmp_path}: {why}"
        store.close()

    run(test())
    assert sent == []


def test_who_was_told_that_it_is_done_finds_it_done_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as driver:
            await driver.submit(attached("n0"))
            await driver.submit(submitted())
        async with running(tmp_path) as driver:
            assert driver.core.state.term == 2
            assert driver.core.state.requests == {"request of gpt": "gpt"}
            assert list(driver.core.state.jobs["gpt"].workers) == ["gpt/0.0"]
            assert driver.core.state.nodes["n0"].phase is NodePhase.UP

    run(test())


def test_core_time_never_goes_back(tmp_path: Path) -> None:
    async def test() -> None:
        for _ in range(3):
            async with running(tmp_path) as driver:
                await driver.submit(attached("n0"))
                times = [entry.at for entry in driver.store.entries()]
        assert len(times) == 6
        assert times == sorted(times)

    run(test())


def test_a_coordinator_that_stalls_declares_nobody_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its whole loop stands still for several leases, as when the machine is suspended."""
    clock = time.monotonic

    def stall(seconds: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: clock() + seconds)

    async def test() -> None:
        async with running(tmp_path) as driver:

            async def beat() -> None:
                while True:
                    for i in range(3):
                        driver.liveness.beat(f"n{i}", (), driver.now())
                    await asyncio.sleep(0.02)

            for i in range(4):
                await driver.submit(attached(f"n{i}"))
            beating = asyncio.create_task(beat())
            await until(lambda: driver.core.state.nodes["n3"].phase is NodePhase.SILENT)
            stall(2 * QUICK.lease_seconds)
            await until(lambda: driver.lags.slept_seconds > OVERSLEPT_SECONDS)
            await until(lambda: driver.lags.slept_seconds < OVERSLEPT_SECONDS)
            phases = [driver.core.state.nodes[f"n{i}"].phase for i in range(4)]
            assert phases == [NodePhase.UP, NodePhase.UP, NodePhase.UP, NodePhase.SILENT]
            assert [x.event.node for x in driver.store.entries() if isinstance(x.event, e.NodeSilent)] == ["n3"]
            beating.cancel()

    run(test())
