"""The coordinator's core: record facts, derive decisions, command actions.

Pure: no clock, no network, no disk, no randomness.  Three drivers run it: the service, the
replay of a journal, and the simulator.

    handle(event, now):  drop it at the door if it is stale, repeated or about nobody
                         record the fact
                         while any rule has a decision: record it, too
                         return what has to be durable, and the actions to perform then

A rule only sees the state, never the event, so a lost or doubled event costs a delay and
never a wrong decision.  A replay calls `replay` for each entry, facts and decisions alike,
and derives nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unicorn_mgr.coordinator.fence import admits
from unicorn_mgr.coordinator.orders import Orders
from unicorn_mgr.coordinator.outlook import Outlook, job_of, worker_of
from unicorn_mgr.coordinator.record import record
from unicorn_mgr.coordinator.rules import (
    ClusterDeadlines,
    ClusterRule,
    Context,
    JobDeadlines,
    JobRule,
    allocation,
    checkpoints,
    due,
    endings,
    epochs,
    escalation,
    incidents,
    nodes,
    planning,
    preparation,
    replicas,
    stalls,
    suspension,
)
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.planner.problem import Policy, Problem

CLUSTER_RULES: tuple[ClusterRule, ...] = (
    nodes.breaker,
    nodes.lost,
    nodes.isolated,
    nodes.quarantined,
    nodes.trusted,
    nodes.drained,
    incidents.node_closings,
    planning.wanted,
    allocation.assigned,
)

JOB_RULES: tuple[JobRule, ...] = (
    incidents.deaths,
    replicas.broken,
    endings.mistakes,
    endings.other_code,
    endings.poison,
    endings.same_everywhere,
    escalation.process_ended,
    escalation.replacements_failed,
    stalls.inquired,
    stalls.sentenced,
    stalls.links,
    stalls.checksums,
    incidents.unreadable,
    epochs.transition_ended,
    suspension.ordered,
    suspension.withdrawn,
    suspension.ended,
    epochs.life_ended,
    epochs.granted,
    allocation.gang,
    allocation.ordered,
    allocation.surplus,
    checkpoints.committed,
    endings.stopping,
    endings.lingering,
    incidents.closings,
    planning.paced,
    due.reckoned,
    allocation.dismissed,
    endings.ended,
)

CLUSTER_DEADLINES: tuple[ClusterDeadlines, ...] = (
    planning.retry_deadlines,
    nodes.lost_deadlines,
    nodes.quarantine_deadlines,
)

JOB_DEADLINES: tuple[JobDeadlines, ...] = (
    epochs.deadlines,
    allocation.order_deadlines,
    preparation.deadlines,
    stalls.inquiry_deadlines,
    stalls.link_deadlines,
    suspension.deadlines,
    due.deadlines,
    endings.stopping_deadlines,
    endings.lingering_deadlines,
)

DECISIONS_MAX = 100_000
"""More decisions than this after one event mean that two rules undo each other: our bug."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one event leads to."""

    entries: tuple[e.Event, ...]
    """To be made durable before any action is performed, in this order."""
    actions: tuple[e.Action, ...]


@dataclass(slots=True)
class CoordinatorCore:
    """The cluster's brain."""

    settings: Settings
    policy: Policy | None
    """Says at once who gets what; None: a planner is asked, and its answer is an event."""
    orders: Orders
    state: ClusterState = field(default_factory=ClusterState)
    _outlook: Outlook = field(init=False)

    def __post_init__(self) -> None:
        self._outlook = Outlook(self.settings)

    @property
    def problem(self) -> Problem:
        """What the planner is asked at this moment."""
        return self._outlook.problem(self.state)

    def handle(self, event: e.Fact, now: float) -> Outcome:
        """Record a fact and everything that follows from it."""
        if not admits(self.state, event):
            return Outcome((), ())
        entries: list[e.Event] = []
        actions: list[e.Action] = []
        if not isinstance(event, e.TimePassed):
            self._commit(event, now, entries, actions)
        touched = self._touched(event)
        for _ in range(DECISIONS_MAX):
            decisions = self._next_decisions(touched, now)
            if not decisions:
                return Outcome(tuple(entries), tuple(actions))
            for decision in decisions:
                self._commit(decision, now, entries, actions)
                touched |= self._touched(decision)
        raise AssertionError(f"{type(event).__name__} leads to decisions without end: {entries[-3:]}")

    def replay(self, entry: e.Event, now: float) -> None:
        """Record what the journal says; nothing follows from it that the journal does not say, too."""
        record(self.state, entry, now)
        self._outlook.heed(entry)

    def next_deadline(self, now: float) -> float | None:
        """When time alone may lead to a decision; None if it can't."""
        c = self._context(now)
        found = [at for deadlines in CLUSTER_DEADLINES for at in deadlines(c)]
        found += [
            at
            for job in self.state.jobs.values()
            if not job.over
            for deadlines in JOB_DEADLINES
            for at in deadlines(c, job)
        ]
        return min((at for at in found if at > now), default=None)

    def _commit(self, event: e.Event, now: float, entries: list[e.Event], actions: list[e.Action]) -> None:
        record(self.state, event, now)
        self._outlook.heed(event)
        entries.append(event)
        actions.extend(self.orders.of(self.state, event))

    def _next_decisions(self, touched: set[str], now: float) -> list[e.Decision]:
        """The first rule that has something to say."""
        c = self._context(now)
        for cluster_rule in CLUSTER_RULES:
            decisions = list(cluster_rule(c))
            if decisions:
                return decisions
        jobs = [job for name in sorted(touched) if (job := self.state.jobs.get(name)) is not None]
        for job_rule in JOB_RULES:  # of all jobs before the next: a newcomer is ordered before who is there leaves
            for job in jobs:
                decisions = list(job_rule(c, job))
                if decisions:
                    return decisions
        return []

    def _context(self, now: float) -> Context:
        return Context(self.state, self.settings, self.policy, now, self._outlook)

    def _touched(self, event: e.Event) -> set[str]:
        """Jobs that an event may concern.  What concerns a node or the cluster concerns all."""
        job, worker = job_of(event), worker_of(event)
        if worker:
            return {job} | self._beside(worker, ended=isinstance(event, e.WorkerExited))
        return {job} if job else {name for name, j in self.state.jobs.items() if not j.over}

    def _beside(self, name: str, *, ended: bool) -> set[str]:
        """Jobs with a process on a worker's slot, and, if it has left that now, whoever was given it."""
        worker = self.state.worker(name)
        if worker is None:
            return set()
        place = (worker.node, worker.slot)
        beside = {w.job for w in self.state.on_slot(*place)}
        if ended:
            beside |= {job.name for job in self.state.jobs.values() if not job.over and place in job.seats.values()}
        return beside
