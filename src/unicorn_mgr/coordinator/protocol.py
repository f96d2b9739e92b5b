"""Callers of another version of the wire are refused before anything they say is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from unicorn_mgr.model import PROTOCOL

SPOKEN = "unicorn-protocol"
"""Name of the metadata in which a client says its version.  Agents say theirs in their hello."""

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
