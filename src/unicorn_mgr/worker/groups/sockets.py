"""Finding, cutting and closing the sockets of process groups, and no others.

gloo has no abort: `ProcessGroupGloo.abort()`, `shutdown()` and a short timeout leave an
operation in flight blocked until its original timeout.  Shutting down the sockets under it
ends it on every member within milliseconds.  Which sockets are gloo's?  A before/after
comparison of descriptors also finds those that the user's threads open meanwhile, so only
sockets count whose address a member has published in the rendezvous: accepted ones have
our listener's address at this end, connected ones a peer's at the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

Address = tuple[str, int]


def _tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Every TCP socket of this process: its number, and a duplicate that is closed with the turn of the loop.

    A duplicate, because gloo's own thread may close the original meanwhile.
    """
    for entry in os.listdir("/proc/self/fd"):
        copy = _duplicate(int(entry))
        if copy is not None:
            with copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(entry), copy


def _duplicate(number: int) -> socket.socket | None:
    try:
        if not str(Path(f"/proc/self/fd/{number}").readlink()).startswith("socket:"):
            return None
        copy = os.dup(number)
    except OSError:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None


def _ends(found: socket.socket) -> tuple[Address, Address | None]:
    local = found.getsockname()[:2]
    try:
        return local, found.getpeername()[:2]
    except OSError:
        return local, None


def _listens(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def listener_of(published: bytes) -> Address | None:
    """The listening socket whose address stands in what gloo published for this member.

    gloo publishes the bytes of the `sockaddr`: family, port, address.
    """
    for _, found in _tcp_sockets():
        if found.family == socket.AF_INET and _listens(found):
            host, port = found.getsockname()
            if port.to_bytes(2, "big") + socket.inet_aton(host) in published:
                return host, port
    return None


def cut(mine: Address, peers: frozenset[Address]) -> int:
    """Shut down every connection of the group; returns how many.

    Never the listener: gloo ends the process when its accept fails.
    """
    count = 0
    for _, found in _tcp_sockets():
        with contextlib.suppress(OSError):  # somebody else has just closed it
            if _listens(found):
                continue
            local, remote = _ends(found)
            if local == mine or (remote is not None and remote in peers):
                found.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def close_on_exec(mine: Address, peers: frozenset[Address]) -> None:
    """Keep the group's sockets out of programs that the user's code starts."""

    def mark(number: int) -> None:
        fcntl.fcntl(number, fcntl.F_SETFD, fcntl.fcntl(number, fcntl.F_GETFD) | fcntl.FD_CLOEXEC)

    _each_of_group(mine, peers, mark)


def close_in_child(mine: Address, peers: frozenset[Address]) -> None:
    """In a forked child: close the group's sockets, or they outlive the worker in a data loader."""
    _each_of_group(mine, peers, os.close)


def _each_of_group(mine: Address, peers: frozenset[Address], act: Callable[[int], None]) -> None:
    for number, found in _tcp_sockets():
        with contextlib.suppress(OSError):  # somebody else has just closed it
            local, remote = _ends(found)
            if local == mine or (remote is not None and remote in peers):
                act(number)
