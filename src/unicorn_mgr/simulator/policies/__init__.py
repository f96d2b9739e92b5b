"""What is done about faults: one small class a policy, all living through the same ones.

A policy is asked for a history and for nothing else.  Those that are compared with are simulated by the rules
of their papers (`fluid`: who is hit stops for so long, and goes on with so many slots); ours runs the real core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import History
from unicorn_mgr.simulator.scenario import Fault, Scenario


class Policy(Protocol):
    """Lives through a scenario."""

    @property
    def name(self) -> str:
        """As on the command line."""

    def live(self, scenario: Scenario, faults: Sequence[Fault], costs: Costs, seed: int) -> History:
        """What becomes of the cluster.  Faults in the order of time."""
