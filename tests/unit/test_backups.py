"""What an agent does with its workers' snapshots, with real connections to others."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.sealed import PART, content, mark, memory, sealed

from unicorn_mgr import seal
from unicorn_mgr.agent import backups, ferry, stripes
from unicorn_mgr.agent.backups import Backups
from unicorn_mgr.agent.stripes import Stripes
from unicorn_mgr.effects.agent import AgentEvent, BackupOver, Fetched, SendBackup
from unicorn_mgr.messages import Holder, Welcome
from unicorn_mgr.model import Mark
from unicorn_mgr.tokens import token

WORKER = "gpt/0.0"
PATIENCE_SECONDS = 30.0


class Agent:
    """One of several nodes."""

    def __init__(self, node: str, folder: Path) -> None:
        self.node = node
        self.memory = folder / f"{node}.port"
        self.told: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self.backups = Backups(node, None, 1 << 20, self.told.put_nowait)
        self.backups.welcomed(Welcome(copies_key=f"key of {node}", backup_bytes_per_second=1e9))
        self.port = self.backups.open("127.0.0.1", self.memory)

    def holder(self, by: Agent) -> Holder:
        return Holder(self.node, "127.0.0.1", self.port, token(f"key of {self.node}", PART, by.node))

    def has(self, *steps: int, committed: bool = True) -> list[int]:
        """A worker here has these snapshots; returns its memory."""
        files = [memory(sealed(mark(step), committed=committed)) for step in steps] or [memory()]
        self.backups.copies.add_own(WORKER, "id", tuple(map(os.dup, files)))
        return files

    def send(self, step: int, to: Holder, base: Mark | None = None) -> None:
        self.backups.send(SendBackup(WORKER, PART, mark(step), base or Mark(), to))

    def steps(self) -> list[int]:
        return sorted(found.mark.step for found in self.backups.copies.look(PART))

    async def looks(self, holders: list[Holder]) -> dict[Mark, bool]:
        """Which snapshots there are on these, and whether each is committed."""
        found = await self.backups.look(PART, holders)
        assert all(seen.mark == at and seen.head_bytes > 0 for at, seen in found.items())
        return {at: seen.committed for at, seen in found.items()}

    async def hears(self) -> AgentEvent:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.told.get()


def agents(test: Callable[[Agent, Agent, Agent], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test with three agents."""

    def run() -> None:
        async def run_within() -> None:
            with tempfile.TemporaryDirectory() as folder:
                three = tuple(Agent(node, Path(folder)) for node in "abc")
                try:
                    await test(*three)
                finally:
                    for agent in three:
                        agent.backups.close()

        asyncio.run(run_within())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@agents
async def test_a_snapshot_is_copied_and_brought_back(a: Agent, b: Agent, c: Agent) -> None:
    a.has(6, 7)
    a.send(7, b.holder(a))
    assert await a.hears() == BackupOver(WORKER, mark(7), kept=True)
    assert b.steps() == [7]
    assert await c.looks([b.holder(c), a.holder(c)]) == {mark(6): True, mark(7): True}
    (into,) = c.has()
    c.backups.fetch(WORKER, PART, mark(7), 0, (b.holder(c),))
    assert await c.hears() == Fetched(WORKER, mark(7))
    assert content(into) == sealed(mark(7))


@agents
async def test_one_that_has_been_written_over_is_not_copied(a: Agent, b: Agent, c: Agent) -> None:
    del c
    a.has(8, 9)
    a.send(7, b.holder(a))
    assert await a.hears() == BackupOver(WORKER, mark(7), kept=False)
    assert b.steps() == []


@agents
async def test_one_that_is_not_committed_is_not_copied(a: Agent, b: Agent, c: Agent) -> None:
    del c
    a.has(7, committed=False)
    a.send(7, b.holder(a))
    assert await a.hears() == BackupOver(WORKER, mark(7), kept=False)


@agents
async def test_a_node_that_comes_later_gets_it(a: Agent, b: Agent, c: Agent) -> None:
    """A copy that fails is tried again; and the word that another node is to have it ends the first attempt."""
    a.has(7)
    b.backups.close()
    a.send(7, b.holder(a))
    a.send(7, c.holder(a))
    assert await a.hears() == BackupOver(WORKER, mark(7), kept=True)
    assert c.steps() == [7]
    assert a.told.empty()


