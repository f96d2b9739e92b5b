"""A swarm of histories: each seed draws a cluster, jobs and faults; then nothing breaks, and all must be well.

    safety     anything may happen, at any moment, several things at once
    liveness   repairs are made, operators lift what they have imposed, nothing breaks any more

In the first phase nothing that a checker watches over may be broken; at the end of the second, besides, every
incident is closed and every job is as large as planned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from unicorn_mgr.coordinator.describe import describe
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import JobSpec
from unicorn_mgr.simulator.checkers import ALL, Checker, Violation, check_well
from unicorn_mgr.simulator.machine import Machine
from unicorn_mgr.simulator.trainer import Trainer
from unicorn_mgr.simulator.workload import Workload
from unicorn_mgr.simulator.world import World

STORY_LINES = 60

LOOK_SECONDS = 50.0
"""Between two looks at whether all is well again."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is drawn at most."""

    nodes: int = 6
    slots: int = 3
    jobs: int = 4
    faults: int = 24
    fault_seconds: float = 120.0
    """In which they happen."""
    calm_seconds: float = 1500.0
    """In which all has to become well: twice what the longest of the default limits takes, and more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What has become of one seed."""

    seed: int
    without: list[int]
    """Jobs and faults that were left out of it."""
    violation: str
    """Empty: none."""
    story: list[str]
    """The journal's last lines, and the faults."""
    events: int
    virtual_seconds: float


