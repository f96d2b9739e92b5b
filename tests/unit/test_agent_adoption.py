"""Workers of an agent's earlier incarnation, and what it has kept of them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from unicorn_mgr.agent import service
from unicorn_mgr.agent.cutoff import keep, recall
from unicorn_mgr.agent.host import Host, HostConfig, _note
from unicorn_mgr.agent.service import AgentConfig, AgentService
from unicorn_mgr.agent.tcpstore import StoreFront
from unicorn_mgr.agent.templates import Found
from unicorn_mgr.effects.agent import Adopted, AgentAction, AgentEvent, CoordinatorSaid, CutOff, Freeze, Gone, Thaw
from unicorn_mgr.messages import StartWorker, Synced
from unicorn_mgr.ring import SIZE_BYTES

WORKERS = ("job/0.0", "job/1.0")
FROZEN = CutOff(1.0, 120.0, frozen=True)


def found(worker: str) -> Found:
    ring = os.memfd_create("ring")
    os.truncate(ring, SIZE_BYTES)
    order = StartWorker(worker=worker, job="job", command=("true",))
    return Found(worker, os.getpid(), ring, os.memfd_create("words"), _note("token", 1, order))


@pytest.fixture(autouse=True)
def _nothing_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unicorn_mgr.agent.processes.Process.watch", lambda *_: None)
    monkeypatch.setattr("unicorn_mgr.agent.processes.strays", lambda *_: [])
    monkeypatch.setattr("unicorn_mgr.agent.processes.signal_session", lambda *_: None)
    monkeypatch.setattr(StoreFront, "open", _nowhere)
    monkeypatch.setattr(service, "SOCKET_PATH_BYTES_MAX", 4096)  # nothing listens here


async def _nowhere(*_: object) -> None:
    pass


async def two_workers(_: object) -> list[Found]:
    return [found(worker) for worker in WORKERS]


def test_an_end_while_stores_are_opened_again_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[AgentEvent] = []
    opened: list[str] = []
    config = HostConfig(
        node="n", slots=(), address="127.0.0.1", data=tmp_path, socket=tmp_path / "a.sock", templates=tmp_path
    )

    async def scenario() -> None:
        host = Host(config, told.append, lambda _: None)

        async def meanwhile(front: StoreFront, port: int = 0) -> None:
            del port
            opened.append(front.worker)
            if front.worker == WORKERS[0]:
                host._ended(WORKERS[1], 3)

        monkeypatch.setattr(StoreFront, "open", meanwhile)
        monkeypatch.setattr("unicorn_mgr.agent.templates.TemplatePool.adopt_all", two_workers)
        await host.start()
        await host.close()

    asyncio.run(scenario())
    assert [type(event) for event in told] == [Adopted, Adopted, Gone]
    assert opened == [WORKERS[0]], "nobody looks for the other's"


class Restarted:
    """An agent whose last incarnation has kept `FROZEN`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        keep(folder, FROZEN)
        self.kept_when: dict[AgentAction, CutOff | None] = {}
        self._folder = folder
        self.service = AgentService(
            AgentConfig(
                coordinator="127.0.0.1:1", node="n", slots=(), data=folder, socket=folder / "n.sock", templates=folder
            )
        )
        monkeypatch.setattr(self.service, "_perform", self._perform)
        monkeypatch.setattr("unicorn_mgr.agent.templates.TemplatePool.adopt_all", two_workers)
        monkeypatch.setattr(self.service._hub, "open", self._until_it_serves)

    def _perform(self, action: AgentAction) -> None:
        self.kept_when[action] = recall(self._folder)

    async def _until_it_serves(self) -> None:
        raise InterruptedError

    def run(self) -> None:
        with pytest.raises(InterruptedError):
            asyncio.run(self.service.run())
        self.service._claimed.close()


def test_what_was_kept_is_not_lost_while_workers_are_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restarted = Restarted(tmp_path, monkeypatch)
    seen: list[CutOff | None] = []

    async def looked(*_: object) -> None:
        seen.append(recall(tmp_path))

    monkeypatch.setattr(StoreFront, "open", looked)
    restarted.run()
    assert seen == [FROZEN, FROZEN]
    assert restarted.kept_when == {Freeze(): FROZEN}


def test_workers_are_kept_as_frozen_until_they_are_thawed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restarted = Restarted(tmp_path, monkeypatch)
    restarted.run()
    restarted.service._emit(CoordinatorSaid(Synced()))
    assert restarted.kept_when[Thaw()] == FROZEN
    assert recall(tmp_path) == CutOff(1.0, 120.0)


def test_what_was_kept_of_workers_that_are_gone_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restarted = Restarted(tmp_path, monkeypatch)

    async def none(_: object) -> list[Found]:
        return []

    monkeypatch.setattr("unicorn_mgr.agent.templates.TemplatePool.adopt_all", none)
    restarted.run()
    restarted.service._emit(CoordinatorSaid(Synced()))
    assert restarted.kept_when == {}
    assert recall(tmp_path) == CutOff()
