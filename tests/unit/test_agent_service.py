"""The agent as a process outlives what goes wrong outside."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from pathlib import Path

import grpc
import pytest

from unicorn_mgr.agent import service
from unicorn_mgr.agent.service import AgentConfig, AgentService
from unicorn_mgr.agent.snapshots import SnapshotError
from unicorn_mgr.effects.agent import AgentEvent, NotSpawned
from unicorn_mgr.messages import StartWorker
from unicorn_mgr.tls import CredentialsError


def archive() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as files:
        files.addfile(tarfile.TarInfo("train.py"))
    return made.getvalue()


ARCHIVE = archive()
ORDER = StartWorker("gpt/0.0", "gpt", ("python", "train.py"), snapshot=hashlib.sha256(ARCHIVE).hexdigest())


def status(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Spawning:
    """An agent that starts one worker; each fetch meets the next of `answers`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: bytes | Exception) -> None:
        made = AgentService(
            AgentConfig(
                coordinator="127.0.0.1:1", node="n", slots=(), data=folder, socket=folder / "n.sock", templates=folder
            )
        )
        self.left = list(answers)
        self.spawned: list[Path | None] = []
        self.emitted: list[AgentEvent] = []
        monkeypatch.setattr(service, "FETCH_AGAIN_SECONDS", 0.0)
        monkeypatch.setattr(made._link, "fetch_snapshot", self._fetch)
        monkeypatch.setattr(made._host, "spawn", lambda _, folder: self.spawned.append(folder))
        monkeypatch.setattr(made, "_emit", self.emitted.append)
        asyncio.run(made._spawn(ORDER))

    async def _fetch(self, digest: str) -> bytes:
        assert digest == ORDER.snapshot
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(service, "SOCKET_PATH_BYTES_MAX", 4096)  # nothing listens here
    return tmp_path_factory.mktemp("agent")


def test_files_are_fetched_when_the_coordinator_is_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = status(grpc.StatusCode.UNAVAILABLE, "Connection refused")
    spawning = Spawning(folder, monkeypatch, away, away, ARCHIVE)
    assert spawning.left == []
    assert spawning.spawned == [folder / "snapshots" / ORDER.snapshot]
    assert (folder / "snapshots" / ORDER.snapshot / "train.py").exists()
    assert spawning.emitted == []


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (status(grpc.StatusCode.NOT_FOUND, "not\n here"), "it can't be fetched: not_found: not here"),
        (CredentialsError("tls: no such file"), "tls: no such file"),
        (SnapshotError("snapshot: spoilt"), "snapshot: spoilt"),
    ],
    ids=["not found", "credentials", "spoilt"],
)
def test_files_that_can_not_be_had_end_the_worker_and_not_the_agent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, said: str
) -> None:
    spawning = Spawning(folder, monkeypatch, failure)
    assert spawning.spawned == []
    (told,) = spawning.emitted
    assert isinstance(told, NotSpawned)
    assert told.worker == ORDER.worker
    assert told.error.endswith(said)
    assert "\n" not in told.error
