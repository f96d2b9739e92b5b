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
from unicorn_mgr.codec import decoder, encode
from unicorn_mgr.effects.agent import AgentEvent, Spawned, WorkerSaid
from unicorn_mgr.messages import Attach, Attached, StartWorker, ToWorker, WorkerMessage
from unicorn_mgr.model import PROTOCOL, Slot
from unicorn_mgr.ring import SIZE_BYTES

WORKER = "job/0.0"
_LENGTH = struct.Struct("<I")


class EagerTemplate:
    """A template whose worker attaches before the template has told of it; `early` runs in between."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.said: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def spawn(self, request: dict[str, Any], *_: object) -> Found:
        token = request["note"].partition(" ")[0]
        self.said, self._writer = await asyncio.open_unix_connection(str(self.socket))
        data = encode(WorkerMessage(Attach(worker=WORKER, token=token, protocol=PROTOCOL)))
        self._writer.write(_LENGTH.pack(len(data)) + data)
        # Time enough for the hub to read it, if it did not wait.
        await asyncio.sleep(0.05)
        ring = os.memfd_create("ring")
        os.truncate(ring, SIZE_BYTES)
        return Found(WORKER, os.getpid(), ring, os.memfd_create("words"))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def test_a_worker_may_attach_before_its_template_has_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicorn_mgr.agent.processes.Process.watch", lambda *_: None)
    emitted: list[AgentEvent] = []

    async def scenario() -> object:
        socket = tmp_path / "a.sock"
        config = HostConfig(
            node="n", slots=(Slot(0, "cpu"),), address="127.0.0.1", data=tmp_path, socket=socket, templates=tmp_path
        )
        host = Host(config, emitted.append, lambda _: None)
        template = EagerTemplate(socket)
        monkeypatch.setattr(host, "_templates", template)
        hub = Hub(socket, host, emitted.append)
        await hub.open()
        order = StartWorker(worker=WORKER, job="job", command=("sh", "-c", "true"), directory=str(tmp_path))
        host.spawn(order, None)
        async with asyncio.timeout(5):
            while not any(isinstance(e, WorkerSaid) for e in emitted):
                assert template.said is None or not template.said.at_eof(), await _answer(template.said)
                await asyncio.sleep(0.01)
        await hub.close()
        await host.close()
        return [type(e) for e in emitted]

    assert asyncio.run(scenario()) == [Spawned, WorkerSaid]


async def _answer(said: asyncio.StreamReader) -> str:
    (length,) = _LENGTH.unpack(await said.readexactly(_LENGTH.size))
    told = decoder(ToWorker)(await said.readexactly(length)).body
    return told.refused if isinstance(told, Attached) else str(told)
