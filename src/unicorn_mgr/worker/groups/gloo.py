"""Process groups on gloo, built and buried away from the main thread.

Three things that naive use of gloo gets wrong, and what is done here:

* The constructor blocks until every member is there, for the whole timeout if one never
  comes.  It runs in a helper thread; the rendezvous goes through our own store, which
  raises as soon as the epoch is over, and that frees the constructor.
* An operation whose peer is gone may block until the timeout.  Nobody waits inside it: its
  end is told by a callback, and when a newer epoch comes it is abandoned with its buffer.
* Dropping a group with pending work blocks, too.  It is cut first and dropped in a thread
  of its own, never in the main thread and never under a lock that the cutter needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]  # of torch's C++ half

from unicorn_mgr.worker.groups import Operation, Wake, sockets

NEVER = timedelta(days=7)
"""Of operations.  What has to end sooner is ended by a newer epoch."""

CONNECT_SECONDS_MAX = 30.0
"""Of the constructor.  It waits for members that are to connect to this one without a socket that could be cut."""

RECUT_SECONDS = 0.003
"""A constructor opens sockets after a cut, so it is cut again until it returns."""

DRAIN_SECONDS_MAX = 5.0
"""How long a burial waits for cut operations before it drops them anyway."""

Exchange = Callable[[bytes], "list[bytes]"]
"""Publish this member's address, wait for everybody's; raises when the epoch is over."""


class _Rendezvous(Store):
    """What gloo's constructor needs of a store, in one round trip: all addresses at once."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        super().__init__()
        self._rank = rank
        self._exchange = exchange
        self._mine: bytes | None = None
        self._all: list[bytes] = []

    def set(self, key: str | bytes, value: Any) -> None:
        del key
        self._mine = bytes(value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        del keys, timeout
        if not self._all:
            assert self._mine is not None, "gloo waits for addresses before it has set its own"
            self._all = self._exchange(self._mine)

    def get(self, key: str | bytes) -> bytes:
        name = key.decode() if isinstance(key, bytes) else key
        return self._all[int(name.rpartition("/")[2])]


class GlooOperation:
    """A started collective.  It keeps its tensor alive until it has ended."""

    def __init__(self, work: Any, tensor: torch.Tensor, wake: Wake) -> None:
        self.error = ""
        self._end = threading.Event()
        self._tensor = tensor
        self._work = work
        self._wake = wake
        work.get_future().add_done_callback(self._ended)

    def _ended(self, future: Any) -> None:
        try:
            future.value()
        except Exception as failed:  # noqa: BLE001 - gloo raises RuntimeError and others: all mean "failed"
            self.error = str(failed).split("\n", 1)[0] or type(failed).__name__
        self._end.set()
        self._wake()

    @property
    def done(self) -> bool:
        """It has ended, well or not."""
        return self._end.is_set()

    def wait(self, seconds: float) -> None:
        """Block until it has ended: not for the main thread."""
        self._end.wait(seconds)


class FailedOperation:
    """An operation that could not even be started."""

    done = True

    def __init__(self, error: str) -> None:
        self.error = error


class GlooGroup:
    """The members of one epoch, connected by gloo."""

    def __init__(
        self,
        group: Any,
        store: Store,
        mine: sockets.Address,
        peers: frozenset[sockets.Address],
        wake: Wake,
    ) -> None:
        self.size = int(group.size())
        self.mine = mine
        self.peers = peers
        self._group = group
        self._store = store  # gloo keeps only the C++ half, which can't answer without this one
        self._wake = wake
        self._pending: list[GlooOperation] = []

    def all_reduce(self, tensor: torch.Tensor) -> Operation:
        """Start to sum `tensor` over all members, in place."""
        return self._start(lambda: self._group.allreduce([tensor]), tensor)

    def _start(self, start: Callable[[], Any], tensor: torch.Tensor) -> Operation:
        if self._group is None:
            return FailedOperation("the group is buried")
        try:
            work = start()
        except RuntimeError as failed:
            return FailedOperation(str(failed).split("\n", 1)[0])
        operation = GlooOperation(work, tensor, self._wake)
        self._pending = [p for p in self._pending if not p.done]
        self._pending.append(operation)
        return operation

    def bury(self) -> None:
        """Cut the connections at once; drain and drop in a thread of its own."""
        sockets.cut(self.mine, self.peers)
        group, self._group = self._group, None
        pending, self._pending = self._pending, []
        holder = [group]
        del group
        threading.Thread(target=_drain, args=(holder, pending), name="unicorn-burial", daemon=True).start()


def _drain(holder: list[Any], pending: list[GlooOperation]) -> None:
    """Let cut operations end, then drop the group: its destructor may block this thread, no other."""
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    for operation in pending:
        operation.wait(max(0.0, deadline - time.monotonic()))
    pending.clear()
    holder.clear()


class Builder:
    """Builds the group of one epoch in a helper thread.

    `exchange` gets the bytes gloo publishes and our listener's address, and returns those of
    all members in order of rank.  `wake` is called when `done` has changed.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        host: str,
        exchange: Callable[[bytes, sockets.Address], tuple[list[bytes], frozenset[sockets.Address]]],
        wake: Wake,
    ) -> None:
        self.done = False
        self.error = ""
        self.group: GlooGroup | None = None
        self._rank = rank
        self._size = size
        self._host = host
        self._exchange = exchange
        self._wake = wake
        self._mine: sockets.Address | None = None
        self._peers: frozenset[sockets.Address] = frozenset()
        self._abandoned = False
        self._lock = threading.Lock()
        threading.Thread(target=self._build, name="unicorn-builder", daemon=True).start()

    @property
    def connecting(self) -> bool:
        """Every member has published; gloo is connecting to them."""
        return bool(self._peers) and not self.done

    def abandon(self) -> None:
        """The epoch is over: free the constructor and throw away what it builds."""
        with self._lock:
            self._abandoned = True
            group, self.group = self.group, None
        if group is not None:
            group.bury()
        elif not self.done:
            threading.Thread(target=self._recut, name="unicorn-burial", daemon=True).start()

    def _recut(self) -> None:
        while not self.done:
            if self._mine is not None:
                sockets.cut(self._mine, self._peers)
            time.sleep(RECUT_SECONDS)

    def _meet(self, published: bytes) -> list[bytes]:
        mine = sockets.listener_of(published)
        if mine is None:
            raise RuntimeError("gloo published an address on which this process does not listen")
        self._mine = mine
        blobs, peers = self._exchange(published, mine)
        self._peers = peers - {mine}
        self._wake()
        return blobs

    def _build(self) -> None:
        try:
            group = self._construct()
        except Exception as failed:  # noqa: BLE001 - whatever ends the constructor ends the epoch, not the worker
            self.error = str(failed).split("\n", 1)[0] or type(failed).__name__
        else:
            with self._lock:
                if not self._abandoned:
                    self.group = group
            if self.group is None:
                group.bury()
        self.done = True
        self._wake()

    def _construct(self) -> GlooGroup:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # of torch's C++ half
        options._timeout = timedelta(seconds=CONNECT_SECONDS_MAX)
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]
        options._threads = 2
        store = _Rendezvous(self._rank, self._meet)
        group = ProcessGroupGloo(store, self._rank, self._size, options)
        group._set_default_timeout(NEVER)
        assert self._mine is not None
        sockets.close_on_exec(self._mine, self._peers)
        return GlooGroup(group, store, self._mine, self._peers, self._wake)
