"""The template's part in storing what workers hand over: memory for it, and a porter for each part.

A slot of a job has one berth: memory for one part of a checkpoint, which its workers use one after the other.  A
worker rings when its part is sealed; a porter is forked for it, and another one if that dies, until the part is
stored or nobody wants it any more.  The seal says that the berth is taken; when it is broken the worker, if it still
lives, is answered how it ended.

What a porter tells is kept here, and repeated to an agent that comes back, as is how workers have ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unicorn_mgr.seal import WHOLE, Torn, find

ORDER_BYTES_MAX = 180_000
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
TRIES_COUNTED = 6

STORED, SUPERSEDED, UNABLE, BROKEN = 0, 3, 4, 5
"""How a porter ends for good; after any other end the part is taken up again."""

ANSWERS = {
    STORED: "stored",
    SUPERSEDED: "superseded",
    UNABLE: "from another process the storage is not reached",
    BROKEN: "the part was damaged in memory",
}

Say = Callable[[str, dict[str, Any]], None]
"""Tells the agent of a worker."""


class Place(NamedTuple):
    """Whose a berth is."""

    agent: str
    job: str
    slot: int


@dataclass(eq=False)
class Berth:
    """Of one slot."""

    place: Place
    file: int
    worker: str = ""
    """Whoever may hand something over."""
    log: str = ""
    bell: socket.socket | None = None
    """To that worker."""
    left: bool = False
    """No worker of the job will come to the slot."""

    order: dict[str, Any] = field(default_factory=dict)
    """What is handed over; empty: nothing is."""
    by: str = ""
    """Who has done so."""
    by_log: str = ""
    words: list[dict[str, Any]] = field(default_factory=list)
    """What the porter has been told: of each kind the newest."""
    pidfd: int = -1
    line: socket.socket | None = None
    tries: int = 0
    due: float = 0.0
    """When a porter is forked again."""

    @property
    def busy(self) -> bool:
        """A part is on its way."""
        return bool(self.order)

    @property
    def numbers(self) -> list[int]:
        """Its descriptors."""
        found = [self.file, self.pidfd, *(s.fileno() for s in (self.bell, self.line) if s is not None)]
        return [number for number in found if number >= 0]


class Berths:
    """All of one template.  `become` leaves the template behind in a child."""

    def __init__(self, poll: select.poll, say: Say, become: Callable[[Collection[int]], None]) -> None:
        self._poll = poll
        self._say = say
        self._become = become
        self._all: list[Berth] = []
        self._dying: list[int] = []
        """Porters that have been killed."""
        self._told: dict[str, dict[str, str]] = {}
        """By worker and kind: what porters have said that is to be repeated."""

    @property
    def busy(self) -> bool:
        """Something is on its way."""
        return any(berth.busy for berth in self._all)

    def numbers(self) -> list[int]:
        """All descriptors."""
        return [*self._dying, *(number for berth in self._all for number in berth.numbers)]

    # -- workers -------------------------------------------------------------------------

    def open(self, place: Place, worker: str, log: str) -> tuple[Berth, socket.socket]:
        """For a new worker; returns its end of the line, too."""
        berth = next((b for b in self._all if b.place == place), None)
        if berth is None:
            berth = Berth(place, os.memfd_create(f"unicorn-part-{worker}".replace("/", "-")))
            self._all.append(berth)
        self._hang_up(berth)
        if not berth.busy:  # one that was sealed, and of which nobody has said what to do with it
            _free(berth.file)
        berth.bell, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll.register(berth.bell, select.POLLIN)
        berth.worker, berth.log, berth.left = worker, log, False
        return berth, theirs

    def leave(self, place: Place) -> None:
        """No worker of this job will come to this slot for now."""
        for berth in [b for b in self._all if b.place == place]:
            berth.left = True
            self._close_if_empty(berth)

    def ended(self, worker: str) -> None:
        """It has died, or left: what it has not said in memory it will not say any more."""
        for berth in self._all:
            if berth.busy and berth.by == worker:
                self._tell(berth, {"op": "gone"})

    def told(self, worker: str) -> list[str]:
        """What is known of a worker's part, to be repeated."""
        return list(self._told.get(worker, {}).values())

    def files(self, worker: str) -> list[int]:
        """Its memory."""
        return [berth.file for berth in self._all if berth.worker == worker]

    def word(self, worker: str, mark: list[int]) -> None:
        """This checkpoint is complete."""
        for berth in self._all:
            if berth.busy and berth.by == worker:
                self._tell(berth, {"op": "complete", "mark": mark})

    def forget(self, worker: str) -> None:
        """Nobody counts on its part any more."""
        self._told.pop(worker, None)
        for berth in [b for b in self._all if b.by == worker]:
            self._finish(berth, "it is given up")

    def jobs(self, agent: str) -> set[str]:
        """Whose parts these are."""
        return {berth.place.job for berth in self._all if berth.place.agent == agent}

    def give_back(self, agent: str, jobs: Collection[str]) -> None:
        """These jobs of an agent are over."""
        for berth in [b for b in self._all if b.place.agent == agent and b.place.job in jobs]:
            berth.left = True
            self._finish(berth, "the job is over")

    # -- events --------------------------------------------------------------------------

    def turn(self, number: int) -> bool:
        """Something is to be heard there; False if that is none of these."""
        for berth in self._all:
            if berth.bell is not None and berth.bell.fileno() == number:
                self._ring(berth)
            elif berth.line is not None and berth.line.fileno() == number:
                self._hear(berth)
            elif berth.pidfd == number:
                self._reap(berth)
            else:
                continue
            return True
        if number in self._dying and os.waitid(os.P_PIDFD, number, os.WEXITED | os.WNOHANG) is not None:
            self._dying.remove(number)
            self._poll.unregister(number)
            os.close(number)
        return number in self._dying

    def tend(self) -> None:
        """Porters that have died are due again."""
        for berth in self._all:
            if berth.busy and berth.pidfd < 0 and time.monotonic() >= berth.due:
                self._fork(berth)

    def _ring(self, berth: Berth) -> None:
        assert berth.bell is not None
        try:
            said = berth.bell.recv(ORDER_BYTES_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:  # what was to be heard was said to a line before it, which had the same number
            return
        except OSError:
            said = b""
        if not said:
            self._hang_up(berth)
        elif berth.busy or not _is_sealed(berth.file):
            self._answer(berth, "there is nothing to store")
        elif not (order := _order(said)):
            self._answer(berth, f"its environment and the like are more than {ORDER_BYTES_MAX} bytes")
        else:
            berth.order, berth.by, berth.by_log = order, berth.worker, berth.log
            berth.words, berth.tries = [], 0
            self._fork(berth)

    def _hear(self, berth: Berth) -> None:
        """All that a porter has said by now."""
        while berth.line is not None and select.select([berth.line], [], [], 0)[0]:
            try:
                said = berth.line.recv(ORDER_BYTES_MAX)
            except OSError:  # it has died, and had not heard all that it was told
                said = b""
            if not said:
                self._drop_line(berth)
                return
            told = json.loads(said)
            before = self._told.get(berth.by, {}).items()
            handed = {kind: fact for kind, fact in before if kind == "CheckpointHanded"}
            self._told[berth.by] = {**handed, told["kind"]: told["fact"]}
            self._say(berth.by, {"op": "told", "worker": berth.by, "fact": told["fact"]})

    def _reap(self, berth: Berth) -> None:
        ended = os.waitid(os.P_PIDFD, berth.pidfd, os.WEXITED | os.WNOHANG)
        if ended is None:
            return
        self._hear(berth)
        self._drop_line(berth)
        self._poll.unregister(berth.pidfd)
        os.close(berth.pidfd)
        berth.pidfd = -1
        if ended.si_code == os.CLD_EXITED and ended.si_status in ANSWERS:
            self._finish(berth, ANSWERS[ended.si_status])
        else:
            self._try_again(berth)

    def _try_again(self, berth: Berth) -> None:
        berth.due = time.monotonic() + min(RETRY_SECONDS * 2 ** min(berth.tries, TRIES_COUNTED), RETRY_SECONDS_MAX)
        berth.tries += 1

    # -- porters -------------------------------------------------------------------------

    def _fork(self, berth: Berth) -> None:
        if len(os.listdir("/proc/self/task")) > 1:
            self._finish(berth, "the template has more than one thread")
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:  # there is no memory for it now, or there are too many processes
            ours.close()
            theirs.close()
            self._try_again(berth)
            return
        if pid == 0:
            try:
                ours.close()  # or it would never hear that the template is gone
                self._become((berth.file, theirs.fileno()))
                from unicorn_mgr.worker import porter  # noqa: PLC0415 - a template without torch never gets here

                porter.run(berth.by_log, berth.order, berth.file, theirs, first=berth.tries == 0)
            finally:
                os._exit(70)
        theirs.close()
        berth.line, berth.pidfd = ours, os.pidfd_open(pid)
        for said in berth.words:
            ours.send(json.dumps(said).encode(), socket.MSG_DONTWAIT)
        self._poll.register(berth.line, select.POLLIN)
        self._poll.register(berth.pidfd, select.POLLIN)

    def _tell(self, berth: Berth, said: dict[str, Any]) -> None:
        berth.words = [*(word for word in berth.words if word["op"] != said["op"]), said]
        if berth.line is not None:
            with contextlib.suppress(OSError):  # it has died: the next one is told
                berth.line.send(json.dumps(said).encode(), socket.MSG_DONTWAIT)

    def _finish(self, berth: Berth, answer: str) -> None:
        """The part is stored, or not wanted: the berth is free."""
        if berth.pidfd >= 0:
            signal.pidfd_send_signal(berth.pidfd, signal.SIGKILL)
            self._dying.append(berth.pidfd)  # storage may hold it in the kernel for long
            self._drop_line(berth)
            berth.pidfd = -1
        if berth.busy:
            berth.order = {}
            _free(berth.file)
            if berth.by == berth.worker:
                self._answer(berth, answer)
        self._close_if_empty(berth)

    def _drop_line(self, berth: Berth) -> None:
        if berth.line is not None:
            self._poll.unregister(berth.line)
            berth.line.close()
            berth.line = None

    def _answer(self, berth: Berth, answer: str) -> None:
        if berth.bell is not None:
            with contextlib.suppress(OSError):  # it has died
                berth.bell.send(answer.encode(), socket.MSG_DONTWAIT)

    def _hang_up(self, berth: Berth) -> None:
        if berth.bell is not None:
            self._poll.unregister(berth.bell)
            berth.bell.close()
            berth.bell = None

    def _close_if_empty(self, berth: Berth) -> None:
        if berth.left and not berth.busy and berth in self._all:
            self._all.remove(berth)
            self._hang_up(berth)
            os.ftruncate(berth.file, 0)
            os.close(berth.file)


def _order(said: bytes) -> dict[str, Any]:
    """Empty if it was cut off: then it was too long."""
    try:
        order: dict[str, Any] = json.loads(said)
    except ValueError:
        return {}
    return order


def _free(file: int) -> None:
    """Break the seal."""
    if os.fstat(file).st_size:
        os.pwrite(file, bytes(len(WHOLE)), 0)


def _is_sealed(file: int) -> bool:
    """The porter says what is wrong with one that is damaged."""
    try:
        return find(file) is not None
    except Torn:
        return True
