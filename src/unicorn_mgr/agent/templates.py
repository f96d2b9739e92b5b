"""The agent's line to template processes: find or start the right one, ask it for workers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

START_SECONDS_MAX = 120.0
PACKET_BYTES_MAX = 180_000
JOBS_IN_PACKET = 1000
UNSENT_MAX = 1000
"""Packets that wait for a template which stands still; with more it is given up."""
FILES_MAX = 8
"""Descriptors beside a packet."""

_IMPORT_TIME = (
    "CONDA", "CUDA", "GLOO_", "GOMP_", "HOME", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NCCL_", "NUMEXPR_",
    "NUMPY_", "NVIDIA_", "OMP_", "OPENBLAS_", "PATH", "PYTHON", "PYTORCH", "ROCM", "TMPDIR", "TORCH", "TRITON",
    "TZ", "USER", "VECLIB_", "VIRTUAL_ENV", "XDG_CACHE_HOME",
)  # fmt: skip
"""Variables that the interpreter, libc or torch read when they start, by their beginnings."""

_ROOM = "-" * 512
"""Room in a template's environment, for what its workers write there: whose they are."""

_PER_WORKER = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONUNBUFFERED"})

log = structlog.get_logger()


class TemplateError(Exception):
    """No template, or it refused."""


@dataclass(frozen=True, slots=True)
class Found:
    """A worker's process, as its template knows it."""

    worker: str
    pid: int
    ring: int
    words: int
    note: str = ""
    status: int | None = None
    snapshots: tuple[int, ...] = ()
    """What it leaves snapshots of its state in."""
    part: int = -1
    """What it leaves parts of checkpoints in, to be stored for it."""
    told: tuple[bytes, ...] = ()
    """What has been said of the one that it has left."""


def socket_of(folder: Path, key: str) -> Path:
    """Where the template for a kind of workers is found."""
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.sock"


