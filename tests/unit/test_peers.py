"""Where second copies lie: never with the first if it can be helped, evenly, and moved seldom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product

from hypothesis import assume, given
from hypothesis import strategies as st

from unicorn_mgr.coordinator.rules.peers import Layout, Part, harmed, place


def megatron(tensor: int, pipeline: int, data: int) -> dict[Part, str]:
    """Ranks in the order tensor, pipeline, data; those of a tensor group on one machine."""
    return {
        Part(d, p * tensor + t): f"m{(d * pipeline + p):02}"
        for d, p, t in product(range(data), range(pipeline), range(tensor))
    }


def layout(nodes: Mapping[Part, str], spare: tuple[str, ...] = (), domains: Mapping[str, str] | None = None) -> Layout:
    keepers = sorted({*nodes.values(), *spare})
    return Layout(nodes, {node: (domains or {}).get(node, "") for node in keepers}, keepers)


def rank(part: Part, size: int) -> int:
    return part.replica * size + part.position


def test_the_published_example() -> None:
    """Tensor 2, pipeline 4, data 2: ranks 8 and 9 and ranks 2 and 3 back each other up, and so on."""
    nodes = megatron(2, 4, 2)
    found = place(layout(nodes), list(nodes), {})
    ranks = {rank(part, 8): {rank(p, 8) for p, n in nodes.items() if n == node} for part, node in found.items()}
    assert ranks[8] == ranks[9] == {2, 3}
    assert ranks[2] == ranks[3] == {8, 9}
    for one, others in ranks.items():
        for other in others:
            assert one // 8 != other // 8, "another data rank"
            assert one // 2 % 4 != other // 2 % 4, "another pipeline stage"
    assert set(Counter(found.values()).values()) == {2}


def test_any_one_group_may_go() -> None:
    """Whichever replica, column or machine is taken out of use, each part is somewhere."""
    nodes = megatron(2, 4, 2)
    found = place(layout(nodes), [part for part in nodes if part.replica == 0], {})
    groups = [{n for p, n in nodes.items() if p.replica == d} for d in range(2)]
    groups += [{n for p, n in nodes.items() if p.position == i} for i in range(8)]
    for gone in groups:
        left = {p.position for p, n in nodes.items() if n not in gone}
        left |= {p.position for p, n in found.items() if n not in gone}
        assert left == set(range(8))


def test_a_job_on_all_nodes_that_has_everything_everywhere_needs_no_copy() -> None:
    nodes = {Part(replica, 0): f"n{replica}" for replica in range(3)}
    there = layout(nodes)
    found = place(there, [Part(0, 0)], {})
    assert found == {}
    assert harmed(there, found, Part(0, 0)) == "no other node can keep a copy"


def test_one_node_alone_keeps_none_and_a_spare_one_does() -> None:
    nodes = {Part(0, 0): "a", Part(0, 1): "a"}
    assert place(layout(nodes), list(nodes), {}) == {}
    assert set(place(layout(nodes, ("b",)), list(nodes), {}).values()) == {"b"}


def test_the_best_there_is_with_its_reason() -> None:
    """Two halves of one replica on two nodes of one rack keep each other's."""
    nodes = {Part(0, 0): "a", Part(0, 1): "b"}
    there = layout(nodes, domains={"a": "rack", "b": "rack"})
    found = place(there, list(nodes), {})
    assert found == {Part(0, 0): "b", Part(0, 1): "a"}
    assert harmed(there, found, Part(0, 0)) == "its copy is in the same failure domain rack"
    there = layout(nodes)
    assert harmed(there, place(there, list(nodes), {}), Part(0, 1)) == "its copy is on a node of the same replica"


def test_a_better_place_is_taken_when_it_comes() -> None:
    nodes = {Part(0, 0): "a", Part(0, 1): "b"}
    before = {Part(0, 0): "b", Part(0, 1): "a"}
    racks = {"a": "one", "b": "one", "c": "two"}
    assert set(place(layout(nodes, ("c",), racks), list(nodes), before).values()) == {"c"}


# -- properties -----------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Layout, list[Part], list[Part]]:
    """Some job, its layout, the parts that are to be kept, and these in another order."""
    replicas, size, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    nodes = {Part(r, p): f"n{(r * size + p) // per_node:02}" for r, p in product(range(replicas), range(size))}
    spare = tuple(f"s{i}" for i in range(draw(st.integers(0, 4))))
    names = sorted({*nodes.values(), *spare})
    domains = {name: draw(st.sampled_from(["", "one", "two", "three"])) for name in names}
    parts = [part for part in nodes if part.replica == 0] if draw(st.booleans()) else list(nodes)
    return layout(nodes, spare, domains), parts, draw(st.permutations(parts))


def possible(there: Layout, part: Part) -> list[str]:
    return [node for node in there.keepers if not there.has(node, part)]


@given(worlds())
def test_never_worse_than_it_must_be(world: tuple[Layout, list[Part], list[Part]]) -> None:
    there, parts, shuffled = world
    found = place(there, parts, {})
    assert found == place(there, shuffled, {})
    for part in parts:
        nodes = possible(there, part)
        assert (part in found) == bool(nodes)
        if nodes:
            assert found[part] in nodes
            assert there.harm(found[part], part) == min(there.harm(node, part) for node in nodes)
            assert (harmed(there, found, part) == "") == (not any(there.harm(found[part], part)))


@given(worlds())
def test_evenly(world: tuple[Layout, list[Part], list[Part]]) -> None:
    """No node with as good a place for all that one node has given another has so much less."""
    there, parts, _ = world
    found = place(there, parts, {})
    load = Counter(found.values())
    own = set(there.nodes.values())
    most = Counter((part.replica, there.nodes[part]) for part in parts)
    for part, node in found.items():
        for other in possible(there, part):
            alike = there.harm(other, part) == there.harm(node, part) and (other in own) == (node in own)
            if alike:
                assert load[node] - load[other] <= 2 * max(most.values())


@given(worlds(), st.data())
def test_little_moves_when_a_node_goes(world: tuple[Layout, list[Part], list[Part]], data: st.DataObject) -> None:
    there, parts, _ = world
    found = place(there, parts, {})
    assert place(there, parts, found) == found
    assume(found)
    gone = data.draw(st.sampled_from(sorted(set(found.values()))))
    left = Layout(there.nodes, there.domains, [node for node in there.keepers if node != gone])
    after = place(left, parts, found)
    for part, node in found.items():
        assert after.get(part) == node if node != gone else after.get(part) != gone
