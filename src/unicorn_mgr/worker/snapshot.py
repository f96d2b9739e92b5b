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
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from unicorn_mgr.model import Epoch, Lineage, Mark
from unicorn_mgr.worker.checksum import checksum
from unicorn_mgr.worker.exchange import Landing
from unicorn_mgr.worker.state import Packed

_WHOLE = b"unicorn1"
_SEAL = struct.Struct("<8sQQ")
_COMMITTED_AT = _SEAL.size
_HEAD_AT = 64
_EXTENT = struct.Struct("<QQ")
"""Bytes of the text, and of all."""
_TEXT_AT = _HEAD_AT + _EXTENT.size
_ALIGNED = 64
_SLACK_BYTES = 64 << 10
"""The text's length varies a little from step to step."""


class Torn(ValueError):
    """It is not whole, or not as it was written."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One that is sealed, as found."""

    file: int
    mark: Mark
    committed: bool
    of: dict[str, Any]
    """Job, position and the like: what it is a state of."""
    text: dict[str, Any]
    end: int
    """Bytes of all: whoever copies it elsewhere copies so many, and the seal last."""
    checksum: int
    """Of its body."""
    body_at: int


class Draft:
    """A state that is to be written."""

    def __init__(self, mark: Mark, of: Mapping[str, Any], packed: Packed) -> None:
        lineage = [mark.lineage.generation, mark.lineage.epoch.term, mark.lineage.epoch.number]
        self.mark = mark
        self.packed = packed
        self.text = json.dumps({"of": of, "step": mark.step, "lineage": lineage, **packed.described()}).encode()
        self.size_bytes = _body_at(len(self.text)) + sum(_aligned(t.numel() * t.element_size()) for t in packed.tensors)


class Buffer:
    """Memory for one snapshot at a time, in the hands of the worker that writes it."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.mark: Mark | None = None
        """Of what this worker has written into it."""
        self._memory: mmap.mmap | None = None
        self._written = Packed("", (), ())
        """What is in it, until that is sealed."""

    def make_room(self, draft: Draft) -> None:
        """Have memory enough; what is in it stays.  Raises `OSError` if there is none."""
        if self._memory is None or len(self._memory) < draft.size_bytes:
            size = draft.size_bytes + _SLACK_BYTES
            os.posix_fallocate(self.file, 0, size)
            self._memory = mmap.mmap(self.file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def write(self, draft: Draft, halfway: Callable[[], None]) -> None:
        """Copy the state over what was here: it is whole once it is sealed."""
        memory, packed = self._memory, draft.packed
        assert memory is not None, "there is no room yet"
        self.mark = None
        memory[: _COMMITTED_AT + 1] = bytes(_COMMITTED_AT + 1)
        _EXTENT.pack_into(memory, _HEAD_AT, len(draft.text), draft.size_bytes)
        memory[_TEXT_AT : _TEXT_AT + len(draft.text)] = draft.text
        at, copies = _body_at(len(draft.text)), []
        for i, tensor in enumerate(packed.tensors):
            if i == len(packed.tensors) // 2:
                halfway()
            size = tensor.numel() * tensor.element_size()
            if size:
                place = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=at)
                copies.append(place.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach()))
            at += _aligned(size)
        self._written = Packed(packed.skeleton, packed.names, tuple(copies))
        self.mark = draft.mark

    def seal(self) -> None:
        """From now on it is whole."""
        memory, written = self._memory, self._written
        assert memory is not None, "nothing is written"
        self._written = Packed("", (), ())
        text_bytes, _ = _EXTENT.unpack_from(memory, _HEAD_AT)
        _SEAL.pack_into(memory, 0, b"", _of_head(memory[_HEAD_AT : _TEXT_AT + text_bytes]), _of_body(written))
        memory[: len(_WHOLE)] = _WHOLE

    def commit(self) -> None:
        """A collective of a later step has completed."""
        if self._memory is not None:
            self._memory[_COMMITTED_AT] = 1

    def release(self) -> None:
        """Give the memory back."""
        self.mark = self._memory = None
        self._written = Packed("", (), ())
        os.ftruncate(self.file, 0)


def find(file: int) -> Snapshot | None:
    """The snapshot in it, None if there is none or its writer has not finished it.  Raises `Torn`."""
    size = os.fstat(file).st_size
    start = os.pread(file, _TEXT_AT, 0)
    if len(start) < _TEXT_AT or not start.startswith(_WHOLE):
        return None
    _, of_head, of_body = _SEAL.unpack_from(start)
    text_bytes, end = _EXTENT.unpack_from(start, _HEAD_AT)
    if not _TEXT_AT + text_bytes <= end <= size:
        raise Torn("its length is another")
    said = os.pread(file, text_bytes, _TEXT_AT)
    if _of_head(start[_HEAD_AT:] + said) != of_head:
        raise Torn("its head is not as it was written")
    text = json.loads(said)
    generation, term, number = text["lineage"]
    mark = Mark(text["step"], Lineage(generation, Epoch(term, number)))
    return Snapshot(file, mark, bool(start[_COMMITTED_AT]), text["of"], text, end, of_body, _body_at(text_bytes))


def load(snapshot: Snapshot, homes: Mapping[str, torch.Tensor]) -> Packed:
    """Its state, in these tensors where they fit.  Raises `Torn`; what is in them is torn, too, then."""
    landing = Landing(homes, None)
    views = iter(landing.place(json.dumps(snapshot.text).encode()) or ())
    at = snapshot.body_at
    for _, dtype_name, shape, _ in snapshot.text["tensors"]:
        dtype: torch.dtype = getattr(torch, dtype_name)
        size = math.prod(shape) * dtype.itemsize
        if size:
            _fill(snapshot.file, next(views), at)
        at += _aligned(size)
    landing.land()
    assert landing.packed is not None
    if _of_body(landing.packed) != snapshot.checksum:
        raise Torn("its body is not as it was written")
    return landing.packed


def _of_head(text: bytes) -> int:
    return checksum((torch.frombuffer(bytearray(text), dtype=torch.uint8),))


def _of_body(packed: Packed) -> int:
    return checksum(tensor for tensor in packed.tensors if tensor.numel())


def _fill(file: int, view: memoryview, at: int) -> None:
    done = 0
    while done < len(view):
        got = os.preadv(file, [view[done:]], at + done)
        if got == 0:
            raise Torn("it has been given up meanwhile")
        done += got


def _body_at(text_bytes: int) -> int:
    return _aligned(_TEXT_AT + text_bytes)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
