"""Prometheus metrics of the planner: what it promised, what came of it, and how it got there."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from unicorn_mgr.coordinator.planning import Counts
from unicorn_mgr.coordinator.state import ClusterState, Job, JobPhase
from unicorn_mgr.coordinator.throughput import rate_at


def plan_metrics(state: ClusterState, counts: Counts | None) -> Iterator[Metric]:
    """All of them."""
    yield from _answers(state)
    yield CounterMetricFamily(
        "unicorn_moves", "Times that a plan has given or taken a job's slots.", state.counters.moves
    )
    if counts is not None:
        yield GaugeMetricFamily("unicorn_plan_table_entries", "Next events that are foreseen.", counts.table_entries)
        yield CounterMetricFamily("unicorn_plan_table_hits", "Plans that had been foreseen.", counts.table_hits)
        yield CounterMetricFamily("unicorn_plan_table_misses", "Plans that had not been.", counts.table_misses)
    yield from _throughput(state)
    # Why it waits is no label: it names numbers, and each wording would be a series of its own for ever.
    waiting = GaugeMetricFamily("unicorn_job_waiting", "1 while a job has no slots.", labels=["job"])
    for job in state.jobs.values():
        if not job.over:
            waiting.add_metric([job.name], job.phase is JobPhase.WAITING)
    yield waiting


def _answers(state: ClusterState) -> Iterator[Metric]:
    seconds = SummaryMetricFamily("unicorn_plan_seconds", "Answers of the planner.", labels=["rung", "solver"])
    for label, answers in sorted(state.counters.plans.items()):
        seconds.add_metric(label.split("|"), answers, state.counters.plan_seconds[label])
    yield seconds
    newest = state.planning.plan
    certified = newest is not None and newest.bound > 0
    gap = max(0.0, 1 - newest.value / newest.bound) if newest is not None and certified else float("nan")
    yield GaugeMetricFamily("unicorn_plan_gap_ratio", "Share by which the newest plan may be short of the best.", gap)


def _throughput(state: ClusterState) -> Iterator[Metric]:
    running = [j for j in state.jobs.values() if not j.over]
    promised = GaugeMetricFamily(
        "unicorn_job_promised_flops",
        "Weighted FLOP/s at the planned size; 1e12 a slot where nobody has told a job's speed.",
        labels=["job"],
    )
    achieved = GaugeMetricFamily("unicorn_job_achieved_flops", "The same with the present members.", labels=["job"])
    sums = [0.0, 0.0]
    for job in running:
        planned, present = [n for n, _ in job.seats.values()], [w.node for w in job.living_members()]
        figures = _weighted(state, job, planned), _weighted(state, job, present)
        promised.add_metric([job.name], figures[0])
        achieved.add_metric([job.name], figures[1])
        sums = [s + f for s, f in zip(sums, figures, strict=True)]
    yield promised
    yield achieved
    yield GaugeMetricFamily("unicorn_waf_promised_flops", "Weighted FLOP/s of all jobs as planned.", sums[0])
    yield GaugeMetricFamily("unicorn_waf_achieved_flops", "Weighted FLOP/s of all jobs with their members.", sums[1])


def _weighted(state: ClusterState, job: Job, nodes: list[str]) -> float:
    """With a worker on each of these nodes."""
    return job.spec.weight * rate_at(job, len(nodes), job.spec) * state.slowest(nodes)
