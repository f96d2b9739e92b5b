"""The template: a process that has imported torch, never computes, and forks the workers.

It is the workers' parent, and it keeps what must outlive the agent: their exit statuses,
their rings, the files their last words go to, the memory they leave snapshots of their
state in, and copies of snapshots that the agent itself has received.  Nothing lives in the
agent, so the agent can be restarted under running workers, as containerd can above its shims.

One template serves one interpreter, one set of import-time variables and one user.  It
speaks JSON in single packets over a unix socket; descriptors travel beside them.  A forked
worker reaches the first line of the user's script in about ten milliseconds.

A child forked from a process with a second thread, or after OpenMP has started, hangs at
its first parallel region; so the template imports with one thread and refuses to fork when
it finds more.  It does not import grpc.

usage: python -m unicorn_mgr.worker.template SOCKET [--bare]
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from unicorn_mgr.ring import SIZE_BYTES, enter_death_watch, prepare_death_watch
from unicorn_mgr.worker import launch
from unicorn_mgr.worker.berths import Berths, Place

PACKET_BYTES_MAX = 180_000
IDLE_SECONDS_MAX = 60.0
"""Without workers and without agents a template ends after this long."""
LAST_PART_SECONDS_MAX = 600.0
"""The same while parts of checkpoints are on their way: an agent that is started anew is there by then."""

PRELOADED = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",  # the first optimizer imports it: 0.65 s
    "torch.distributed.checkpoint",
    "unicorn_mgr.worker.attach",
    "unicorn_mgr.worker.checkpoint",
    "unicorn_mgr.worker.porter",
    "unicorn_mgr.worker.groups.gloo",
)


@dataclass(eq=False)
class _Child:
    worker: str
    pid: int
    pidfd: int
    ring: int
    words: int
    """Its last words: what excepthook and faulthandler write."""
    node: str
    """Nodes on one machine share a template."""
    note: str
    """What the agent wants to know again after a restart."""
    owner: socket.socket | None
    status: int | None = None


@dataclass(eq=False)
class _Shelf:
    """Memory in which snapshots of a job's state are left: those of one slot's workers, one after the other."""

    worker: str
    """The last one."""
    agent: str
    """The socket of its node's agent."""
    job: str
    """This submission of it."""
    slot: int
    files: tuple[int, ...]

    def close(self, empty: bool) -> int:
        """Let go of it; returns the bytes that this gives back.  `empty`: though others have it open."""
        size = sum(os.fstat(file).st_blocks * 512 for file in self.files)
        for file in self.files:
            if empty:
                os.ftruncate(file, 0)
            os.close(file)
        return size


