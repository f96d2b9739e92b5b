"""The wire says what the messages say, and garbage is refused."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr import codec, messages, model
from unicorn_mgr.codec import WireError, decoder, encode

MESSAGES = tuple(c for c in map(messages.__dict__.get, messages.__all__) if isinstance(c, type))

NESTED = (
    model.Epoch,
    model.Lineage,
    model.Mark,
    model.Run,
    model.Holdings,
    model.Slot,
    model.Drill,
    model.JobDrill,
    model.JobSpec,
    model.ModelDescription,
    model.ReplicaShape,
)


@pytest.mark.parametrize("cls", [*MESSAGES, *NESTED], ids=lambda c: c.__name__)
def test_a_message_has_the_fields_of_its_proto(cls: type[Any]) -> None:
    descriptor = codec.proto_class(cls).DESCRIPTOR
    proto = {f.name for f in descriptor.fields if f.containing_oneof is None}
    oneof = {f.name for o in descriptor.oneofs for f in o.fields}
    mine = {f.name for f in dataclasses.fields(cls)}
    if oneof:
        hint = typing.get_type_hints(cls)["body"]
        assert {codec._case(option) for option in typing.get_args(hint)} == oneof
        proto.add("body")
    assert mine == proto


def test_every_proto_message_has_a_class() -> None:
    known = {cls.__name__ for cls in (*MESSAGES, *NESTED)}
    for module in codec._PROTOS:
        for name in module.DESCRIPTOR.message_types_by_name:
            assert name in known, f"proto/unicorn/v1 has a message {name} that nothing can say"


def _strategy(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: _of(f.name, hints[f.name]) for f in dataclasses.fields(cls)})


def _of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        return st.dictionaries(*(_of(name, a) for a in arguments), max_size=2)
    if origin is tuple:
        return st.lists(_of(name, arguments[0]), max_size=2).map(tuple)
    if arguments:
        return st.one_of(*(st.none() if a is type(None) else _of(name, a) for a in arguments))
    if dataclasses.is_dataclass(hint):
        return _strategy(typing.cast("type[Any]", hint))
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 2**31 - 1),
        str: st.text(max_size=5),
        bytes: st.binary(max_size=5),
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
    }
    return plain[hint]


ENVELOPES = (
    messages.WorkerMessage,
    messages.ToWorker,
    messages.AgentMessage,
    messages.CoordinatorMessage,
    messages.SubmitJob,
    messages.OperatorCommand,
    messages.ClusterView,
    messages.IncidentStory,
    messages.JobUpdate,
)


@pytest.mark.parametrize("cls", ENVELOPES, ids=lambda c: c.__name__)
@given(data=st.data())
def test_what_is_encoded_is_decoded(cls: type[Any], data: st.DataObject) -> None:
    said = data.draw(_strategy(cls))
    assert decoder(cls)(encode(said)) == said


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_is_refused_in_one_line(garbage: bytes) -> None:
    with pytest.raises(WireError) as refused:
        decoder(messages.AgentMessage)(garbage)
    assert "\n" not in str(refused.value).strip()


def test_an_empty_envelope_is_refused() -> None:
    with pytest.raises(WireError, match="says nothing that is known here"):
        decoder(messages.ToWorker)(b"")
