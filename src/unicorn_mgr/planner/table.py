"""Plans for what may happen next, made ahead: an incident then costs a look-up.

Sizes depend on little of a problem: how many usable slots of which kind there are together, and per
job its wishes and what it has left.  That is the *situation*, and the key of the table; nodes that are
alike share an entry.  So a look-up verifies itself: whatever has really happened, an answer is found
only if it was made for just this.  Places are cheap, and are found when the answer is used.

What follows from a problem differs from it in a node and a few jobs, and shares all else with it, the
same objects.  So only what is another object is looked at again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unicorn_mgr.planner.choices import Holding, Sizes
from unicorn_mgr.planner.knapsack import Sizing
from unicorn_mgr.planner.problem import Demand, Node, Place, Problem, domain_of

Situation = tuple[Any, ...]
Kinds = frozenset[tuple[Any, int]]
"""What is counted, and how often."""


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
        narrowed = replace(sizes, knapsack=replace(sizes.knapsack, jobs=taken), least=first)
        return cls(narrowed, replace(sizing, chosen=first))


@dataclass(slots=True)
class Table:
    """Answers for what may follow from `base`."""

    base: Problem
    answers: dict[Situation, Foreseen] = field(default_factory=dict)
    _known: Known | None = None

    def look_up(self, problem: Problem) -> Foreseen | None:
        """The sizes for exactly this problem, if it was foreseen."""
        known = self._of_base()
        if _rules(problem) != _rules(self.base) or not all(known.wished(d) for d in problem.demands):
            return None
        return self.answers.get(known.situation(problem))

    def missing(self) -> Iterator[tuple[Situation, Problem]]:
        """What is to be solved for the table to be whole, likeliest first."""
        known, seen = self._of_base(), set(self.answers)
        for problem in followers(self.base):
            key = known.situation(problem)
            if key not in seen:
                seen.add(key)
                yield key, problem

    def _of_base(self) -> Known:
        if self._known is None:
            self._known = Known.of(self.base)
        return self._known


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a problem, so that little is left to find out of one that follows from it."""

    nodes: tuple[Node, ...]
    by_name: dict[str, Node]
    domains: dict[str, Counter[Any]]
    kinds: Counter[Kinds]
    """Of domains, by the kinds of nodes in them."""
    demands: dict[str, Demand]
    states: dict[str, tuple[Any, ...]]
    on: dict[str, list[str]]
    """Jobs with a seat there, by node."""

    @classmethod
    def of(cls, problem: Problem) -> Known:
        """All of it, once."""
        nodes = problem.by_name
        domains = domains_of(problem.nodes)
        on: dict[str, list[str]] = {}
        for d in problem.demands:
            for name in Counter(name for name, _ in d.seats.values()):
                on.setdefault(name, []).append(d.job)
        return cls(
            nodes=problem.nodes,
            by_name=nodes,
            domains=domains,
            kinds=Counter(frozenset(kinds.items()) for kinds in domains.values()),
            demands={d.job: d for d in problem.demands},
            states={d.job: _state(d, nodes) for d in problem.demands},
            on=on,
        )

    def wished(self, demand: Demand) -> bool:
        """Whether the job wished for the same."""
        before = self.demands.get(demand.job)
        return before is demand or (before is not None and _wishes(before) == _wishes(demand))

    def situation(self, problem: Problem) -> Situation:
        """What sizes of a problem depend on beside rules and wishes, hashable."""
        lost, came = differing(self.nodes, problem.nodes)
        by_name = dict(self.by_name)
        for node in lost:
            del by_name[node.name]
        by_name.update((n.name, n) for n in came)
        touched = {job for n in (*lost, *came) for job in self.on.get(n.name, ())}
        states = []
        for d in problem.demands:
            if d is self.demands.get(d.job) and d.job not in touched:
                states.append(self.states[d.job])
            else:
                states.append(_state(d, by_name))
        return self._kinds_after(lost, came), tuple(states)

    def _kinds_after(self, lost: Sequence[Node], came: Sequence[Node]) -> Kinds:
        kinds = Counter(self.kinds)
        domains: dict[str, Counter[Any]] = {}
        for nodes, sign in ((lost, -1), (came, 1)):
            for node in nodes:
                domain = domain_of(node)
                if domain not in domains:
                    domains[domain] = Counter(self.domains.get(domain, ()))
                domains[domain][_kind(node)] += sign
        for domain, after in domains.items():
            if domain in self.domains:
                kinds[frozenset(self.domains[domain].items())] -= 1
            if +after:
                kinds[frozenset((+after).items())] += 1
        return frozenset((+kinds).items())


