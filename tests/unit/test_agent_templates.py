"""The agent's line to templates, one of which is played here."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from unicorn_mgr.agent import templates
from unicorn_mgr.agent.templates import PACKET_BYTES_MAX, TemplatePool

PATIENCE_SECONDS = 10.0


class Played:
    """A template, and the agent's line to it."""

    def __init__(self, pool: TemplatePool, template: socket.socket, lost: asyncio.Queue[list[str]]) -> None:
        self.pool = pool
        self.template = template
        self.lost = lost

    async def hears(self) -> dict[str, Any]:
        """The next packet."""
        packet = await asyncio.get_running_loop().sock_recv(self.template, PACKET_BYTES_MAX)
        said: dict[str, Any] = json.loads(packet)
        return said

    def fill(self) -> int:
        """Tell it as much as nobody reads, and twice as much again; returns how many packets that is."""
        (line,) = self.pool._lines.values()
        told = 0
        while not line.unsent:
            self.pool._tell(line, {"number": told})
            told += 1
        for number in range(told, 3 * told):
            self.pool._tell(line, {"number": number})
        return 3 * told


def play(folder: Path, test: Callable[[Played], Awaitable[None]], **ready: Any) -> None:
    """It says of itself that it is ready."""

    async def live() -> None:
        loop = asyncio.get_running_loop()
        lost: asyncio.Queue[list[str]] = asyncio.Queue()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(folder / "one.sock"))
            listener.listen()
            listener.setblocking(False)
            pool = TemplatePool(folder, "n", Path("agent.sock"), lambda *_: None, lost.put_nowait, lambda *_: None)
            adopting = asyncio.create_task(pool.adopt_all())
            template, _ = await loop.sock_accept(listener)
        template.setblocking(False)
        played = Played(pool, template, lost)
        assert await played.hears() == {"op": "adopt", "node": "n", "agent": "agent.sock"}
        template.send(json.dumps({"op": "ready", **ready}).encode())
        assert await adopting == []
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await test(played)
        finally:
            pool.close()
            template.close()

    asyncio.run(live())


def test_one_that_has_just_died_is_told_in_vain(tmp_path: Path) -> None:
    """All are told when any job ends; that one of them is gone is heard a moment later."""

    async def dies(played: Played) -> None:
        played.template.close()
        played.pool.release(())
        assert await played.lost.get() == []

    play(tmp_path, dies, jobs=["one"])


def test_one_that_stands_still_hears_everything_when_it_goes_on(tmp_path: Path) -> None:
    async def stands_still(played: Played) -> None:
        told = played.fill()
        assert [(await played.hears())["number"] for _ in range(told)] == list(range(told))

    play(tmp_path, stands_still)


def test_one_that_dies_while_it_stands_still_is_lost(tmp_path: Path) -> None:
    async def dies(played: Played) -> None:
        played.fill()
        played.template.close()
        assert await played.lost.get() == []

    play(tmp_path, dies)


def test_one_that_stands_still_for_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stands_still(played: Played) -> None:
        (line,) = played.pool._lines.values()
        while line.path in played.pool._lines:
            assert len(line.unsent) <= 3
            played.pool._tell(line, {"op": "nothing"})
        assert await played.lost.get() == []

    monkeypatch.setattr(templates, "UNSENT_MAX", 3)
    play(tmp_path, stands_still)


def test_memory_of_jobs_that_are_over_is_given_back_however_many_others_live(tmp_path: Path) -> None:
    """Once for each, whoever they are that it has memory of: here more of them than go into a packet, too."""
    live = [f"{number:016x}" for number in range(12_000)]
    over = [f"over {number:04}" for number in range(1_500)]

    async def ends(played: Played) -> None:
        played.pool.release(live, slot=3)
        played.pool.release(live)
        played.pool.release(live)
        played.pool.release(())
        about = {"op": "give_back", "agent": "agent.sock"}
        for slot in (3, None):
            assert await played.hears() == {**about, "slot": slot, "jobs": over[:1_000]}
            assert await played.hears() == {**about, "slot": slot, "jobs": over[1_000:]}
        assert await played.hears() == {**about, "slot": None, "jobs": [live[7]]}

    play(tmp_path, ends, jobs=[live[7], *over])
