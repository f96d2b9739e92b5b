"""Messages to protobuf bytes and back: the only place that knows the generated classes.

A plan is made once per class from its annotations: which fields are values, messages,
lists of either, maps, or the oneof (`body`).  Names are the same on both sides, so there
is nothing to keep in step by hand; `tests/unit/test_codec.py` compares every class with its
proto message.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from unicorn_mgr import model
from unicorn_mgr.wire import agent_pb2, client_pb2, common_pb2, worker_pb2

M = TypeVar("M")
R = TypeVar("R")

_PROTOS = (common_pb2, worker_pb2, agent_pb2, client_pb2)


class WireError(ValueError):
    """Bytes from the wire that are not the message they should be."""


def encode(value: Any) -> bytes:
    """The protobuf bytes of a message of `unicorn_mgr.messages`."""
    proto = proto_class(type(value))()
    _fill(proto, value)
    return proto.SerializeToString()


def decoder(cls: type[M]) -> Callable[[bytes], M]:
    """A function from protobuf bytes to a `cls`; it raises `WireError` on anything else."""
    proto = proto_class(cls)
    plan = _plan(cls)

    def decode(data: bytes) -> M:
        try:
            return _read(proto.FromString(data), cls, plan)
        except (DecodeError, ValueError) as wrong:
            raise WireError(f"not a {cls.__name__} of protocol {model.PROTOCOL}: {wrong}") from wrong

    return decode


def _once(make: Callable[[type[Any]], R]) -> Callable[[type[Any]], R]:
    """Make something once per class."""
    made: dict[type[Any], R] = {}

    def get(cls: type[Any]) -> R:
        if cls not in made:
            made[cls] = make(cls)
        return made[cls]

    return get


@_once
def proto_class(cls: type[Any]) -> type[Message]:
    """The generated class of a message class."""
    for module in _PROTOS:
        found = getattr(module, cls.__name__, None)
        if found is not None:
            return typing.cast("type[Message]", found)
    raise TypeError(f"{cls.__name__} has no message of its name in proto/unicorn/v1")


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str  # value, message, values, messages, map, body
    types: tuple[type[Any], ...] = ()


@_once
def _plan(cls: type[Any]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(_field(f.name, hints[f.name]) for f in dataclasses.fields(cls))


def _field(name: str, hint: Any) -> _Field:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if name == "body":
        return _Field(name, "body", arguments if origin in (types.UnionType, typing.Union) else (hint,))
    if origin is dict:
        return _Field(name, "map")
    if origin is tuple:
        item = arguments[0]
        return (
            _Field(name, "messages", (typing.cast("type[Any]", item),))
            if dataclasses.is_dataclass(item)
            else _Field(name, "values")
        )
    if origin in (types.UnionType, typing.Union):
        hint = next(a for a in arguments if a is not type(None))
    if dataclasses.is_dataclass(hint):
        return _Field(name, "message", (typing.cast("type[Any]", hint),))
    return _Field(name, "value")


@_once
def _case(cls: type[Any]) -> str:
    """The oneof's field of a message class: WorkerStarted -> worker_started."""
    name = cls.__name__
    return "".join(("_" if i and c.isupper() else "") + c.lower() for i, c in enumerate(name))


def _fill(proto: Any, value: Any) -> None:
    for f in _plan(type(value)):
        mine = getattr(value, f.name)
        if f.kind == "value":
            setattr(proto, f.name, mine)
        elif f.kind == "values":
            getattr(proto, f.name).extend(mine)
        elif f.kind == "map":
            getattr(proto, f.name).update(mine)
        elif f.kind == "messages":
            for item in mine:
                _fill(getattr(proto, f.name).add(), item)
        elif mine is not None:
            inner = getattr(proto, _case(type(mine)) if f.kind == "body" else f.name)
            inner.SetInParent()
            _fill(inner, mine)


def _read(proto: Any, cls: type[M], plan: tuple[_Field, ...]) -> M:
    found: dict[str, Any] = {}
    for f in plan:
        if f.kind == "value":
            found[f.name] = getattr(proto, f.name)
        elif f.kind == "values":
            found[f.name] = tuple(getattr(proto, f.name))
        elif f.kind == "map":
            found[f.name] = dict(getattr(proto, f.name))
        elif f.kind == "messages":
            inner = _plan(f.types[0])
            found[f.name] = tuple(_read(item, f.types[0], inner) for item in getattr(proto, f.name))
        elif f.kind == "message":
            if proto.HasField(f.name):
                found[f.name] = _read(getattr(proto, f.name), f.types[0], _plan(f.types[0]))
        else:
            found[f.name] = _read_body(proto, cls, f)
    return cls(**found)


def _read_body(proto: Any, cls: type[Any], f: _Field) -> Any:
    case = proto.WhichOneof("body")
    for option in f.types:
        if _case(option) == case:
            return _read(getattr(proto, case), option, _plan(option))
    raise ValueError(f"{cls.__name__} says nothing that is known here")
