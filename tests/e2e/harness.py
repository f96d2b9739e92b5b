"""Real clusters for tests: coordinator, agents and workers as processes, faults at addresses.

Nothing here sleeps to make something happen: tests wait for events of the journal.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unicorn_mgr import messages
from unicorn_mgr.cli.common import Client, Unreachable
from unicorn_mgr.cli.local import LocalCluster, running
from unicorn_mgr.cli.run import parse_drill, passed_environment
from unicorn_mgr.coordinator.store import load_event
from unicorn_mgr.model import JobSpec, WorkerName

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
SHARDED = Path(__file__).parent / "split" / "sharded.py"
PIPELINED = SHARDED.with_name("pipelined.py")
PATIENCE_SECONDS = 60.0
TOLERANCE = 1e-12
MICRO_BATCHES = 6
"""What the training script has if it is not told otherwise: three workers are faster than two, four than neither."""

Undisturbed = Callable[..., dict[str, Any]]
"""Weights at the end of a training script with these arguments, alone."""

_names = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Happened:
    number: int
    at: float
    kind: str
    event: Any


@dataclass(eq=False)
class Cluster:
    """A running cluster and a line to it."""

    local: LocalCluster
    folder: Path
    client: Client
    seen: list[Happened] = field(default_factory=list)

    # -- following -----------------------------------------------------------------------

    def events(self) -> list[Happened]:
        """Everything that has happened so far."""
        after = self.seen[-1].number if self.seen else 0
        with contextlib.suppress(Unreachable):
            for line in self.client.follow("FollowEvents", messages.FollowEventsRequest(after), messages.EventLine):
                self.seen.append(Happened(line.number, line.at, line.kind, load_event(line.kind, line.json)))
        return self.seen

    def wait_for(self, what: str, found: Callable[[list[Happened]], Any], seconds: float = PATIENCE_SECONDS) -> Any:
        """Until `found(events)` is true; returns what it returned."""
        deadline = time.monotonic() + seconds
        while True:
            self.local.tend()
            answer = found(self.events())
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"did not happen in {seconds} s: {what}\n{self.story()}\n{self.logs()}")
            time.sleep(0.02)

    def story(self) -> str:
        """What has happened last, for the message of a failed test."""
        return "\n".join(f"{h.number} {h.at:.2f} {h.kind} {h.event}"[:240] for h in self.events()[-80:])

    def wait_event(
        self, kind: str, where: Callable[[Any], bool] = lambda _: True, seconds: float = PATIENCE_SECONDS
    ) -> Any:
        """Until an event of a kind has happened; returns the first."""

        def found(events: list[Happened]) -> Any:
            return next((h.event for h in events if h.kind == kind and where(h.event)), None)

        return self.wait_for(kind, found, seconds)

    def logs(self) -> str:
        """The ends of all logs, for a failing test's message."""
        paths = sorted([*self.folder.glob("*.log"), *self.folder.glob("node-*/logs/*/*.log")])
        return "\n".join(f"== {p.relative_to(self.folder)}\n{p.read_text(errors='replace')[-1500:]}" for p in paths)

    def look(self) -> messages.ClusterView:
        """The cluster at this moment."""
        return self.client.look()

    def look_when_back(self) -> messages.ClusterView:
        """The cluster, once a coordinator answers."""

        def found(_: list[Happened]) -> messages.ClusterView | None:
            with contextlib.suppress(Unreachable):
                return self.client.look()
            return None

        view: messages.ClusterView = self.wait_for("a coordinator that answers", found)
        return view

    def job(self, name: str) -> messages.JobView:
        return next(j for j in self.look().jobs if j.job == name)

    def incidents(self, job: str) -> list[messages.IncidentView]:
        return [i for i in self.look().incidents if i.job == job]

    def kill_coordinator(self) -> None:
        """kill -9; it is started again by whoever waits for something next."""
        process = self.local.coordinator.process
        assert process is not None
        process.kill()
        process.wait()

    def kill_agent(self, node: int) -> None:
        """kill -9; it is started again by whoever waits for something next."""
        process = self.local.agents[node].process
        assert process is not None
        process.kill()
        process.wait()

    def power_off(self, node: str) -> None:
        """Its agent and all workers end at once; it stays away until it is powered on."""
        here = [w.pid for j in self.look().jobs for w in j.workers if w.node == node]
        kept = next(a for a in self.local.agents if a.name == node)
        agent, kept.process, kept.due = kept.process, None, float("inf")
        assert agent is not None
        agent.kill()
        agent.wait()
        for pid in here:
            self.end_process(pid)

    def power_on(self, node: str) -> None:
        """Its agent is started again by whoever waits for something next."""
        next(a for a in self.local.agents if a.name == node).due = 0.0

    def end_process(self, pid: int) -> None:
        """kill -9 of a worker."""
        os.kill(pid, signal.SIGKILL)

    def command(self, command: messages.Command) -> messages.CommandDone:
        return self.client.call("Command", messages.OperatorCommand(uuid.uuid4().hex, command), messages.CommandDone)

    # -- jobs ----------------------------------------------------------------------------

    def submit(
        self,
        arguments: list[str],
        size: int = 3,
        size_min: int = 1,
        drills: tuple[str, ...] = (),
        command: list[str] | None = None,
        script: Path = SCRIPT,
        last_fault: int = 0,
        **spec: Any,
    ) -> Job:
        """Submit the training script, or another command, and return at once.

        `last_fault` is the step of the last fault that the script does to itself; those of drills are known.
        """
        name = f"job-{next(_names)}"
        out = self.folder / "out" / name
        gates = out / "gates"
        gates.mkdir(parents=True)
        self.client.call(
            "Submit",
            messages.SubmitJob(
                uuid.uuid4().hex,
                JobSpec(
                    name=name,
                    command=tuple(command or [sys.executable, str(script), "--out", str(out), *arguments]),
                    environment={**passed_environment(environment(), []), "UNICORN_GATES": str(gates)},
                    directory=str(self.folder),
                    size_min=size_min,
                    size_max=size,
                    drills=tuple(map(parse_drill, drills)),
                    **spec,
                ),
            ),
            messages.Submitted,
        )
        steps = [int(d.split(":")[2]) for d in drills if d.count(":") >= 2]
        return Job(self, name, out, after=max([last_fault, *steps]))


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def submit_split(
    cluster: Cluster, script: Path, replica: dict[str, int], *arguments: str, replicas: int = 2, **spec: Any
) -> Job:
    """A job of replicas of several workers, that can train with one of them."""
    size = math.prod(replica.values())
    return cluster.submit(
        ["--axes", ",".join(replica), *arguments],
        size=size * replicas,
        script=script,
        replica=replica,
        replica_size=size,
        **{"size_min": size, **spec},
    )


