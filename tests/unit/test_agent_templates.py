"""The agent's line to templates, one of which is played here."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

from unicorn_mgr.agent.templates import TemplatePool


def test_one_that_has_just_died_is_told_in_vain(tmp_path: Path) -> None:
    """All are told when any job ends; that one of them is gone is heard a moment later."""

    async def live() -> list[list[str]]:
        loop = asyncio.get_running_loop()
        lost: asyncio.Queue[list[str]] = asyncio.Queue()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(tmp_path / "one.sock"))
        listener.listen()
        listener.setblocking(False)
        pool = TemplatePool(tmp_path, "n", lambda *_: None, lost.put_nowait)
        adopting = asyncio.create_task(pool.adopt_all())
        template, _ = await loop.sock_accept(listener)
        template.send(json.dumps({"op": "ready"}).encode())
        assert await adopting == []
        listener.close()
        template.close()
        pool.release("agent", None, ())
        async with asyncio.timeout(10):
            return [await lost.get()]

    assert asyncio.run(live()) == [[]]
