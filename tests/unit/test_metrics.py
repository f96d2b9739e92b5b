"""What Prometheus scrapes: numbers of the state, put together between two events."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

from unit.test_driver import attached, run, running, submitted

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.driver import Driver
from unicorn_mgr.coordinator.metrics import MetricsServer, serve_metrics
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, JobSpec, Lineage


async def scraped(server: MetricsServer) -> dict[str, float]:
    """Series and values of a page."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=10) as page:
            return str(page.read().decode())

    lines = [line.rpartition(" ") for line in (await asyncio.to_thread(fetch)).splitlines() if line[0] != "#"]
    return {series: float(value) for series, _, value in lines}


async def trains(driver: Driver) -> None:
    """A job on its only slot makes a step, and its worker is killed and replaced."""
    await driver.submit(attached("n0"))
    await driver.submit(submitted())
    worker = "gpt/0.0"
    for fact in (
        e.WorkerStarted(worker, 4000),
        e.WorkerAttached(worker),
        e.WorkerTold(worker, m.Ready({"script": "abc"})),
    ):
        await driver.submit(fact)
    epoch = driver.core.state.jobs["gpt"].epoch
    await driver.submit(e.GroupFormed("gpt", epoch))
    await driver.submit(e.WorkerTold(worker, m.Resumed(epoch, 5)))
    driver.liveness.beat("n0", (m.Sample(worker, step=8, committed=7, step_seconds=0.25),), driver.now())


def test_a_scrape_tells_of_nodes_jobs_and_incidents(tmp_path: Path) -> None:
    async def test() -> None:
        server = serve_metrics("127.0.0.1:0")
        try:
            async with running(tmp_path) as driver:
                server.show(driver)
                await trains(driver)
                await driver.submit(submitted("late"))
                before = await scraped(server)
                await driver.submit(e.WorkerExited(m.Exited("gpt/0.0", -9)))
                while not driver.core.state.jobs["gpt"].restarts:
                    await driver.changed.wait()
                after = await scraped(server)
        finally:
            await asyncio.to_thread(server.close)
        expected = {
            "unicorn_term": 1,
            'unicorn_nodes{state="up"}': 1,
            'unicorn_slots{state="used"}': 1,
            'unicorn_slots{state="free"}': 0,
            'unicorn_jobs{state="running"}': 1,
            'unicorn_job_size{job="gpt"}': 1,
            'unicorn_job_waiting{job="gpt"}': 0,
            'unicorn_job_waiting{job="late"}': 1,
            'unicorn_job_step{job="gpt"}': 7,
            'unicorn_job_step_seconds{job="gpt"}': 0.25,
            "unicorn_epochs_total": 1,
            "unicorn_worker_restarts_total": 0,
            "unicorn_incidents_open": 0,
        }
        assert {series: before[series] for series in expected} == expected
        assert after["unicorn_worker_restarts_total"] == 1
        assert after['unicorn_incidents_total{cause="process_killed",severity="SEV2"}'] == 1
        assert after['unicorn_job_ettr_ratio{job="gpt"}'] < 1

    run(test())


def test_a_scrape_tells_how_old_the_newest_checkpoint_is_and_what_is_on_its_way(tmp_path: Path) -> None:
    async def test() -> None:
        server = serve_metrics("127.0.0.1:0")
        try:
            async with running(tmp_path) as driver:
                server.show(driver)
                await driver.submit(attached("n0"))
                spec = JobSpec("gpt", ("true",), directory="/w", checkpoint_url="/store")
                await driver.submit(e.JobSubmitted("request", "gpt", spec))
                before = await scraped(server)
                lineage = Lineage(0, Epoch(1, 1))
                await driver.submit(e.WorkerTold("gpt/0.0", m.CheckpointWritten(7, lineage, "/store")))
                await driver.submit(e.WorkerTold("gpt/0.0", m.CheckpointHanded(9, lineage, "/store")))
                after = await scraped(server)
        finally:
            await asyncio.to_thread(server.close)
        age = 'unicorn_job_checkpoint_age_seconds{job="gpt"}'
        assert age not in before
        assert 0 <= after[age] < 60
        parts = [f'unicorn_job_checkpoint_parts{{job="gpt",state="{state}"}}' for state in ("memory", "stored")]
        assert [before[series] for series in parts] == [0, 0]
        assert [after[series] for series in parts] == [1, 0]

    run(test())