@agents
async def test_a_denial_is_answered_and_tried_again_until_it_is_too_old(a: Agent, b: Agent, c: Agent) -> None:
    del c
    a.has(7)
    a.send(7, replace(b.holder(a), token="wrong"))
    assert await a.hears() == BackupOver(WORKER, mark(7), kept=False)


@agents
async def test_the_next_holder_is_asked_when_one_is_gone_or_has_it_no_more(a: Agent, b: Agent, c: Agent) -> None:
    a.has(7)
    a.send(7, b.holder(a))
    await a.hears()
    gone = replace(b.holder(c), port=1)
    nothing = c.holder(c)
    assert await c.looks([gone, nothing, b.holder(c)]) == {mark(7): True}
    (into,) = c.has()
    c.backups.fetch(WORKER, PART, mark(7), 0, (gone, nothing, b.holder(c)))
    assert await c.hears() == Fetched(WORKER, mark(7))
    assert content(into) == sealed(mark(7))


@agents
async def test_what_nobody_has_is_said_with_the_reason(a: Agent, b: Agent, c: Agent) -> None:
    del a
    c.has()
    c.backups.fetch(WORKER, PART, mark(7), 0, (b.holder(c),))
    heard = await c.hears()
    assert isinstance(heard, Fetched)
    assert heard.failed == "b: it is not here any more"


@agents
async def test_the_next_agent_is_found_where_the_one_before_was(a: Agent, b: Agent, c: Agent) -> None:
    """Unless somebody else is there, or what has been kept is of no use."""
    a.backups.close()
    again = Agent("a", a.memory.parent)
    assert again.port == a.port
    beside = Agent("a", a.memory.parent)
    assert beside.port not in (0, a.port)
    for nonsense in ("", "x", "-1", "70000"):
        c.memory.write_text(nonsense)
        other = Agent("c", c.memory.parent)
        assert other.port not in (0, c.port)
        other.backups.close()
    again.has(7)
    assert list(await b.backups.look(PART, [a.holder(b)])) == [mark(7)]
    for agent in (again, beside):
        agent.backups.close()


@agents
async def test_what_its_own_node_has_is_seen_before_the_coordinator_is_heard(a: Agent, b: Agent, c: Agent) -> None:
    a.has(7)
    a.send(7, b.holder(a))
    await a.hears()
    b.backups.welcomed(Welcome())
    assert list(await b.backups.look(PART, [b.holder(b)])) == [mark(7)]
    assert await c.backups.look(PART, [b.holder(c)]) == {}


@agents
async def test_a_fetch_that_is_not_wanted_any_more_ends(a: Agent, b: Agent, c: Agent) -> None:
    """Whoever waits hears of it at once, though the other side is silent, and nobody writes into its memory then."""
    del a, b
    (into,) = c.has()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        c.backups.fetch(WORKER, PART, mark(7), 0, (replace(c.holder(c), port=silent.getsockname()[1]),))
        line, _ = await asyncio.to_thread(silent.accept)
        for _ in range(2):  # an agent is told again of what nobody has answered
            c.backups.fetch(WORKER, PART, Mark(), 0, ())
        assert await c.hears() == Fetched(WORKER, mark(7), "it is not wanted any more")
        with line:
            data = sealed(mark(7))
            ferry._hear(line)
            ferry._say(line, {"size": len(data), "seal": data[: seal.SEAL.size].hex()})
            assert await asyncio.to_thread(line.recv, 100) == b"", "it hangs up"
    assert content(into) == b""
    assert c.told.empty()


@agents
async def test_whoever_asks_an_agent_that_has_only_just_come_to_stop_does_not_wait(
    a: Agent, b: Agent, c: Agent
) -> None:
    """The one before it, which was bringing the snapshot, has died before it could say that it has stopped."""
    del a, b
    c.has()
    c.backups.fetch(WORKER, PART, Mark(), 0, ())
    assert await c.hears() == Fetched(WORKER, Mark(), "nothing is under way")


