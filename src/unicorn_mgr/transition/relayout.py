"""From one layout of a model's state to another: who takes what from whom.

`transfers` is a pure function of who holds what and who wants what, so everybody derives the same by itself.
What a worker holds already does not move; every other byte moves once, from one of the nearest that hold it,
and what several equally near ones hold is taken from whoever gives least so far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from unicorn_mgr.transition.layout import Box, Layout, Piece

Holder = TypeVar("Holder", bound=Hashable)


class Unheld(LookupError):
    """A tensor of which somebody wants what nobody holds; its name is the argument."""


@dataclass(frozen=True, slots=True)
class Transfer(Generic[Holder]):
    """A box of a tensor moves."""

    tensor: str
    box: Box
    source: Holder
    taker: Holder


@dataclass(frozen=True, slots=True)
class _Cell(Generic[Holder]):
    """What one wants, and all of its nearest sources hold."""

    tensor: str
    box: Box
    size_bytes: int
    sources: tuple[Holder, ...]
    taker: Holder


def transfers(
    wanted: Mapping[Holder, Layout], held: Mapping[Holder, Layout], distance: Callable[[Holder, Holder], int]
) -> tuple[Transfer[Holder], ...]:
    """What has to move so that everybody has what it wants.

    `distance` says how far a source (the first) is from a taker.  Raises `Unheld`.
    """
    cells: list[_Cell[Holder]] = []
    for taker, layout in wanted.items():
        by_distance: dict[int, list[Holder]] = defaultdict(list)
        for source in held:
            if source != taker:
                by_distance[distance(source, taker)].append(source)
        rings = [by_distance[d] for d in sorted(by_distance)]
        for tensor, piece in layout.items():
            cells += _cells(tensor, piece, taker, held, rings)
    given: dict[Holder, int] = defaultdict(int)
    chosen: dict[_Cell[Holder], Holder] = {}
    for cell in sorted(cells, key=lambda c: -c.size_bytes):
        chosen[cell] = source = min(cell.sources, key=lambda s: given[s])
        given[source] += cell.size_bytes
    return tuple(Transfer(cell.tensor, cell.box, chosen[cell], cell.taker) for cell in cells)


def _cells(
    tensor: str, piece: Piece, taker: Holder, held: Mapping[Holder, Layout], rings: list[list[Holder]]
) -> list[_Cell[Holder]]:
    """What the taker lacks of a tensor, cut so that each cell has the same nearest sources everywhere."""
    mine = _box(held.get(taker, {}), tensor, piece)
    lacking = [piece.box] if mine is None else piece.box.without(mine)
    found = []
    for ring in rings:
        boxes = {source: box for source in ring if (box := _box(held[source], tensor, piece)) is not None}
        for box in dict.fromkeys(boxes.values()):
            for common in [c for wants in lacking if (c := wants.common(box)).size]:
                sources = tuple(s for s, has in boxes.items() if has.common(common) == common)
                found.append(_Cell(tensor, common, common.size * piece.element_bytes, sources, taker))
            lacking = [rest for wants in lacking for rest in wants.without(box)]
    if any(wants.size for wants in lacking):
        raise Unheld(tensor)
    return found


def _box(layout: Layout, tensor: str, like: Piece) -> Box | None:
    """What a layout has of the tensor; nothing of one that has another shape."""
    piece = layout.get(tensor)
    return piece.box if piece is not None and piece.shape == like.shape else None
