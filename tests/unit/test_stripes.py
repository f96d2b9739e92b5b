"""The queue of chunks: each once, whoever brings it, and of one snapshot alone."""

from __future__ import annotations

import os
import threading

import pytest
from unit.sealed import content, memory

from unicorn_mgr.agent import stripes
from unicorn_mgr.agent.stripes import Stripes

ONE, OTHER = "01" * 24, "02" * 24
DATA = bytes(range(25))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripes, "CHUNK_BYTES", 10)


def put(coming: Stripes, at: int | None, seal: str = ONE, data: bytes = DATA) -> None:
    assert at is not None
    coming.put(seal, at, memoryview(data)[at : at + coming.length(at)], "a")


def test_each_chunk_is_given_out_once_and_the_first_one_last() -> None:
    coming = Stripes(into := memory(), threading.Event())
    assert coming.agrees(ONE, len(DATA))
    given = [coming.take(ONE, wait=False) for _ in range(4)]
    assert given == [10, 20, 0, None]
    for at in given[:3]:
        assert not coming.complete
        put(coming, at)
    assert coming.complete
    assert (content(into)[:25], coming.came) == (DATA, {"a": 25})


def test_what_was_asked_of_the_dead_is_for_whoever_waits() -> None:
    coming = Stripes(memory(), threading.Event())
    coming.agrees(ONE, 10)
    assert coming.take(ONE, wait=True) == 0
    taken: list[int | None] = []
    waiting = threading.Thread(target=lambda: taken.append(coming.take(ONE, wait=True)))
    waiting.start()
    coming.give_back(ONE, [0])
    waiting.join()
    assert taken == [0]


def test_only_one_snapshot_comes_until_that_is_given_up() -> None:
    coming = Stripes(into := memory(), threading.Event())
    assert coming.agrees(ONE, 10)
    assert not coming.agrees(OTHER, 10)
    at = coming.take(ONE, wait=False)
    coming.give_up(damaged=False)
    assert coming.agrees(OTHER, 10)
    assert not coming.agrees(ONE, 10)
    assert coming.take(ONE, wait=True) is None
    put(coming, at, ONE, b"1" * 10)
    coming.give_back(ONE, [0])
    assert [coming.take(OTHER, wait=False) for _ in range(2)] == [0, None], "nothing of the one before counts"
    put(coming, 0, OTHER, b"2" * 10)
    assert (content(into)[:10], coming.complete) == (b"2" * 10, True)


def test_it_stays_the_one_that_comes_if_nobody_has_another() -> None:
    """Who has it may be back in a moment, and goes on where it was left."""
    coming = Stripes(memory(), threading.Event())
    coming.agrees(ONE, 20)
    put(coming, coming.take(ONE, wait=False))
    coming.give_up(damaged=False)
    assert coming.agrees(ONE, 20)
    assert [coming.take(ONE, wait=False) for _ in range(2)] == [0, None]
    coming.give_up(damaged=True)
    assert not coming.agrees(ONE, 20)


@pytest.mark.parametrize("how", ["close", "stop"])
def test_nobody_writes_when_it_is_over(how: str) -> None:
    stop = threading.Event()
    coming = Stripes(into := memory(), stop)
    coming.agrees(ONE, 20)
    at = coming.take(ONE, wait=False)
    before = content(into)
    coming.close() if how == "close" else stop.set()
    put(coming, at)
    assert content(into) == before
    assert coming.take(ONE, wait=True) is None
    assert not Stripes(os.dup(into), stop).complete
