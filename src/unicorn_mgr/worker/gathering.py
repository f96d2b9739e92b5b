"""What workers of another shape have left in memory, on this node and on others, put together for one of this shape.

What lies on this node is read as it is.  Of the parts that lie elsewhere the agent first brings what comes before
their tensors, which says where everything is, and then exactly those bytes that are in no part nearer by: each once,
one behind the other, into memory of this worker.  It takes them from whichever node has the same snapshot.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from unicorn_mgr.messages import FormerSnapshot, PieceWanted
from unicorn_mgr.model import Run
from unicorn_mgr.pieces import Lost, Source
from unicorn_mgr.seal import Snapshot, Torn, aligned, read_head
from unicorn_mgr.transition.layout import Box, Piece, runs
from unicorn_mgr.worker.reshaping import Wanted, pieces_of, reshaped
from unicorn_mgr.worker.siblings import Place
from unicorn_mgr.worker.snapshot import load, outline, read_into
from unicorn_mgr.worker.state import ReplicaState, StateError, Tree
from unicorn_mgr.worker.transfer import bytes_of

PIECES_AT = 4096
"""Where they go in this worker's memory: behind where the seal would be of a snapshot of its own."""
READ_BYTES = 4 << 20
"""So much is read at once."""


@dataclass(frozen=True, slots=True)
class Left:
    """One snapshot of a replica of another shape, as far as it is known of; parts by position."""

    axes: Mapping[str, int]
    here: dict[int, Snapshot] = field(default_factory=dict)
    away: dict[int, FormerSnapshot] = field(default_factory=dict)

    @property
    def all_here(self) -> bool:
        """On this node."""
        return len(self.here) == self._size

    @property
    def whole(self) -> bool:
        """Every part is somewhere."""
        return len(self.here.keys() | self.away.keys()) == self._size

    @property
    def committed(self) -> bool:
        """It is known to be."""
        return any(of.committed for of in self.here.values()) or any(of.committed for of in self.away.values())

    @property
    def _size(self) -> int:
        return math.prod(self.axes.values())


@dataclass(frozen=True, slots=True)
class Desk:
    """Where pieces are brought to."""

    file: int
    bytes_max: int
    bring: Callable[[Sequence[PieceWanted], int], None]
    """These, one behind the other, from there on in the file."""


@dataclass(frozen=True, slots=True)
class _Away:
    """A part that lies on another node."""

    found: FormerSnapshot
    head: Snapshot
    layout: Mapping[str, Piece]
    tensors: Mapping[str, tuple[int, torch.dtype]]
    """Where in the snapshot each begins, and of what it is."""

    def wanted(self, several: Sequence[Run]) -> PieceWanted:
        return PieceWanted(self.found.shape, self.found.position, self.head.fingerprint, tuple(several))


def gathered(left: Left, of: Mapping[str, Any], desk: Desk | None, place: Place, state: ReplicaState) -> Tree:
    """The state for the worker in this place; `of` is what its job's snapshots are of.

    Raises `Torn`, `StateError`, and what `desk` does.
    """
    lacking = {p: found for p, found in left.away.items() if p not in left.here}
    if lacking and desk is None:
        raise StateError("there is no memory here for what other nodes have")
    away = _heads(lacking, left.axes, of, desk) if desk is not None and lacking else {}
    heads = {**left.here, **{p: part.head for p, part in away.items()}}

    def read(wanted: Wanted) -> Iterator[tuple[int, str, Box | None, torch.Tensor]]:
        if desk is not None and not away.keys().isdisjoint(wanted):
            yield from _brought({p: names for p, names in wanted.items() if p in away}, away, desk)
        for position in wanted.keys() - away.keys():
            yield from _read(position, heads[position], wanted[position])

    return reshaped([outline(heads[p]) for p in sorted(heads)], left.axes, read, place, state, away.keys())


def _read(
    position: int, head: Snapshot, wanted: Mapping[str, Sequence[Box]]
) -> Iterator[tuple[int, str, Box | None, torch.Tensor]]:
    """From a part that lies here.  Raises `Torn`."""
    if not head.blocks_at:  # it can only be checked as a whole
        part = load(head, {})
        for name, whole in zip(part.names, part.tensors, strict=True):
            if name in wanted:
                yield position, name, None, whole
        return
    source, layout, tensors = Source(head.file, head), pieces_of(outline(head)), _tensors(head)
    for name, boxes in wanted.items():
        (at, dtype), piece = tensors[name], layout[name]
        for box in boxes:
            tensor = torch.empty(box.lengths, dtype=dtype)
            try:
                _fill(bytes_of(tensor), source.read(runs(box, piece.box, piece.element_bytes, at), 0, READ_BYTES))
            except Lost as why:
                raise Torn(str(why)) from why
            yield position, name, box, tensor


def _fill(view: memoryview, blocks: Iterable[bytes]) -> None:
    at = 0
    for block in blocks:
        view[at : at + len(block)] = block
        at += len(block)


def _heads(
    lacking: Mapping[int, FormerSnapshot], axes: Mapping[str, int], of: Mapping[str, Any], desk: Desk
) -> dict[int, _Away]:
    """What comes before the tensors of these parts."""
    asked = [PieceWanted(f.shape, f.position, 0, (Run(0, f.head_bytes),)) for f in lacking.values()]
    _bring(desk, asked)
    parts, at = {}, PIECES_AT
    for position, found in lacking.items():
        data = bytearray(found.head_bytes)
        read_into(desk.file, memoryview(data), at)
        at += len(data)
        head = read_head(bytes(data))
        if (head.mark, head.of) != (found.mark, {**of, "position": position, "axes": dict(axes)}):
            raise StateError(f"part {position} of step {found.mark.step} on another node is of something else")
        parts[position] = _Away(found, head, pieces_of(outline(head)), _tensors(head))
    return parts


def _tensors(head: Snapshot) -> dict[str, tuple[int, torch.dtype]]:
    found, at = {}, head.body_at
    for name, dtype_name, shape, _ in head.text["tensors"]:
        dtype: torch.dtype = getattr(torch, dtype_name)
        found[name] = at, dtype
        at += aligned(math.prod(shape) * dtype.itemsize)
    return found


def _brought(wanted: Wanted, away: Mapping[int, _Away], desk: Desk) -> Iterator[tuple[int, str, Box, torch.Tensor]]:
    """All boxes of these parts, from other nodes."""
    asked: list[PieceWanted] = []
    boxes: list[tuple[int, str, Box]] = []
    for position, names in wanted.items():
        part, several = away[position], list[Run]()
        for name, of_tensor in names.items():
            for box in of_tensor:
                piece = part.layout[name]
                several += runs(box, piece.box, piece.element_bytes, part.tensors[name][0])
                boxes.append((position, name, box))
        asked.append(part.wanted(several))
    _bring(desk, asked)
    at = PIECES_AT
    for position, name, box in boxes:
        tensor = torch.empty(box.lengths, dtype=away[position].tensors[name][1])
        read_into(desk.file, bytes_of(tensor), at)
        at += tensor.numel() * tensor.element_size()
        yield position, name, box, tensor


def _bring(desk: Desk, asked: Sequence[PieceWanted]) -> None:
    needed = PIECES_AT + sum(run.size for piece in asked for run in piece.runs)
    if needed > desk.bytes_max:
        raise StateError(f"{needed} bytes of other nodes' snapshots are needed, and a slot may have {desk.bytes_max}")
    os.pwrite(desk.file, bytes(PIECES_AT), 0)  # whatever was there is a snapshot no more
    desk.bring(asked, PIECES_AT)
