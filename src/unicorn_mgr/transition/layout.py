"""Which piece of a tensor a worker holds, however the model is split: always a box.

torch cuts a tensor along one dimension at a time, each cut into equal chunks of which the last ones may be
smaller or empty (as `torch.chunk`), and a cut of a cut is a box again.  So FSDP2, tensor parallelism and both
at once need nothing else: a copy is the whole box, and a pipeline's stage has no piece of a tensor that is not
its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from unicorn_mgr.model import Run


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A range of indices along each dimension of a tensor; along none of a scalar, which is one element."""

    at: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements in it."""
        return math.prod(self.lengths)

    def common(self, other: Box) -> Box:
        """What is in both; empty if nothing is."""
        at = tuple(map(max, self.at, other.at))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.at, self.lengths, other.at, other.lengths, strict=True))
        return Box(at, tuple(max(end - start, 0) for start, end in zip(at, ends, strict=True)))

    def without(self, other: Box) -> list[Box]:
        """What is in this one and not in the other, as boxes that do not overlap."""
        common = self.common(other)
        if common.size == 0:
            return [self] if self.size else []
        left: list[Box] = []
        at, lengths = list(self.at), list(self.lengths)
        for d, (start, length) in enumerate(zip(common.at, common.lengths, strict=True)):
            for first, past in ((at[d], start), (start + length, at[d] + lengths[d])):
                if past > first:
                    left.append(Box((*at[:d], first, *at[d + 1 :]), (*lengths[:d], past - first, *lengths[d + 1 :])))
            at[d], lengths[d] = start, length
        return left

    def inside(self, outer: Box) -> tuple[slice, ...]:
        """Where it lies in the memory of `outer`."""
        return tuple(slice(a - o, a - o + n) for a, o, n in zip(self.at, outer.at, self.lengths, strict=True))


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension is cut into `chunks`, of which this is one."""

    dimension: int
    chunks: int
    index: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one worker has of a tensor."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    box: Box
    element_bytes: int = 1


Layout = Mapping[str, Piece]
"""By name, everything of which a worker has a piece."""


def box_after(shape: tuple[int, ...], cuts: Iterable[Cut]) -> Box:
    """The box that is left of a tensor after cuts in the order in which they were made."""
    at, lengths = [0] * len(shape), list(shape)
    for cut in cuts:
        d = cut.dimension
        chunk = -(-lengths[d] // cut.chunks)
        start = min(chunk * cut.index, lengths[d])
        at[d], lengths[d] = at[d] + start, min(chunk, lengths[d] - start)
    return Box(tuple(at), tuple(lengths))


def whole(shape: tuple[int, ...], element_bytes: int = 1) -> Piece:
    """All of a tensor."""
    return Piece(shape, box_after(shape, ()), element_bytes)


def runs(box: Box, outer: Box, element_bytes: int, at: int) -> Iterator[Run]:
    """Where the bytes of a box lie, in their order, in a file that has those of `outer` from `at` on."""
    if not box.size:
        return
    strides = [element_bytes * math.prod(outer.lengths[d + 1 :]) for d in range(len(outer.lengths))]
    at += sum((a - o) * s for a, o, s in zip(box.at, outer.at, strides, strict=True))
    length, inner = element_bytes, len(box.lengths)
    while inner and length == strides[inner - 1]:  # what lies inside of this dimension is all there is
        inner -= 1
        length *= box.lengths[inner]
    if not inner:
        yield Run(at, length)
        return
    steps = [range(0, n * s, s) for n, s in zip(box.lengths[: inner - 1], strides, strict=False)]
    for offsets in itertools.product(*steps):
        yield Run(at + sum(offsets), length, box.lengths[inner - 1], strides[inner - 1])
