"""What is compared with from above: nothing ever breaks, or whatever breaks costs its slots and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from heapq import heappop, heappush
from typing import ClassVar

from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.policies.shares import Optimum, best_sizes, choices_of, fitting
from unicorn_mgr.simulator.scenario import Fault, Kind, Scenario

FAULTS, REPAIRS = range(2)


class NoFault:
    """The first allocation, for all of the time."""

    name = "nofault"

    def live(self, scenario: Scenario, faults: Sequence[Fault], costs: Costs, seed: int) -> History:  # noqa: ARG002
        """Without any of the faults."""
        return _allotted(self.name, scenario, (), seed, [(0.0, -1, best_sizes(scenario.jobs, scenario.capacity))])


class Clairvoyant:
    """At every moment the best allocation of the slots that are up; detection and transitions cost nothing.

    Every job has its minimum as long as there is room for all minima, as people ask for it; so the gap to this is
    what a policy that keeps minima loses by time and by mistakes.  One that leaves a hit job waiting may be worth
    more in weighted FLOP/s, if that job is worth little: nothing at all exceeds `ClairvoyantUnbound`.

    Slow nodes count as whole ones, so in scenarios with slow nodes even this is out of reach.
    """

    name = "clairvoyant"
    minima: ClassVar[bool] = True

    def live(self, scenario: Scenario, faults: Sequence[Fault], costs: Costs, seed: int) -> History:  # noqa: ARG002
        """The best allocation after every change of the capacity."""
        jobs, capacity = scenario.jobs, scenario.capacity
        kept = Optimum([choices_of(work, 1) for work in jobs], capacity)
        free = Optimum([choices_of(work) for work in jobs], capacity)

        @cache
        def sizes(up: int) -> list[int]:
            return (kept if self.minima and all(fitting(jobs, up)) else free).sizes(up)

        changes = [(at, by, sizes(up)) for at, by, up in _capacities(scenario, faults)]
        return _allotted(self.name, scenario, faults, seed, changes)


class ClairvoyantUnbound(Clairvoyant):
    """The same, if minima are nobody's right: nothing at all exceeds this.

    It starves jobs that are worth little from the first moment on, which no user would accept: it shows whether the
    others are counted right, and is no aim.
    """

    name = "clairvoyant-unbound"
    minima = False


def _capacities(scenario: Scenario, faults: Sequence[Fault]) -> list[tuple[float, int, int]]:
    """From when on, by the first fault that is not repaired, so many slots are up."""
    queue: list[tuple[float, int, int]] = []
    for number, fault in enumerate(faults):
        if fault.kind is Kind.NODE:
            heappush(queue, (fault.at, FAULTS, number))
    back: dict[int, float] = {}
    by: dict[int, int] = {}
    found = [(0.0, -1, scenario.capacity)]
    while queue and queue[0][0] < scenario.seconds:
        at, what, number = heappop(queue)
        if what == FAULTS:
            for node in faults[number].nodes:
                until = at + faults[number].repair_seconds
                by.setdefault(node, number)
                back[node] = max(back.get(node, until), until)
                if until < math.inf:
                    heappush(queue, (until, REPAIRS, node))
        elif back.get(number, math.inf) <= at:
            del back[number], by[number]
        found.append((at, min(by.values(), default=-1), scenario.capacity - len(back) * scenario.slots))
    return found


def _allotted(
    name: str, scenario: Scenario, faults: Sequence[Fault], seed: int, changes: list[tuple[float, int, list[int]]]
) -> History:
    """A history of allocations alone."""
    full = {work.name: work.rate(size) for work, size in zip(scenario.jobs, changes[0][2], strict=True)}
    history = History(name, scenario, seed, full, tuple(faults))
    for at, by, sizes in changes:
        for work, size in zip(scenario.jobs, sizes, strict=True):
            whole = work.rate(size) == full[work.name]
            cause, fault = ("", -1) if whole or by < 0 else (faults[by].cause, by)
            doing = Doing.TRAINING if size else Doing.WAITING
            history.becomes(at, work.name, doing, size, work.rate(size), cause, fault)
    return history
