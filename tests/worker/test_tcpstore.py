"""Torch's own client against the agent's store: scripts that make their own process groups notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from torch.distributed import DistStoreError, PrefixStore, TCPStore  # type: ignore[attr-defined]  # of torch's C++ half

from unicorn_mgr.agent import tcpstore
from unicorn_mgr.agent.tcpstore import StoreFront
from unicorn_mgr.coordinator import keyvalue
from unicorn_mgr.coordinator.keyvalue import KeyValueStores
from unicorn_mgr.messages import StoreCall

T = TypeVar("T")

HERE = "127.0.0.1"
PATIENCE = timedelta(seconds=20)
SOON = timedelta(milliseconds=50)


class Servers:
    """The stores of two workers on two nodes, and the coordinator's half behind them."""

    def __init__(self) -> None:
        self.calls: list[StoreCall] = []
        self.changed = threading.Condition()
        self._values = KeyValueStores()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.fronts = [StoreFront(f"job/{i}.0", lambda call, i=i: self._carry(call, i)) for i in range(2)]  # type: ignore[misc]  # a bound lambda
        for front in self.fronts:
            self._run(front.open())

    def _carry(self, call: StoreCall, node: int) -> None:
        """To the coordinator and back, as a message each way."""
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()
        for to, answer in self._values.call("job", 0, str(node), call):
            self._loop.call_soon(self.fronts[int(to)].answer, answer)

    def wait_call(self, what: Callable[[StoreCall], bool]) -> None:
        """Until a call has come to the coordinator."""
        with self.changed:
            assert self.changed.wait_for(lambda: any(map(what, self.calls)), PATIENCE.total_seconds())

    def client(self, node: int = 0, timeout: timedelta = PATIENCE) -> Any:  # torch's stubs leave half of it out
        return TCPStore(HERE, self.fronts[node].port, None, False, timeout, wait_for_workers=False)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _close(self) -> None:
        for front in self.fronts:
            front.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


