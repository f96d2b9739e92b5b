"""Output on its way to followers: bounded, counted where it is lost, asked for only while wanted."""

from __future__ import annotations

import asyncio

from unicorn_mgr.coordinator.logbook import CHUNKS_MAX, LogBook
from unicorn_mgr.messages import LogChunk, ToAgent, WatchLogs


def test_agents_are_asked_for_output_only_while_somebody_follows() -> None:
    book, said = LogBook(), list[ToAgent]()
    watch = book.open("gpt", True, said.append)
    book.close(watch, said.append)
    assert said == [WatchLogs(watch.name, "gpt", True), WatchLogs(watch.name, "gpt", stop=True)]
    said.clear()
    book.remind(said.append)
    assert said == []


def test_two_followers_get_their_own() -> None:
    book = LogBook()
    one, other = (book.open("gpt", False, lambda _: None) for _ in range(2))
    book.hear("n0", LogChunk(one.name, "gpt/0.0", b"for one"))
    book.hear("n0", LogChunk("watch-of-nobody", "gpt/0.0", b"for nobody"))
    assert one.chunks.get_nowait().data == b"for one"
    assert other.chunks.empty()


def test_a_follower_that_is_too_slow_loses_the_oldest_and_sees_how_much() -> None:
    book = LogBook()
    watch = book.open("gpt", False, lambda _: None)
    for number in range(CHUNKS_MAX + 3):
        book.hear("n0", LogChunk(watch.name, "gpt/0.0", b"%08d" % number, offset=8 * number))
    assert watch.chunks.qsize() == CHUNKS_MAX
    oldest = watch.chunks.get_nowait()
    assert (oldest.data, oldest.offset) == (b"00000003", 3 * 8)


def test_a_waiting_follower_wakes_when_output_comes() -> None:
    async def follow() -> bytes:
        book = LogBook()
        watch = book.open("gpt", False, lambda _: None)
        waiting = asyncio.create_task(watch.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        book.hear("n0", LogChunk(watch.name, "gpt/0.0", b"here"))
        await waiting
        await watch.wait()  # what has not been taken is not waited for
        return watch.chunks.get_nowait().data

    assert asyncio.run(follow()) == b"here"
