"""The seal and the head of a snapshot in memory: whether it is whole, what it is of, and how long it is.

Workers write snapshots and read them; agents, who carry them from node to node, read no more than this.  The body
has a checksum of its own, which is compared by whoever loads it: it takes torch.  Where workers of another shape may
want pieces of it, its blocks have checksums, too, behind it, and whoever reads a piece compares those.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from typing import Any

from unicorn_mgr.model import Epoch, Lineage, Mark

WHOLE = b"unicorn1"
SEAL = struct.Struct("<8sQQ")
"""That it is whole, and the checksums of its head and of its body."""
COMMITTED_AT = SEAL.size
BLOCKS = struct.Struct("<Q")
BLOCKS_AT = 32
"""Where the checksums of its blocks are, behind its body; 0: there are none."""
HEAD_AT = 64
EXTENT = struct.Struct("<QQ")
"""Bytes of the text, and of all."""
TEXT_AT = HEAD_AT + EXTENT.size
ALIGNED = 64
BLOCK = struct.Struct("<I")
BLOCK_BYTES = 1 << 20
"""Pieces are handed out by agents, who check what these are in: blocks of the body, by CRC-32."""


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
    """Bytes of all."""
    checksum: int
    """Of its body."""
    body_at: int
    blocks_at: int
    fingerprint: int
    """What tells it from all others: of both checksums."""


def find(file: int) -> Snapshot | None:
    """The snapshot in it, None if there is none or its writer has not finished it.  Raises `Torn`."""
    size = os.fstat(file).st_size
    start = os.pread(file, TEXT_AT, 0)
    if len(start) < TEXT_AT or not start.startswith(WHOLE):
        return None
    text_bytes, end = EXTENT.unpack_from(start, HEAD_AT)
    if not TEXT_AT + text_bytes <= end <= size:
        raise Torn("its length is another")
    return read_head(start + os.pread(file, text_bytes, TEXT_AT), file)


def read_head(data: bytes, file: int = -1) -> Snapshot:
    """The snapshot whose beginning this is, up to its body.  Raises `Torn`."""
    if len(data) < TEXT_AT or not data.startswith(WHOLE):
        raise Torn("it is not whole")
    _, head, body = SEAL.unpack_from(data)
    text_bytes, end = EXTENT.unpack_from(data, HEAD_AT)
    (blocks,) = BLOCKS.unpack_from(data, BLOCKS_AT)
    said = data[TEXT_AT : TEXT_AT + text_bytes]
    if of_head(data[HEAD_AT:TEXT_AT] + said) != head:
        raise Torn("its head is not as it was written")
    text = json.loads(said)
    generation, term, number = text["lineage"]
    mark = Mark(text["step"], Lineage(generation, Epoch(term, number)))
    return Snapshot(
        file, mark, bool(data[COMMITTED_AT]), text["of"], text, end, body, body_at(text_bytes), blocks, head ^ body
    )


def stands(file: int, snapshot: Snapshot) -> bool:
    """All that has been read of the file until now is of this snapshot."""
    now = os.pread(file, SEAL.size, 0)
    if not now.startswith(WHOLE):
        return False
    _, head, body = SEAL.unpack(now)
    return bool(head ^ body == snapshot.fingerprint)


def of_head(text: bytes) -> int:
    """Its checksum."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def body_at(text_bytes: int) -> int:
    """Where the body begins, behind a text of so many bytes."""
    return aligned(TEXT_AT + text_bytes)


def blocks_of(start: int, end: int) -> list[tuple[int, int]]:
    """Where each block of a body begins and ends."""
    return [(at, min(at + BLOCK_BYTES, end)) for at in range(start, end, BLOCK_BYTES)]


def aligned(at: int) -> int:
    """The next place where a tensor may begin."""
    return -(-at // ALIGNED) * ALIGNED