@pytest.fixture
def aside() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """Does something in another thread."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


Aside = Callable[[Callable[[], Any]], "Future[Any]"]


def test_what_one_sets_another_gets(servers: Servers) -> None:
    one, other = servers.client(0), servers.client(1)
    one.set("key", "value")
    assert other.get("key") == b"value"
    other.set("key", "newer")
    assert one.get("key") == b"newer"


@pytest.mark.parametrize("value", [b"", b"\0\xff" * 100, b"x" * (8 << 20)], ids=["empty", "binary", "large"])
def test_any_bytes_are_a_value(servers: Servers, value: bytes) -> None:
    servers.client(0).set("key", value)
    assert servers.client(1).get("key") == value


@pytest.mark.parametrize("key", ["a/b/c", "ключ", "", " ", "x" * 5000])
def test_any_text_is_a_key(servers: Servers, key: str) -> None:
    servers.client(0).set(key, "value")
    assert servers.client(1).get(key) == b"value"


def test_getting_waits_for_a_value(servers: Servers, aside: Aside) -> None:
    one, other = servers.client(0), servers.client(1)
    got = aside(lambda: one.get("late"))
    servers.wait_call(lambda c: c.operation == "wait")
    assert not got.done()
    other.set("late", "value")
    assert got.result(20) == b"value"


def test_waiting_for_several_ends_with_the_last(servers: Servers, aside: Aside) -> None:
    one, other = servers.client(0), servers.client(1)
    waited = aside(lambda: one.wait(["a", "b"]))
    servers.wait_call(lambda c: c.operation == "wait")
    other.set("a", "1")
    other.set("c", "1")
    assert not waited.done()
    other.set("b", "1")
    assert waited.result(20) is None


def test_who_waits_too_long_is_told_and_may_go_on(servers: Servers) -> None:
    one, other = servers.client(0, SOON), servers.client(1)
    for _ in range(2):
        with pytest.raises(DistStoreError):
            one.get("never")
        with pytest.raises(DistStoreError):
            one.wait(["never"], SOON)
    servers.wait_call(lambda c: c.hung_up)
    one.set("mine", "1")
    assert other.get("mine") == b"1"
    other.set("never", "now")
    assert one.get("never") == b"now"


def test_who_dies_while_waiting_is_forgotten(servers: Servers) -> None:
    with socket.create_connection((HERE, servers.fronts[0].port)) as line:
        line.sendall(b"\x06" + (1).to_bytes(8, "little") + (5).to_bytes(8, "little") + b"never")
        servers.wait_call(lambda c: c.operation == "wait")
    servers.wait_call(lambda c: c.hung_up)


def test_adding(servers: Servers) -> None:
    one, other = servers.client(0), servers.client(1)
    assert one.add("count", 1) == 1
    assert other.add("count", 41) == 42
    assert one.add("count", -50) == -8
    assert one.add("count", 0) == -8
    assert int(other.get("count")) == -8


def test_many_add_at_once(servers: Servers, aside: Aside) -> None:
    clients = [servers.client(i % 2) for i in range(8)]
    for added in [aside(lambda c=c: [c.add("count", 1) for _ in range(50)]) for c in clients]:  # type: ignore[misc]  # a bound lambda
        added.result(20)
    assert servers.client().add("count", 0) == 400


def test_checking(servers: Servers) -> None:
    one = servers.client()
    one.set("a", "1")
    one.set("b", "")
    assert one.check(["a"])
    assert one.check(["a", "b"])
    assert not one.check(["a", "c"])
    assert one.check([])


def test_deleting(servers: Servers) -> None:
    one, other = servers.client(0), servers.client(1)
    one.set("a", "1")
    assert other.delete_key("a")
    assert not one.delete_key("a")
    assert not one.check(["a"])


def test_counting_keys(servers: Servers) -> None:
    one = servers.client()
    before = one.num_keys()
    one.set("a", "1")
    one.add("b", 1)
    assert one.num_keys() == before + 2
    one.delete_key("a")
    assert one.num_keys() == before + 1


@pytest.mark.parametrize(
    ("present", "expected", "desired", "found"),
    [
        (None, "", "new", b"new"),
        (None, "other", "new", b"other"),
        ("old", "old", "new", b"new"),
        ("old", "other", "new", b"old"),
        ("old", "", "new", b"old"),
    ],
)
def test_comparing_and_setting_as_torchs_own_server_does(
    servers: Servers, present: str | None, expected: str, desired: str, found: bytes
) -> None:
    own = TCPStore(HERE, 0, None, True, PATIENCE, wait_for_workers=False)
    for client in (own, servers.client()):
        if present is not None:
            client.set("key", present)
        assert client.compare_set("key", expected, desired) == found
        assert client.check(["key"]) == (present is not None or expected == "")


def test_several_at_once(servers: Servers) -> None:
    one, other = servers.client(0), servers.client(1)
    assert one.has_extended_api()
    one.multi_set(["a", "b"], ["1", "2"])
    assert other.multi_get(["b", "a"]) == [b"2", b"1"]
    other.append("a", "3")
    other.append("fresh", "4")
    assert one.multi_get(["a", "fresh"]) == [b"13", b"4"]


def test_getting_several_waits_for_all(servers: Servers, aside: Aside) -> None:
    one, other = servers.client(0), servers.client(1)
    one.set("a", "1")
    got = aside(lambda: one.multi_get(["a", "b"]))
    servers.wait_call(lambda c: c.operation in ("wait", "get"))
    other.set("b", "2")
    assert got.result(20) == [b"1", b"2"]


def test_stores_within_the_store(servers: Servers) -> None:
    one, other = PrefixStore("p", servers.client(0)), servers.client(1)
    one.set("key", "value")
    assert other.get("p/key") == b"value"


def test_a_client_that_is_cloned_has_a_line_of_its_own(servers: Servers, aside: Aside) -> None:
    one = servers.client(0)
    clone = one.clone()
    got = aside(lambda: one.get("late"))
    servers.wait_call(lambda c: c.operation == "wait")
    clone.set("late", "value")
    assert got.result(20) == b"value"


def test_what_the_store_does_not_know_is_refused_and_hangs_nobody(servers: Servers) -> None:
    with pytest.raises((DistStoreError, RuntimeError)):
        servers.client().queue_pop("queue", block=False)
    servers.client().set("a", "1")


GARBAGE = [
    b"\xff",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00\x00\x00\x00\x00",
    b"\x01" + b"\xff" * 8,
    b"\x06" + b"\xff" * 8,
    b"\x01" + (2).to_bytes(8, "little") + b"\xff\xfe" + (1).to_bytes(8, "little") + b"x",
    b"\x04" + (1).to_bytes(8, "little") + b"k" + b"\x00",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_ends_its_own_line_and_no_other(servers: Servers, garbage: bytes) -> None:
    client = servers.client()
    with socket.create_connection((HERE, servers.fronts[0].port)) as line:
        line.sendall(garbage)
        line.shutdown(socket.SHUT_WR)
        line.settimeout(20)
        with contextlib.suppress(ConnectionResetError):  # it hung up with some of it unread
            assert line.recv(1) == b""
    client.set("a", "1")
    assert servers.client(1).get("a") == b"1"


@pytest.mark.parametrize("value", ["abc", "1.5", "9" * 5000, str((1 << 63) - 1)])
def test_adding_to_what_is_no_number_ends_this_line_and_no_other(servers: Servers, value: str) -> None:
    client = servers.client()
    client.set("key", value)
    with pytest.raises((DistStoreError, RuntimeError)):
        client.add("key", 1)
    assert servers.client(1).get("key") == value.encode()


def test_only_this_machine_is_listened_to(servers: Servers) -> None:
    assert servers.fronts[0]._server is not None
    assert [s.getsockname()[0] for s in servers.fronts[0]._server.sockets] == [HERE]


def test_a_full_store_ends_this_line_and_no_other(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyvalue, "STORE_BYTES_MAX", 10_000)
    client = servers.client()
    client.set("a", "1")
    with pytest.raises((DistStoreError, RuntimeError)):
        client.compare_set("key", "", "x" * 10_000)
    assert servers.client(1).get("a") == b"1"


def test_a_command_that_is_larger_than_a_message_ends_this_line_and_no_other(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcpstore, "COMMAND_BYTES_MAX", 500)
    client = servers.client()
    client.multi_set(["a", "b"], ["x" * 400, "x" * 400])  # which the protocol does not answer
    with pytest.raises((DistStoreError, RuntimeError)):
        client.num_keys()
    assert servers.client(1).check(["a"]) is False
