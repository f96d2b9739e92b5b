"""Pieces of a snapshot: all that is wanted, in its order, and nothing that is not as it was written."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from unit.sealed import mark, memory, sealed

from unicorn_mgr import pieces, seal
from unicorn_mgr.model import Run
from unicorn_mgr.pieces import Lost, Source
from unicorn_mgr.seal import Snapshot

BODY = bytes(i * 7 % 251 for i in range(3000))
BLOCK_BYTES = 400


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal, "BLOCK_BYTES", BLOCK_BYTES)
        yield


@pytest.fixture
def file() -> Iterator[int]:
    made = memory(sealed(mark(7), body=BODY, piecewise=True))
    yield made
    os.close(made)


def head_of(file: int) -> Snapshot:
    found = seal.find(file)
    assert found is not None
    return found


def all_of(file: int, runs: list[Run], skip: int = 0, at_once: int = 500) -> bytes:
    blocks = list(Source(file, head_of(file)).read(runs, skip, at_once))
    assert all(0 < len(block) <= at_once for block in blocks)
    return b"".join(blocks)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    length, count = draw(st.integers(0, 700)), draw(st.integers(1, 8))
    stride = draw(st.integers(length, 900))
    return Run(draw(st.integers(0, 500)), length, count, stride)


@example([Run(0, 0, 6, 607)], 0, 5000)
@given(st.lists(runs(), max_size=5), st.integers(0, 2000), st.sampled_from([1, 64, 500, 5000]))
def test_all_that_is_wanted_comes_in_its_order(wanted: list[Run], skip: int, at_once: int) -> None:
    data = sealed(mark(7), body=BODY, piecewise=True)
    made = memory(data)
    try:
        start = head_of(made).body_at
        asked = [Run(start + r.at, r.length, r.count, r.stride) for r in wanted]
        asked = [r for r in asked if pieces.fit([r], start + len(BODY))]
        expected = b"".join(data[r.at + i * r.stride :][: r.length] for r in asked for i in range(r.count))
        assert len(expected) == pieces.size_of(asked)
        assert all_of(made, asked, skip, at_once) == expected[skip:]
    finally:
        os.close(made)


@pytest.mark.parametrize(
    "run", [Run(-1, 1), Run(0, -1), Run(90, 11), Run(0, 1, 11, 10), Run(0, 50, 2, 51), Run(0, 1, 2, -1)]
)
def test_what_is_not_there_does_not_fit(run: Run) -> None:
    assert not pieces.fit([run], 100)
    assert pieces.fit([Run(0, 100), Run(99, 1), Run(0, 10, 10, 10), Run(50, 0)], 100)


@pytest.mark.parametrize("at", [0, 399, 400, 2999])
def test_one_bit_spoils_its_block_and_no_other(file: int, at: int) -> None:
    start = head_of(file).body_at
    (byte,) = os.pread(file, 1, start + at)
    os.pwrite(file, bytes([byte ^ 16]), start + at)
    block = at // BLOCK_BYTES * BLOCK_BYTES
    with pytest.raises(Lost, match="its body is not as it was written"):
        all_of(file, [Run(start + block, 1)])
    if block:
        assert all_of(file, [Run(start, block)]) == BODY[:block]
    rest = BODY[block + BLOCK_BYTES :]
    assert all_of(file, [Run(start + len(BODY) - len(rest), len(rest))]) == rest


def test_what_is_before_the_body_comes_without(file: int) -> None:
    made = memory(sealed(mark(7), body=BODY))
    start = head_of(made).body_at
    assert all_of(made, [Run(0, start)]) == os.pread(made, start, 0)
    with pytest.raises(Lost, match="can't be checked"):
        all_of(made, [Run(start, 1)])
    os.close(made)


def test_nothing_comes_of_what_is_written_over_meanwhile(file: int) -> None:
    head = head_of(file)
    reading = Source(file, head).read([Run(head.body_at, 1000)], 0, 500)
    assert next(reading) == BODY[:500]
    os.pwrite(file, bytes(8), 0)  # as a writer begins
    with pytest.raises(Lost, match="it has been written over meanwhile"):
        next(reading)


def test_nothing_comes_of_what_is_given_up_meanwhile(file: int) -> None:
    head = head_of(file)
    reading = Source(file, head).read([Run(head.body_at, 1000)], 0, 500)
    assert next(reading) == BODY[:500]
    os.ftruncate(file, 0)
    with pytest.raises(Lost, match="meanwhile"):
        next(reading)
