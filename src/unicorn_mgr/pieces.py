"""Pieces of a snapshot, in the order in which somebody wants them, and none that is not as it was written."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator

from unicorn_mgr import seal
from unicorn_mgr.model import Run
from unicorn_mgr.seal import Snapshot

ALONE_BYTES = 64 << 10
"""A stretch as long as this is worth a read of its own."""


class Lost(Exception):
    """It is not there any more, or not as it was written."""


class Come:
    """As much as has come of what is wanted."""

    def __init__(self) -> None:
        self.at = 0


def size_of(runs: Iterable[Run]) -> int:
    """Bytes of all."""
    return sum(run.size for run in runs)


def fit(runs: Iterable[Run], end: int) -> bool:
    """All of them lie in a file of so many bytes."""
    for run in runs:
        if min(run.at, run.length, run.count, run.stride) < 0:
            return False
        if run.size and run.at + (run.count - 1) * run.stride + run.length > end:
            return False
    return True


class Source:
    """A snapshot in a file.  Whenever something of a block is read for the first time, the block is checked.

    It is read, not mapped: what a template gives up meanwhile would kill whoever looks at it.
    """

    def __init__(self, file: int, head: Snapshot) -> None:
        self._file = file
        self._head = head
        self._checked: set[int] = set()

    def read(self, runs: Iterable[Run], skip: int, at_once: int) -> Iterator[bytes]:
        """Their bytes without the first `skip`, at most `at_once` together.  Raises `Lost`."""
        waiting: list[bytes] = []
        total = 0
        for data in _after(skip, (data for run in runs if run.size for data in self._of_run(run, at_once))):
            if total + len(data) > at_once:
                yield self._sure(waiting)
                waiting, total = [], 0
            waiting.append(data)
            total += len(data)
        if waiting:
            yield self._sure(waiting)

    def _sure(self, read: list[bytes]) -> bytes:
        """Whoever writes over a snapshot breaks its seal first."""
        if not seal.stands(self._file, self._head):
            raise Lost("it has been written over meanwhile")
        return b"".join(read)

    def _of_run(self, run: Run, at_once: int) -> Iterator[bytes]:
        if run.count == 1 or run.length >= min(ALONE_BYTES, at_once):
            for i in range(run.count):
                yield from self._stretch(run.at + i * run.stride, run.length, at_once)
            return
        # Together with what lies between them, as long as that is not too much.
        most = max(1, (at_once - run.length) // max(run.stride, 1) + 1)
        for first in range(0, run.count, most):
            count = min(most, run.count - first)
            span = (count - 1) * run.stride + run.length
            data = b"".join(self._stretch(run.at + first * run.stride, span, at_once))
            yield b"".join([data[i * run.stride : i * run.stride + run.length] for i in range(count)])

    def _stretch(self, at: int, length: int, at_once: int) -> Iterator[bytes]:
        end = at + length
        while at < end:
            data = os.pread(self._file, min(at_once, end - at), at)
            if not data:
                raise Lost("it has been given up meanwhile")
            self._check(at, at + len(data))
            yield data
            at += len(data)

    def _check(self, start: int, end: int) -> None:
        head = self._head
        if end <= head.body_at:  # that has a checksum of its own, for whoever it comes to
            return
        if not head.blocks_at:
            raise Lost("its pieces can't be checked")
        first, last = ((at - head.body_at) // seal.BLOCK_BYTES for at in (max(start, head.body_at), end - 1))
        for block in range(first, last + 1):
            if block not in self._checked:
                at = head.body_at + block * seal.BLOCK_BYTES
                data = os.pread(self._file, min(seal.BLOCK_BYTES, head.blocks_at - at), at)
                if seal.BLOCK.pack(zlib.crc32(data)) != os.pread(
                    self._file, seal.BLOCK.size, head.blocks_at + seal.BLOCK.size * block
                ):
                    raise Lost("its body is not as it was written")
                self._checked.add(block)


def _after(skip: int, blocks: Iterable[bytes]) -> Iterator[bytes]:
    for data in blocks:
        if skip < len(data):
            yield data[skip:]
        skip = max(0, skip - len(data))
