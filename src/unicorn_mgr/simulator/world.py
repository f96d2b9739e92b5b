"""A whole cluster in virtual time, and everything that can happen to it.

    world = World(seed=1, settings=Settings())
    world.add_node("node-0", slots=2)
    world.start()
    world.submit(JobSpec(...), Workload(...))
    world.timeline.run(until=60.0)

The same seed gives the same history: whatever is left to chance is drawn from one generator, in the order of events.
"""

from __future__ import annotations

from random import Random

from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import Raised
from unicorn_mgr.model import JobSpec, Mark
from unicorn_mgr.planner.problem import Plan, Problem
from unicorn_mgr.simulator.checkers import Checker, Decided, Happened
from unicorn_mgr.simulator.control import Control, solved
from unicorn_mgr.simulator.machine import Machine
from unicorn_mgr.simulator.network import Line
from unicorn_mgr.simulator.timeline import Timeline
from unicorn_mgr.simulator.trainer import Trainer
from unicorn_mgr.simulator.training import Training
from unicorn_mgr.simulator.workload import Workload


class World:
    """The simulated cluster."""

    def __init__(self, seed: int, settings: Settings, checkers: tuple[Checker, ...] = ()) -> None:
        self.chance = Random(seed)  # noqa: S311 - a history is to be had again, not to be kept from anybody
        self.timeline = Timeline()
        self.machines: dict[str, Machine] = {}
        self.lines: dict[str, Line] = {}
        self.trainings: dict[str, Training] = {}
        self.checkers = checkers
        self.control = Control(self, settings)
        self.delay_seconds = (0.0002, 0.002)
        """Of a message, from and to."""
        self.busy_seconds = 0.0
        """For so long the coordinator is busy with what was before; what comes meanwhile it hears together."""
        self.plan_delay_seconds = (0.01, 0.3)
        self.plan_failures = 0.0
        """Share of the planner's answers that its fallback gives."""
        self.spawn_failures = 0.0
        """Share of processes that can't be started."""
        self._requests = 0

    # -- building ------------------------------------------------------------------------

    def add_node(self, name: str, slots: int = 1, domain: str = "") -> Machine:
        """One more machine, with its line to the coordinator."""
        machine = self.machines[name] = Machine(name, slots, self, domain)
        self.lines[name] = Line(machine, self)
        return machine

    def start(self) -> None:
        """Coordinator and agents begin."""
        self.control.start()
        for machine in self.machines.values():
            machine.start_agent()

    def submit(self, spec: JobSpec, workload: Workload) -> None:
        """A researcher's job, with what it does."""
        self.trainings[spec.name] = Training(spec.name, workload, self.timeline, self.chance, self.happens)
        self.tell(e.JobSubmitted(self.request(), spec.name, spec))

    def request(self) -> str:
        """An id that nothing had before."""
        self._requests += 1
        return f"request-{self._requests}"

    def tell(self, fact: e.Fact) -> None:
        """An operator or a researcher says something; if nobody hears it, it is said again."""

        def told() -> None:
            if self.control.up and not self.control.slow:
                self.control.tell(fact)
            else:
                self.timeline.after(1.0, told)

        told()

    # -- what parts of it need of each other -----------------------------------------------

    def line(self, machine: Machine) -> Line:
        """Its line to the coordinator."""
        return self.lines[machine.name]

    def training(self, job: str) -> Training:
        """The job of that name."""
        return self.trainings[job]

    def delay(self) -> float:
        """Of the next message, in seconds."""
        return self.chance.uniform(*self.delay_seconds)

    def plan_seconds(self) -> float:
        """The planner's next answer takes."""
        return self.chance.uniform(*self.plan_delay_seconds)

    def spawn_fails(self, machine: Machine) -> bool:
        """The next process can't be started there."""
        del machine
        return self.spawn_failures > 0 and self.chance.random() < self.spawn_failures

    def solve(self, problem: Problem) -> Plan:
        """The planner's answer."""
        return solved(problem, fails=self.plan_failures > 0 and self.chance.random() < self.plan_failures)

    # -- what everybody may see ------------------------------------------------------------

    def happens(self, what: Happened) -> None:
        """Whoever watches is told."""
        match what:
            case Decided(e.CheckpointCommitted(job, step, lineage)):
                self.trainings[job].stored = Mark(step, lineage)
        for checker in self.checkers:
            checker.see(self, what)

    # -- faults ----------------------------------------------------------------------------

    def kill(self, trainer: Trainer) -> None:
        """It is killed by signal 9."""
        trainer.machine.exits(trainer, -9)

    def throw(self, trainer: Trainer, line: int = 1) -> None:
        """An exception in the user's code ends the process."""
        if not trainer.acts:
            return
        number = trainer.todo[trainer.done_at(self.timeline.now)] if self._computes(trainer) else -1
        where = f'  File "train.py", line {line}\n'
        trainer.machine.exits(trainer, 1, Raised("ValueError", "planted", where, trainer.applied + 1, number))

    def _computes(self, trainer: Trainer) -> bool:
        return trainer.done_at(self.timeline.now) < len(trainer.todo)

    def hang(self, trainer: Trainer) -> None:
        """Its main thread stands still; what a script does after its loop may take for ever, and is no fault."""
        if trainer.alive and not trainer.hung and not trainer.over:
            self.training(trainer.job).hang(trainer)

    def slow(self, machine: Machine, slowness: float) -> None:
        """A node's slots take so many times longer."""
        machine.slowness = slowness
        for trainer in machine.trainers.values():
            if trainer.alive:
                self.training(trainer.job).slow(trainer, slowness)
