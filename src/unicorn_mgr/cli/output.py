"""Workers' output on stdout, as `unicorn run` and `unicorn logs` show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from unicorn_mgr.cli.common import Client, Unreachable
from unicorn_mgr.cli.show import note
from unicorn_mgr.messages import FollowJobRequest, JobUpdate, JobView

LINE_BYTES_MAX = 1 << 16
RETRY_SECONDS = 0.5


@dataclass(slots=True)
class Output:
    """Whole lines, each with its worker before it, each once."""

    only: str = ""
    """A seat, or a seat and incarnation; empty: all."""
    _shown: dict[str, int] = field(default_factory=dict)
    """Per worker, how much of all that it has written has been shown.

    After a restart, of the coordinator or of an agent, all is told again from the beginning.
    """
    _tails: dict[str, bytes] = field(default_factory=dict)
    """Per worker, the line that has not ended yet."""

    def write(self, update: JobUpdate) -> None:
        """More output of a worker."""
        worker = update.worker
        if not self._wanted(worker):
            return
        begin, end = update.offset, update.offset + len(update.output)
        shown = self._shown.get(worker, 0)
        if end <= shown:
            return
        if begin > shown:
            self._lines(worker, f"... {begin - shown} bytes left out ...\n".encode())
        self._shown[worker] = end
        self._lines(worker, update.output[max(0, shown - begin) :])
        sys.stdout.flush()

    def finish(self) -> None:
        """The last lines of those who did not end them."""
        for worker in sorted(self._tails):
            self._lines(worker, b"\n")
        sys.stdout.flush()

    def _wanted(self, worker: str) -> bool:
        seat = worker.rpartition("/")[2]
        return not self.only or self.only in (seat, seat.partition(".")[0])

    def _lines(self, worker: str, output: bytes) -> None:
        *lines, tail = (self._tails.pop(worker, b"") + output).split(b"\n")
        if len(tail) > LINE_BYTES_MAX:
            lines, tail = [*lines, tail], b""
        if tail:
            self._tails[worker] = tail
        for line in lines:
            sys.stdout.write(f"[{worker}] {line.decode(errors='replace')}\n")


def follow(client: Client, asked: FollowJobRequest, output: Output) -> Iterator[JobView]:
    """A job's states until it has ended, its output meanwhile, also across a restart of the coordinator."""
    reached = False
    while True:
        try:
            for update in client.follow("FollowJob", asked, JobUpdate):
                reached = True
                if update.job is not None:
                    yield update.job
                else:
                    output.write(update)
            output.finish()
            return
        except Unreachable as away:
            if not reached:
                raise
            note(f"{away}; the job goes on without it")
            _wait_for(client)


def _wait_for(client: Client) -> None:
    while True:
        try:
            client.look()
        except Unreachable:
            time.sleep(RETRY_SECONDS)
        else:
            return
