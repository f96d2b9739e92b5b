"""The simulated coordinator: the real core, liveness, rendezvous and ears; a journal in memory.

What the server's loop does with a clock, a disk and tasks is done here in virtual time: a fact is handled, what
follows is in the journal, and only then are actions performed.  It may die before the journal has it, or between
the journal and the actions, and begins again with nothing but the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from unicorn_mgr.coordinator.core import CoordinatorCore
from unicorn_mgr.coordinator.hearing import Ears, Frozen, News
from unicorn_mgr.coordinator.liveness import Liveness
from unicorn_mgr.coordinator.orders import Orders
from unicorn_mgr.coordinator.rendezvous import Rendezvous
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import Beat, Hello, Published, ToAgent, Welcome, WorkerDirective
from unicorn_mgr.planner.planner import plan
from unicorn_mgr.planner.problem import Plan, Problem
from unicorn_mgr.planner.simple import FirstComeFirstServed
from unicorn_mgr.simulator.checkers import Commanded, Decided, Died, Replayed
from unicorn_mgr.simulator.network import Line

if TYPE_CHECKING:
    from unicorn_mgr.simulator.world import World

POLL_SECONDS = 0.25
EVIDENCE_SECONDS = 0.3
SECRET = b"simulated"
WALL = 1_700_000_000.0
"""Seconds since 1970 at which virtual time begins."""


class Control:
    """The coordinator of the simulated cluster."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.settings = settings
        self.journal: list[tuple[float, e.Event]] = []
        self.up = False
        self.slow = False
        """Its process stands still: what comes is heard later."""
        self.torn = False
        """Nothing is written any more: what it decides from now on is lost with it."""
        self.core = self._new_core()
        self.liveness = Liveness(settings)
        self.dies_next = ""
        """With the next fact: before it is in the journal, or between that and its actions."""
        self._world = world
        self._rendezvous = Rendezvous()
        self._ears = self._new_ears()
        self._life = 0
        self._due: float | None = None
        self._waiting: list[Callable[[], None]] = []
        self._inside = False
        self._facts: list[e.Fact] = []

    def _new_core(self) -> CoordinatorCore:
        return CoordinatorCore(self.settings, None, Orders(self.settings, SECRET))

    def _new_ears(self) -> Ears:
        return Ears(lambda: self.core.state, self.liveness, self._publish, self._say)

    @property
    def state(self) -> ClusterState:
        """What it believes."""
        return self.core.state

    # -- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, with what the journal says."""
        if self.up:
            return
        self._life += 1
        self.core, self.liveness, self._rendezvous = self._new_core(), Liveness(self.settings), Rendezvous()
        self._ears = self._new_ears()
        for at, entry in self.journal:
            self.core.replay(entry, at)
        self._world.happens(Replayed(self.core.state))
        self.up, self.slow, self.torn, self._due, self.dies_next = True, False, False, None, ""
        self._facts = [e.TermStarted(self.state.term + 1, WALL + self._world.timeline.now)]
        self._handle_all()
        if not self.up:
            return
        for job in self.state.jobs.values():
            if job.transition is not None and job.name not in self._rendezvous.meetings:
                self._rendezvous.open(job.name, job.epoch, job.members)
        self.liveness.start(self.state, self._world.timeline.now)
        planning = self.state.planning
        if planning.number and not planning.answered:
            self._solve(planning.number)
        self._later(POLL_SECONDS, self._poll)

    def die(self) -> None:
        """Kill -9: all streams break, and nothing is left but the journal."""
        if not self.up:
            return
        if not self.torn:
            self._world.happens(Died())
        self._lose()

    def tear(self, seconds: float) -> None:
        """Its disk writes nothing more, and after so long it dies: the tail of what it has lived is lost."""
        if self.up and not self.torn:
            self._world.happens(Died())
            self.torn = True
            self._later(seconds, self.die)

    def _lose(self) -> None:
        self.up = False
        self._facts.clear()
        self._waiting.clear()
        for line in self._world.lines.values():
            line.refuse()

    def stall(self, seconds: float) -> None:
        """The process stands still for so long, and then notices that it has slept."""
        if not self.up or self.slow:
            return
        self.slow = True

        def wakes() -> None:
            self.slow = False
            self.liveness.credit(seconds)
            waiting, self._waiting = self._waiting, []
            for do in waiting:
                do()

        self._later(seconds, wakes)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        """If this process is still there then."""
        life = self._life

        def if_there() -> None:
            if self.up and life == self._life:
                do()

        self._world.timeline.after(seconds, if_there)

    def _when_awake(self, do: Callable[[], None]) -> None:
        if self.slow:
            self._waiting.append(do)
        elif self.up:
            do()

    # -- the loop ------------------------------------------------------------------------

    def tell(self, fact: e.Fact) -> None:
        """Give the core a fact, with those that come while it is busy with others."""
        self._facts.append(fact)
        if len(self._facts) > 1 or self._inside:
            return
        if self._world.busy_seconds:
            self._later(self._world.busy_seconds, lambda: self._when_awake(self._handle_all))
        else:
            self._handle_all()

    def _handle_all(self) -> None:
        self._inside = True
        try:
            while self._facts and self.up:
                facts, self._facts = self._facts, []
                self._handle(facts)
        finally:
            self._inside = False

    def _handle(self, facts: list[e.Fact]) -> None:
        now = self._world.timeline.now
        outcome = self.core.handle_all(facts, now)
        dies, self.dies_next = self.dies_next, "" if outcome.entries else self.dies_next
        if outcome.entries and dies == "before" and not self.torn:
            self._lose()
            return
        if self.torn:  # nothing leaves the process before what it follows from is durable
            self._wait()
            return
        for entry in outcome.entries:
            self.journal.append((now, entry))
            self._world.happens(Decided(entry))
        if outcome.entries and dies == "between":
            self.die()
            return
        for action in outcome.actions:
            self._perform(action)
        self._wait()

    def _wait(self) -> None:
        """Until the core wants to know that time has passed."""
        due = self.core.next_deadline(self._world.timeline.now)
        if due is None or (self._due is not None and self._world.timeline.now < self._due <= due):
            return
        self._due = due
        self._later(due - self._world.timeline.now, lambda: self._when_awake(self._time_passed))

    def _time_passed(self) -> None:
        self._due = None
        self.tell(e.TimePassed())

    # -- agents --------------------------------------------------------------------------

    def greet(self, line: Line, hello: Hello) -> None:
        """An agent says hello."""
        self._when_awake(lambda: self._greet(line, hello))

    def _greet(self, line: Line, hello: Hello) -> None:
        s = self.settings
        term = self.state.term
        line.tell(Welcome("simulated", term, s.beat_seconds, s.lease_seconds, s.fence_seconds))
        self._tell_all(self._ears.hello(hello, self._world.timeline.now))

    def hear(self, line: Line, body: News) -> None:
        """An agent has said something."""
        self._when_awake(lambda: self._hear(line, body))

    def _hear(self, line: Line, body: News) -> None:
        try:
            self._tell_all(self._ears.heard(line.machine.name, body, self._world.timeline.now))
        except Frozen:
            line.cut()

    def _tell_all(self, facts: Iterable[e.Fact]) -> None:
        for fact in facts:
            self.tell(fact)

    def _say(self, node: str, body: ToAgent) -> None:
        self._perform(e.SendToAgent(node, body))

    def _publish(self, worker: str, note: Published) -> e.GroupFormed | None:
        job = worker.rpartition("/")[0]
        formed, to, completed = self._rendezvous.publish(job, note)
        for name in to:
            member = self.state.worker(name)
            if member is not None and formed is not None:
                self._say(member.node, WorkerDirective(name, formed))
        return e.GroupFormed(job, note.epoch) if completed else None

    def _poll(self) -> None:
        self._later(POLL_SECONDS, self._poll)
        if self.slow:
            return
        now = self._world.timeline.now
        for name, line in sorted(self._world.lines.items()):
            if line.through and now - self.liveness.beats.get(name, -1.0) >= self.settings.beat_seconds:
                self._hear(line, Beat(0, line.machine.samples()))
        for change in list(self.liveness.poll(self.state, now)):
            self.tell(change)

    # -- actions -------------------------------------------------------------------------

    def _perform(self, action: e.Action) -> None:
        match action:
            case e.SendToAgent(node, body):
                line = self._world.lines.get(node)
                if line is not None and line.attached:
                    line.tell(body)
            case e.OpenRendezvous(job, epoch, members):
                self._rendezvous.open(job, epoch, members)
            case e.ForgetJob(job):
                self._rendezvous.close(job)
                self.liveness.forget_job(job)
            case e.TakeReadings():
                self._read(action, 1)
            case e.TakeEvidence(_, worker):
                fact = e.EvidenceTaken(worker, "simulated", "none")
                self._later(EVIDENCE_SECONDS, lambda: self.tell(fact))
            case e.SolvePlan(number):
                self._solve(number)
        self._world.happens(Commanded(action))

    def _read(self, asked: e.TakeReadings, which: int) -> None:
        """All rings at once, if all nodes answer."""

        def answered() -> None:
            machines = [self._world.machines[node] for node in asked.workers]
            if all(self._world.lines[m.name].through for m in machines):
                samples = tuple(s for m in machines for s in m.samples() if s.worker in asked.workers[m.name])
                self._when_awake(lambda: self.tell(e.ReadingTaken(asked.job, asked.number, samples)))
            if which == 1:
                self._later(self.settings.second_reading_seconds, lambda: self._read(asked, 2))

        self._later(self._world.delay() * 2, answered)

    def _is_asked(self, number: int) -> bool:
        return self.state.planning.number == number and not self.state.planning.answered

    def _solve(self, number: int) -> None:
        def solved() -> None:
            if not self._is_asked(number):
                return
            self.tell(answered(number, self._world.solve(self.core.problem)))

        self._later(self._world.plan_seconds(), lambda: self._when_awake(solved))


def solved(problem: Problem, *, fails: bool = False) -> Plan:
    """The real planner's answer, which does not depend on how fast this machine is."""
    if fails:
        return replace(FirstComeFirstServed().solve(problem), rung="shrink", note="planted: the solver has failed")
    ticks = count()
    return plan(problem, limit=1e6, clock=lambda: float(next(ticks)))


def answered(number: int, made: Plan) -> e.PlanReady:
    """The planner's answer to a question, as the core is told it."""
    seats = {job: dict(mine) for job, mine in made.seats.items()}
    reasons, shapes = dict(made.reasons), dict(made.shapes)
    quality = (made.value, made.bound, made.proven, made.solver, made.rung)
    return e.PlanReady(number, seats, reasons, *quality, 0.0, made.note, shapes)
