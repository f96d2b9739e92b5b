"""One snapshot of a worker's state in memory that outlives it: how it lies there.

The memory begins with a seal, which says that what follows is whole, with a checksum of its head
and one of its body.  The head says what the snapshot is of and what its tensors are; the body is
their bytes.  Before anything is written the seal is broken, and it is set after everything else:
a writer that dies at any moment leaves a whole snapshot or none.  A byte beside the seal says
that the step is committed.

To see what there is takes the head alone.  The body is checked while it is loaded.  Readers do
not map the memory: it may shrink at any moment, when nobody wants it any more.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unicorn_mgr.model import Mark
from unicorn_mgr.seal import (
    BLOCK,
    BLOCKS,
    BLOCKS_AT,
    COMMITTED_AT,
    EXTENT,
    HEAD_AT,
    SEAL,
    TEXT_AT,
    WHOLE,
    Snapshot,
    Torn,
    aligned,
    blocks_of,
    body_at,
    of_head,
)
from unicorn_mgr.worker.checksum import checksum
from unicorn_mgr.worker.exchange import Landing
from unicorn_mgr.worker.state import Packed, outlined

_SLACK_BYTES = 64 << 10
"""The text's length varies a little from step to step."""


class Draft:
    """A state that is to be written.  `piecewise`: so that pieces of it can be checked."""

    def __init__(self, mark: Mark, of: Mapping[str, Any], packed: Packed, piecewise: bool = False) -> None:
        lineage = [mark.lineage.generation, mark.lineage.epoch.term, mark.lineage.epoch.number]
        self.mark = mark
        self.packed = packed
        self.text = json.dumps({"of": of, "step": mark.step, "lineage": lineage, **packed.described()}).encode()
        self.body_at = body_at(len(self.text))
        self.body_end = self.body_at + sum(aligned(t.numel() * t.element_size()) for t in packed.tensors)
        self.blocks = blocks_of(self.body_at, self.body_end) if piecewise else []
        self.size_bytes = self.body_end + BLOCK.size * len(self.blocks)


class Buffer:
    """Memory for one snapshot at a time, in the hands of the worker that writes it."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.mark: Mark | None = None
        """Of what this worker has written into it."""
        self._memory: mmap.mmap | None = None
        self._written: tuple[Draft, Packed] | None = None
        """What is in it, until that is sealed."""

    def make_room(self, draft: Draft) -> None:
        """Have memory enough; what is in it stays.  Raises `OSError` if there is none."""
        if self._memory is None or len(self._memory) < draft.size_bytes:
            size = draft.size_bytes + _SLACK_BYTES
            os.posix_fallocate(self.file, 0, size)
            self._memory = mmap.mmap(self.file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def write(self, draft: Draft, halfway: Callable[[], None]) -> Packed:
        """Copy the state over what was here: it is whole once it is sealed; returns the copy."""
        memory, packed = self._memory, draft.packed
        assert memory is not None, "there is no room yet"
        self.mark = None
        memory[: COMMITTED_AT + 1] = bytes(COMMITTED_AT + 1)
        BLOCKS.pack_into(memory, BLOCKS_AT, draft.body_end if draft.blocks else 0)
        EXTENT.pack_into(memory, HEAD_AT, len(draft.text), draft.size_bytes)
        memory[TEXT_AT : TEXT_AT + len(draft.text)] = draft.text
        at, copies = draft.body_at, []
        for i, tensor in enumerate(packed.tensors):
            if i == len(packed.tensors) // 2:
                halfway()
            size = tensor.numel() * tensor.element_size()
            copies.append(_view(memory, at, tensor.dtype, tensor.shape).copy_(tensor.detach()))
            at += aligned(size)
        written = Packed(packed.skeleton, packed.names, tuple(copies))
        self._written = draft, written
        self.mark = draft.mark
        return written

    def seal(self) -> None:
        """From now on it is whole."""
        memory = self._memory
        assert memory is not None, "there is no room yet"
        assert self._written is not None, "nothing is written"
        (draft, written), self._written = self._written, None
        for i, (start, end) in enumerate(draft.blocks):
            BLOCK.pack_into(memory, draft.body_end + BLOCK.size * i, zlib.crc32(memory[start:end]))
        head = of_head(memory[HEAD_AT : TEXT_AT + len(draft.text)])
        SEAL.pack_into(memory, 0, b"", head, _of_body(written))
        memory[: len(WHOLE)] = WHOLE

    def commit(self) -> None:
        """A collective of a later step has completed."""
        if self._memory is not None:
            self._memory[COMMITTED_AT] = 1

    def release(self) -> None:
        """Give the memory back."""
        self.mark = self._memory = self._written = None
        os.ftruncate(self.file, 0)


def outline(snapshot: Snapshot) -> Packed:
    """What is in it, without its bytes."""
    said = snapshot.text
    return outlined(said["skeleton"], ((name, dtype, shape) for name, dtype, shape, _ in said["tensors"]))


def mapped(snapshot: Snapshot) -> Packed:
    """Its state, where it lies: for whoever knows that nobody writes there or gives it up.  Raises `Torn`."""
    memory = mmap.mmap(snapshot.file, snapshot.end, mmap.MAP_SHARED)
    names, tensors, at = [], [], snapshot.body_at
    for name, dtype_name, shape, _ in snapshot.text["tensors"]:
        dtype: torch.dtype = getattr(torch, dtype_name)
        names.append(name)
        tensors.append(_view(memory, at, dtype, shape))
        at += aligned(math.prod(shape) * dtype.itemsize)
    packed = Packed(snapshot.text["skeleton"], tuple(names), tuple(tensors))
    if _of_body(packed) != snapshot.checksum:
        raise Torn("its body is not as it was written")
    return packed


def load(snapshot: Snapshot, homes: Mapping[str, torch.Tensor]) -> Packed:
    """Its state, in these tensors where they fit.  Raises `Torn`; what is in them is torn, too, then."""
    landing = Landing(homes, None)
    views = iter(landing.place(json.dumps(snapshot.text).encode()) or ())
    at = snapshot.body_at
    for _, dtype_name, shape, _ in snapshot.text["tensors"]:
        dtype: torch.dtype = getattr(torch, dtype_name)
        size = math.prod(shape) * dtype.itemsize
        if size:
            read_into(snapshot.file, next(views), at)
        at += aligned(size)
    landing.land()
    assert landing.packed is not None
    if _of_body(landing.packed) != snapshot.checksum:
        raise Torn("its body is not as it was written")
    return landing.packed


def _of_body(packed: Packed) -> int:
    return checksum(tensor for tensor in packed.tensors if tensor.numel())


def _view(memory: mmap.mmap, at: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=at).view(dtype).view(tuple(shape))


def read_into(file: int, view: memoryview, at: int) -> None:
    """What lies there.  Raises `Torn` if there is not as much."""
    done = 0
    while done < len(view):
        got = os.preadv(file, [view[done:]], at + done)
        if got == 0:
            raise Torn("it has been given up meanwhile")
        done += got