@dataclass(eq=False)
class Job:
    """A submitted job."""

    cluster: Cluster
    name: str
    out: Path
    after: int = 0
    """The step of its last fault."""

    def wait(self, seconds: float = PATIENCE_SECONDS) -> Any:
        """Until it has ended; returns the JobEnded event."""
        return self.cluster.wait_event("JobEnded", lambda e: e.job == self.name, seconds)

    def at_gate(self, place: str) -> None:
        """Until a worker stands at a gate."""
        reached = self.out / "gates" / f"{place}.reached"
        self.cluster.wait_for(f"a worker at the gate {place}", lambda _: reached.exists())

    def hurry_when_whole(self, members: int) -> None:
        """Let it take its time until whoever is to join has joined; then finish fast."""
        self.cluster.wait_for(f"{members} members", lambda events: self._over(events) or self._whole(members))
        (self.out / "hurry").touch()

    def _over(self, events: list[Happened]) -> bool:
        return any(h.kind == "JobEnded" and h.event.job == self.name for h in events)

    def _whole(self, members: int) -> bool:
        view = next((j for j in self.cluster.look_when_back().jobs if j.job == self.name), None)
        if view is None or view.step <= self.after:
            return False
        closed = all(i.state == "closed" for i in self.cluster.look_when_back().incidents if i.job == self.name)
        return closed and [_is_running(w.pid) for w in view.workers if w.member] == [True] * members

    def open_gate(self, place: str) -> None:
        """Let it go on."""
        (self.out / "gates" / f"{place}.open").touch()

    def wait_step(self, step: int) -> None:
        """Until a step has begun on some worker, by the test's own records."""
        self.cluster.wait_for(f"step {step}", lambda _: any(s >= step for _, s, _, r in self.records() if not r))

    def log(self) -> str:
        """Output of all its workers."""
        paths = sorted(self.cluster.folder.glob(f"node-*/logs/{self.name}/*.log"))
        return "\n".join(p.read_text(errors="replace") for p in paths)

    def weights(self) -> dict[str, dict[str, Any]]:
        """Per worker that came to the end: its model, learning rate and scale."""
        return {
            p.stem.removeprefix("weights-"): torch.load(p, weights_only=True)
            for p in sorted(self.out.glob("weights-*.pt"))
        }

    def records(self) -> list[tuple[int, int, int, bool]]:
        """(pid, step, number, rehearsal) of every call of the loss function."""
        found = []
        for path in sorted(self.out.glob("records-*.jsonl")):
            for line in path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed process
                    found.append(tuple(json.loads(line)))
        return found

    def ended(self) -> list[dict[str, Any]]:
        """What each worker that came to the end told of its connections."""
        return [json.loads(p.read_text()) for p in sorted(self.out.glob("ended-*.json"))]


