"""Prometheus metrics: read from the state at each scrape, so that they survive a restart with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from unicorn_mgr import __version__
from unicorn_mgr.coordinator.checkpoints import PART_STATES
from unicorn_mgr.coordinator.driver import Driver
from unicorn_mgr.coordinator.plan_metrics import plan_metrics
from unicorn_mgr.coordinator.record_incidents import RECOVERY_BUCKETS
from unicorn_mgr.coordinator.state import ClusterState, JobPhase, NodePhase
from unicorn_mgr.coordinator.views import ettr, progress

SCRAPE_SECONDS_MAX = 5.0
PHASES = ("detect", "settle", "fence", "regroup", "restore", "recompute", "resize", "total")


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A running HTTP server."""

    address: str
    registry: CollectorRegistry
    server: WSGIServer
    thread: threading.Thread

    def show(self, driver: Driver) -> None:
        """From now on scrapes tell of this coordinator."""
        self.registry.register(CoordinatorMetrics(driver))

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def serve_metrics(listen: str) -> MetricsServer:
    """Serve /metrics at HOST:PORT, in a thread of its own.  Raises OSError."""
    host, _, port = listen.rpartition(":")
    registry = CollectorRegistry()
    server, thread = start_http_server(int(port), host, registry)
    return MetricsServer(f"{host}:{server.server_port}", registry, server, thread)


