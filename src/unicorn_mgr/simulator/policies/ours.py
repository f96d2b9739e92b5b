"""Ours: the real coordinator's core, rules and planner, in virtual time; and the same with single parts left out.

Who is told to do what, and when, is decided by the code that runs a cluster, at its default settings; only what takes
time outside of it is simulated (`fleet`).  Detection is what the settings make it: a lease, a stall's limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.planner.simple import FirstComeFirstServed
from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.crew import Reuse
from unicorn_mgr.simulator.fleet import Fleet
from unicorn_mgr.simulator.history import History
from unicorn_mgr.simulator.scenario import DAY, Fault, Kind, Scenario

ALL = Reuse()
NO_PARTS = Reuse(partial=False)
NO_STATE = Reuse(partial=False, live=False, snapshots=False)


@dataclass(frozen=True)
class Ours:
    """unicorn-mgr as it is.

    The planner's one figure about the future, how long a node lasts, is what the scenario's own faults say, as an
    operator would set it who knows the cluster.
    """

    name: str = "ours"
    reuse: Reuse = ALL
    planned: bool = True

    def live(self, scenario: Scenario, faults: Sequence[Fault], costs: Costs, seed: int) -> History:
        """What becomes of the cluster."""
        history = History(self.name, scenario, seed, {}, tuple(faults))
        settings = Settings(node_mtbf_seconds=_node_mtbf(scenario, faults))
        policy = None if self.planned else FirstComeFirstServed()
        fleet = Fleet(scenario, faults, costs, history, settings, policy, self.reuse)
        fleet.live()
        counts = fleet.brain.counts
        history.notes |= {"facts": counts.facts, "decisions": counts.decisions, "plans": counts.plans}
        return history


@dataclass(frozen=True)
class WithoutPlanner(Ours):
    """The core's simple policy: who comes first is served first, and nobody gives anything to anybody."""

    name: str = "ours-no-planner"
    planned: bool = False


@dataclass(frozen=True)
class WithoutPartialReuse(Ours):
    """Survivors throw away the step that was open, as torchft does."""

    name: str = "ours-no-partial-reuse"
    reuse: Reuse = NO_PARTS


@dataclass(frozen=True)
class WithoutLiveState(Ours):
    """After a fault everybody begins from the newest checkpoint in storage."""

    name: str = "ours-no-live-state"
    reuse: Reuse = NO_STATE


def _node_mtbf(scenario: Scenario, faults: Sequence[Fault]) -> float:
    """Seconds until one node is lost, on average; a month if none is."""
    losses = sum(len(fault.nodes) for fault in faults if fault.kind is Kind.NODE)
    return scenario.nodes * scenario.seconds / losses if losses else 30 * DAY