@contextlib.contextmanager
def cluster(
    folder: Path, templates: Path, nodes: int = 3, slots: int = 1, settings: tuple[str, ...] = ()
) -> Iterator[Cluster]:
    """A cluster of its own, ended with the block."""
    with running(folder, nodes, slots, "127.0.0.1:0", settings, drills=True, templates=templates) as local:
        found = Cluster(local, folder, Client(local.address, None))
        found.wait_for("all agents attached", lambda _: len(found.look().nodes) == nodes)
        yield found


def is_stopped(pid: int) -> bool:
    """It stands still by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def kill_together(job: Job, step: int, seats: Sequence[int]) -> None:
    """Workers that drills stop in this step die before any other has been dealt what was theirs."""
    job.wait_step(step - 1)
    workers = {WorkerName.parse(w.worker).seat: w.pid for w in job.cluster.job(job.name).workers}
    pids = [workers[seat] for seat in seats]
    job.cluster.wait_for("they stand still", lambda _: all(map(is_stopped, pids)))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest absolute difference of two models; the learning rate and scale must be equal."""
    assert one["lr"] == other["lr"], (one["lr"], other["lr"])
    assert one["scale"] == other["scale"]
    assert one["state"].keys() == other["state"].keys()
    return max(float((one["state"][k].double() - other["state"][k].double()).abs().max()) for k in one["state"])


def finish(
    job: Job, undisturbed: Undisturbed, steps: int, members: int | None = None, micro_batches: int = MICRO_BATCHES
) -> None:
    """The job ends well, exactly as the undisturbed run, every micro-batch counted once."""
    if members is not None:
        job.hurry_when_whole(members)
    ended = job.wait()
    assert ended.exit_code == 0, f"{ended.reason}\n{job.cluster.logs()}"
    more = () if micro_batches == MICRO_BATCHES else ("--micro-batches", str(micro_batches))
    check_exact(job, undisturbed("--steps", str(steps), *more), members)
    check_counted_once(job, steps, micro_batches)
    check_connections(job)


def check_exact(job: Job, reference: dict[str, Any], members: int | None = None) -> None:
    """All workers that came to the end have the weights of the undisturbed run."""
    weights = job.weights()
    assert weights, job.cluster.logs()
    if members is not None:
        assert len(weights) == members, f"{sorted(weights)}\n{job.cluster.story()}\n{job.cluster.logs()}"
    for worker, ended in weights.items():
        far = distance(ended, reference)
        assert far <= TOLERANCE, f"{worker} differs from the undisturbed run by {far}"


def check_counted_once(job: Job, steps: int, micro_batches: int = MICRO_BATCHES) -> None:
    """By the records of the test's own loss function, whatever the engine believes.

    Every micro-batch of every step was computed; and if it was computed more than once, all
    but one of those were by processes that died before they could have counted.
    """
    ended = {told["pid"] for told in job.ended()}
    dead = {pid for pid, *_ in job.records()} - ended
    by_number: dict[tuple[int, int], list[int]] = {}
    for pid, step, number, rehearsal in job.records():
        if not rehearsal:
            by_number.setdefault((step, number), []).append(pid)
    for step in range(steps):
        for number in range(micro_batches):
            pids = by_number.get((step, number), [])
            assert pids, f"micro-batch {number} of step {step} was never computed"
            survivors = [p for p in pids if p not in dead]
            assert len(survivors) <= 1, f"micro-batch {number} of step {step} was counted by {survivors}"


def check_restored(job: Job, step: int) -> None:
    """All died in this step or later: the job came back from memory, and made at most the step before again."""
    incidents = job.cluster.incidents(job.name)
    healed = [i for i in incidents if i.source == "memory"]
    assert healed, f"{incidents}\n{job.cluster.story()}\n{job.cluster.logs()}"
    assert all(i.steps_lost <= 1 and all(s.size_bytes > 0 for s in i.sources) for i in healed), healed
    ended = {told["pid"] for told in job.ended()}
    assert min(made for pid, made, _, rehearsal in job.records() if pid in ended and not rehearsal) >= step - 1


def check_connections(job: Job) -> None:
    """The user's own connections have survived on every worker that came to the end."""
    for told in job.ended():
        assert told["breaks"] == 0, told
        assert told["round_trips"] > 0, told
