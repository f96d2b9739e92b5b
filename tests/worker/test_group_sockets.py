"""Only connections of the group are cut or closed: by the addresses its members have published."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from unicorn_mgr.worker.groups import sockets

HERE = "127.0.0.1"


@dataclass(eq=False)
class Bench:
    """This member's listener with one accepted peer, a connection to a peer's listener, and the script's own pair."""

    listener: socket.socket
    accepted: socket.socket
    connected: socket.socket
    peers: tuple[socket.socket, ...]
    own: tuple[socket.socket, ...]

    @property
    def mine(self) -> sockets.Address:
        host, port = self.listener.getsockname()
        return host, port

    @property
    def published(self) -> frozenset[sockets.Address]:
        """Addresses of the other members."""
        return frozenset({self.peers[0].getsockname()})


@pytest.fixture
def bench() -> Iterator[Bench]:
    listener, peer_listener, own_listener = (socket.create_server((HERE, 0)) for _ in range(3))
    peer = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    connected = socket.create_connection(peer_listener.getsockname())
    peer_accepted, _ = peer_listener.accept()
    own = socket.create_connection(own_listener.getsockname())
    own_accepted, _ = own_listener.accept()
    unix, other_unix = socket.socketpair()
    made = Bench(
        listener,
        accepted,
        connected,
        (peer_listener, peer, peer_accepted),
        (own_listener, own, own_accepted, unix, other_unix),
    )
    yield made
    for found in (listener, accepted, connected, *made.peers, *made.own):
        found.close()


def flows(one: socket.socket, other: socket.socket) -> bool:
    """A byte gets through."""
    one.settimeout(5)
    other.settimeout(5)
    try:
        one.sendall(b"x")
        return other.recv(1) == b"x"
    except OSError:
        return False


def test_a_cut_ends_the_groups_connections_and_no_others(bench: Bench) -> None:
    # In this one process the peers' ends are found by their remote address as well.
    assert sockets.cut(bench.mine, bench.published) >= 2
    assert not flows(bench.accepted, bench.peers[1])
    assert not flows(bench.connected, bench.peers[2])
    assert flows(bench.own[1], bench.own[2])
    assert flows(bench.own[3], bench.own[4])


def test_a_cut_leaves_listeners_alone(bench: Bench) -> None:
    """gloo ends the process when its accept fails."""
    sockets.cut(bench.mine, bench.published)
    with socket.create_connection(bench.mine) as late:
        accepted, _ = bench.listener.accept()
        with accepted:
            assert flows(late, accepted)


def test_a_cut_of_what_is_cut_is_nothing(bench: Bench) -> None:
    first = sockets.cut(bench.mine, bench.published)
    assert sockets.cut(bench.mine, bench.published) <= first


def test_the_groups_sockets_are_kept_out_of_programs(bench: Bench) -> None:
    everything = (bench.listener, bench.accepted, bench.connected, *bench.own)
    for found in everything:
        os.set_inheritable(found.fileno(), True)
    sockets.close_on_exec(bench.mine, bench.published)
    assert [os.get_inheritable(s.fileno()) for s in everything] == [False] * 3 + [True] * len(bench.own)


def test_a_forked_child_closes_the_groups_sockets_and_no_others(bench: Bench) -> None:
    sockets.close_in_child(bench.mine, bench.published)
    for found in (bench.listener, bench.accepted, bench.connected):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(found.detach())
    assert flows(bench.own[1], bench.own[2])
    assert flows(bench.own[3], bench.own[4])


def test_the_listener_is_found_by_what_gloo_published(bench: Bench) -> None:
    def sockaddr(port: int) -> bytes:
        return b"..\x02\x00" + port.to_bytes(2, "big") + socket.inet_aton(HERE) + b"\0" * 8

    assert sockets.listener_of(sockaddr(bench.mine[1])) == bench.mine
    assert sockets.listener_of(sockaddr(bench.connected.getsockname()[1])) is None
    assert sockets.listener_of(b"") is None


@pytest.mark.parametrize(
    "act",
    [
        lambda b: sockets.cut(b.mine, b.published),
        lambda b: sockets.close_on_exec(b.mine, b.published),
        lambda b: sockets.listener_of(b"nothing"),
    ],
)
def test_looking_at_descriptors_leaves_none_behind(bench: Bench, act: Callable[[Bench], object]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        act(bench)
    assert sorted(os.listdir("/proc/self/fd")) == before
