"""A coordinator's core for tests: facts in, decisions and actions out, time by hand.

At the end of every test the journal is replayed into a fresh core, and the state is dumped
and loaded: both must be the state that was lived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import TypeAdapter

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.core import CoordinatorCore
from unicorn_mgr.coordinator.incident import Incident
from unicorn_mgr.coordinator.orders import Orders
from unicorn_mgr.coordinator.outlook import Outlook
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job, Node, Worker
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, JobSpec, Slot
from unicorn_mgr.phases import Phase
from unicorn_mgr.planner.simple import FirstComeFirstServed

FINGERPRINT = {"script": "abc", "torch": "2.13"}
STATE = TypeAdapter(ClusterState)

T = TypeVar("T")


def new_core(settings: Settings, *, planned: bool = False) -> CoordinatorCore:
    policy = None if planned else FirstComeFirstServed()
    return CoordinatorCore(settings, policy, Orders(settings, b"secret"))


class World:
    """One coordinator, and what its agents would tell it."""

    planned = False
    """A planner is asked; otherwise the simple policy says at once who gets what."""

    def __init__(self, nodes: int = 3, slots: int = 1, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.core = new_core(self.settings, planned=self.planned)
        self.now = 100.0
        self.journal: list[tuple[float, e.Event]] = []
        self.decided: list[e.Event] = []
        """Decisions since the last `take`."""
        self.acted: list[e.Action] = []
        """Actions since the last `take`."""
        self._requests = 0
        self.tell(e.TermStarted(1, 1_000.0))
        for i in range(nodes):
            self.attach(f"n{i}", slots)
        self.take()

    # -- in and out ----------------------------------------------------------------------

    def tell(self, *facts: e.Fact) -> list[e.Event]:
        """Give the core facts; returns what it decided."""
        decided: list[e.Event] = []
        for fact in facts:
            outcome = self.core.handle(fact, self.now)
            self.journal += [(self.now, entry) for entry in outcome.entries]
            decided += [entry for entry in outcome.entries if entry is not fact]
            self.acted += outcome.actions
            self._check()
        self.decided += decided
        return decided

    def wait(self, seconds: float) -> list[e.Event]:
        """Let time pass, stopping at each deadline as the shell does."""
        decided: list[e.Event] = []
        until = self.now + seconds
        while (due := self.core.next_deadline(self.now)) is not None and due <= until:
            self.now = due
            decided += self.tell(e.TimePassed())
        self.now = until
        return decided + self.tell(e.TimePassed())

    def take(self) -> tuple[list[e.Event], list[e.Action]]:
        """Decisions and actions since the last time."""
        found = self.decided, self.acted
        self.decided, self.acted = [], []
        return found

    def said(self, kind: type[T]) -> list[tuple[str, T]]:
        """What agents have been told of a kind since the last `take`: (node, body)."""
        return [(a.node, a.body) for a in self.acted if isinstance(a, e.SendToAgent) and isinstance(a.body, kind)]

    def directives(self, kind: type[T]) -> list[tuple[str, T]]:
        """What workers have been told of a kind since the last `take`: (worker, body)."""
        return [(d.worker, d.body) for _, d in self.said(m.WorkerDirective) if isinstance(d.body, kind)]

    def decisions(self, kind: type[T]) -> list[T]:
        """Decisions of a kind since the last `take`."""
        return [d for d in self.decided if isinstance(d, kind)]

    # -- what is there -------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        return self.core.state

    def job(self, name: str = "gpt") -> Job:
        return self.state.jobs[name]

    def node(self, name: str) -> Node:
        return self.state.nodes[name]

    def worker(self, name: str) -> Worker:
        found = self.state.worker(name)
        assert found is not None, f"{name} is not there"
        return found

    @property
    def incidents(self) -> list[Incident]:
        return list(self.state.incidents.values())

    def incident(self) -> Incident:
        """The only one."""
        (found,) = self.incidents
        return found

    def members(self, job: str = "gpt") -> list[str]:
        return list(self.job(job).members)

    # -- what agents and people do -------------------------------------------------------

    def request(self) -> str:
        self._requests += 1
        return f"request-{self._requests}"

    def attach(
        self,
        node: str,
        slots: int = 1,
        workers: tuple[str, ...] = (),
        incarnation: str = "",
        domain: str = "",
        copies_port: int = 7000,
        copies: int = 0,
        **epochs: Epoch,
    ) -> list[e.Event]:
        places = tuple(Slot(i) for i in range(slots))
        told = {name.replace("__", "/").replace("_", "."): epoch for name, epoch in epochs.items()}
        agent = incarnation or f"agent of {node}"
        return self.tell(
            e.NodeAttached(node, agent, places, "10.0.0.1", workers, told, True, domain, copies_port, copies)
        )

    def submit(self, name: str = "gpt", size_min: int = 1, size_max: int = 3, **spec: Any) -> list[e.Event]:
        asked = JobSpec(name, ("python", "train.py"), directory="/w", size_min=size_min, size_max=size_max, **spec)
        return self.tell(e.JobSubmitted(self.request(), name, asked))

    def begin(self, worker: str, fingerprint: dict[str, str] = FINGERPRINT) -> list[e.Event]:
        """A process comes up and is ready."""
        return self.tell(
            e.WorkerStarted(worker, 4000 + len(self.journal)),
            e.WorkerAttached(worker),
            e.WorkerTold(worker, m.Ready(dict(fingerprint))),
        )

    def begin_all(self, job: str = "gpt") -> list[e.Event]:
        """Every ordered process comes up and is ready."""
        ordered = [w.name for w in self.job(job).alive() if w.phase.value == "ordered"]
        return [d for name in ordered for d in self.begin(name)]

    def resume(self, job: str = "gpt", step: int = 0, **told: Any) -> list[e.Event]:
        """The newest epoch's members form their group and finish a step in it."""
        epoch = self.job(job).epoch
        decided = self.tell(e.GroupFormed(job, epoch))
        for name in self.members(job):
            decided += self.tell(e.WorkerTold(name, m.Resumed(epoch, step, **told)))
        return decided

    def train(self, job: str = "gpt", size: int = 3, size_min: int = 1, **spec: Any) -> None:
        """Submit a job and bring it to full speed."""
        self.submit(job, size_min, size, **spec)
        self.begin_all(job)
        self.resume(job)
        assert self.job(job).phase.value == "running"
        assert not self.job(job).transition
        self.take()

    def die(self, worker: str, code: int = -9, raised: m.Raised | None = None, **last: Any) -> list[e.Event]:
        """A process ends when it should not."""
        sample = m.Sample(worker, **last) if last else None
        decided = self.tell(e.WorkerDying(worker, "mutex", sample)) if raised is None else []
        return decided + self.tell(e.WorkerExited(m.Exited(worker, code, raised, last=sample)))

    def regroup(self, job: str = "gpt", step: int = 5) -> list[e.Event]:
        """Deaths are batched, the survivors go on, replacements come up and join."""
        decided = self.wait(self.settings.death_batch_seconds)
        decided += self.resume(job, step)
        decided += self.begin_all(job)
        decided += self.wait(self.settings.join_batch_seconds)
        if self.job(job).transition is not None:
            decided += self.resume(job, step + 1)
        return decided

    def reading(self, *places: tuple[str, Phase, int], job: str = "gpt", counter: int = 1, quiet: float = 12.0) -> None:
        """One reading of all rings: (worker, phase, step)."""
        number = self.job(job).inquiries
        samples = tuple(
            m.Sample(worker, counter, step=step, phase=int(phase), quiet_seconds=quiet, step_seconds=0.1)
            for worker, phase, step in places
        )
        self.tell(e.ReadingTaken(job, number, samples))

    # -- what always holds ---------------------------------------------------------------

    def _check(self) -> None:
        """Whatever happens."""
        assert self.core.problem == Outlook(self.settings).problem(self.state), "something has changed unseen"
        self._check_nothing_is_overlooked()
        held: dict[tuple[str, int], list[Worker]] = {}
        for job in self.state.jobs.values():
            for worker in job.workers.values():
                if worker.exited is None:
                    held.setdefault((worker.node, worker.slot), []).append(worker)
            assert job.epoch.term <= self.state.term
            for name in job.incidents:
                assert self.state.incidents[name].open
        for place, workers in held.items():
            assert {w.name for w in workers} == {w.name for w in self.state.on_slot(*place)}
            assert len(workers) <= 2, f"{[w.name for w in workers]} are on {place}"
            members = [w.name for w in workers if w.was_member]
            assert len(members) <= 1, f"{members} are both members on {place}"
        kinds_of = Counter(f"{i.cause}|{i.severity}" for i in self.incidents)
        assert self.state.counters.incidents == kinds_of, "incidents are miscounted"
        for incident in self.incidents:
            assert len(set(incident.escalations)) == len(incident.escalations), "each at most once"

    def _check_nothing_is_overlooked(self) -> None:
        """As if every job were looked at after every event."""
        core, jobs = self.core, [job for job in self.state.jobs.values() if not job.over]
        assert core._next_decisions({job.name for job in jobs}, self.now) == [], "a job has been overlooked"
        known, due = core.next_deadline(self.now), [at for job in jobs for at in core._deadlines_of(job, self.now)]
        first = min((at for at in due if at > self.now), default=None)
        assert first is None or (known is not None and known <= first), "a deadline has been overlooked"

    def replayed(self) -> ClusterState:
        """The state that the journal alone leads to."""
        core = new_core(self.settings)
        for at, entry in self.journal:
            core.replay(entry, at)
        return core.state

    def check_replay(self) -> None:
        assert self.replayed() == self.state, "the journal leads elsewhere"
        assert STATE.validate_json(STATE.dump_json(self.state)) == self.state, "a snapshot loses something"


def kinds(decided: list[e.Event]) -> list[str]:
    """What was decided, by name."""
    return [type(d).__name__ for d in decided]


def stories(world: World) -> Iterator[str]:
    """Every line of every incident."""
    for incident in world.incidents:
        yield from incident.story
