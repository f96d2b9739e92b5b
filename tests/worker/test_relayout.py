"""From any layout to any other: everything arrives, nothing moves twice, and nothing from farther than it must.

The oracle knows no boxes: it marks, element by element, who has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as torch_says
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard

from unicorn_mgr.transition.layout import Box, Cut, Layout, Piece, box_after, runs, whole
from unicorn_mgr.transition.relayout import Transfer, Unheld, transfers

Array = np.ndarray
Layouts = dict[str, dict[str, Piece]]


# -- layouts --------------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, tuple[int, ...]]:
    """Of a model's tensors: scalars, empty ones, ones that do not divide evenly."""
    one = st.lists(st.integers(0, 7), max_size=3).map(tuple)
    return {f"t{i}": shape for i, shape in enumerate(draw(st.lists(one, min_size=1, max_size=4)))}


@st.composite
def layouts(draw: st.DrawFn, tensors: Mapping[str, tuple[int, ...]]) -> Layouts:
    """A shape of the job: a grid of cuts, over stages of a pipeline, over whole copies."""
    prefix = draw(st.sampled_from(["old", "new", "same"]))
    outer, inner = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    stages, copies = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    ways = {}
    for name, shape in tensors.items():
        dimensions = st.sampled_from([None, *range(len(shape))])
        ways[name] = (
            draw(dimensions),
            draw(dimensions),
            draw(st.integers(0, stages - 1)),
            draw(st.sampled_from([1, 8])),
        )
    found: Layouts = {}
    for _ in range(copies):
        for stage in range(stages):
            for i in range(outer):
                for j in range(inner):
                    mine = found[f"{prefix}{len(found)}"] = {}
                    for name, (first, second, owner, each) in ways.items():
                        if owner == stage:
                            cuts = [
                                Cut(d, n, k) for d, n, k in ((first, outer, i), (second, inner, j)) if d is not None
                            ]
                            mine[name] = Piece(tensors[name], box_after(tensors[name], cuts), each)
    return found


@st.composite
def changes(draw: st.DrawFn) -> tuple[Layouts, Layouts]:
    tensors = draw(shapes())
    return draw(layouts(tensors)), draw(layouts(tensors))


def far(source: str, taker: str) -> int:
    """Any function will do that is not the same for all."""
    return (sum(source.encode()) * 7 + sum(taker.encode())) % 3


def values(shape: tuple[int, ...]) -> Array:
    return np.arange(1, int(np.prod(shape)) + 1, dtype=np.int64).reshape(shape)


def cut_out(piece: Piece) -> Array:
    return values(piece.shape)[piece.box.inside(whole(piece.shape).box)]


def mask(piece: Piece) -> Array:
    found = np.zeros(piece.shape, dtype=bool)
    found[piece.box.inside(whole(piece.shape).box)] = True
    return found


# -- transfers ------------------------------------------------------------------------------


def arrived(old: Layouts, new: Layouts, moves: tuple[Transfer[str], ...]) -> dict[str, dict[str, Array]]:
    """Everybody copies what it has, and takes what the moves say from the memory of others."""
    memory = {who: {name: cut_out(piece) for name, piece in layout.items()} for who, layout in old.items()}
    found: dict[str, dict[str, Array]] = {}
    for who, layout in new.items():
        found[who] = {name: np.zeros(piece.box.lengths, dtype=np.int64) for name, piece in layout.items()}
        for name, piece in layout.items():
            if name in old.get(who, {}):
                common = piece.box.common(old[who][name].box)
                if common.size:
                    kept = memory[who][name][common.inside(old[who][name].box)]
                    found[who][name][common.inside(piece.box)] = kept
    for move in moves:
        there = memory[move.source][move.tensor][move.box.inside(old[move.source][move.tensor].box)]
        found[move.taker][move.tensor][move.box.inside(new[move.taker][move.tensor].box)] += there
    return found


@given(changes())
def test_everybody_has_what_it_would_have_after_a_gather_and_a_scatter(change: tuple[Layouts, Layouts]) -> None:
    old, new = change
    found = arrived(old, new, transfers(new, old, far))
    for who, layout in new.items():
        for name, piece in layout.items():
            # What comes twice would be there twice: it is added.
            np.testing.assert_array_equal(found[who][name], cut_out(piece))


@given(changes())
def test_what_moves_is_the_least_and_comes_from_the_nearest(change: tuple[Layouts, Layouts]) -> None:
    old, new = change
    moves = transfers(new, old, far)
    lacks = costs = 0
    for taker, layout in new.items():
        for name, piece in layout.items():
            nearest = np.full(piece.shape, np.iinfo(np.int64).max)
            for source, there in old.items():
                if name in there:
                    near = -1 if source == taker else far(source, taker)
                    nearest = np.where(mask(there[name]), np.minimum(nearest, near), nearest)
            missing = mask(piece) & (nearest >= 0)
            lacks += int(missing.sum()) * piece.element_bytes
            costs += int(nearest[missing].sum()) * piece.element_bytes
    sizes = [m.box.size * new[m.taker][m.tensor].element_bytes for m in moves]
    assert sum(sizes) == lacks
    assert sum(s * far(m.source, m.taker) for s, m in zip(sizes, moves, strict=True)) == costs
    assert all(m.source != m.taker and m.box.size for m in moves)


