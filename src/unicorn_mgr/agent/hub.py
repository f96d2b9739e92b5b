"""Where workers of this node find their agent: a unix socket, one connection a worker."""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from unicorn_mgr.agent.host import Emit, Host
from unicorn_mgr.agent.processes import Process
from unicorn_mgr.codec import WireError, decoder, encode
from unicorn_mgr.effects.agent import LineLost, WorkerSaid
from unicorn_mgr.messages import Attach, Attached, Directive, Errand, ErrandDone, Fact, ToWorker, WorkerMessage
from unicorn_mgr.model import PROTOCOL
from unicorn_mgr.ring import is_exiting

FRAME_BYTES_MAX = 64 << 20
_LENGTH = struct.Struct("<I")
_decode = decoder(WorkerMessage)

log = structlog.get_logger()


class Hub:
    """The server of one agent's workers."""

    def __init__(
        self, path: Path, host: Host, emit: Emit, prepared: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        self._path = path
        self._host = host
        self._emit = emit
        self._prepared = prepared if prepared is not None else host.started
        """Until a worker can be welcomed."""
        self._server: asyncio.Server | None = None
        self._closing = False
        self._lines: dict[asyncio.Task[object], asyncio.StreamWriter] = {}

    async def open(self) -> None:
        """Listen; only this user may connect."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self._path))
        self._path.chmod(0o600)

    async def close(self) -> None:
        """End all connections; workers come back to the next agent."""
        if self._server is not None:
            self._server.close()
        self._closing = True
        for writer in self._lines.values():
            writer.close()
        await asyncio.gather(*self._lines)

    def tell(self, worker: str, body: Directive | ErrandDone) -> None:
        """Pass a directive to a worker, if it is connected; if not, the core tells it when it attaches."""
        process = self._host.processes.get(worker)
        if process is not None and process.writer is not None:
            process.writer.write(_framed(encode(ToWorker(body))))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        process: Process | None = None
        task = asyncio.current_task()
        assert task is not None
        self._lines[task] = writer
        try:
            first = await _read(reader)
            if isinstance(first, Attach):
                await self._prepared(first.worker)
            process = self._admit(first, writer)
            if process is None:
                return
            self._emit(WorkerSaid(process.order.worker, first))
            while True:
                said = await _read(reader)
                if not isinstance(said, Attach):
                    self._emit(WorkerSaid(process.order.worker, said))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except WireError as wrong:
            log.warning("a worker said something unknown", why=str(wrong))
        finally:
            writer.close()
            del self._lines[task]
            if process is not None and process.writer is writer:
                process.writer = None
                self._line_lost(process)

    def _line_lost(self, process: Process) -> None:
        if process.ended or self._closing:
            return
        if is_exiting(process.pid):
            self._host.dying(process, "socket")
        else:
            self._emit(LineLost(process.order.worker))

    def _admit(self, first: Attach | Fact | Errand, writer: asyncio.StreamWriter) -> Process | None:
        """The process that attaches, if it is who it says it is."""
        refused = self._refusal(first, writer)
        if refused:
            writer.write(_framed(encode(ToWorker(Attached(refused=refused)))))
            return None
        assert isinstance(first, Attach)
        process = self._host.processes[first.worker]
        process.writer = writer
        return process

    def _refusal(self, first: Attach | Fact | Errand, writer: asyncio.StreamWriter) -> str:
        if not isinstance(first, Attach):
            return "attach: a worker attaches first"
        if first.protocol != PROTOCOL:
            return f"protocol: {first.protocol}: this agent speaks {PROTOCOL}; use the same unicorn-mgr on both sides"
        process = self._host.processes.get(first.worker)
        if process is None or process.ended:
            return f"worker: {first.worker}: this agent has no such worker"
        raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", raw)[0]
        if pid != process.pid or not hmac.compare_digest(first.token, process.token):
            return f"worker: {first.worker}: process {pid} is not its main process"
        return ""


async def _read(reader: asyncio.StreamReader) -> Attach | Fact | Errand:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > FRAME_BYTES_MAX:
        raise WireError(f"a frame of {length} bytes")
    return _decode(await reader.readexactly(length)).body


def _framed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data
