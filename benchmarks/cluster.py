"""A cluster on this machine, a job on it, and what is seen of them from outside.

While something is being measured nobody asks the coordinator anything: what happened is read
afterwards, from its journal and from the workers' own records.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicorn_mgr import messages
from unicorn_mgr.cli.common import Client, Unreachable
from unicorn_mgr.cli.local import LocalCluster, running
from unicorn_mgr.cli.run import passed_environment, submit
from unicorn_mgr.coordinator.store import load_event
from unicorn_mgr.model import JobSpec

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).resolve().parent / "scripts"
LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 120.0


class Failed(Exception):
    """The benchmark could not be carried out.  The message says what did not happen, and where to look."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the journal.  `at` is in seconds since 1970."""

    at: float
    kind: str
    event: Any


def environment() -> dict[str, str]:
    """What every measured process gets: one thread each, and the way to this checkout's modules."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(ROOT / "examples" / "gpt")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


@dataclass(eq=False)
class Cluster:
    """Coordinator, agents, and a line to them."""

    local: LocalCluster
    folder: Path
    client: Client
    _seen: list[Happened] = field(default_factory=list)
    _newest: int = 0

    def look(self) -> messages.ClusterView:
        """Everything at this moment."""
        return self.client.look()

    def events(self) -> list[Happened]:
        """Everything that has happened so far."""
        asked = messages.FollowEventsRequest(self._newest)
        with contextlib.suppress(Unreachable):
            for line in self.client.follow("FollowEvents", asked, messages.EventLine):
                self._newest = line.number
                self._seen.append(Happened(line.at, line.kind, load_event(line.kind, line.json)))
        return self._seen

    def until(
        self, what: str, holds: Callable[[messages.ClusterView], bool], seconds: float = PATIENCE_SECONDS
    ) -> messages.ClusterView:
        """Until something holds.  Raises `Failed` when that takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            self.local.tend()
            view = self.look()
            if holds(view):
                return view
            if time.monotonic() > deadline:
                raise Failed(f"waited {seconds:.0f} s until {what}; what it wrote lies in {self.folder}")
            time.sleep(LOOK_SECONDS)

    def submit(self, name: str, size: int, script: str, *arguments: str, **spec: Any) -> Job:
        """Submit one of the scripts; it writes below a folder of its own."""
        out = self.folder / "out" / name
        out.mkdir(parents=True)
        command = (sys.executable, str(SCRIPTS / script), "--out", str(out), *arguments)
        asked = JobSpec(
            name=name,
            command=command,
            environment=passed_environment(environment(), []),
            directory=str(out),
            **{"size_min": 1, "size_max": size, **spec},
        )
        submit(self.client, asked, b"")
        return Job(self, name, size, out)

    def cpu_seconds(self) -> dict[str, float]:
        """What the coordinator and all agents have computed since they began."""
        agents = [kept.process for kept in self.local.agents]
        assert self.local.coordinator.process is not None
        return {
            "coordinator": _cpu_seconds(self.local.coordinator.process.pid),
            "agents": sum(_cpu_seconds(p.pid) for p in agents if p is not None),
        }

    def command(self, body: messages.Command) -> None:
        """As an operator would."""
        self.client.call("Command", messages.OperatorCommand(uuid.uuid4().hex, body), messages.CommandDone)


@dataclass(eq=False)
class Job:
    """A submitted job."""

    cluster: Cluster
    name: str
    size: int
    out: Path

    @property
    def records(self) -> Path:
        """Where its workers write down what they do."""
        return self.out / "records"

    def view(self) -> messages.JobView:
        """At this moment.  Raises `Failed` if it has ended, which no job of a benchmark does by itself."""
        return self._of(self.cluster.look())

    def calm(self, steps: int, seconds: float = PATIENCE_SECONDS) -> messages.JobView:
        """Until it trains at full size, nothing is being healed, and some steps have gone by since."""
        since: dict[object, int] = {}

        def is_calm(view: messages.ClusterView) -> bool:
            job = self._of(view)
            if job.state != "running" or job.size != self.size or any(i.state == "open" for i in self._incidents(view)):
                since.clear()
                return False
            return job.step >= since.setdefault(job.epoch, job.step) + steps

        return self._of(self.cluster.until(f"{self.name} trains in peace on {self.size} workers", is_calm, seconds))

    def incidents(self) -> list[messages.IncidentView]:
        """All of them, oldest first."""
        return self._incidents(self.cluster.look())

    def stop(self) -> None:
        """Let it come to its end, on all workers after the same step."""
        (self.out / "stop").touch()
        self.ended()

    def ended(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Until it has come to its end.  Raises `Failed` if that is a bad one."""
        ended = self.cluster.until(f"{self.name} has ended", lambda v: self._find(v).state == "ended", seconds)
        job = self._find(ended)
        if job.exit_code:
            raise Failed(f"{self.name} ended with {job.exit_code}: {job.reason}; logs in {self.cluster.folder}")

    def _incidents(self, view: messages.ClusterView) -> list[messages.IncidentView]:
        return [i for i in view.incidents if i.job == self.name]

    def _of(self, view: messages.ClusterView) -> messages.JobView:
        job = self._find(view)
        if job.state == "ended":
            raise Failed(f"{self.name} ended with {job.exit_code}: {job.reason}; logs in {self.cluster.folder}")
        return job

    def _find(self, view: messages.ClusterView) -> messages.JobView:
        return next(j for j in view.jobs if j.job == self.name)


@contextlib.contextmanager
def cluster(folder: Path, nodes: int, settings: tuple[str, ...] = (), slots: int = 1) -> Iterator[Cluster]:
    """Nodes of so many slots each; ended with the block."""
    with running(
        folder, nodes, slots, "127.0.0.1:0", settings, drills=True, templates=folder.parent / "templates"
    ) as local:
        found = Cluster(local, folder, Client(local.address, None))
        found.until("all agents are attached", lambda v: len(v.nodes) == nodes)
        yield found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened_at(events: Sequence[Happened], incident: str) -> float:
    """When an incident was opened, in seconds since 1970."""
    return next(h.at for h in events if h.kind == "IncidentOpened" and h.event.incident == incident)


def written(worker: str) -> str:
    """A worker's name in the names of files."""
    return worker.replace("/", "-")