@given(shapes().flatmap(layouts), st.integers(1, 3))
def test_what_stays_as_it_is_does_not_move(layout: Layouts, more: int) -> None:
    assert transfers(layout, layout, far) == ()
    fewer = dict(list(layout.items())[:more])
    assert transfers(fewer, layout, far) == ()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 4))
def test_equally_near_holders_give_about_as_much(sizes: list[int], holders: int) -> None:
    layout = {f"t{i}": whole((size,)) for i, size in enumerate(sizes)}
    moves = transfers({"new": layout}, {f"old{i}": layout for i in range(holders)}, lambda *_: 1)
    given = [sum(m.box.size for m in moves if m.source == f"old{i}") for i in range(holders)]
    assert sum(given) == sum(sizes)
    assert max(given) - min(given) <= max(sizes)


def test_four_shards_become_two() -> None:
    """Of seven rows: 2, 2, 2, 1 become 4, 3.  Each new one begins where an old one was."""

    def shards(count: int, names: list[str]) -> Layouts:
        return {n: {"w": Piece((7, 3), box_after((7, 3), [Cut(0, count, i)]), 8)} for i, n in enumerate(names)}

    moves = transfers(shards(2, ["a", "c"]), shards(4, ["a", "b", "c", "d"]), lambda *_: 1)
    assert moves == (Transfer("w", Box((2, 0), (2, 3)), "b", "a"), Transfer("w", Box((6, 0), (1, 3)), "d", "c"))


@pytest.mark.parametrize(
    "held", [{}, {"old": {}}, {"old": {"w": whole((3, 2))}}, {"old": {"w": Piece((2, 3), Box((0, 0), (1, 3)))}}]
)
def test_what_nobody_holds_is_named(held: dict[str, Layout]) -> None:
    with pytest.raises(Unheld) as refused:
        transfers({"new": {"w": whole((2, 3))}}, held, lambda *_: 1)
    assert refused.value.args == ("w",)


# -- boxes ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), st.data())
def test_a_cut_is_torchs_chunk(shape: tuple[int, ...], data: st.DataObject) -> None:
    dimension, chunks = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 5))
    tensor = torch.from_numpy(values(shape))
    torch_has = list(torch.chunk(tensor, chunks, dimension))
    for index in range(chunks):
        box = box_after(shape, [Cut(dimension, chunks, index)])
        mine = tensor[box.inside(whole(shape).box)]
        if index < len(torch_has):
            assert torch.equal(mine, torch_has[index])
        else:
            assert mine.numel() == 0, "there are fewer chunks than workers"


@given(st.lists(st.integers(0, 6), max_size=4).map(tuple), st.integers(0, 9), st.data())
def test_runs_are_the_bytes_of_a_box_where_they_lie(shape: tuple[int, ...], at: int, data: st.DataObject) -> None:
    def inside(outer: Box) -> Box:
        ends = [sorted(data.draw(st.tuples(st.integers(a, a + n), st.integers(a, a + n)))) for a, n in _sides(outer)]
        return Box(tuple(a for a, _ in ends), tuple(b - a for a, b in ends))

    outer = inside(whole(shape).box)
    box = inside(outer)
    there = values(shape)[outer.inside(whole(shape).box)]
    file = bytes(at) + there.tobytes()
    found = list(runs(box, outer, there.itemsize, at))
    read = [file[run.at + i * run.stride :][: run.length] for run in found for i in range(run.count)]
    assert b"".join(read) == there[box.inside(outer)].tobytes()
    assert sum(run.size for run in found) == box.size * there.itemsize
    assert len(found) <= max(1, int(np.prod(box.lengths[:-2]))), "rows of a matrix are one"


def _sides(box: Box) -> list[tuple[int, int]]:
    return list(zip(box.at, box.lengths, strict=True))


Placements = tuple[tuple[Placement, ...], list[int]]
"""Over the axes of a mesh, and which of them are cut in which order."""

ORDERS: dict[str, Placements] = {
    "rows": ((Shard(0),), [0]),
    "columns": ((Shard(1),), [0]),
    "copies": ((Replicate(), Shard(1)), [1]),
    "rows and columns": ((Shard(0), Shard(1)), [0, 1]),
    "rows of rows": ((Shard(0), Shard(0)), [0, 1]),
    "FSDP2 over tensor parallelism": ((_StridedShard(0, split_factor=2), Shard(0)), [1, 0]),
    "the same with copies": ((Replicate(), _StridedShard(0, split_factor=2), Shard(0)), [2, 1]),
}


@pytest.mark.parametrize("name", ORDERS)
@given(st.integers(1, 12), st.integers(1, 12))
def test_placements_mean_what_torch_means(name: str, rows: int, columns: int) -> None:
    placements, order = ORDERS[name]
    shape = (2 * rows, columns)  # torch itself can't tell what FSDP2 has made of uneven chunks
    sizes = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}[len(placements)]
    for coordinate in np.ndindex(*sizes):
        cuts = [Cut(placements[a].dim, sizes[a], coordinate[a]) for a in order]  # type: ignore[attr-defined]  # all of them cut
        box = box_after(shape, cuts)
        lengths, at = torch_says(shape, sizes, list(coordinate), placements)
        assert box.lengths == tuple(lengths)
        assert box.size == 0 or box.at == tuple(at)
