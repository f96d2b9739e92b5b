"""What ours loses is put down to the fault that it is due to."""

from __future__ import annotations

import pytest
from simulator.toy import HOUR, TOY

from unicorn_mgr.simulator.costs import load
from unicorn_mgr.simulator.policies.ours import Ours
from unicorn_mgr.simulator.scenario import Fault, Kind
from unicorn_mgr.simulator.study import reduced


def test_fewer_slots_are_put_down_to_the_node_that_is_away_not_to_what_broke_last() -> None:
    """A process that ends while a node is being repaired costs a transition, and no more."""
    lost = Fault(HOUR, "ECC", Kind.NODE, (0,), repair_seconds=6 * HOUR)
    ended = Fault(2 * HOUR, "bug", Kind.PROCESS, (2,))
    found = reduced(Ours().live(TOY, (lost, ended), load(), 0))
    assert found.lost["ECC"].sub_healthy > 10.0
    assert found.lost["bug"].sub_healthy == pytest.approx(0.0, abs=1e-6)
    assert found.lost["bug"].transition > 0
