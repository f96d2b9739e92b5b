"""A state that a replica of another shape has left, as it is for a worker of this one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from unicorn_mgr.transition.layout import Box, Piece, whole
from unicorn_mgr.transition.relayout import Unheld, transfers
from unicorn_mgr.worker.sharding import Part, is_sharded, matched
from unicorn_mgr.worker.siblings import Place, place_of
from unicorn_mgr.worker.state import Packed, ReplicaState, StateError, Tree, piece_in, unpack

Wanted = Mapping[int, Mapping[str, Sequence[Box]]]
"""By position and by name, which boxes of its tensors."""

Read = Callable[[Wanted], Iterable[tuple[int, str, Box | None, torch.Tensor]]]
"""All that is wanted, one after the other: of whose part, its name, and which box it is; None: all there is in it."""

_HERE = -1


def reshaped(
    parts: Sequence[Packed],
    axes: Mapping[str, int],
    read: Read,
    place: Place,
    state: ReplicaState,
    away: Collection[int] = (),
) -> Tree:
    """The state of which the workers of another replica had these parts, by position, for the worker in this place.

    `axes` are those of that replica.  The tensors of `parts` need no memory: `read` is asked once for all of which
    something is needed.  From parts that are `away` comes only what is in no other.  What is no tensor is the same
    everywhere.  Raises `StateError` if it is not a state of this job.
    """
    distance = _distances([place_of(axes, position) for position in range(len(parts))], place, away)
    near = distance.index(min(distance))
    trees = [unpack(part) for part in parts]
    tree = _united([trees[p] for p in sorted(range(len(parts)), key=lambda p: -distance[p])], trees[near])
    if place.stages > 1:
        tree = state.own(tree)
    state.check(tree)
    names = {id(t): name for part in parts for name, t in zip(part.names, part.tensors, strict=True)}
    held = [_pieces(tree, part) for tree, part in zip(trees, parts, strict=True)]
    wanted: dict[str, Piece] = {}
    arrived: dict[str, torch.Tensor] = {}

    def want(leaf: torch.Tensor | Part, now: Any) -> torch.Tensor | Part:
        there = piece_in(leaf)
        tensor = leaf.tensor if isinstance(leaf, Part) else leaf
        follows = isinstance(now, torch.Tensor) and tuple(now.shape) == there.shape
        piece = piece_in(now) if follows else whole(there.shape, there.element_bytes)
        name = names[id(tensor)]
        wanted[name] = piece
        arrived[name] = torch.empty(piece.box.lengths, dtype=tensor.dtype)
        return Part(arrived[name], piece) if follows and is_sharded(now) else arrived[name]

    mine = state.matched(tree, want)
    try:
        moves = transfers({_HERE: wanted}, dict(enumerate(held)), lambda source, _: distance[source])
    except Unheld as lacking:
        raise StateError(f"{lacking}: its parts do not make up the whole") from None
    boxes: dict[int, dict[str, list[Box]]] = defaultdict(lambda: defaultdict(list))
    for move in moves:
        boxes[move.source][move.tensor].append(move.box)
    for source, name, read_box, tensor in read(boxes):
        has = read_box or held[source][name].box
        for box in boxes[source][name] if read_box is None else [read_box]:
            arrived[name][box.inside(wanted[name].box)] = tensor[box.inside(has)]
    return mine


def _distances(there: Sequence[Place], here: Place, away: Collection[int]) -> list[int]:
    """How far each is from this worker: first those that have the same stage of the model, of these what is not away.

    Where both are cut into as many stages, those may call their tensors by the same names.
    """
    alike = [of for of in there if (of.stage, of.stages) == (here.stage, here.stages)] or there

    def order(of: Place) -> tuple[bool, bool]:
        return of not in alike, of.position in away

    near = min(there, key=lambda of: (*order(of), abs(of.position / of.size - here.position / here.size)))
    return [0 if of is near else 1 + 2 * other + is_away for of in there for other, is_away in [order(of)]]


def _united(trees: Sequence[Tree], near: Tree) -> Tree:
    """A tree with the tensors that any of them has, as the last one that has them."""
    return {
        **near,
        "model": {name: leaf for tree in trees for name, leaf in tree["model"].items()},
        "optimizer": [
            {**of, "state": {n: values for tree in trees for n, values in tree["optimizer"][i]["state"].items()}}
            for i, of in enumerate(near["optimizer"])
        ],
    }


def pieces_of(part: Packed) -> dict[str, Piece]:
    """What a part has of each tensor."""
    return _pieces(unpack(part), part)


def _pieces(tree: Tree, part: Packed) -> dict[str, Piece]:
    names = {id(tensor): name for name, tensor in zip(part.names, part.tensors, strict=True)}
    found: dict[str, Piece] = {}

    def note(leaf: torch.Tensor | Part, _: Any) -> None:
        found[names[id(leaf.tensor if isinstance(leaf, Part) else leaf)]] = piece_in(leaf)

    matched(tree, None, note)
    return found