def import_time(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a template must be started with."""
    return {
        k: v
        for k, v in sorted(environment.items())
        if k.startswith(_IMPORT_TIME) and k not in _PER_WORKER and not k.startswith("TORCHELASTIC_")
    }


@dataclass(eq=False)
class _Line:
    """One connected template."""

    path: Path
    socket: socket.socket
    spawning: dict[str, asyncio.Future[Found]] = field(default_factory=dict)
    adopted: dict[str, Found] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    unsent: deque[tuple[bytes, tuple[int, ...]]] = field(default_factory=deque)
    """With descriptors that travel along, and are for whoever sends them to close."""
    jobs: set[str] = field(default_factory=set)
    """Of which it may have memory with snapshots."""


class TemplatePool:
    """All templates of one agent, whose workers find it at `agent`.

    `ended` is told of exits, `lost` of workers whose template has died, `told` of what is said of parts of checkpoints.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        agent: Path,
        ended: Callable[[str, int], None],
        lost: Callable[[list[str]], None],
        told: Callable[[str, bytes], None],
    ) -> None:
        self._told = told
        self._folder = folder
        self._node = node
        self._agent = str(agent)
        self._ended = ended
        self._lost = lost
        self._lines: dict[Path, _Line] = {}
        self._line_of: dict[str, _Line] = {}
        self._opening: dict[Path, asyncio.Lock] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._keeps: dict[str, _Line] = {}
        self._kept: list[tuple[str, int]] = []
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def adopt_all(self) -> list[Found]:
        """Workers of this node that templates already running still have."""
        lines: list[_Line] = []
        for path in sorted(self._folder.glob("*.sock")):
            with contextlib.suppress(OSError):  # it has died, and what it had with it
                lines.append(await self._connect(path))
        return [found for line in lines for found in line.adopted.values()]

    async def spawn(
        self,
        request: dict[str, Any],
        interpreter: str,
        flags: tuple[str, ...],
        environment: Mapping[str, str],
    ) -> Found:
        """Make a worker's process.  Raises `TemplateError`."""
        bare = request["kind"] == "exec"
        line = await self._open(sys.executable if bare else interpreter, flags, environment, bare)
        asked = {**request, "op": "spawn", "node": self._node, "agent": self._agent}
        size = len(json.dumps(asked).encode())
        if size > PACKET_BYTES_MAX:
            raise TemplateError(f"environment: {size} bytes with the command: want at most {PACKET_BYTES_MAX}")
        self.release((request["job"],), request["slot"])
        worker = request["worker"]
        spawned: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        line.spawning[worker] = spawned
        self._line_of[worker] = line
        line.jobs.add(request["job"])
        self._tell(line, asked)
        return await spawned

    def release(self, live: Collection[str], slot: int | None = None) -> None:
        """Give back the memory with snapshots of other jobs than these; in one slot, if one is named.

        Those are named whose memory it is: of jobs that live there may be more than a packet can have.
        """
        for line in list(self._lines.values()):
            over = sorted(line.jobs.difference(live))
            for at in range(0, len(over), JOBS_IN_PACKET):
                jobs = over[at : at + JOBS_IN_PACKET]
                self._tell(line, {"op": "give_back", "agent": self._agent, "slot": slot, "jobs": jobs})
            if slot is None:
                line.jobs.difference_update(over)

    def word(self, worker: str, mark: Sequence[int]) -> None:
        """A checkpoint is complete: for whoever stores what this worker has left."""
        line = self._line_of.get(worker)
        if line is not None and line.path in self._lines:
            self._tell(line, {"op": "word", "worker": worker, "mark": list(mark)})

    def forget(self, worker: str) -> None:
        """Let the template reap an ended worker."""
        line = self._line_of.pop(worker, None)
        if line is not None:
            self._tell(line, {"op": "forget", "worker": worker})

    # -- memory of this agent's own ------------------------------------------------------

    async def keep(self, name: str, file: int, environment: Mapping[str, str]) -> None:
        """Have memory kept that must outlive this agent; it is open here, too.  Raises `TemplateError`."""
        line = await self._open(sys.executable, (), environment, bare=True)
        self._keeps[name] = line
        self._tell(line, {"op": "keep", "agent": self._agent, "name": name}, os.dup(file))

    def keeps(self, name: str) -> bool:
        """A template has it."""
        return name in self._keeps

    def drop(self, name: str) -> None:
        """It need not be kept any more."""
        line = self._keeps.pop(name, None)
        if line is not None:
            self._tell(line, {"op": "drop", "agent": self._agent, "name": name})

    def take_kept(self) -> list[tuple[str, int]]:
        """What templates have kept for an agent before this one, by name; the descriptors are the caller's."""
        kept, self._kept = self._kept, []
        return kept

    # -- telling -------------------------------------------------------------------------

    def _tell(self, line: _Line, said: dict[str, Any], *files: int) -> None:
        """As soon as it listens: nothing here waits for a template that stands still."""
        if self._lines.get(line.path) is not line:
            _close(files)
            return
        line.unsent.append((json.dumps(said).encode(), files))
        if len(line.unsent) > UNSENT_MAX:
            log.error("a template has stood still for too long and is given up", path=str(line.path))
            self._template_lost(line)
        elif len(line.unsent) == 1:
            self._send(line)

    def _send(self, line: _Line) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):  # it has died, which is heard next
            while line.unsent:
                packet, files = line.unsent[0]
                try:
                    socket.send_fds(line.socket, [packet], files)
                except BlockingIOError:
                    loop.add_writer(line.socket, self._send, line)
                    return
                line.unsent.popleft()
                _close(files)
        _forget_unsent(line)
        loop.remove_writer(line.socket)

    def close(self) -> None:
        """Leave the templates alone; they and their workers run on."""
        for line in self._lines.values():
            _hang_up(line)
        self._lines.clear()

    # -- connecting ----------------------------------------------------------------------

    async def _open(
        self, interpreter: str, flags: tuple[str, ...], environment: Mapping[str, str], bare: bool
    ) -> _Line:
        started_with = import_time(environment)
        key = json.dumps([interpreter, flags, started_with, bare, os.getuid()])
        path = socket_of(self._folder, key)
        async with self._opening.setdefault(path, asyncio.Lock()):
            if path in self._lines:
                return self._lines[path]
            command = [
                interpreter,
                *flags,
                "-m",
                "unicorn_mgr.worker.template",
                str(path),
                *(["--bare"] * bare),
            ]
            return await self._start(path, command, started_with)

    async def _start(self, path: Path, command: list[str], environment: dict[str, str]) -> _Line:
        """Connect to the template at `path`, starting it first if there is none; agents on one machine take turns."""
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            try:
                return await self._connect(path)
            except OSError:
                path.unlink(missing_ok=True)
            with path.with_suffix(".log").open("wb") as output:
                process = subprocess.Popen(
                    command, env=environment | {"UNICORN_ROOM": _ROOM}, cwd="/",
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True,
                )  # fmt: skip
            self._started.append(process)
            deadline = time.monotonic() + START_SECONDS_MAX
            while time.monotonic() < deadline:
                if path.exists():
                    return await self._connect(path)
                if process.poll() is not None:
                    raise TemplateError(_why(command, path.with_suffix(".log")))
                await asyncio.sleep(0.02)
            process.kill()
            raise TemplateError(f"template: {command[0]}: not ready after {START_SECONDS_MAX:.0f} s")
        except OSError as failed:
            raise TemplateError(f"template: {command[0]}: {failed.strerror or failed}") from failed
        finally:
            os.close(lock)

    async def _connect(self, path: Path) -> _Line:
        line = _Line(path, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            line.socket.connect(str(path))
        except OSError:
            line.socket.close()
            raise
        line.socket.setblocking(False)
        self._lines[path] = line
        asyncio.get_running_loop().add_reader(line.socket, self._hear, line)
        self._tell(line, {"op": "adopt", "node": self._node, "agent": self._agent})
        await line.ready.wait()
        if self._lines.get(path) is not line:
            raise ConnectionResetError("it has died")
        return line

    # -- hearing -------------------------------------------------------------------------

    def _hear(self, line: _Line) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(line.socket, PACKET_BYTES_MAX, FILES_MAX)
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        if not packet:
            self._template_lost(line)
            return
        said = json.loads(packet)
        match said["op"]:
            case "spawned":
                line.spawning.pop(said["worker"]).set_result(_found(said, fds))
            case "failed":
                line.spawning.pop(said["worker"]).set_exception(TemplateError(f"template: {said['error']}"))
            case "adopted":
                worker = said["worker"]
                line.adopted[worker] = _found(said, fds)
                self._line_of[worker] = line
            case "ready":
                line.jobs.update(said.get("jobs", ()))
                line.ready.set()
            case "exited":
                if said["worker"] in line.adopted:  # perhaps nobody has been told of it yet
                    line.adopted[said["worker"]] = replace(line.adopted[said["worker"]], status=said["status"])
                self._ended(said["worker"], said["status"])
            case "kept":
                self._keeps[said["name"]] = line
                self._kept.append((said["name"], fds[0]))
            case "told":
                self._told(said["worker"], bytes.fromhex(said["fact"]))
            case "released":
                log.info("snapshots in memory are given up", worker=said["worker"], bytes=said["bytes"])

    def _template_lost(self, line: _Line) -> None:
        _hang_up(line)
        self._lines.pop(line.path, None)
        line.ready.set()
        for future in line.spawning.values():
            if not future.done():
                future.set_exception(TemplateError("template: it has died"))
        self._keeps = {name: of for name, of in self._keeps.items() if of is not line}
        orphans = [worker for worker, of in self._line_of.items() if of is line]
        for worker in orphans:
            del self._line_of[worker]
        log.warning("template lost", path=str(line.path), workers=len(orphans))
        self._lost(orphans)


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _forget_unsent(line: _Line) -> None:
    _close(file for _, files in line.unsent for file in files)
    line.unsent.clear()


def _hang_up(line: _Line) -> None:
    _forget_unsent(line)
    loop = asyncio.get_running_loop()
    loop.remove_reader(line.socket)
    loop.remove_writer(line.socket)
    line.socket.close()


def _found(said: dict[str, Any], fds: list[int]) -> Found:
    ring, words, *others = fds
    snapshots, part = tuple(others[:2]), others[2] if len(others) > 2 else -1
    told = tuple(map(bytes.fromhex, said.get("told", ())))
    return Found(
        said["worker"], said["pid"], ring, words, said.get("note", ""), said.get("status"), snapshots, part, told
    )


def _why(command: list[str], output: Path) -> str:
    text = output.read_text(errors="replace").strip().splitlines()
    return f"template: {command[0]}: {text[-1] if text else 'it ended without a word'}"
