"""One command run twice: by plain python, and as an agent runs it from a warm template."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from unicorn_mgr.agent.host import Host, HostConfig
from unicorn_mgr.agent.templates import Found
from unicorn_mgr.effects.agent import AgentEvent, Gone, NotSpawned
from unicorn_mgr.messages import Attached, Mistake, StartWorker
from unicorn_mgr.model import Slot

T = TypeVar("T")

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command has done."""

    status: int
    output: str
    """stdout and stderr, as they came."""
    files: dict[str, bytes]
    """What it left in its folder."""


class NotStarted(Exception):
    """The agent did not start it."""

    def __init__(self, error: str, mistake: Mistake | None) -> None:
        super().__init__(error)
        self.mistake = mistake


class Bench:
    """A folder to run in, an agent's hands, and its template."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self._folder = folder
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ended: dict[str, asyncio.Future[Gone]] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        """What templates were asked for, by worker."""
        self._config = HostConfig(
            node="n",
            slots=(Slot(),),
            address="127.0.0.1",
            data=folder / "data",
            socket=folder / "agent.sock",
            templates=folder / "t",
        )
        self.host = self._run(self._make(self._config))

    # -- running -------------------------------------------------------------------------

    def both(
        self,
        command: Sequence[str],
        files: Mapping[str, str | bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[Outcome, Outcome]:
        """What plain python does, and what a worker does."""
        warm = self.warm(command, files, environment)
        request = self.requests[next(reversed(self.requests))]
        return self.plain(command, files, request["env"]), warm

    def plain(
        self, command: Sequence[str], files: Mapping[str, str | bytes] | None, environment: Mapping[str, str]
    ) -> Outcome:
        """By the interpreter itself, in the same environment."""
        self._lay_out(files or {})
        output = self._folder / "plain.log"
        with output.open("ab") as log:
            log.truncate(0)
            process = subprocess.Popen(
                command, cwd=self.project, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            status = process.wait(PATIENCE_SECONDS)
        return Outcome(status, output.read_text(), self._left(files or {}))

    def warm(
        self,
        command: Sequence[str],
        files: Mapping[str, str | bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        slot: int = 0,
        job_id: str = "",
        forget: bool = True,
    ) -> Outcome:
        """As a worker.  `forget`: nobody counts on what it has left."""
        self._lay_out(files or {})
        worker = f"job/{next(self._numbers)}.0"
        order = StartWorker(
            worker=worker,
            job="job",
            command=tuple(command),
            environment={"PYTHONUNBUFFERED": "1", **(environment or {})},
            directory=str(self.project),
            slot=slot,
            welcome=Attached(job_id=job_id),
        )
        gone = self._run(self._start(order))
        output = (self._folder / "data" / "logs" / "job" / f"{worker.rpartition('/')[2]}.log").read_text()
        if forget:
            self._run(self._forget(worker))
        return Outcome(gone.code, output, self._left(files or {}))

    def restart_agent(self) -> None:
        """Another incarnation of it finds the template."""
        started = self.host._templates._started
        self._run(self.host.close())
        self.host = self._run(self._make(self._config))
        self._run(self.host.start())
        self.host._templates._started += started

    def release(self, *job_ids: str) -> None:
        """Only these jobs are left."""
        self._loop.call_soon_threadsafe(self.host.release, job_ids)

    def _lay_out(self, files: Mapping[str, str | bytes]) -> None:
        shutil.rmtree(self.project, ignore_errors=True)
        self.project.mkdir()
        for name, content in files.items():
            path = self.project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def _left(self, files: Mapping[str, str | bytes]) -> dict[str, bytes]:
        left = (p for p in self.project.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        found = {str(p.relative_to(self.project)): p.read_bytes() for p in left}
        return {name: data for name, data in found.items() if name not in files}

    # -- in the event loop ---------------------------------------------------------------

    async def _make(self, config: HostConfig) -> Host:
        host = Host(config, self._hear, lambda call: None)
        spawn = host._templates.spawn

        async def record(request: dict[str, Any], *arguments: Any) -> Found:
            self.requests[request["worker"]] = request
            return await spawn(request, *arguments)

        host._templates.spawn = record  # type: ignore[method-assign, assignment]  # looks on
        return host

    def _hear(self, event: AgentEvent) -> None:
        match event:
            case Gone():
                self._ended[event.worker].set_result(event)
            case NotSpawned():
                self._ended[event.worker].set_exception(NotStarted(event.error, event.mistake))

    async def _start(self, order: StartWorker) -> Gone:
        self._ended[order.worker] = asyncio.get_running_loop().create_future()
        self.host.spawn(order, None)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._ended[order.worker]

    async def _forget(self, worker: str) -> None:
        self.host.sweep(worker)
        self.host.forget(worker)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def close(self) -> None:
        """End the template and the loop."""
        self._run(self.host.close())
        for process in self.host._templates._started:
            process.kill()
            process.wait()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """A bench, ended with the block."""
    made = Bench(folder)
    try:
        yield made
    finally:
        made.close()


def python(*arguments: str) -> list[str]:
    """A command line of this interpreter."""
    return [sys.executable, *arguments]
