"""Which node keeps a second copy of which part of a job's state.

A second copy is of use if it is there when the first is gone, whatever goes at once: a node, its failure domain,
or a parallel group that is taken out of use, which is the workers of one replica, or those at one position of
all replicas.  Wherever there is such a node it gets the copy; a node that has the part already never does.

Copies lie on the job's own nodes before those of others, and evenly; what one node has goes to one other, where
that can be.  Whatever lies well stays, so that little moves when nodes go.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """What a worker has: the part of the state at its position, in its replica."""

    replica: int
    position: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is."""

    nodes: Mapping[Part, str]
    """Of all workers of the job."""
    domains: Mapping[str, str]
    """Of all nodes that may keep copies, and of those the job is on; empty: it fails alone."""
    keepers: Sequence[str]
    """Nodes that may keep copies."""
    _of_replica: dict[int, set[str]] = field(default_factory=dict)
    _of_position: dict[int, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part, node in self.nodes.items():
            self._of_replica.setdefault(part.replica, set()).add(node)
            self._of_position.setdefault(part.position, set()).add(node)

    def has(self, node: str, part: Part) -> bool:
        """The node has that part already."""
        return node in self._of_position[part.position]

    def harm(self, node: str, part: Part) -> tuple[bool, bool]:
        """What would take the part and a copy on this node at once: the failure domain; the replica."""
        domain = self.domains[node]
        return (
            bool(domain) and domain == self.domains[self.nodes[part]],
            node in self._of_replica[part.replica],
        )


def place(layout: Layout, parts: Sequence[Part], before: Mapping[Part, str]) -> dict[Part, str]:
    """Per part, the node that is to keep a copy of it; without those that no node could keep one of.

    `before` is where copies are now.
    """
    load = _Load(layout)
    found: dict[Part, str] = {}
    for part in sorted(parts):
        node = before.get(part)
        if node is not None and _stays(layout, load, node, part):
            load.add(found, (part,), node)
    placed = []
    for bundle in _bundles(layout, [part for part in sorted(parts) if part not in found]):
        node = _best(layout, load, bundle)
        together = bool(node) and not any(layout.harm(node, bundle[0]))
        for some in [bundle] if together else [(part,) for part in bundle]:
            there = node if together else _best(layout, load, some)
            if there:
                load.add(found, some, there)
                placed.append(some)
    _level(layout, load, placed, found)
    return dict(sorted(found.items()))


def harmed(layout: Layout, found: Mapping[Part, str], part: Part) -> str:
    """In words, why a part is not as safe as it could be in a larger cluster; empty if it is."""
    node = found.get(part)
    if node is None:
        return "no other node can keep a copy"
    domain, replica = layout.harm(node, part)
    if domain:
        return f"its copy is in the same failure domain {layout.domains[node]}"
    return "its copy is on a node of the same replica" if replica else ""


class _Load:
    """How many copies each node has."""

    def __init__(self, layout: Layout) -> None:
        own = set(layout.nodes.values())
        self._foreign = {node: node not in own for node in layout.keepers}
        self._of = dict.fromkeys(layout.keepers, 0)
        self._alike: dict[tuple[bool, int], list[str]] = {}
        for node in sorted(self._of):
            self._alike.setdefault((self._foreign[node], 0), []).append(node)

    def add(self, found: dict[Part, str], bundle: Sequence[Part], node: str) -> None:
        """A copy more on a node for each of these; they may have lain elsewhere."""
        for part in bundle:
            if part in found:
                self._change(found[part], -1)
            found[part] = node
            self._change(node, 1)

    def _change(self, node: str, by: int) -> None:
        self._alike[self._foreign[node], self._of[node]].remove(node)
        self._of[node] += by
        insort(self._alike.setdefault((self._foreign[node], self._of[node]), []), node)

    def knows(self, node: str) -> bool:
        """It may keep copies."""
        return node in self._of

    def of(self, node: str) -> int:
        """Copies on it."""
        return self._of[node]

    def is_foreign(self, node: str) -> bool:
        """The job is not on it."""
        return self._foreign[node]

    def least_first(self, after: str) -> Iterator[str]:
        """The job's nodes before others, those with few copies before those with many; of equals, the next one."""
        for key in sorted(self._alike):
            alike = self._alike[key]
            at = bisect_left(alike, after)
            yield from chain(islice(alike, at, None), islice(alike, at))


def _stays(layout: Layout, load: _Load, node: str, part: Part) -> bool:
    if not load.knows(node) or layout.has(node, part):
        return False
    harm = layout.harm(node, part)
    if not any(harm):
        return True
    better = _best(layout, load, (part,))
    return layout.harm(better, part) >= harm


def _bundles(layout: Layout, parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Parts of one replica on one node."""
    found: dict[tuple[int, str], list[Part]] = {}
    for part in parts:
        found.setdefault((part.replica, layout.nodes[part]), []).append(part)
    return [tuple(bundle) for bundle in found.values()]


def _best(layout: Layout, load: _Load, bundle: Sequence[Part]) -> str:
    """The node for these parts; empty if there is none that has not one of them already."""
    best, least = "", (True, True, True)
    for node in load.least_first(after=layout.nodes[bundle[0]]):
        if any(layout.has(node, part) for part in bundle):
            continue
        harm = (*layout.harm(node, bundle[0]), False)
        if harm < least:
            best, least = node, harm
        if not any(harm):
            break
    return best


def _level(layout: Layout, load: _Load, placed: Sequence[Sequence[Part]], found: dict[Part, str]) -> None:
    """Move what has only just been placed, as long as the load gets more even by it."""
    moved = True
    while moved:
        moved = False
        for bundle in placed:
            here = found[bundle[0]]
            there = _best(layout, load, bundle)
            alike = layout.harm(there, bundle[0]) == layout.harm(here, bundle[0])
            alike = alike and load.is_foreign(there) == load.is_foreign(here)
            if alike and load.of(there) + len(bundle) < load.of(here):
                load.add(found, bundle, there)
                moved = True
