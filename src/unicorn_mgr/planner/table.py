"""Plans for what may happen next, made ahead: an incident then costs a look-up.

Sizes depend on little of a problem: how many usable slots of which kind there are together, and per
job its wishes and what it has left.  That is the *situation*, and a digest of it the key of the table;
nodes that are alike share an entry.  So a look-up verifies itself: whatever has really happened, an
answer is found only if it was made for just this.  Places are cheap, and are found when the answer is
used.

What follows from a problem differs from it in a few nodes and jobs, and shares all else with it, the
same objects.  So only what is another object is looked at again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from unicorn_mgr.planner.choices import Holding, Sizes
from unicorn_mgr.planner.knapsack import Sizing
from unicorn_mgr.planner.problem import Demand, Node, Place, Problem, domain_of, in_whole_replicas

Situation = str
"""A digest."""

Kinds = frozenset[tuple[Any, int]]
"""What is counted, and how often."""

DIGEST_BYTES = 8
DIGESTS = 1 << (8 * DIGEST_BYTES)
"""Digests of domains are summed, so that the sum of many follows from one that has changed."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Sizes for a problem that has not come yet."""

    sizes: Sizes
    """Of each job only the choice that is taken, so that nothing has to be valued when the problem comes."""
    sizing: Sizing

    @classmethod
    def of(cls, sizes: Sizes, sizing: Sizing) -> Foreseen:
        """Without what was not chosen."""
        taken = tuple((choice,) for choice in sizing.picked(sizes.knapsack))
        first = (0,) * len(taken)
        narrowed = replace(sizes, knapsack=replace(sizes.knapsack, jobs=taken), least=first, own=())
        return cls(narrowed, replace(sizing, chosen=first))


@dataclass(frozen=True, slots=True)
class Table:
    """Answers for what may follow from `base`."""

    base: Problem
    known: Known
    answers: dict[Situation, Foreseen] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Problem, before: Table | None = None) -> Table:
        """An empty one.  If there was one before, only what has changed since is looked at."""
        return cls(base, Known.of(base, before.known if before is not None else NOTHING))

    def look_up(self, problem: Problem) -> Foreseen | None:
        """The sizes for exactly this problem, if it was foreseen."""
        if _rules(problem) != _rules(self.base) or not all(self.known.wished(d) for d in problem.demands):
            return None
        return self.answers.get(Known.of(problem, self.known).situation)

    def missing(self) -> Iterator[tuple[Situation, Problem]]:
        """What is to be solved for the table to be whole, likeliest first."""
        seen = set(self.answers)
        for problem in followers(self.base, self.known):
            key = Known.of(problem, self.known).situation
            if key not in seen:
                seen.add(key)
                yield key, problem


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a problem, so that little is left to find out of one that follows from it."""

    nodes: tuple[Node, ...]
    by_name: dict[str, Node]
    domains: dict[str, Counter[Any]]
    kinds: int
    """Of domains, by the kinds of nodes in them: their digests' sum."""
    demands: dict[str, Demand]
    states: dict[str, bytes]
    """Digests of what jobs have."""
    on: dict[str, tuple[str, ...]]
    """Jobs with a seat there, by node, in their order of submission."""

    @classmethod
    def of(cls, problem: Problem, before: Known) -> Known:
        """All of it, from what was known before."""
        lost, came = _differing(before.nodes, problem.nodes)
        by_name = _exchanged(before.by_name, lost, came)
        domains, kinds = before._domains_after(lost, came)
        touched = {job for n in (*lost, *came) for job in before.on.get(n.name, ())}
        demands = {d.job: d for d in problem.demands}
        states = {}
        for d in problem.demands:
            same = d is before.demands.get(d.job) and d.job not in touched
            states[d.job] = before.states[d.job] if same else _digest(_state(d, by_name))
        return cls(problem.nodes, by_name, domains, kinds, demands, states, before._on_after(demands))

    @property
    def situation(self) -> Situation:
        """What sizes of the problem depend on beside rules and wishes."""
        parts = (self.kinds.to_bytes(DIGEST_BYTES, "big"), *self.states.values())
        return hashlib.sha256(b"".join(parts)).hexdigest()[: 4 * DIGEST_BYTES]

    def wished(self, demand: Demand) -> bool:
        """Whether the job wished for the same."""
        before = self.demands.get(demand.job)
        return before is demand or (before is not None and _wishes(before) == _wishes(demand))

    def _domains_after(self, lost: Iterable[Node], came: Iterable[Node]) -> tuple[dict[str, Counter[Any]], int]:
        changed: dict[str, Counter[Any]] = {}
        for nodes, sign in ((lost, -1), (came, 1)):
            for node in nodes:
                domain = domain_of(node)
                if domain not in changed:
                    changed[domain] = Counter(self.domains.get(domain, ()))
                changed[domain][_kind(node)] += sign
        domains, kinds = dict(self.domains), self.kinds
        for domain, counted in changed.items():
            kinds -= _digest_of_domain(domains.pop(domain, Counter()))
            if left := +counted:
                domains[domain] = left
                kinds += _digest_of_domain(left)
        return domains, kinds % DIGESTS

    def _on_after(self, demands: Mapping[str, Demand]) -> dict[str, tuple[str, ...]]:
        on = dict(self.on)
        for job in {**self.demands, **demands}:
            before, after = self.demands.get(job), demands.get(job)
            if before is not after:
                left, entered = _nodes_of(before) - _nodes_of(after), _nodes_of(after) - _nodes_of(before)
                on.update((name, tuple(j for j in on[name] if j != job)) for name in left)
                on.update((name, (*on.get(name, ()), job)) for name in entered)
        return on


