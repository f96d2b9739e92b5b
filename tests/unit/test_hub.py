"""Workers and their agent's socket."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from unicorn_mgr.agent.host import Host, HostConfig
from unicorn_mgr.agent.hub import Hub
from unicorn_mgr.agent.templates import Found
from unicorn_mgr.codec import encode
from unicorn_mgr.effects.agent import AgentEvent, Spawned, WorkerSaid
from unicorn_mgr.messages import Attach, StartWorker, WorkerMessage
from unicorn_mgr.model import PROTOCOL, Slot
from unicorn_mgr.ring import SIZE_BYTES

WORKER = "job/0.0"
PATIENCE_SECONDS = 5.0
_LENGTH = struct.Struct("<I")


class EagerTemplate:
    """A template that tells of its worker when this has attached, and the hub has asked for it."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.asked = asyncio.Event()
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def spawn(self, request: dict[str, Any], *_: object) -> Found:
        token = request["note"].partition(" ")[0]
        self._line = await asyncio.open_unix_connection(str(self.socket))
        data = encode(WorkerMessage(Attach(worker=WORKER, token=token, protocol=PROTOCOL)))
        self._line[1].write(_LENGTH.pack(len(data)) + data)
        await self.asked.wait()
        ring = os.memfd_create("ring")
        os.truncate(ring, SIZE_BYTES)
        return Found(WORKER, os.getpid(), ring, os.memfd_create("words"))

    def close(self) -> None:
        if self._line is not None:
            self._line[1].close()


def test_a_worker_may_attach_before_its_template_has_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicorn_mgr.agent.processes.Process.watch", lambda *_: None)

    async def scenario() -> object:
        socket = tmp_path / "a.sock"
        config = HostConfig(
            node="n", slots=(Slot(0, "cpu"),), address="127.0.0.1", data=tmp_path, socket=socket, templates=tmp_path
        )
        emitted: asyncio.Queue[AgentEvent] = asyncio.Queue()
        host = Host(config, emitted.put_nowait, lambda _: None)
        template = EagerTemplate(socket)
        monkeypatch.setattr(host, "_templates", template)
        started = host.started

        async def ask(worker: str) -> None:
            template.asked.set()
            await started(worker)

        monkeypatch.setattr(host, "started", ask)
        hub = Hub(socket, host, emitted.put_nowait)
        await hub.open()
        order = StartWorker(worker=WORKER, job="job", command=("sh", "-c", "true"), directory=str(tmp_path))
        host.spawn(order, None)
        async with asyncio.timeout(PATIENCE_SECONDS):
            kinds = [type(await emitted.get()), type(await emitted.get())]
        await hub.close()
        await host.close()
        return kinds

    assert asyncio.run(scenario()) == [Spawned, WorkerSaid]
