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

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from unicorn_mgr.coordinator.attention import Agenda, concerned
from unicorn_mgr.coordinator.fence import admits
from unicorn_mgr.coordinator.orders import Orders
from unicorn_mgr.coordinator.outlook import Outlook
from unicorn_mgr.coordinator.recall import unchanging
from unicorn_mgr.coordinator.record import record
from unicorn_mgr.coordinator.rules import (
    ClusterDeadlines,
    ClusterRule,
    Context,
    JobDeadlines,
    JobRule,
    allocation,
    backups,
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
    shapes,
    stalls,
    suspension,
)
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job
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
    stalls.unattached,
    stalls.links,
    stalls.checksums,
    incidents.unreadable,
    epochs.transition_ended,
    suspension.ordered,
    suspension.withdrawn,
    suspension.ended,
    epochs.life_ended,
    shapes.changed,
    epochs.granted,
    allocation.gang,
    allocation.ordered,
    allocation.surplus,
    checkpoints.committed,
    checkpoints.given_up,
    backups.placed,
    backups.released,
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
    replicas.deadlines,
    allocation.order_deadlines,
    preparation.deadlines,
    stalls.inquiry_deadlines,
    stalls.link_deadlines,
    stalls.attach_deadlines,
    suspension.deadlines,
    checkpoints.deadlines,
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
    _agenda: Agenda = field(init=False)

    def __post_init__(self) -> None:
        self._outlook = Outlook(self.settings)
        self._agenda = Agenda(self._deadlines_of)

    @property
    def problem(self) -> Problem:
        """What the planner is asked at this moment."""
        return self._outlook.problem(self.state)

    def handle(self, event: e.Fact, now: float) -> Outcome:
        """Record a fact and everything that follows from it."""
        return self.handle_all((event,), now)

    def handle_all(self, events: Iterable[e.Fact], now: float) -> Outcome:
        """Record what has come at one moment, each at its own turn at the door, and then all that follows from it.

        A thousand members that have resumed are a thousand facts and one look at their job.
        """
        entries: list[e.Event] = []
        actions: list[e.Action] = []
        touched: set[str] | None = None
        for event in events:
            if admits(self.state, event):
                touched = touched if touched is not None else self._agenda.due(self.state, now)
                if not isinstance(event, e.TimePassed):
                    self._commit(event, now, entries, actions)
                    touched |= concerned(self.state, self._outlook, event)
        if touched is None:
            return Outcome((), ())
        for _ in range(DECISIONS_MAX):
            decisions = self._next_decisions(touched, now)
            if not decisions:
                self._agenda.looked_at(self.state, sorted(touched), now)
                return Outcome(tuple(entries), tuple(actions))
            for decision in decisions:
                self._commit(decision, now, entries, actions)
                touched |= concerned(self.state, self._outlook, decision)
        raise AssertionError(f"decisions without end: {entries[-3:]}")

    def replay(self, entry: e.Event, now: float) -> None:
        """Record what the journal says; nothing follows from it that the journal does not say, too."""
        record(self.state, entry, now)
        self._outlook.heed(entry)
        self._agenda.clear()

    def next_deadline(self, now: float) -> float | None:
        """When time alone may lead to a decision; None if it can't."""
        c = self._context(now)
        found = [at for deadlines in CLUSTER_DEADLINES for at in deadlines(c) if at > now]
        first = min([*found, self._agenda.first(self.state, now)])
        return first if first < math.inf else None

    def _deadlines_of(self, job: Job, now: float) -> Iterator[float]:
        c = self._context(now)
        return iter(unchanging([job], lambda: [at for deadlines in JOB_DEADLINES for at in deadlines(c, job)]))

    def _commit(self, event: e.Event, now: float, entries: list[e.Event], actions: list[e.Action]) -> None:
        record(self.state, event, now)
        self._outlook.heed(event)
        entries.append(event)
        actions.extend(self.orders.of(self.state, event))

    def _next_decisions(self, touched: set[str], now: float) -> list[e.Decision]:
        """The first rule that has something to say."""
        jobs = [job for name in sorted(touched) if (job := self.state.jobs.get(name)) is not None]
        return unchanging(jobs, lambda: self._first_decisions(jobs, now))

    def _first_decisions(self, jobs: list[Job], now: float) -> list[e.Decision]:
        c = self._context(now)
        for cluster_rule in CLUSTER_RULES:
            decisions = list(cluster_rule(c))
            if decisions:
                return decisions
        for job_rule in JOB_RULES:  # of all jobs before the next: a newcomer is ordered before who is there leaves
            for job in jobs:
                decisions = list(job_rule(c, job))
                if decisions:
                    return decisions
        return []

    def _context(self, now: float) -> Context:
        return Context(self.state, self.settings, self.policy, now, self._outlook)