NOTHING = Known((), {}, {}, 0, {}, {}, {})


def situation(problem: Problem) -> Situation:
    """What sizes depend on beside rules and wishes, looked up anew."""
    return Known.of(problem, NOTHING).situation


def _exchanged(by_name: Mapping[str, Node], lost: Iterable[Node], came: Iterable[Node]) -> dict[str, Node]:
    after = dict(by_name)
    for node in lost:
        del after[node.name]
    after.update((n.name, n) for n in came)
    return after


def _nodes_of(demand: Demand | None) -> set[str]:
    """Nodes on which a job has seats."""
    return {name for name, _ in demand.seats.values()} if demand is not None else set()


def _digest(what: object) -> bytes:
    return hashlib.sha256(repr(what).encode()).digest()[:DIGEST_BYTES]


def _digest_of_domain(kinds: Counter[Any]) -> int:
    """0 if there is none."""
    return _digest_of_kinds(tuple(sorted(kinds.items()))) if kinds else 0


@lru_cache(maxsize=1_000)
def _digest_of_kinds(kinds: tuple[tuple[Any, int], ...]) -> int:
    return int.from_bytes(_digest(kinds), "big")


def _kind(node: Node) -> tuple[str, float, int]:
    return node.device, node.speed, len(node.slots)


def _differing(before: Sequence[Node], after: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """What of the one is not in the other."""
    start = _alike_until(before, after)
    before, after = before[start:], after[start:]
    end = _alike_until(before[::-1], after[::-1])
    before, after = before[: len(before) - end], after[: len(after) - end]
    was, now = {n.name: n for n in before}, {n.name: n for n in after}
    return [n for n in before if now.get(n.name) is not n], [n for n in after if was.get(n.name) is not n]


def _alike_until(before: Sequence[Node], after: Sequence[Node]) -> int:
    """By halves: slices of the same objects compare in no time."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[low:middle] == after[low:middle] else (low, middle - 1)
    return low


def _state(demand: Demand, nodes: Mapping[str, Node]) -> tuple[Any, ...]:
    holding = Holding.of(nodes, demand)
    return demand.job, demand.members, demand.floor, demand.hit, demand.may_grow, len(demand.barred), holding


def _wishes(demand: Demand) -> Demand:
    """Without what changes when something happens."""
    return replace(
        demand,
        seats={},
        members=0,
        floor=0,
        hit=False,
        may_grow=True,
        barred=frozenset(),
        occupied=frozenset(),
        warm=frozenset(),
    )


def _rules(problem: Problem) -> tuple[Any, ...]:
    return problem.node_mtbf, problem.objective, problem.hysteresis


# -- what may happen ------------------------------------------------------------------------


def followers(problem: Problem, known: Known) -> Iterator[Problem]:
    """The problem after each next event.

    A node falls silent, is lost or drained; slots of a job are lost; a node joins; a job ends, and its
    slots become free.
    """
    kinds = {domain: frozenset(kinds.items()) for domain, kinds in known.domains.items()}
    alike = _alike(problem, kinds)
    for node in alike:
        there = known.on.get(node.name, ())
        if there:
            yield with_silent(problem, there)
        yield without_slots(problem, node, node.slots, there)
    for node in alike:
        yield without_slots(problem, node, node.slots, known.on.get(node.name, ()), hit=False)
    for node in alike:
        there = known.on.get(node.name, ())
        for job in there:
            mine = sorted(slot for name, slot in known.demands[job].seats.values() if name == node.name)
            for lost in range(1, len(mine) + 1):
                yield without_slots(problem, node, tuple(mine[:lost]), there)
    newcomers = {(_kind(n), kinds[domain_of(n)]): n for n in problem.nodes}
    newcomers |= {(_kind(n), frozenset()): replace(n, domain="") for n in problem.nodes}
    for like in newcomers.values():
        yield replace(problem, nodes=(*problem.nodes, replace(like, name="a node that joins")))
    for i, demand in enumerate(problem.demands):
        others = replace(problem, demands=(*problem.demands[:i], *problem.demands[i + 1 :]))
        yield _without_places(others, set(demand.seats.values()))
        yield others


def _alike(problem: Problem, kinds: Mapping[str, Kinds]) -> list[Node]:
    """One node of each kind: of like slots in like domains with the same jobs on them."""
    jobs: dict[str, Counter[str]] = {n.name: Counter() for n in problem.nodes}
    for demand in problem.demands:
        for name, _ in demand.seats.values():
            if name in jobs:
                jobs[name][demand.job] += 1
    found: dict[tuple[Any, ...], Node] = {}
    for n in problem.nodes:
        found.setdefault((_kind(n), kinds[domain_of(n)], frozenset(jobs[n.name].items())), n)
    return list(found.values())


def with_silent(problem: Problem, there: Collection[str]) -> Problem:
    """The problem while nobody knows whether the node of these jobs comes back."""
    return replace(problem, demands=tuple(replace(d, may_grow=False) if d.job in there else d for d in problem.demands))


def without_slots(
    problem: Problem, node: Node, slots: tuple[int, ...], there: Collection[str] | None = None, *, hit: bool = True
) -> Problem:
    """The problem once these slots are lost, with who was on them; or, if nobody is hit, are to be left.

    `there` are the jobs on the node, if these are known.
    """
    gone = {(node.name, s) for s in slots}
    demands = tuple(_bereft(d, gone, hit=hit) if there is None or d.job in there else d for d in problem.demands)
    return _without_places(replace(problem, demands=demands), gone)


def _without_places(problem: Problem, gone: set[Place]) -> Problem:
    names = {name for name, _ in gone}
    nodes = list(problem.nodes)
    for i in reversed([i for i, n in enumerate(nodes) if n.name in names]):
        slots = tuple(s for s in nodes[i].slots if (nodes[i].name, s) not in gone)
        nodes[i : i + 1] = [replace(nodes[i], slots=slots)] if slots else []
    return replace(problem, nodes=tuple(nodes))


def _bereft(demand: Demand, gone: set[Place], *, hit: bool) -> Demand:
    """Seats on lost slots are taken away before anybody plans: healing waits for no plan."""
    kept = {seat: place for seat, place in demand.seats.items() if place not in gone}
    lost = len(demand.seats) - len(kept)
    if not lost:
        return demand
    members = max(0, demand.members - lost)
    # Whoever is left goes on; a job that had members and has none begins anew, as if it had never run.
    anew = demand.members > 0 and not members
    floor = 0 if anew else min(demand.floor, in_whole_replicas(kept, demand.replica))
    return replace(demand, seats=kept, hit=(demand.hit or hit) and not anew, members=members, floor=floor)
