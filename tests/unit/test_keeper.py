"""Copies in the hands of a template: real processes, and agents that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.sealed import PART, content, mark, memory, sealed

from unicorn_mgr import seal
from unicorn_mgr.agent.copies import Copies
from unicorn_mgr.agent.keeper import Keeper
from unicorn_mgr.agent.templates import TemplatePool
from unicorn_mgr.model import Mark, StatePart

PATIENCE_SECONDS = 30.0
ROOM = 1 << 20


class Place:
    """Where one agent after the other finds the same templates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    @contextlib.asynccontextmanager
    async def agent(self, node: str = "n", bytes_max: int = ROOM) -> AsyncIterator[tuple[Copies, TemplatePool]]:
        """One, until it is gone."""

        def lost(_: list[str]) -> None:
            keeper.keep_again()

        pool = TemplatePool(self.folder, node, Path(f"{node}.sock"), lambda *_: None, lost, lambda *_: None)
        await pool.adopt_all()
        copies = Copies(bytes_max)
        copies.keeper = keeper = Keeper(copies, pool, os.environ)
        keeper.adopt()
        try:
            yield copies, pool
        finally:
            keeper.close()
            pool.close()
            self.started += pool._started


def live(folder: Path, test: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    place = Place(folder)

    async def within() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await test(place)

    try:
        asyncio.run(within())
    finally:
        for process in place.started:
            process.kill()
            process.wait()


async def come(copies: Copies, step: int, base: Mark | None = None, part: StatePart = PART) -> None:
    """All of a copy comes, as in a visitor's thread."""
    data = sealed(mark(step), part)
    told = seal.find(memory(data))
    assert told is not None
    copy, file = copies.begin(part, told.mark, told.checksum, told.end, base or Mark(), "gpt/1.0")
    os.pwrite(file, data, 0)
    os.close(file)
    copy.received = copy.size
    assert await asyncio.to_thread(copies.check, copy) == ""


def steps(copies: Copies, part: StatePart = PART) -> list[int]:
    return sorted(found.mark.step for found in copies.look(part))


def test_the_next_agent_has_what_was_whole(tmp_path: Path) -> None:
    async def restarts(place: Place) -> None:
        async with place.agent() as (copies, _):
            await come(copies, 3)
            await come(copies, 5, mark(3))
            copies.begin(PART, mark(7), 1, 1000, mark(5), "gpt/1.0")
        async with place.agent() as (copies, _):
            assert (steps(copies), copies.count()) == ([3, 5], 2)
            found = copies.open(PART, mark(5))
            assert found is not None
            assert content(found[0]) == sealed(mark(5))
            await come(copies, 9, mark(5))
            assert steps(copies) == [5, 9]
        async with place.agent() as (copies, _):
            assert steps(copies) == [5, 9], "what has made way is kept by nobody"
            copies.release(())
            await asyncio.sleep(0)
        async with place.agent() as (copies, _):
            assert copies.count() == 0

    live(tmp_path, restarts)


def test_each_agent_has_its_own(tmp_path: Path) -> None:
    """Several on one machine share a template."""
    other = replace(PART, position=0)

    async def two(place: Place) -> None:
        async with place.agent("a") as (a, _), place.agent("b") as (b, _):
            await come(a, 3)
            await come(b, 4, part=other)
        async with place.agent("b") as (b, _):
            assert (steps(b), steps(b, other)) == ([], [4])

    live(tmp_path, two)


def test_with_less_room_than_before_some_are_let_go(tmp_path: Path) -> None:
    async def shrinks(place: Place) -> None:
        async with place.agent() as (copies, _):
            await come(copies, 3)
            await come(copies, 5, mark(3))
        async with place.agent(bytes_max=len(sealed(mark(3)))) as (copies, _):
            assert len(steps(copies)) == 1
            await asyncio.sleep(0)
        async with place.agent() as (copies, _):
            assert len(steps(copies)) == 1

    live(tmp_path, shrinks)


def test_when_the_template_dies_another_keeps_them(tmp_path: Path) -> None:
    async def dies(place: Place) -> None:
        async with place.agent() as (copies, pool):
            await come(copies, 3)
            (template,) = pool._started
            os.kill(template.pid, signal.SIGKILL)
            while not (len(pool._started) == 2 and pool._keeps):
                await asyncio.sleep(0.01)
        async with place.agent() as (copies, _):
            assert steps(copies) == [3]

    live(tmp_path, dies)


def test_without_a_template_there_is_a_copy_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lacks(place: Place) -> None:
        async with place.agent() as (copies, _):
            await come(copies, 3)
            assert steps(copies) == [3]
        async with place.agent() as (copies, _):
            assert steps(copies) == []

    monkeypatch.setattr("unicorn_mgr.agent.templates.sys.executable", "/nowhere/python")
    live(tmp_path, lacks)
