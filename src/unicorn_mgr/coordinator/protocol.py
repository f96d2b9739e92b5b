"""The door of the server: callers of another version of the wire, and what is no message, are refused in one line."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from unicorn_mgr.codec import WireError, decoder, encode
from unicorn_mgr.model import PROTOCOL

SPOKEN = "unicorn-protocol"
"""Name of the metadata in which a client says its version.  Agents say theirs in their hello."""

Context = grpc.aio.ServicerContext[Any, Any]
Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

_HANDLERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class OneProtocol(grpc.aio.ServerInterceptor):
    """Answers a call of another protocol with both numbers, instead of with what can't be decoded."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call, or one that refuses it."""
        handler = await continuation(handler_call_details)
        said: dict[str, Any] = dict(handler_call_details.invocation_metadata or ())
        spoken = said.get(SPOKEN, str(PROTOCOL))
        if handler is None or spoken == str(PROTOCOL):
            return handler

        async def refuse(asked: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            del asked
            text = f"protocol: {spoken}: this coordinator speaks {PROTOCOL}; use the same version of unicorn as it does"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

        make: Any = _HANDLERS[bool(handler.request_streaming), bool(handler.response_streaming)]
        refusing: grpc.RpcMethodHandler[Any, Any] = make(refuse)
        return refusing


# Methods read their requests themselves: what a deserializer of grpc raises becomes UNKNOWN.


def answers(
    serve: Callable[[Asked, Context], Awaitable[Answered]], kind: type[Asked]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A method that answers a request of a kind with one message."""
    decode = decoder(kind)

    async def read_and_serve(data: bytes, context: Context) -> Answered:
        async with _refusing_what_is_no_message(context):
            asked = decode(data)
        return await serve(asked, context)

    return grpc.unary_unary_rpc_method_handler(read_and_serve, None, encode)


def streams(
    serve: Callable[[Asked, Context], AsyncGenerator[bytes, None]], kind: type[Asked]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A method that answers a request of a kind with encoded messages."""
    decode = decoder(kind)

    async def read_and_serve(data: bytes, context: Context) -> AsyncIterator[bytes]:
        async with _refusing_what_is_no_message(context):
            asked = decode(data)
        async with contextlib.aclosing(serve(asked, context)) as stream:
            async for answer in stream:
                yield answer

    return grpc.unary_stream_rpc_method_handler(read_and_serve, None, None)


def converses(
    serve: Callable[[AsyncIterator[Asked], Context], AsyncGenerator[bytes, None]], kind: type[Asked]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A method that hears messages of a kind and says encoded ones; it lets `WireError` through."""

    async def read_and_serve(said: AsyncIterator[Asked], context: Context) -> AsyncIterator[bytes]:
        async with _refusing_what_is_no_message(context), contextlib.aclosing(serve(said, context)) as stream:
            async for answer in stream:
                yield answer

    return grpc.stream_stream_rpc_method_handler(read_and_serve, decoder(kind), None)


@contextlib.asynccontextmanager
async def _refusing_what_is_no_message(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except WireError as wrong:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(wrong))
