"""Places by an integer programme: for what greedy placing does not find.

Every job but the frozen ones may move, and pays for each slot that is not its own now.  A variable is
the slots of a job on a node; whole replicas are integers of them, per node or per failure domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import pulp

from unicorn_mgr.planner import ilp
from unicorn_mgr.planner.deadline import Deadline
from unicorn_mgr.planner.placement import Room, Seats, Unplaceable, Wish, own_replicas
from unicorn_mgr.planner.problem import Node, Problem, domain_of

VARIABLES_MAX = 20_000
"""More take longer than a plan may."""

SPREAD = 10
"""What a failure domain too few costs, in moves."""

Shares = dict[str, int]
"""Slots by node."""


def packed(problem: Problem, wishes: Sequence[Wish], deadline: Deadline, solver: str = "cbc") -> list[Seats]:
    """Seats for all that move least.  Raises Unplaceable, for the job that asks for the most in one piece."""
    nodes = problem.by_name
    fixed = [dict(w.demand.seats) if w.frozen else {} for w in wishes]
    room = Room.of(problem, fixed)
    moving = [i for i, w in enumerate(wishes) if not w.frozen and w.size]
    if not moving:
        return fixed
    widest = max(moving, key=lambda i: (wishes[i].demand.replica, wishes[i].size, -i))
    if len(moving) * len(nodes) > VARIABLES_MAX:
        raise Unplaceable(widest)
    try:
        shares = _shares(room, [wishes[i] for i in moving], deadline, solver)
    except ilp.SolverFailed:
        raise Unplaceable(widest) from None
    # First what each keeps, so that nobody is given a slot that another one stays on.
    for i, share in zip(moving, shares, strict=True):
        fixed[i] = _kept(wishes[i], share, nodes)
    room = Room.of(problem, fixed)
    for i, share in zip(moving, shares, strict=True):
        room.fill(wishes[i], fixed[i], share)
    return fixed


def _kept(wish: Wish, share: Shares, nodes: Mapping[str, Node]) -> Seats:
    """Its own seats, no more on each node than it is to have there."""
    kept: Seats = {}
    left = Counter(share)
    for replica in chain.from_iterable(own_replicas(wish, nodes).values()):
        needed = Counter(wish.demand.seats[seat][0] for seat in replica)
        if needed <= left:
            left -= needed
            kept.update((seat, wish.demand.seats[seat]) for seat in replica)
    return dict(sorted(kept.items()))


def _shares(room: Room, wishes: Sequence[Wish], deadline: Deadline, solver: str) -> list[Shares]:
    programme = ilp.Programme("places", pulp.LpMinimize, deadline)
    cost: list[tuple[pulp.LpVariable, float]] = []
    slots: list[dict[str, pulp.LpVariable]] = []
    for i, wish in enumerate(wishes):
        programme.hurry()
        mine = {
            name: programme.add_variable(f"x{i}_{n}", 0, len(room.free[name]), pulp.LpInteger)
            for n, (name, node) in enumerate(room.nodes.items())
            if wish.served_by(node) and room.free[name]
        }
        slots.append(mine)
        _one_job(programme, i, wish, mine, room.nodes, cost)
    for name in room.nodes:
        there = [(mine[name], 1) for mine in slots if name in mine]
        if there:
            programme.addConstraint(pulp.LpAffineExpression(there) <= len(room.free[name]))
    programme.setObjective(pulp.LpAffineExpression(cost))
    programme.solved(solver)
    return [{n: round(x.value() or 0) for n, x in mine.items() if round(x.value() or 0)} for mine in slots]


def _one_job(
    programme: pulp.LpProblem,
    index: int,
    wish: Wish,
    mine: Mapping[str, pulp.LpVariable],
    nodes: Mapping[str, Node],
    cost: list[tuple[pulp.LpVariable, float]],
) -> None:
    """Its size, whole replicas, what it pays for each slot that is not its own, and its spread."""
    programme.addConstraint(pulp.LpAffineExpression([(x, 1) for x in mine.values()]) == wish.size)
    own = wish.own(nodes)
    there = {domain_of(nodes[name]) for name in own}
    pieces: dict[str, list[pulp.LpVariable]] = {}
    domains: dict[str, list[pulp.LpVariable]] = {}
    for name, x in mine.items():
        domain = domain_of(nodes[name])
        domains.setdefault(domain, []).append(x)
        pieces.setdefault(wish.demand.cell(nodes[name]), []).append(x)
        cost.append((x, wish.cost(nodes[name], there)))
        if own.get(name):
            stays = programme.add_variable(f"stays{index}_{x.name}", 0, own[name])
            programme.addConstraint(pulp.LpAffineExpression([(stays, 1), (x, -1)]) <= 0)
            cost.append((stays, -wish.cost(nodes[name], there)))
    for number, xs in enumerate(pieces.values()):
        whole = programme.add_variable(f"replicas{index}_{number}", 0, None, pulp.LpInteger)
        terms = [(x, 1) for x in xs]
        programme.addConstraint(pulp.LpAffineExpression([*terms, (whole, -wish.demand.replica)]) == 0)
    used = []
    for number, xs in enumerate(domains.values()):
        is_used = programme.add_variable(f"used{index}_{number}", 0, 1, pulp.LpBinary)
        programme.addConstraint(pulp.LpAffineExpression([(is_used, 1), *((x, -1) for x in xs)]) <= 0)
        used.append((is_used, 1))
    missing = programme.add_variable(f"missing{index}", 0, None)
    programme.addConstraint(pulp.LpAffineExpression([*used, (missing, 1)]) >= min(wish.demand.domains, wish.replicas))
    cost.append((missing, SPREAD))
