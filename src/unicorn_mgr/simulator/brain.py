"""The real coordinator's core and planner in virtual time, where only what changes is an event.

The message-exact world (`world`) is for finding bugs; this is for months of tens of thousands of GPUs.  What
agents would tell in the same moment is handled together, as the server does, and nobody beats: whoever simulates
the nodes says when one is silent, and when a job has waited for it for long enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unicorn_mgr.coordinator.core import CoordinatorCore
from unicorn_mgr.coordinator.orders import Orders
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.planner.problem import Policy
from unicorn_mgr.simulator.control import SECRET, WALL, answered, solved
from unicorn_mgr.simulator.timeline import Timeline


@dataclass(slots=True)
class Counts:
    """What the core has done."""

    facts: int = 0
    decisions: int = 0
    actions: int = 0
    plans: int = 0


class Brain:
    """One coordinator that never dies."""

    def __init__(
        self,
        settings: Settings,
        timeline: Timeline,
        perform: Callable[[e.Action], None],
        decided: Callable[[e.Event], None],
        policy: Policy | None = None,
        plan_seconds: float = 0.3,
    ) -> None:
        self.settings = settings
        self.counts = Counts()
        self.core = CoordinatorCore(settings, policy, Orders(settings, SECRET))
        self._time = timeline
        self._perform = perform
        self._decided = decided
        self._plan_seconds = plan_seconds
        self._facts: list[e.Fact] = []
        self._due: float | None = None

    @property
    def state(self) -> ClusterState:
        """What it believes."""
        return self.core.state

    def start(self) -> None:
        """The first term."""
        self.tell(e.TermStarted(1, WALL))

    def tell(self, *facts: e.Fact) -> None:
        """Have it handle these, with whatever else is told in this moment."""
        if not self._facts:
            self._time.at(self._time.now, self._handle)
        self._facts += facts

    def _handle(self) -> None:
        facts, self._facts = self._facts, []
        outcome = self.core.handle_all(facts, self._time.now)
        self.counts.facts += len(facts)
        self.counts.decisions += len(outcome.entries)
        self.counts.actions += len(outcome.actions)
        for entry in outcome.entries:
            self._decided(entry)
        for action in outcome.actions:
            if isinstance(action, e.SolvePlan):
                self._solve(action.number)
            else:
                self._perform(action)
        self._wait()

    def _wait(self) -> None:
        due = self.core.next_deadline(self._time.now)
        if due is None or (self._due is not None and self._time.now < self._due <= due):
            return
        self._due = due
        self._time.at(due, self._time_passed)

    def _time_passed(self) -> None:
        if self._due is not None and self._due <= self._time.now:
            self._due = None
            self.tell(e.TimePassed())

    def _solve(self, number: int) -> None:
        def ready() -> None:
            if self.state.planning.number == number and not self.state.planning.answered:
                self.counts.plans += 1
                self.tell(answered(number, solved(self.core.problem)))

        self._time.after(self._plan_seconds, ready)
