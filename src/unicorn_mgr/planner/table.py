"""Plans for what may happen next, made ahead: an incident then costs a look-up.

Sizes depend on little of a problem: how many usable slots of which kind there are, and per job its
wishes and what it has left.  That is the *situation*, and the key of the table; nodes that are alike
share an entry.  So a look-up verifies itself: whatever has really happened, an answer is found only if
it was made for just this.  Places are cheap, and are found when the answer is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from unicorn_mgr.planner.choices import Holding
from unicorn_mgr.planner.knapsack import Sizing
from unicorn_mgr.planner.problem import Demand, Node, Problem

Situation = tuple[Any, ...]


@dataclass(slots=True)
class Table:
    """Answers for what may follow from `base`."""

    base: Problem
    answers: dict[Situation, Sizing] = field(default_factory=dict)

    def look_up(self, problem: Problem) -> Sizing | None:
        """The sizes for exactly this problem, if it was foreseen."""
        wishes = {d.job: _wishes(d) for d in self.base.demands}
        foreseen = _rules(problem) == _rules(self.base)
        if not foreseen or any(wishes.get(d.job) != _wishes(d) for d in problem.demands):
            return None
        return self.answers.get(situation(problem))

    def missing(self) -> Iterator[tuple[Situation, Problem]]:
        """What is to be solved for the table to be whole, likeliest first."""
        seen = set(self.answers)
        for problem in followers(self.base):
            key = situation(problem)
            if key not in seen:
                seen.add(key)
                yield key, problem


def situation(problem: Problem) -> Situation:
    """What sizes depend on beside the wishes of jobs, hashable."""
    nodes = problem.by_name
    kinds = Counter((n.device, n.speed, n.domain, len(n.slots)) for n in problem.nodes)
    return tuple(sorted(kinds.items())), tuple(_state(d, nodes) for d in problem.demands)


def _state(demand: Demand, nodes: dict[str, Node]) -> tuple[Any, ...]:
    return demand.job, demand.members, demand.hit, demand.may_grow, len(demand.barred), Holding.of(nodes, demand)


def _wishes(demand: Demand) -> Demand:
    """Without what changes when something happens."""
    return replace(
        demand,
        seats={},
        members=0,
        hit=False,
        may_grow=True,
        barred=frozenset(),
        occupied=frozenset(),
        warm=frozenset(),
    )


def _rules(problem: Problem) -> tuple[Any, ...]:
    return problem.node_mtbf, problem.objective, problem.hysteresis


# -- what may happen ------------------------------------------------------------------------


def followers(problem: Problem) -> Iterator[Problem]:
    """The problem after each next event: a node is lost, slots of a job are, a node joins, a job ends."""
    alike = _alike(problem)
    for node in alike:
        yield without_slots(problem, node, node.slots)
    for node in alike:
        for demand in problem.demands:
            mine = sorted(slot for name, slot in demand.seats.values() if name == node.name)
            for lost in range(1, len(mine) + 1):
                yield without_slots(problem, node, tuple(mine[:lost]))
    for shape in sorted({(n.device, n.speed, n.domain, n.slots) for n in problem.nodes}):
        device, speed, domain, slots = shape
        newcomer = Node("a node that joins", slots, device, speed, domain)
        yield replace(problem, nodes=(*problem.nodes, newcomer))
    for i in range(len(problem.demands)):
        yield replace(problem, demands=(*problem.demands[:i], *problem.demands[i + 1 :]))


def _alike(problem: Problem) -> list[Node]:
    """One node of each kind: of like slots with the same jobs on them."""
    jobs: dict[str, Counter[str]] = {n.name: Counter() for n in problem.nodes}
    for demand in problem.demands:
        for name, _ in demand.seats.values():
            if name in jobs:
                jobs[name][demand.job] += 1
    found: dict[tuple[Any, ...], Node] = {}
    for n in problem.nodes:
        kind = (n.device, n.speed, n.domain, len(n.slots), tuple(sorted(jobs[n.name].items())))
        found.setdefault(kind, n)
    return list(found.values())


def without_slots(problem: Problem, node: Node, slots: tuple[int, ...]) -> Problem:
    """The problem once these slots are lost, with who was on them."""
    left = tuple(s for s in node.slots if s not in slots)
    nodes = [replace(n, slots=left) if n.name == node.name else n for n in problem.nodes]
    gone = {(node.name, s) for s in slots}
    return replace(
        problem,
        nodes=tuple(n for n in nodes if n.slots),
        demands=tuple(_bereft(d, gone) for d in problem.demands),
    )


def _bereft(demand: Demand, gone: set[tuple[str, int]]) -> Demand:
    """Seats on lost slots are taken away before anybody plans: healing waits for no plan."""
    kept = {seat: place for seat, place in demand.seats.items() if place not in gone}
    lost = len(demand.seats) - len(kept)
    if not lost:
        return demand
    return replace(demand, seats=kept, hit=True, members=max(0, demand.members - lost))