class CoordinatorMetrics(Collector):
    """All metrics of the coordinator."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._loop = asyncio.get_running_loop()

    def describe(self) -> Iterator[Metric]:
        """Nothing is asked of the loop while it registers this."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One scrape, put together between two events and not during one."""

        async def take() -> list[Metric]:
            return list(self._collect())

        return iter(asyncio.run_coroutine_threadsafe(take(), self._loop).result(SCRAPE_SECONDS_MAX))

    def _collect(self) -> Iterator[Metric]:
        state = self._driver.core.state
        yield InfoMetricFamily("unicorn_coordinator", "This coordinator.", {"version": __version__})
        yield GaugeMetricFamily("unicorn_term", "Term of the coordinator: one more for each start.", state.term)
        yield from self._nodes(state)
        yield from self._jobs(state)
        yield from self._checkpoints(state)
        yield from self._incidents(state)
        planner = self._driver.planner
        yield from plan_metrics(state, planner.counts if planner is not None else None)
        yield from self._itself(state)

    def _nodes(self, state: ClusterState) -> Iterator[Metric]:
        nodes = GaugeMetricFamily("unicorn_nodes", "Nodes by state.", labels=["state"])
        slots = GaugeMetricFamily("unicorn_slots", "Slots by state.", labels=["state"])
        for phase in NodePhase:
            nodes.add_metric([phase.value], sum(n.phase is phase for n in state.nodes.values()))
        usable = sum(len(n.offered) for n in state.nodes.values() if n.usable)
        used = sum(len(n.processes) for n in state.nodes.values())
        slots.add_metric(["used"], used)
        slots.add_metric(["free"], max(0, usable - used))
        slots.add_metric(["unusable"], sum(len(n.slots) for n in state.nodes.values()) - usable)
        yield nodes
        yield slots

    def _jobs(self, state: ClusterState) -> Iterator[Metric]:
        phases = GaugeMetricFamily("unicorn_jobs", "Jobs by state.", labels=["state"])
        for phase in JobPhase:
            phases.add_metric([phase.value], sum(j.phase is phase for j in state.jobs.values()))
        yield phases
        now, live = self._driver.now(), self._driver.liveness
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            "size": GaugeMetricFamily("unicorn_job_size", "Members of a job.", labels=["job"]),
            "wanted": GaugeMetricFamily("unicorn_job_size_wanted", "Slots planned for a job.", labels=["job"]),
            "step": GaugeMetricFamily("unicorn_job_step", "Last committed step of a job.", labels=["job"]),
            "seconds": GaugeMetricFamily("unicorn_job_step_seconds", "Typical step of a job.", labels=["job"]),
            "ettr": GaugeMetricFamily(
                "unicorn_job_ettr_ratio", "Productive training time over wall-clock time.", labels=["job"]
            ),
            "steps": CounterMetricFamily("unicorn_job_steps_redone", "Steps done twice.", labels=["job"]),
            "batches": CounterMetricFamily(
                "unicorn_job_micro_batches_redone", "Micro-batches done twice.", labels=["job"]
            ),
            "checkpoint": GaugeMetricFamily(
                "unicorn_job_checkpoint_step", "Newest complete checkpoint.", labels=["job"]
            ),
        }
        weights, total = 0.0, 0.0
        for job in state.jobs.values():
            if job.over:
                continue
            committed, seconds = progress(live, job)
            families["size"].add_metric([job.name], len(job.living_members()))
            families["wanted"].add_metric([job.name], len(job.seats))
            families["step"].add_metric([job.name], committed)
            families["seconds"].add_metric([job.name], seconds)
            families["ettr"].add_metric([job.name], ettr(job, now))
            families["steps"].add_metric([job.name], job.steps_redone)
            families["batches"].add_metric([job.name], job.micro_batches_redone)
            families["checkpoint"].add_metric([job.name], job.checkpoint.step if job.checkpoint is not None else -1)
            if job.started_at:
                weights += job.spec.weight
                total += job.spec.weight * ettr(job, now)
        yield from families.values()
        yield GaugeMetricFamily(
            "unicorn_cluster_ettr_ratio",
            "ETTR over all running jobs, by weight.",
            total / weights if weights else 1.0,
        )

    def _checkpoints(self, state: ClusterState) -> Iterator[Metric]:
        now = self._driver.now()
        ages = GaugeMetricFamily(
            "unicorn_job_checkpoint_age_seconds", "Since the newest checkpoint became complete.", labels=["job"]
        )
        parts = GaugeMetricFamily(
            "unicorn_job_checkpoint_parts", "Parts of checkpoints that are not published yet.", labels=["job", "state"]
        )
        for job in state.jobs.values():
            if job.over or not job.spec.checkpoint_url:
                continue
            if job.checkpoint is not None:
                ages.add_metric([job.name], now - job.checkpoint.at)
            states = [job.parts.state(worker, job.checkpoint) for worker in job.parts.of]
            for kind in PART_STATES:
                parts.add_metric([job.name, kind], states.count(kind))
        yield ages
        yield parts

    def _incidents(self, state: ClusterState) -> Iterator[Metric]:
        counts = CounterMetricFamily(
            "unicorn_incidents", "Incidents since the beginning.", labels=["cause", "severity"]
        )
        for key, count in sorted(state.counters.incidents.items()):
            counts.add_metric(key.split("|"), count)
        yield counts
        yield GaugeMetricFamily(
            "unicorn_incidents_open",
            "Incidents that are not closed.",
            sum(i.open for i in state.incidents.values()),
        )
        for phase in PHASES:
            row = state.counters.phase_seconds.get(phase, [0.0] * (len(RECOVERY_BUCKETS) + 2))
            buckets = [(str(bound), row[i]) for i, bound in enumerate(RECOVERY_BUCKETS)]
            name = "unicorn_recovery_seconds" if phase == "total" else f"unicorn_recovery_{phase}_seconds"
            yield HistogramMetricFamily(name, f"Seconds of recovery: {phase}.", [*buckets, ("+Inf", row[-2])], row[-1])
        c = state.counters
        yield CounterMetricFamily("unicorn_epochs", "Epochs granted.", c.epochs)
        yield CounterMetricFamily("unicorn_worker_restarts", "Processes started in place of failed ones.", c.restarts)
        yield CounterMetricFamily("unicorn_suspicions_averted", "Stalls that a second reading dispelled.", c.averted)
        yield CounterMetricFamily(
            "unicorn_false_verdicts", "Lost nodes that came back with their workers.", c.false_verdicts
        )

    def _itself(self, state: ClusterState) -> Iterator[Metric]:
        lags = self._driver.lags
        yield GaugeMetricFamily("unicorn_journal_entries", "Newest entry of the journal.", self._driver.store.number)
        yield GaugeMetricFamily("unicorn_journal_lag_seconds", "Last commit of the journal.", lags.commit_seconds)
        yield GaugeMetricFamily(
            "unicorn_loop_lag_seconds", "Wait of the last event before it was handled.", lags.loop_seconds
        )
        yield GaugeMetricFamily("unicorn_loop_slept_seconds", "How late the last timer was.", lags.slept_seconds)
        yield GaugeMetricFamily("unicorn_paused", "1 while an operator has paused all actions.", state.paused)
        yield GaugeMetricFamily("unicorn_observe", "1 while the cluster only observes.", state.observe)
        yield GaugeMetricFamily("unicorn_breaker_tripped", "1 while verdicts are frozen.", bool(state.breaker))
