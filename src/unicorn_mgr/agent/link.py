"""The agent's stream to the coordinator: kept open for ever, made again with jittered backoff."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import structlog

from unicorn_mgr import messages
from unicorn_mgr.codec import decoder, encode
from unicorn_mgr.messages import AgentMessage, CoordinatorMessage, Hello, Refused, Welcome
from unicorn_mgr.tls import CredentialsError, channel_credentials

BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 2.0
WELCOME_SECONDS_MAX = 10.0
OUTBOX_MAX = 20_000
OUTPUT_BACKLOG_MAX = 500
"""With more messages than this waiting, output makes way for everything else."""

log = structlog.get_logger()
_decode = decoder(CoordinatorMessage)


class LinkRefused(Exception):
    """The coordinator does not want this agent, and never will."""


class Link:
    """One agent's line to its coordinator."""

    def __init__(
        self,
        coordinator: str,
        tls: Path | None,
        hello: Callable[[str, int], Hello],
        opened: Callable[[Welcome], None],
        heard: Callable[[messages.ToAgent], Awaitable[None]],
        lost: Callable[[bool], None],
    ) -> None:
        self._coordinator = coordinator
        self._tls = tls
        self._hello = hello
        self._opened = opened
        self._heard = heard
        self._lost = lost
        self._outbox: asyncio.Queue[bytes] | None = None
        self._cut: Callable[[], object] = lambda: None
        self.cluster = ""
        self.term = 0

    def say(self, message: AgentMessage) -> bool:
        """Send a message if the stream is open.  What is true is told again when it is."""
        if self._outbox is None:
            return False
        if self._outbox.full():
            # Nothing may be left out in the middle: cut, attach again, tell everything.
            self._outbox = None
            self._cut()
            return False
        self._outbox.put_nowait(encode(message))
        return True

    @property
    def takes_output(self) -> bool:
        """Workers' output may be sent: nothing more important waits."""
        return self._outbox is not None and self._outbox.qsize() <= OUTPUT_BACKLOG_MAX

    async def run(self) -> None:
        """Keep the stream open for ever.  Raises `LinkRefused`."""
        pause, told = BACKOFF_SECONDS, ""
        while True:
            answered, why = False, "it has ended the stream"
            try:
                await self._attach()
                pause = BACKOFF_SECONDS
            except grpc.aio.AioRpcError as failed:
                answered, why = _answered(failed), f"{failed.code().name.lower()}: {(failed.details() or '')[:200]}"
                if failed.code() is grpc.StatusCode.PERMISSION_DENIED:
                    raise LinkRefused(failed.details()) from None
            except TimeoutError:
                why = f"no welcome in {WELCOME_SECONDS_MAX:.0f} s"
            except CredentialsError as wrong:
                why = str(wrong)
            finally:
                if self._outbox is not None:
                    pause, told = BACKOFF_SECONDS, ""
                self._outbox = None
            if not told:
                log.warning("coordinator away", coordinator=self._coordinator, why=why, trying="again and again")
            told = why
            self._lost(answered)
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - jitter, not a secret
            pause = min(2 * pause, BACKOFF_SECONDS_MAX)

    async def _attach(self) -> None:
        async with self._channel() as channel:
            stream: grpc.aio.StreamStreamMultiCallable[bytes, CoordinatorMessage] = channel.stream_stream(
                "/unicorn.v1.AgentService/Attach", request_serializer=None, response_deserializer=_decode
            )
            outbox: asyncio.Queue[bytes] = asyncio.Queue(OUTBOX_MAX)
            call = stream(_drain(outbox))
            self._cut = call.cancel
            outbox.put_nowait(encode(AgentMessage(self._hello(self.cluster, self.term))))
            async with asyncio.timeout(WELCOME_SECONDS_MAX) as patience:
                async for message in call:
                    patience.reschedule(None)
                    if message.term < self.term:
                        raise LinkRefused(
                            f"coordinator: {self._coordinator}: its term {message.term} is older than {self.term}, "
                            "which this agent has obeyed; start the coordinator with the newest data directory"
                        )
                    await self._take(message, outbox)

    async def _take(self, message: CoordinatorMessage, outbox: asyncio.Queue[bytes]) -> None:
        body = message.body
        match body:
            case Welcome():
                self.cluster, self.term = body.cluster, body.term
                self._outbox = outbox
                log.info("attached", coordinator=self._coordinator, cluster=body.cluster, term=body.term)
                self._opened(body)
            case Refused(reason, final):
                if final:
                    raise LinkRefused(reason)
                log.error("refused", why=reason)
            case _:
                await self._heard(body)

    def _channel(self) -> grpc.aio.Channel:
        options = (
            ("grpc.max_receive_message_length", 72 << 20),
            ("grpc.enable_http_proxy", 0),  # the cluster's own network, whatever http_proxy says
            ("grpc.keepalive_time_ms", 5_000),
            ("grpc.keepalive_timeout_ms", 3_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
        )
        if self._tls is None:
            return grpc.aio.insecure_channel(self._coordinator, options)
        return grpc.aio.secure_channel(self._coordinator, channel_credentials(self._tls), options)

    async def fetch_snapshot(self, digest: str) -> bytes:
        """A submitted archive, from the coordinator."""
        async with self._channel() as channel:
            fetch = channel.unary_stream(
                "/unicorn.v1.AgentService/FetchSnapshot",
                request_serializer=encode,
                response_deserializer=decoder(messages.SnapshotChunk),
            )
            return b"".join([chunk.data async for chunk in fetch(messages.SnapshotRequest(digest))])


async def _drain(outbox: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while True:
        yield await outbox.get()


def _answered(failed: grpc.aio.AioRpcError) -> bool:
    """Something at that address refused the connection: nobody serves there, and we are not cut off."""
    text = failed.details() or ""
    return "Connection refused" in text or "ECONNREFUSED" in text or failed.code() is grpc.StatusCode.CANCELLED
