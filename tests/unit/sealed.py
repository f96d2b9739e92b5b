"""Snapshots for tests, as a worker leaves them in memory, without torch."""

from __future__ import annotations

import json
import os
import zlib

from unicorn_mgr.model import Epoch, Lineage, Mark, StatePart
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
    blocks_of,
    body_at,
    of_head,
)


def mark(step: int, epoch: int = 1) -> Mark:
    return Mark(step, Lineage(0, Epoch(1, epoch)))


PART = StatePart("id", "shard=2,tensor=2", 1)
"""What is copied to and fro."""


def sealed(
    at: Mark, part: StatePart = PART, body: bytes = b"x" * 1000, committed: bool = True, piecewise: bool = False
) -> bytes:
    """All bytes of one."""
    axes = {axis: int(size) for axis, _, size in (of.partition("=") for of in part.shape.split(",") if of)}
    of = {"job": part.job_id, "position": part.position, "axes": axes}
    epoch = at.lineage.epoch
    lineage = [at.lineage.generation, epoch.term, epoch.number]
    text = json.dumps({"of": of, "step": at.step, "lineage": lineage}).encode()
    start = body_at(len(text))
    made = bytearray(start) + body
    if piecewise:
        BLOCKS.pack_into(made, BLOCKS_AT, len(made))
        made += b"".join(BLOCK.pack(zlib.crc32(made[a:b])) for a, b in blocks_of(start, len(made)))
    EXTENT.pack_into(made, HEAD_AT, len(text), len(made))
    made[TEXT_AT : TEXT_AT + len(text)] = text
    SEAL.pack_into(made, 0, WHOLE, of_head(bytes(made[HEAD_AT : TEXT_AT + len(text)])), sum(body))
    made[COMMITTED_AT] = committed
    return bytes(made)


def memory(content: bytes = b"") -> int:
    """A memfd with that in it."""
    file = os.memfd_create("test")
    os.pwrite(file, content, 0)
    return file


def content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)
