"""State and buckets from member to member: all of it or nothing, whatever comes to the port."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from unicorn_mgr.model import Epoch
from unicorn_mgr.worker.transfer import Donor, Offer, Pull, answers_probe, bytes_of

HERE = "127.0.0.1"
EPOCH = Epoch(1, 1)
PATIENCE_SECONDS = 20.0


class Bench:
    """A donor, and takers that can be waited for."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.donor = Donor(HERE, self.wake)
        self.donor.open(EPOCH, "secret")

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def pull(
        self,
        key: str,
        place: Callable[[bytes], Sequence[memoryview] | None],
        epoch: Epoch = EPOCH,
        secret: str = "secret",
    ) -> Pull:
        return Pull((HERE, self.donor.port), (epoch, secret, key), place, self.wake)

    def wait(self, what: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, PATIENCE_SECONDS)

    def close(self) -> None:
        self.donor.withdraw()
        with contextlib.suppress(OSError):
            self.donor._listener.shutdown(socket.SHUT_RDWR)
        self.donor._listener.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def offer(tensor: torch.Tensor, takers: int = 1) -> Offer:
    return Offer(b"header", [bytes_of(tensor)], takers)


def test_every_taker_gets_everything(bench: Bench) -> None:
    sent = torch.randn(1 << 18)
    targets = [torch.zeros(1 << 18) for _ in range(3)]
    headers: list[bytes] = []

    def into(target: torch.Tensor) -> Callable[[bytes], Sequence[memoryview]]:
        def place(header: bytes) -> Sequence[memoryview]:
            headers.append(header)
            return [bytes_of(target)]

        return place

    early = bench.pull("x", into(targets[0]))
    bench.donor.offer("x", offer(sent, takers=3))
    pulls = [early, *(bench.pull("x", into(t)) for t in targets[1:])]
    bench.wait(lambda: all(p.done for p in pulls) and bench.donor.all_taken())
    assert [p.error for p in pulls] == [""] * 3
    assert all(torch.equal(t, sent) for t in targets)
    assert headers == [b"header"] * 3


def test_a_taker_may_decline_the_body(bench: Bench) -> None:
    bench.donor.offer("x", offer(torch.ones(3)))
    pull = bench.pull("x", lambda _: None)
    bench.wait(lambda: pull.done and bench.donor.all_taken())
    assert pull.error == ""


def test_an_empty_body_arrives(bench: Bench) -> None:
    bench.donor.offer("x", Offer(b"", [], 1))
    pull = bench.pull("x", lambda _: [])
    bench.wait(lambda: pull.done and bench.donor.all_taken())
    assert pull.error == ""


@pytest.mark.parametrize(("epoch", "secret"), [(Epoch(1, 2), "secret"), (Epoch(0, 1), "secret"), (EPOCH, "guessed")])
def test_who_is_of_another_epoch_or_does_not_know_the_secret_gets_nothing(
    bench: Bench, epoch: Epoch, secret: str
) -> None:
    bench.donor.offer("x", offer(torch.ones(3)))
    asked: list[bytes] = []

    def place(header: bytes) -> Sequence[memoryview] | None:
        asked.append(header)
        return None

    pull = bench.pull("x", place, epoch, secret)
    bench.wait(lambda: pull.done)
    assert pull.error.startswith(f"x from {HERE}:{bench.donor.port}: ")
    assert asked == []
    assert not bench.donor.all_taken()


def test_after_a_withdrawal_nobody_takes_a_mixture(bench: Bench) -> None:
    """The donor's buffers change once `withdraw` has returned; what has half arrived is an error."""
    sent = torch.zeros(1 << 24, dtype=torch.uint8)
    half = threading.Event()
    go_on = threading.Event()

    def place(header: bytes) -> Sequence[memoryview]:
        half.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return [bytes_of(torch.empty_like(sent))]

    bench.donor.offer("x", offer(sent))
    pull = bench.pull("x", place)
    assert half.wait(PATIENCE_SECONDS)
    bench.donor.withdraw()
    go_on.set()
    bench.wait(lambda: pull.done)
    assert pull.error != ""
    assert bench.donor.all_taken()  # nothing is on offer any more


