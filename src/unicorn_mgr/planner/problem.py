"""What the planner is asked, and what it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

Place = tuple[str, int]
"""(node, slot)"""

Objective = Literal["cost", "paper"]


@dataclass(frozen=True, slots=True)
class Node:
    """A machine whose slots may be used."""

    name: str
    slots: tuple[int, ...]
    """Indices of usable slots, rising."""
    device: str = "cpu"
    speed: float = 1.0
    """Of its slots, as a share of what the device type does; a job runs at its slowest slot's."""
    domain: str = ""
    """What fails as one with it: a rack, a switch."""


def domain_of(node: Node) -> str:
    """What fails as one with it; by itself, if nothing is known."""
    return node.domain or f"node {node.name}"


def in_whole_replicas(seats: Iterable[int], replica: int) -> int:
    """How many of these seats are of replicas of which none is missing."""
    present = Counter(seat // replica for seat in seats)
    return sum(number for number in present.values() if number == replica)


def slowest(nodes: Mapping[str, Node], places: Iterable[Place]) -> float:
    """Speed of a job on these slots, as far as they are there."""
    return min((nodes[name].speed for name in {name: None for name, _ in places} if name in nodes), default=1.0)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds for which a job stands still when it changes, by where its state comes from."""

    shrink: float = 1.0
    """Members leave; who stays has all."""
    grow: float = 2.0
    """Newcomers take the state from a live replica; also who replaces a worker that was hit."""
    start: float = 60.0
    """Nobody has it: from storage, or anew."""
    store: float = 1.0
    """Who has it stands still until it is in storage, so that all may end."""

    @property
    def longest(self) -> float:
        """Of any change."""
        return max(self.shrink, self.grow, self.start)


NOMINAL_FLOPS = 1e12
"""Of a slot whose speed nobody has told: such jobs are compared by their weights and slots alone."""

Staircase = tuple[tuple[int, float], ...]
"""(size, aggregate FLOP/s there), sizes rising, only those that are allowed."""


@dataclass(frozen=True, slots=True)
class Form:
    """Another shape that a job's replicas may take."""

    name: str
    """As people say it."""
    replica: int
    size_min: int
    throughput: Mapping[str, Staircase] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Demand:
    """One job's wish.  Jobs come in order of submission."""

    job: str
    size_min: int
    size_max: int
    weight: float = 1.0
    throughput: Mapping[str, Staircase] = field(default_factory=dict)
    """By device type; one that is missing can't run it."""
    rated: bool = True
    """False where nobody has told its speed, and `throughput` takes each busy slot for `NOMINAL_FLOPS`."""
    priority: int = 0
    """Who gets its minimum first when not all can; higher is first."""
    replica: int = 1
    """Slots that hold one copy of the state; a job has whole ones only."""
    within: Literal["node", "domain"] = "node"
    """What a replica must not reach beyond."""
    domains: int = 2
    """Failure domains over which it is spread at least, where it can be: the loss of one leaves a copy."""
    needed: float = 0.0
    """FLOP/s for its deadline or its least share; less is charged tenfold."""
    costs: Costs = Costs()
    seats: Mapping[int, Place] = field(default_factory=dict)
    """What it has."""
    members: int = 0
    """Living workers on these seats that have the state; none: it has to be read from storage."""
    floor: int = 0
    """Fewest slots that it is brought to, even below its minimum, while it runs; 0: it may be stopped."""
    suspendable: bool = False
    """While it runs it may also be brought to nothing, for jobs of higher priority: its state can be stored."""
    hit: bool = False
    """A worker of it was lost: it stands still whatever its size will be."""
    barred: frozenset[int] = frozenset()
    """Seats that must not be filled again."""
    occupied: frozenset[int] = frozenset()
    """Seats that still have a living worker, wherever it is."""
    may_grow: bool = True
    """False while it is not known yet whether a silent node of it comes back."""
    warm: frozenset[str] = frozenset()
    """Nodes that hold its program or state already."""
    shape: str = ""
    """How its replicas are split at present, as people say it; empty: not at all."""
    others: tuple[Form, ...] = ()
    """How they may be split instead, as the job prefers them."""

    @property
    def size(self) -> int:
        """Seats that it has."""
        return len(self.seats)

    @property
    def forms(self) -> range:
        """Shapes that a plan may give it: 0 is the present one.

        Another one it can only begin in.  So its state is stored first, if it has any; and as long as a
        silent node may come back nothing is given up.
        """
        may_begin = self.may_grow and (self.suspendable or not self.members)
        return range(1 + len(self.others) * may_begin)

    @property
    def reshaping(self) -> float:
        """Seconds for which it stands still to take another shape."""
        return self.costs.start + (self.costs.store if self.members else 0.0)

    @property
    def longest(self) -> float:
        """Seconds of any change that it may go through."""
        return max(self.costs.longest, self.reshaping if self.others else 0.0)

    def formed(self, form: int) -> Demand:
        """The job as it is in one of its shapes: in another than the present one it begins."""
        if not form:
            return self
        other = self.others[form - 1]
        return replace(
            self,
            size_min=other.size_min,
            throughput=other.throughput,
            replica=other.replica,
            costs=replace(self.costs, start=self.reshaping),
            seats={},
            members=0,
            floor=0,
            hit=False,
            barred=frozenset(),
            occupied=frozenset(),
            shape=other.name,
            others=(),
        )

    def cell(self, node: Node) -> str:
        """Within what a replica of it must be whole."""
        return node.name if self.within == "node" else domain_of(node)

    def stairs(self, device: str) -> Staircase:
        """What it does there at each size, also below its minimum, if it may be brought to that: in proportion."""
        told = self.throughput.get(device, ())
        if not told or not 0 < self.floor < told[0][0]:
            return told
        first, rate = told[0]
        least = -(-self.floor // self.replica) * self.replica
        return (*((size, rate * size / first) for size in range(least, first, self.replica)), *told)


@dataclass(frozen=True, slots=True)
class Problem:
    """Slots that may be used, and who wants them."""

    nodes: tuple[Node, ...]
    """Sorted by name.  A seat on a slot that is not here has to move."""
    demands: tuple[Demand, ...]
    node_mtbf: float = 30 * 86_400.0
    """Seconds until one node fails, on average."""
    objective: Objective = "cost"
    hysteresis: float = 0.01
    """Share of its value that a change of a job must gain beyond its cost."""

    @property
    def places(self) -> tuple[Place, ...]:
        """All slots that may be used."""
        return tuple((n.name, s) for n in self.nodes for s in n.slots)

    @property
    def by_name(self) -> dict[str, Node]:
        """Its nodes."""
        return {n.name: n for n in self.nodes}

    @property
    def horizon(self) -> float:
        """Seconds that a plan is made for: until the next failure, but never less than two transitions.

        In less a transition never pays, and the smallest sizes would win (facts of the planner's
        simulation: a plan freezes or collapses when the horizon falls below the transition).
        """
        until_failure = self.node_mtbf / max(1, len(self.nodes))
        return max(until_failure, 2.0 * max((d.longest for d in self.demands), default=0.0))


@dataclass(frozen=True, slots=True)
class Plan:
    """Who gets which slots, how good that is known to be, and why."""

    seats: Mapping[str, dict[int, Place]]
    reasons: Mapping[str, str]
    shapes: Mapping[str, str] = field(default_factory=dict)
    """By job the shape that it takes to have these seats, where that is another one than at present."""
    value: float = 0.0
    """Weighted FLOP gained over the horizon."""
    bound: float = 0.0
    """No plan is worth more."""
    proven: bool = False
    solver: str = "none"
    rung: str = "none"
    """Of the ladder: table, ilp, greedy, shrink."""
    seconds: float = 0.0
    note: str = ""

    @property
    def gap(self) -> float:
        """Share of the bound that may be missing, at most."""
        return max(0.0, self.bound - self.value) / max(abs(self.bound), 1e-30)


class Policy(Protocol):
    """Decides.  Pure: the same problem has the same plan."""

    def solve(self, problem: Problem) -> Plan:
        """A plan in which no place has two owners, and no job begins with less than its minimum.

        One that runs keeps what is left of it: its survivors go on.
        """
