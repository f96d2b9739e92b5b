"""Workers' output on its way to the people who follow it: bounded, and never in training's way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from unicorn_mgr.messages import LogChunk, ToAgent, WatchLogs

CHUNKS_MAX = 2_000
"""A follower that is this many chunks behind loses the oldest, and sees it by the offsets."""


@dataclass(eq=False, slots=True)
class Watch:
    """One follower of one job's output."""

    name: str
    job: str
    from_start: bool
    job_id: str
    chunks: asyncio.Queue[LogChunk] = field(default_factory=lambda: asyncio.Queue(CHUNKS_MAX))
    waits_for: set[str] | None = None
    """Nodes that have not sent all there is; None: there may always be more."""

    def put(self, chunk: LogChunk) -> None:
        """A piece of output; the oldest makes way if the follower is too slow."""
        if self.chunks.full():
            self.chunks.get_nowait()
        self.chunks.put_nowait(chunk)
        self._come.set()

    async def wait(self) -> None:
        """Until there is output that has not been taken."""
        self._come.clear()
        if self.chunks.empty():
            await self._come.wait()

    _come: asyncio.Event = field(default_factory=asyncio.Event)


class LogBook:
    """All followers.  Agents send output only while somebody follows."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._numbers = itertools.count(1)

    def open(self, job: str, from_start: bool, send_all: Callable[[ToAgent], None], job_id: str = "") -> Watch:
        """Begin to follow a job's output.  `job_id` tells it from an earlier one of its name."""
        watch = self._new(job, from_start, job_id)
        send_all(_asking(watch))
        return watch

    def open_until_now(
        self, job: str, nodes: Iterable[str], send_all: Callable[[ToAgent], None], job_id: str = ""
    ) -> Watch:
        """Ask for all the output there is at this moment."""
        watch = self._new(job, True, job_id)
        self.finish(watch, nodes, send_all)
        return watch

    def finish(self, watch: Watch, nodes: Iterable[str], send_all: Callable[[ToAgent], None]) -> None:
        """Nothing comes after what there is at this moment on these nodes."""
        watch.waits_for = set(nodes)
        send_all(_asking(watch))

    def _new(self, job: str, from_start: bool, job_id: str) -> Watch:
        watch = Watch(f"watch-{next(self._numbers)}", job, from_start, job_id)
        self._watches[watch.name] = watch
        return watch

    def close(self, watch: Watch, send_all: Callable[[ToAgent], None]) -> None:
        """Nobody follows any more."""
        self._watches.pop(watch.name, None)
        send_all(WatchLogs(watch.name, watch.job, stop=True))

    def remind(self, send: Callable[[ToAgent], None]) -> None:
        """An agent has attached: it is asked for what is followed."""
        for watch in self._watches.values():
            send(_asking(watch))

    def hear(self, node: str, chunk: LogChunk) -> None:
        """An agent has sent output."""
        watch = self._watches.get(chunk.watch)
        if watch is not None:
            if chunk.end and watch.waits_for is not None:
                watch.waits_for.discard(node)
            watch.put(chunk)


def _asking(watch: Watch) -> WatchLogs:
    until_now = watch.waits_for is not None
    return WatchLogs(watch.name, watch.job, watch.from_start, until_now=until_now, job_id=watch.job_id)