class Meeting(Stripes):
    """Nobody brings a second chunk before everybody has brought one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.party, self.first, self.here = threading.Barrier(2), threading.Lock(), set[str]()

    def put(self, seal: str, at: int, chunk: memoryview, node: str) -> None:
        super().put(seal, at, chunk, node)
        with self.first:
            new = node not in self.here
            self.here.add(node)
        if new:
            self.party.wait(PATIENCE_SECONDS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[Meeting]:
    """Chunks are, and those who have them meet; what comes is noted."""
    coming: list[Meeting] = []

    def made(*args: Any) -> Meeting:
        coming.append(Meeting(*args))
        return coming[-1]

    for module in (ferry, stripes):
        monkeypatch.setattr(module, "CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(backups, "Stripes", made)
    return coming


CHUNK_BYTES = 1000


def keep(agent: Agent, data: bytes) -> None:
    """It has this snapshot."""
    agent.backups.copies.add_own("gpt/9.0", "id", (memory(data),))


def test_all_who_have_a_snapshot_bring_some_of_it(small: list[Meeting]) -> None:
    data = sealed(mark(7), body=os.urandom(20_000))

    @agents
    async def test(a: Agent, b: Agent, c: Agent) -> None:
        keep(a, data)
        keep(b, data)
        (into,) = c.has()
        c.backups.fetch(WORKER, PART, mark(7), 0, (a.holder(c), b.holder(c)))
        assert await c.hears() == Fetched(WORKER, mark(7))
        assert content(into) == data

    test()
    came = small[0].came
    assert min(came.values()) >= CHUNK_BYTES
    assert (sorted(came), sum(came.values())) == (["a", "b"], len(data)), "each byte once"


def test_who_dies_costs_the_chunks_that_it_was_asked_for(small: list[Meeting], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has brought one before, and is asked for two: the other brings them."""
    data = sealed(mark(7), body=os.urandom(20_000))

    class Dies(Meeting):
        def put(self, seal: str, at: int, chunk: memoryview, node: str) -> None:
            if node == "a" and node in self.here:
                raise ConnectionResetError("a has died")
            super().put(seal, at, chunk, node)

    def made(*args: Any) -> Meeting:
        small.append(Dies(*args))
        return small[-1]

    monkeypatch.setattr(backups, "Stripes", made)

    @agents
    async def test(a: Agent, b: Agent, c: Agent) -> None:
        keep(a, data)
        keep(b, data)
        (into,) = c.has()
        c.backups.fetch(WORKER, PART, mark(7), 0, (a.holder(c), b.holder(c)))
        assert await c.hears() == Fetched(WORKER, mark(7))
        assert content(into) == data

    test()
    assert small[0].came["a"] <= CHUNK_BYTES
    assert sum(small[0].came.values()) == len(data)
    assert len(small) == 1


@agents
async def test_of_two_that_are_not_the_same_one_comes_whole(a: Agent, b: Agent, c: Agent) -> None:
    """Another replica's of the same step, a bit of which is another: whoever answers first."""
    both = [sealed(mark(7), body=os.urandom(9_000)) for _ in range(2)]
    for agent, data in zip((a, b), both, strict=True):
        keep(agent, data)
    (into,) = c.has()
    c.backups.fetch(WORKER, PART, mark(7), 0, (a.holder(c), b.holder(c)))
    assert await c.hears() == Fetched(WORKER, mark(7))
    assert content(into) in both


@agents
async def test_nothing_is_sent_for_a_worker_that_is_gone(a: Agent, b: Agent, c: Agent) -> None:
    del c
    a.has(7)
    a.send(7, replace(b.holder(a), port=1))
    a.backups.end(WORKER)
    await asyncio.to_thread(_ferries_gone)
    assert a.told.empty()


def _ferries_gone() -> None:
    for thread in threading.enumerate():
        if thread.name == "unicorn-ferry":
            thread.join()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up within moments."""
    monkeypatch.setattr(backups, "SEAL_SECONDS", 0.05)
    monkeypatch.setattr(backups, "SEND_SECONDS", 0.3)
    monkeypatch.setattr(backups, "RETRY_SECONDS", 0.02)