def situation(problem: Problem) -> Situation:
    """What sizes depend on beside rules and wishes, hashable."""
    nodes = problem.by_name
    kinds = Counter(frozenset(kinds.items()) for kinds in domains_of(problem.nodes).values())
    return frozenset(kinds.items()), tuple(_state(d, nodes) for d in problem.demands)


def domains_of(nodes: Iterable[Node]) -> dict[str, Counter[Any]]:
    """By failure domain, how many nodes of each kind it has: domains with the same serve alike."""
    found: dict[str, Counter[Any]] = {}
    for n in nodes:
        found.setdefault(domain_of(n), Counter())[_kind(n)] += 1
    return found


def _kind(node: Node) -> tuple[str, float, int]:
    return node.device, node.speed, len(node.slots)


def differing(before: Sequence[Node], after: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
    """Both without what they begin and end with alike."""
    start = _alike_until(before, after)
    before, after = before[start:], after[start:]
    end = _alike_until(before[::-1], after[::-1])
    return before[: len(before) - end], after[: len(after) - end]


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


def followers(problem: Problem) -> Iterator[Problem]:
    """The problem after each next event.

    A node falls silent, is lost or drained; slots of a job are lost; a node joins; a job ends, and its
    slots become free.
    """
    kinds = {domain: frozenset(kinds.items()) for domain, kinds in domains_of(problem.nodes).items()}
    alike = _alike(problem, kinds)
    for node in alike:
        if any(name == node.name for d in problem.demands for name, _ in d.seats.values()):
            yield with_silent(problem, node)
        yield without_slots(problem, node, node.slots)
    for node in alike:
        yield without_slots(problem, node, node.slots, hit=False)
    for node in alike:
        for demand in problem.demands:
            mine = sorted(slot for name, slot in demand.seats.values() if name == node.name)
            for lost in range(1, len(mine) + 1):
                yield without_slots(problem, node, tuple(mine[:lost]))
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


def with_silent(problem: Problem, node: Node) -> Problem:
    """The problem while nobody knows whether a node comes back."""
    there = {d.job for d in problem.demands if any(name == node.name for name, _ in d.seats.values())}
    return replace(problem, demands=tuple(replace(d, may_grow=False) if d.job in there else d for d in problem.demands))


def without_slots(problem: Problem, node: Node, slots: tuple[int, ...], *, hit: bool = True) -> Problem:
    """The problem once these slots are lost, with who was on them; or, if nobody is hit, are to be left."""
    gone = {(node.name, s) for s in slots}
    demands = tuple(_bereft(d, gone, hit=hit) for d in problem.demands)
    return _without_places(replace(problem, demands=demands), gone)


def _without_places(problem: Problem, gone: set[Place]) -> Problem:
    names = {name for name, _ in gone}
    nodes = (
        replace(n, slots=tuple(s for s in n.slots if (n.name, s) not in gone)) if n.name in names else n
        for n in problem.nodes
    )
    return replace(problem, nodes=tuple(n for n in nodes if n.slots))


def _bereft(demand: Demand, gone: set[Place], *, hit: bool) -> Demand:
    """Seats on lost slots are taken away before anybody plans: healing waits for no plan."""
    kept = {seat: place for seat, place in demand.seats.items() if place not in gone}
    lost = len(demand.seats) - len(kept)
    if not lost:
        return demand
    members = max(0, demand.members - lost)
    # Whoever is left goes on; a job that had members and has none begins anew, as if it had never run.
    anew = demand.members > 0 and not members
    floor = 0 if anew else min(demand.floor, len(kept))
    return replace(demand, seats=kept, hit=(demand.hit or hit) and not anew, members=members, floor=floor)