class Story:
    """One seed's history, perhaps without some of what it draws.

    Each job and each fault draws from a generator of its own, so that to leave one out changes no other.
    """

    def __init__(
        self,
        seed: int,
        size: Size,
        without: frozenset[int] = frozenset(),
        checkers: tuple[Checker, ...] | None = None,
    ) -> None:
        self.seed = seed
        self.size = size
        self.without = without
        self.draw = Random(f"swarm {seed}")  # noqa: S311 - a history is to be had again
        settings = Settings(
            quarantine_seconds=120.0,
            suspend_seconds=60.0,
            restart_delay_seconds_max=20.0,
            prepare_seconds=self.draw.choice([0.0, 5.0, 60.0]),
        )
        self.world = World(seed, settings, checkers if checkers is not None else tuple(kind() for kind in ALL))
        self.faults: list[tuple[float, str]] = []
        self.drawn = 0
        """Jobs and faults, those that are left out among them."""

    def run(self) -> Verdict:
        """Live through it."""
        violation = ""
        try:
            self._live()
        except Violation as found:
            violation = str(found)
        except (AssertionError, LookupError, TypeError, ValueError) as raised:  # whatever a core raises is our bug
            violation = f"{type(raised).__name__}: {raised}"
        world = self.world
        return Verdict(
            self.seed,
            sorted(self.without),
            violation,
            self._story(),
            world.timeline.happened,
            world.timeline.now,
        )

    def _story(self) -> list[str]:
        told = [(at, f"-- {what}") for at, what in self.faults if at <= self.world.timeline.now]
        journal = [(at, describe(entry)) for at, entry in self.world.control.journal]
        lines = sorted([*told, *journal], key=lambda line: line[0])
        return [f"{at:10.4f}  {text}" for at, text in lines[-STORY_LINES:]]

    def _live(self) -> None:
        world, draw, size = self.world, self.draw, self.size
        for i in range(draw.randint(2, size.nodes)):
            world.add_node(f"node-{i}", draw.randint(1, size.slots), draw.choice(["", "rack-0", "rack-1"]))
        busy = Random(f"busy {self.seed}")  # noqa: S311 - a history is to be had again
        world.busy_seconds = busy.choice([0.0, 0.0, 0.002, 0.05])
        world.plan_failures = draw.choice([0.0, 0.0, 0.2])
        world.spawn_failures = draw.choice([0.0, 0.0, 0.05])
        world.delay_seconds = draw.choice([(0.0002, 0.002), (0.001, 0.05), (0.0002, 0.5)])
        world.start()
        for _ in range(draw.randint(1, size.jobs)):
            self._arrange(draw.uniform(0.5, 30.0), self._submit)
        for _ in range(draw.randint(1, size.faults)):
            self._arrange(draw.uniform(2.0, size.fault_seconds), self._fault)
        world.timeline.run(size.fault_seconds)
        self._calm()
        while not self._well(world.timeline.now >= size.fault_seconds + size.calm_seconds):
            world.timeline.run(world.timeline.now + LOOK_SECONDS)

    def _well(self, last: bool) -> bool:
        """Whether all is well.  Raises `Violation` if it should be by now."""
        try:
            check_well(self.world)
        except Violation:
            if last:
                raise
            return False
        return True

    def _arrange(self, at: float, do: Callable[[int], None]) -> None:
        number, self.drawn = self.drawn, self.drawn + 1

        def happen() -> None:
            self.draw = Random(f"swarm {self.seed}, {number}")  # noqa: S311 - as above
            do(number)

        if number not in self.without:
            self.world.timeline.at(at, happen)

    def _submit(self, number: int) -> None:
        draw = self.draw
        name = f"job-{number}"
        least = draw.randint(1, 3)
        spec = JobSpec(
            name,
            ("simulated",),
            size_min=least,
            size_max=least + draw.randint(0, 4),
            weight=draw.choice([1.0, 1.0, 3.0]),
            priority=draw.choice([0, 0, 1]),
            checkpoint_url=draw.choice(["", "simulated"]),
            checkpoint_every_steps=20,
            restarts_max=1000,
            poison_deaths=1000,
            stall_seconds=draw.choice([0.0, 2.0]),
        )
        work = Workload(
            steps=draw.choice([30, 400, 100_000]),
            micro_batches=draw.randint(1, 12),
            micro_batch_seconds=draw.choice([0.02, 0.1]),
            buckets=draw.randint(1, 3),
            build_seconds=draw.uniform(0.2, 5.0),
        )
        self._note(f"submit {name} {least} to {spec.size_max}, {work.steps} steps of {work.micro_batches}")
        self.world.submit(spec, work)

    # -- faults --------------------------------------------------------------------------

    def _note(self, what: str) -> None:
        self.faults.append((self.world.timeline.now, what))

    def _fault(self, number: int) -> None:
        """One of all that can happen, at this moment, to something that is there."""
        self._note(f"fault {number}")
        kinds: list[Callable[[], None]] = [
            self._kill, self._kill, self._throw, self._hang, self._hang, self._kill_agent, self._power_off,
            self._freeze, self._part, self._cut, self._sever, self._slow, self._coordinator_dies,
            self._coordinator_stalls, self._operator,
        ]  # fmt: skip
        self.draw.choice(kinds)()

    def _trainer(self) -> Trainer | None:
        alive = [t for _, m in sorted(self.world.machines.items()) for _, t in sorted(m.trainers.items()) if t.alive]
        return self.draw.choice(alive) if alive else None

    def _machine(self) -> Machine:
        return self.draw.choice([m for _, m in sorted(self.world.machines.items())])

    def _later(self, least: float, most: float, do: Callable[[], None]) -> None:
        self.world.timeline.after(self.draw.uniform(least, most), do)

    def _kill(self) -> None:
        trainer = self._trainer()
        if trainer is not None:
            self._note(f"kill {trainer.name}")
            self.world.kill(trainer)
            if self.draw.random() < 0.3:
                self._later(0.0, 0.3, self._kill)

    def _throw(self) -> None:
        trainer = self._trainer()
        if trainer is not None:
            self._note(f"{trainer.name} raises")
            self.world.throw(trainer, line=self.draw.randint(1, 1_000_000))

    def _hang(self) -> None:
        trainer = self._trainer()
        if trainer is not None:
            self._note(f"{trainer.name} hangs")
            self.world.hang(trainer)

    def _kill_agent(self) -> None:
        machine = self._machine()
        self._note(f"the agent of {machine.name} dies")
        machine.kill_agent()

    def _power_off(self) -> None:
        machine = self._machine()
        self._note(f"{machine.name} loses power")
        machine.power_off()
        self._later(1.0, 90.0, machine.power_on)

    def _freeze(self) -> None:
        machine = self._machine()
        self._note(f"{machine.name} freezes")
        machine.freeze()
        self._later(0.1, 60.0, machine.thaw)

    def _part(self) -> None:
        lines = [line for _, line in sorted(self.world.lines.items())]
        parted = self.draw.sample(lines, self.draw.randint(1, len(lines)))
        self._note(f"nothing comes through to {', '.join(line.machine.name for line in parted)}")
        for line in parted:
            line.part()
            self._later(0.5, 150.0, line.heal)

    def _cut(self) -> None:
        machine = self._machine()
        self._note(f"the stream of {machine.name} breaks")
        self.world.line(machine).cut()

    def _sever(self) -> None:
        job = self.draw.choice(sorted(self.world.trainings) or [""])
        if job:
            self._note(f"the connections between the members of {job} break")
            self.world.training(job).sever()

    def _slow(self) -> None:
        machine = self._machine()
        slowness = self.draw.choice([1.0, 1.5, 5.0])
        self._note(f"{machine.name} takes {slowness} times as long")
        self.world.slow(machine, slowness)

    def _coordinator_dies(self) -> None:
        control = self.world.control
        how = self.draw.choice(["now", "before", "between", "torn"])
        self._note(f"the coordinator dies: {how}")
        if how == "now":
            control.die()
        elif how == "torn":
            control.tear(self.draw.uniform(0.0, 1.0))
        else:
            control.dies_next = how
        self._later(0.2, 20.0, self._coordinator_begins)

    def _coordinator_begins(self) -> None:
        control = self.world.control
        control.dies_next = ""
        if control.torn:
            control.die()
        if not control.up:
            control.start()

    def _coordinator_stalls(self) -> None:
        seconds = self.draw.uniform(0.5, 10.0)
        self._note(f"the coordinator stands still for {seconds:.1f} s")
        self.world.control.stall(seconds)

    def _operator(self) -> None:
        world, draw = self.world, self.draw
        jobs = [name for name, job in sorted(world.control.state.jobs.items()) if not job.over]
        node = self._machine().name
        request = world.request()
        facts: list[e.Fact] = [
            e.NodeDrained(request, node),
            e.NodeUndrained(request, node),
            e.NodeDegraded(request, node, draw.choice([0.5, 1.0]), ()),
            e.PauseSet(request, paused=draw.random() < 0.5),
        ]
        if jobs:
            job = draw.choice(jobs)
            least = draw.randint(1, 2)
            facts += [
                e.JobCancelled(request, job),
                e.ObserveSet(request, draw.choice(["", job]), observe=draw.random() < 0.5),
                e.WishesSet(request, job, draw.choice([0.5, 4.0]), draw.choice([0, 1]), least, least + 2),
            ]
        fact = draw.choice(facts)
        self._note(describe(fact))
        world.tell(fact)

    # -- calm ----------------------------------------------------------------------------

    def _calm(self) -> None:
        """Everything that was broken is repaired, and nothing breaks any more."""
        self._note("calm")
        world = self.world
        world.plan_failures = world.spawn_failures = 0.0
        world.delay_seconds = (0.0002, 0.002)
        self._coordinator_begins()
        for line in world.lines.values():
            line.heal()
        for machine in world.machines.values():
            machine.thaw()
            machine.power_on()
            machine.start_agent()
        world.tell(e.PauseSet(world.request(), paused=False))
        world.tell(e.ObserveSet(world.request(), "", observe=False))
        for job in sorted(world.control.state.jobs):
            world.tell(e.ObserveSet(world.request(), job, observe=False))
        for name in sorted(world.machines):
            world.tell(e.NodeUndrained(world.request(), name))
            world.tell(e.NodeDegraded(world.request(), name, 1.0, ()))


def swarm(seed: int, size: Size = Size(), without: frozenset[int] = frozenset()) -> Verdict:
    """One history, and whether all was well."""
    return Story(seed, size, without).run()


def shrunk(seed: int, size: Size = Size()) -> Verdict:
    """The shortest story with a violation that leaving out jobs and faults of this one, one by one, leads to."""
    whole = Story(seed, size)
    best = whole.run()
    if not best.violation:
        return best
    without: frozenset[int] = frozenset()
    smaller = True
    while smaller:
        smaller = False
        for number in range(whole.drawn):
            if number in without:
                continue
            tried = swarm(seed, size, without | {number})
            if tried.violation:
                best, without, smaller = tried, without | {number}, True
    return best