@dataclass(eq=False)
class Template:
    """The server loop.  One thread."""

    path: Path
    bare: bool = False
    """Nothing is imported: it can store nothing for its workers."""
    shelves: list[_Shelf] = field(default_factory=list)
    kept: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """Memory of an agent's own that must outlive it, by the agent's socket and a name."""
    children: dict[str, _Child] = field(default_factory=dict)
    agents: list[socket.socket] = field(default_factory=list)

    def serve(self) -> None:
        """Answer agents until there is nobody left to serve."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fresh = self.path.with_suffix(f".{os.getpid()}")
        self._listener.bind(str(fresh))
        fresh.chmod(0o600)
        self._listener.listen(64)
        fresh.rename(self.path)
        self._poll = select.poll()
        self._berths = Berths(self._poll, self._pass_on, self._leave_behind)
        self._poll.register(self._listener, select.POLLIN)
        idle_since = time.monotonic()
        while True:
            events = self._poll.poll(1000)
            if self.agents or any(c.status is None for c in self.children.values()):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > (LAST_PART_SECONDS_MAX if self._berths.busy else IDLE_SECONDS_MAX):
                break
            for number, _ in events:
                self._turn(number)
            self._berths.tend()
        self.path.unlink(missing_ok=True)

    def _turn(self, number: int) -> None:
        if number == self._listener.fileno():
            agent, _ = self._listener.accept()
            self.agents.append(agent)
            self._poll.register(agent, select.POLLIN)
            return
        for agent in self.agents:
            if agent.fileno() == number:
                self._hear(agent)
                return
        for child in self.children.values():
            if child.pidfd == number:
                self._reap(child)
                return
        self._berths.turn(number)

    def _hear(self, agent: socket.socket) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(agent, PACKET_BYTES_MAX, 4)
        except OSError:
            packet, fds = b"", []
        asked: dict[str, Any] = json.loads(packet) if packet else {"op": ""}
        for fd in fds if asked["op"] != "keep" else ():
            os.close(fd)
        if not packet:
            self._lose(agent)
            return
        match asked["op"]:
            case "spawn":
                self._spawn(agent, asked)
            case "adopt":
                self._adopt(agent, asked)
            case "forget":
                self._forget(asked["worker"])
            case "give_back":
                self._give_back(agent, asked)
            case "keep":
                self._keep(asked, fds)
            case "drop":
                self._keep(asked, [])
            case "word":
                self._berths.word(asked["worker"], asked["mark"])

    def _lose(self, agent: socket.socket) -> None:
        self._poll.unregister(agent)
        self.agents.remove(agent)
        for child in self.children.values():
            if child.owner is agent:
                child.owner = None
        agent.close()

    def _say(self, agent: socket.socket, said: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(OSError):  # the agent has died: the next one asks
            socket.send_fds(agent, [json.dumps(said).encode()], list(fds))

    def _pass_on(self, worker: str, said: dict[str, Any]) -> None:
        child = self.children.get(worker)
        if child is not None and child.owner is not None:
            self._say(child.owner, said)

    # -- workers -------------------------------------------------------------------------

    def _spawn(self, agent: socket.socket, asked: dict[str, Any]) -> None:
        name = asked["worker"]
        if name in self.children:
            self._say(agent, {"op": "failed", "worker": name, "error": "there is a worker of this name already"})
            return
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1 and asked["kind"] != "exec":
            self._say(agent, {"op": "failed", "worker": name, "error": f"the template has {threads} threads"})
            return
        ring = os.memfd_create(f"unicorn-ring-{name}".replace("/", "-"))
        os.ftruncate(ring, SIZE_BYTES)
        words = os.memfd_create(f"unicorn-words-{name}".replace("/", "-"))
        snapshots, bell = self._snapshots(asked), None
        if not self.bare:
            berth, bell = self._berths.open(_place(asked), name, asked["log"])
            snapshots |= {"part": berth.file, "bell": bell.fileno()}
        memory = mmap.mmap(ring, SIZE_BYTES)
        watched = asked["kind"] != "exec" and prepare_death_watch(memory)
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become_worker(asked, ring, words, snapshots, memory if watched else None, ready, tell)
        os.close(tell)
        os.read(ready, 1)  # it holds the death watch now, or is dead: before that nobody may wait for it
        os.close(ready)
        if bell is not None:
            bell.close()
        child = _Child(name, pid, os.pidfd_open(pid), ring, words, asked["node"], asked["note"], agent)
        self.children[name] = child
        self._poll.register(child.pidfd, select.POLLIN)
        files = (ring, words, *snapshots["own"], *([snapshots["part"]] if not self.bare else []))
        self._say(agent, {"op": "spawned", "worker": name, "pid": pid}, files)

    def _snapshots(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What a new worker may write to, and all that it may read."""
        name, agent, job, slot = asked["worker"], asked["agent"], asked["job"], asked["slot"]
        shelf = next((s for s in self._shelves_of(agent, job) if s.slot == slot and not self._lives(s.worker)), None)
        if shelf is None:
            made = tuple(os.memfd_create(f"unicorn-snapshot-{i}-{name}".replace("/", "-")) for i in range(2))
            self.shelves.append(shelf := _Shelf(name, agent, job, slot, made))
        shelf.worker = name
        found = [file for other in self._shelves_of(agent, job) for file in other.files]
        return {"own": list(shelf.files), "found": found}

    def _keep(self, asked: dict[str, Any], files: list[int]) -> None:
        """Memory of an agent's own from now on; what has been kept by that name is let go."""
        for file in self.kept.pop((asked["agent"], asked["name"]), ()):
            os.close(file)
        if files:
            self.kept[asked["agent"], asked["name"]] = files

    def _shelves_of(self, agent: str, job: str) -> list[_Shelf]:
        return [shelf for shelf in self.shelves if (shelf.agent, shelf.job) == (agent, job)]

    def _lives(self, worker: str) -> bool:
        child = self.children.get(worker)
        if child is None or child.status is not None:
            return False
        return os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None

    def _drop(self, shelf: _Shelf) -> int:
        self.shelves.remove(shelf)
        self._berths.leave(Place(shelf.agent, shelf.job, shelf.slot))
        return shelf.close(empty=not self._lives(shelf.worker))

    def _give_back(self, agent: socket.socket, asked: dict[str, Any]) -> None:
        """What was left by workers of these jobs; in one slot, if one is named."""
        if asked["slot"] is None:
            self._berths.give_back(asked["agent"], asked["jobs"])
        for shelf in list(self.shelves):
            named = shelf.agent == asked["agent"] and shelf.job in asked["jobs"]
            if named and (asked["slot"] is None or (asked["slot"] == shelf.slot and not self._lives(shelf.worker))):
                size = self._drop(shelf)
                if size:
                    self._say(agent, {"op": "released", "worker": shelf.worker, "bytes": size})

    def _become_worker(
        self,
        asked: dict[str, Any],
        ring: int,
        words: int,
        snapshots: dict[str, Any],
        memory: mmap.mmap | None,
        ready: int,
        tell: int,
    ) -> NoReturn:
        """In the child.  Never returns into the template's loop."""
        code = 70
        try:
            os.setsid()
            os.close(ready)
            self._leave_behind({*snapshots["found"], snapshots.get("part", -1)})
            if memory is not None:
                enter_death_watch(memory)
            os.close(tell)
            code = launch.run(asked, ring, words, snapshots)
        except BaseException as failed:  # noqa: BLE001 - a child must not run on as a second template
            sys.stderr.write(f"unicorn: this worker could not be set up: {failed!r}\n")
        finally:
            with contextlib.suppress(Exception):  # whatever has become of them, this process ends here
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _leave_behind(self, kept: Collection[int]) -> None:
        """In a child: let go of what is the template's."""
        self._listener.close()
        for agent in self.agents:
            agent.close()
        theirs = [n for child in self.children.values() for n in (child.pidfd, child.ring, child.words)]
        theirs += [file for shelf in self.shelves for file in shelf.files]
        theirs += [file for files in self.kept.values() for file in files]
        for number in {*theirs, *self._berths.numbers()}.difference(kept):
            os.close(number)

    def _reap(self, child: _Child) -> None:
        """Note how it ended.  The zombie stays, so that its pid is nobody else's, until it is forgotten."""
        ended = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            return
        child.status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._poll.unregister(child.pidfd)
        self._berths.ended(child.worker)
        if child.status == 0:  # it has left or ended: nobody goes on from its state
            for shelf in [shelf for shelf in self.shelves if shelf.worker == child.worker]:
                self._drop(shelf)
        if child.owner is not None:
            self._say(child.owner, {"op": "exited", "worker": child.worker, "status": child.status})

    def _adopt(self, agent: socket.socket, asked: dict[str, Any]) -> None:
        """An agent has come back: hand it the workers of its node."""
        mine = [c for c in self.children.values() if c.node == asked["node"]]
        for (whose, name), kept in self.kept.items():
            if whose == asked["agent"]:
                self._say(agent, {"op": "kept", "name": name}, tuple(kept))
        shelved = {shelf.job for shelf in self.shelves if shelf.agent == asked["agent"]}
        jobs = sorted(shelved | self._berths.jobs(asked["agent"]))
        for child in mine:
            child.owner = agent
            said = {
                "op": "adopted",
                "worker": child.worker,
                "pid": child.pid,
                "status": child.status,
                "note": child.note,
                "told": self._berths.told(child.worker),
            }
            files = [file for shelf in self.shelves if shelf.worker == child.worker for file in shelf.files]
            files += self._berths.files(child.worker) if files else []
            self._say(agent, said, (child.ring, child.words, *files))
        self._say(agent, {"op": "ready", "pid": os.getpid(), "workers": len(mine), "jobs": jobs})

    def _forget(self, worker: str) -> None:
        child = self.children.get(worker)
        if child is None or child.status is None:
            return
        self._berths.forget(worker)
        os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG)
        for number in (child.pidfd, child.ring, child.words):
            os.close(number)
        del self.children[worker]


def _place(asked: dict[str, Any]) -> Place:
    return Place(asked["agent"], asked["job"], asked["slot"])


def main() -> None:
    """Import, then serve."""
    path, bare = Path(sys.argv[1]), "--bare" in sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not bare:
        launch.preload(PRELOADED)
        gc.freeze()  # children never walk what was imported here
    Template(path, bare).serve()


if __name__ == "__main__":
    main()
