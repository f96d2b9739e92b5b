"""What is no message is refused in one line, by every method, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from unit.test_driver import run
from unit.test_sessions import hello

from unicorn_mgr import messages as m
from unicorn_mgr.codec import decoder, encode
from unicorn_mgr.coordinator import service

NONSENSE = b"\xff\x00 no message \xfe"
HELLO = encode(m.AgentMessage(hello()))

Ask = Callable[[grpc.aio.Channel], Awaitable[object]]


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A connection to a coordinator."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config = service.ServiceConfig(listen="127.0.0.1:0", data=folder, metrics_listen="")
    served = asyncio.create_task(service.run(config, lambda found, _: address.set_result(found)))
    try:
        async with grpc.aio.insecure_channel(await address) as channel:
            yield channel
    finally:
        served.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await served


def answered(method: str) -> Ask:
    async def ask(channel: grpc.aio.Channel) -> object:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/unicorn.v1.{method}")
        return await call(NONSENSE)

    return ask


def streamed(method: str) -> Ask:
    async def ask(channel: grpc.aio.Channel) -> object:
        call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/unicorn.v1.{method}")
        return [answer async for answer in call(NONSENSE)]

    return ask


def attached(*said: bytes) -> Ask:
    async def ask(channel: grpc.aio.Channel) -> object:
        call: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/unicorn.v1.AgentService/Attach"
        )
        return [answer async for answer in call(iter(said))]

    return ask


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (answered("ClientService/Submit"), "SubmitJob"),
        (answered("ClientService/Command"), "OperatorCommand"),
        (answered("ClientService/Look"), "LookRequest"),
        (answered("ClientService/FindIncident"), "IncidentRequest"),
        (streamed("ClientService/FollowJob"), "FollowJobRequest"),
        (streamed("ClientService/FollowEvents"), "FollowEventsRequest"),
        (streamed("AgentService/FetchSnapshot"), "SnapshotRequest"),
        (attached(NONSENSE), "AgentMessage"),
        (attached(HELLO, NONSENSE), "AgentMessage"),
    ],
)
def test_what_is_no_message_is_the_callers_mistake(tmp_path: Path, ask: Ask, kind: str) -> None:
    async def test() -> None:
        async with serving(tmp_path) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(channel)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            text = refused.value.details() or ""
            assert text.startswith(f"not a {kind} of protocol 1: ")
            assert "\n" not in text
            look: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/unicorn.v1.ClientService/Look")
            view = decoder(m.ClusterView)(await look(encode(m.LookRequest())))
            assert view.jobs == (), "others are still served"

    run(test())


@pytest.mark.parametrize("said", [(), (encode(m.AgentMessage(m.Beat(1))),)], ids=["nothing", "something else"])
def test_an_agent_says_hello_first(tmp_path: Path, said: tuple[bytes, ...]) -> None:
    async def test() -> None:
        async with serving(tmp_path) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await attached(*said)(channel)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.details() == "hello: an agent says hello first"

    run(test())