def test_who_waits_for_an_offer_is_freed_by_the_next_epoch(bench: Bench) -> None:
    pull = bench.pull("never", lambda _: None)
    bench.donor.offer("other", offer(torch.ones(1)))
    other = bench.pull("other", lambda _: None)
    bench.wait(lambda: other.done)
    bench.donor.open(Epoch(1, 2), "secret")
    bench.wait(lambda: pull.done)
    assert pull.error != ""


def test_a_cancelled_taker_writes_nothing_more(bench: Bench) -> None:
    pull = bench.pull("never", lambda _: None)
    pull.cancel()
    assert pull.error != ""
    bench.wait(lambda: pull.done)


def test_a_taker_is_cancelled_at_once_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, go_on = threading.Event(), threading.Event()
    connect = socket.create_connection

    def slowly(address: tuple[str, int], timeout: float) -> socket.socket:
        connecting.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return connect(address, timeout)

    bench = Bench()
    monkeypatch.setattr(socket, "create_connection", slowly)
    bench.donor.offer("x", offer(torch.ones(1)))
    placed: list[bytes] = []
    pull = bench.pull("x", placed.append)
    assert connecting.wait(PATIENCE_SECONDS)
    pull.cancel()
    assert not pull.done, "it was not waited for"
    assert pull.error != ""
    go_on.set()
    bench.wait(lambda: pull.done)
    assert placed == []
    bench.close()


def test_a_taker_that_does_not_read_holds_no_withdrawal_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last word finds the send buffer full: it is waited for without the lock that `withdraw` needs."""
    waiting = threading.Event()
    wait = select.select

    def seen(*arguments: Any) -> object:
        waiting.set()
        return wait(*arguments)

    def fill_up(line: socket.socket, _: Offer) -> None:
        line.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                line.send(bytes(1 << 16))
        line.setblocking(True)

    monkeypatch.setattr(select, "select", seen)
    monkeypatch.setattr(bench.donor, "_send", fill_up)
    bench.donor.offer("x", offer(torch.ones(1)))
    with socket.create_connection((HERE, bench.donor.port), PATIENCE_SECONDS) as line:
        line.sendall(json.dumps({"epoch": [1, 1], "secret": "secret", "key": "x"}).encode() + b"\n")
        assert waiting.wait(PATIENCE_SECONDS)
        bench.donor.withdraw()


@pytest.mark.parametrize("failure", [MemoryError("no memory"), RuntimeError("no such dtype"), KeyError("tensors")])
def test_a_taker_that_can_not_place_it_says_so(bench: Bench, failure: Exception) -> None:
    def place(header: bytes) -> Sequence[memoryview]:
        raise failure

    bench.donor.offer("x", offer(torch.ones(1)))
    pull = bench.pull("x", place)
    bench.wait(lambda: pull.done)
    assert str(failure) in pull.error


def test_nobody_listens() -> None:
    with socket.create_server((HERE, 0)) as closed:
        port = closed.getsockname()[1]
    changed = threading.Event()
    pull = Pull((HERE, port), (EPOCH, "secret", "x"), lambda _: None, changed.set)
    assert changed.wait(PATIENCE_SECONDS)
    assert pull.done
    assert pull.error.startswith(f"x from {HERE}:{port}: ")
    assert not answers_probe((HERE, port), 1.0)


GARBAGE = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 10 + b"\n",
    b"x" * 10_000,
    b"[]\n",
    b"[" * 4000 + b"\n",
    b"3\n",
    b"{}\n",
    json.dumps({"epoch": 5, "secret": "secret", "key": "x"}).encode() + b"\n",
    json.dumps({"epoch": [1, 1], "secret": 5, "key": "x"}).encode() + b"\n",
    json.dumps({"epoch": [1, 1], "secret": "sécret", "key": "x"}).encode() + b"\n",
    json.dumps({"epoch": [1, 1, 1], "secret": "secret", "key": "x"}).encode() + b"\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_at_the_port_disturbs_nobody(bench: Bench, garbage: bytes) -> None:
    with socket.create_connection((HERE, bench.donor.port), PATIENCE_SECONDS) as line:
        # It may hang up as soon as it sees what this is, with some of it unread or unsent.
        with contextlib.suppress(OSError):
            line.sendall(garbage)
            line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(1) == b""
    assert answers_probe((HERE, bench.donor.port), PATIENCE_SECONDS)
    bench.donor.offer("x", offer(torch.ones(1)))
    pull = bench.pull("x", lambda _: None)
    bench.wait(lambda: pull.done)
    assert pull.error == ""
