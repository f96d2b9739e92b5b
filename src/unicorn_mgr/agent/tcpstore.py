"""A small server of torch's TCPStore protocol, for scripts that make their own process groups.

Each worker has its own, at MASTER_ADDR:MASTER_PORT on its node; what it is asked is passed
on to the coordinator, which holds one store per start of the job.  A stock client notices
nothing, no port is lost with a node, and the agent needs no torch.

Commands are a byte and their arguments: strings and values with a 64-bit length before
them, numbers as 64 bits, all little-endian.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import secrets
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from unicorn_mgr.messages import StoreAnswer, StoreCall

log = structlog.get_logger()

MAGIC = 0x3C85F7CE
STORE_ADDRESS = "127.0.0.1"
COMMAND_BYTES_MAX = 64 << 20
"""Of all keys and values of one command: it is passed on as one message."""
COUNT_MAX = 128 * 1024


class _Command(enum.IntEnum):
    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    ADD = 4
    CHECK = 5
    WAIT = 6
    COUNT = 7
    DELETE = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    CANCEL_WAIT = 12
    PING = 13


_READY, _NOT_READY = b"\x00", b"\x01"
_STOP_WAITING, _WAIT_CANCELED = b"\x00", b"\x01"

Send = Callable[[StoreCall], None]


@dataclass(eq=False)
class StoreFront:
    """The server of one worker.  `send` passes a call on; `answer` takes what comes back."""

    worker: str
    send: Send
    port: int = 0
    _server: asyncio.Server | None = None
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(secrets.randbits(62)))
    """Random: what an earlier incarnation of the agent asked may be answered yet, and is no answer to us."""
    _waiting: dict[int, asyncio.Future[StoreAnswer]] = field(default_factory=dict)

    async def open(self, port: int = 0) -> None:
        """Listen, at a free port unless one is given."""
        self._server = await asyncio.start_server(self._serve, STORE_ADDRESS, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def answer(self, answer: StoreAnswer) -> None:
        """The coordinator has answered a call."""
        future = self._waiting.pop(answer.id, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def close(self) -> None:
        """The worker is gone."""
        if self._server is not None:
            self._server.close()
        for future in self._waiting.values():
            future.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(self, reader, writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    await line.serve_one()
                    await writer.drain()
        except ValueError as wrong:  # the client sees only that its line ends
            log.warning("a TCPStore client is cut off", worker=self.worker, why=str(wrong))
        writer.close()

    def call(
        self, operation: str, keys: tuple[str, ...] = (), values: tuple[bytes, ...] = (), amount: int = 0
    ) -> tuple[int, Awaitable[StoreAnswer]]:
        """Pass a call on; returns its number and where its answer will be."""
        number = next(self._numbers)
        future: asyncio.Future[StoreAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.send(StoreCall(number, self.worker, operation, keys, values, amount))
        return number, future

    def hang_up(self, number: int) -> None:
        """Nobody waits for this call any more."""
        self._waiting.pop(number, None)
        self.send(StoreCall(number, self.worker, hung_up=True))


@dataclass(eq=False)
class _Line:
    """One connection of a client."""

    front: StoreFront
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ahead: asyncio.Task[bytes] | None = None
    """The next command's byte, read while the last one waited."""
    room: int = COMMAND_BYTES_MAX
    """What the present command may still bring."""

    async def serve_one(self) -> None:
        first, self.ahead = self.ahead, None
        self.room = COMMAND_BYTES_MAX
        command = _Command((await first if first is not None else await self.reader.readexactly(1))[0])
        match command:
            case _Command.VALIDATE:
                if struct.unpack("<I", await self.reader.readexactly(4))[0] != MAGIC:
                    raise ValueError("not a TCPStore client")
            case _Command.PING:
                self.writer.write(await self.reader.readexactly(4))
            case _Command.SET:
                await self._ask("set", (await self._text(),), (await self._bytes(),))
            case _Command.APPEND:
                await self._ask("append", (await self._text(),), (await self._bytes(),))
            case _Command.MULTI_SET:
                pairs = [(await self._text(), await self._bytes()) for _ in range(await self._count())]
                await self._ask("set", tuple(k for k, _ in pairs), tuple(v for _, v in pairs))
            case _Command.COMPARE_SET:
                key, expected, desired = await self._text(), await self._bytes(), await self._bytes()
                self._write((await self._ask("compare_set", (key,), (expected, desired))).values[0])
            case _Command.GET:
                self._write((await self._ask("get", (await self._text(),))).values[0])
            case _Command.MULTI_GET:
                for value in (await self._ask("get", await self._texts())).values:
                    self._write(value)
            case _Command.ADD:
                key = await self._text()
                amount = struct.unpack("<q", await self.reader.readexactly(8))[0]
                answer = await self._ask("add", (key,), amount=amount)
                if answer.values:
                    raise ValueError(f"{key} is no number")  # the protocol has no other way to say so
                self.writer.write(struct.pack("<q", answer.number))
            case _Command.CHECK:
                there = (await self._ask("check", await self._texts())).number
                self.writer.write(_READY if there else _NOT_READY)
            case _Command.COUNT:
                self.writer.write(struct.pack("<q", (await self._ask("count")).number))
            case _Command.DELETE:
                self.writer.write(struct.pack("<q", (await self._ask("delete", (await self._text(),))).number))
            case _Command.WAIT:
                await self._wait(await self._texts())
            case _Command.CANCEL_WAIT:
                self.writer.write(_WAIT_CANCELED)

    async def _ask(
        self, operation: str, keys: tuple[str, ...] = (), values: tuple[bytes, ...] = (), amount: int = 0
    ) -> StoreAnswer:
        answer = await self.front.call(operation, keys, values, amount)[1]
        if operation != "add" and answer.number < 0:
            raise ValueError(f"the store has no room to {operation} {keys[:1]}")
        return answer

    async def _wait(self, keys: tuple[str, ...]) -> None:
        """Until the keys are there; meanwhile the client may only cancel, or go away."""
        number, future = self.front.call("wait", keys)
        answer = asyncio.ensure_future(future)
        self.ahead = asyncio.create_task(self.reader.readexactly(1))
        await asyncio.wait({answer, self.ahead}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            answer.result()  # cancelled if the store is closing: no key is there, and the line ends
            self.writer.write(_STOP_WAITING)
            return
        answer.cancel()
        self.front.hang_up(number)
        # serve_one finds the byte that was read ahead: CANCEL_WAIT is answered there, an end is raised there.

    async def _count(self) -> int:
        count = int(struct.unpack("<Q", await self.reader.readexactly(8))[0])
        if count > COUNT_MAX:
            raise ValueError(f"{count} keys")
        return count

    async def _bytes(self) -> bytes:
        length = int(struct.unpack("<Q", await self.reader.readexactly(8))[0])
        if length > self.room:
            raise ValueError(f"{length} bytes, and only {self.room} more fit")
        self.room -= length
        return await self.reader.readexactly(length)

    async def _text(self) -> str:
        return (await self._bytes()).decode()

    async def _texts(self) -> tuple[str, ...]:
        return tuple([await self._text() for _ in range(await self._count())])

    def _write(self, value: bytes) -> None:
        self.writer.write(struct.pack("<Q", len(value)) + value)
