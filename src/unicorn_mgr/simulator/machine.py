"""One simulated node: the real agent's core, and processes under it that outlive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unicorn_mgr.agent.core import AgentCore
from unicorn_mgr.effects import agent as a
from unicorn_mgr.messages import (
    Attach,
    Attached,
    CheckpointComplete,
    CollectEvidence,
    Directive,
    ErrandDone,
    Fact,
    Formed,
    GiveUp,
    Granted,
    Hello,
    NodeDrill,
    Raised,
    Retire,
    Sample,
    StartWorker,
    StoreAnswer,
    ToAgent,
    WatchLogs,
    Welcome,
)
from unicorn_mgr.model import Slot
from unicorn_mgr.simulator.trainer import Trainer

if TYPE_CHECKING:
    from unicorn_mgr.simulator.world import World

RESTART_SECONDS = 1.0
"""Until whatever supervises an agent has started it again."""

DYING_SECONDS = 0.002
REAP_SECONDS = 0.01
"""From the death of a process until its agent sees it die, and fetches its exit status."""

SAMPLE_SECONDS = 1.0
"""Between two looks of an agent at the rings of its workers."""

GRACE_SECONDS = 2.0
"""A process that is asked to end has so long."""


class Machine:
    """A node of the simulated cluster."""

    def __init__(self, name: str, slots: int, world: World, domain: str = "") -> None:
        self.name = name
        self.slots = tuple(Slot(i) for i in range(slots))
        self.domain = domain
        self.world = world
        self.power = True
        self.frozen = False
        """Nothing on it runs."""
        self.agent: AgentCore | None = None
        self.trainers: dict[str, Trainer] = {}
        """Processes that its agent has started and not yet let go of."""
        self.orders: dict[str, StartWorker] = {}
        self.slowness = 1.0
        self.term = 0
        """The newest that its agent has obeyed."""
        self._incarnations = 0
        self._pids = 1000
        self._unseen: list[Callable[[], None]] = []
        """What has come while it was frozen."""

    # -- the agent -----------------------------------------------------------------------

    @property
    def agent_runs(self) -> bool:
        """It hears and answers."""
        return self.power and not self.frozen and self.agent is not None

    def start_agent(self) -> None:
        """Begin anew, with the processes that are there."""
        if not self.power or self.agent is not None:
            return
        self._incarnations += 1
        incarnation = f"{self.name} {self._incarnations}"
        self.agent = AgentCore(Hello(node=self.name, incarnation=incarnation, slots=self.slots, domain=self.domain))
        for name, trainer in sorted(self.trainers.items()):
            self.emit(a.Adopted(self.orders[name], trainer.pid))
            if not trainer.alive:
                self.emit(a.Gone(name, -9, None, "", None, "gone when the agent began"))
                continue
            if trainer.welcome is not None:
                self.emit(a.WorkerSaid(name, Attach(worker=name, pid=trainer.pid)))
            for fact in trainer.told.values():
                self.emit(a.WorkerSaid(name, fact))
        self.world.line(self).begin()
        self._watch(self.agent)

    def _watch(self, agent: AgentCore) -> None:
        """Look at the rings, as long as this agent lives."""
        if agent is not self.agent:
            return
        if not self.frozen and self.trainers:
            self.emit(a.Sampled(self.samples()))
        self.world.timeline.after(SAMPLE_SECONDS, lambda: self._watch(agent))

    def kill_agent(self) -> None:
        """Kill -9 of the agent; its processes go on, and it is started again."""
        if self.agent is None:
            return
        self.agent = None
        self.world.line(self).cut()
        self.world.timeline.after(RESTART_SECONDS, self.start_agent)

    def emit(self, event: a.AgentEvent) -> None:
        """Tell the agent's core, and do what follows."""
        if self.agent is None or not self.power:
            return
        if self.frozen:
            self._unseen.append(lambda: self.emit(event))
            return
        now = self.world.timeline.now
        for action in self.agent.handle(event, now):
            self._perform(action)
        due = self.agent.next_deadline()
        if due is not None:
            self.world.timeline.at(due, self._time_passed)

    def _time_passed(self) -> None:
        due = self.agent.next_deadline() if self.agent is not None else None
        if due is not None and due <= self.world.timeline.now:
            self.emit(a.TimePassed())

    def _perform(self, action: a.AgentAction) -> None:
        match action:
            case a.Report(body):
                self.world.line(self).say(body)
            case a.Tell(worker, body):
                self._tell(worker, body)
            case a.Spawn(order):
                self._spawn(order)
            case a.Kill(worker, _, gently):
                self._kill(worker, gently)
            case a.Forget(worker):
                self.trainers.pop(worker, None)
                self.orders.pop(worker, None)
            case a.Freeze():
                for trainer in self.trainers.values():
                    self.world.training(trainer.job).stop(trainer)
            case a.Thaw():
                for trainer in self.trainers.values():
                    if trainer.stopped:
                        self.world.training(trainer.job).go_on(trainer)
            case _:
                pass  # snapshots in memory are not simulated, and nothing else is left behind

    def hears(self, body: ToAgent) -> None:
        """The coordinator has said something, in a term that has been checked."""
        match body:
            case Welcome():
                self.term = body.term
                self.emit(a.LinkOpened(body))
            case CollectEvidence() | WatchLogs() | NodeDrill() | StoreAnswer():
                pass
            case _:
                self.emit(a.CoordinatorSaid(body))

    # -- processes -----------------------------------------------------------------------

    def _spawn(self, order: StartWorker) -> None:
        world, name = self.world, order.worker
        training = world.training(order.job)
        self._pids += 1
        pid = self._pids
        self.orders[name] = order

        def spawned() -> None:
            if not self.power or name in self.trainers:
                return
            if self.frozen or self.agent is None:
                self._unseen.append(spawned)
                return
            if world.spawn_fails(self):
                self.emit(a.NotSpawned(name, "planted: it can't be started"))
                return
            trainer = Trainer(name, self, training.workload, pid, self.slowness)
            self.trainers[name] = training.trainers[name] = trainer
            self.emit(a.Spawned(name, pid))
            world.timeline.after(training.workload.attach_seconds * self.slowness, lambda: self._attach(trainer))

        world.timeline.after(training.workload.spawn_seconds, spawned)

    def _attach(self, trainer: Trainer) -> None:
        if not trainer.alive or trainer.hung:
            return
        if trainer.stopped or self.agent is None:
            self.world.timeline.after(RESTART_SECONDS / 2, lambda: self._attach(trainer))
            return
        self.emit(a.WorkerSaid(trainer.name, Attach(worker=trainer.name, pid=trainer.pid)))

    def said(self, trainer: Trainer, fact: Fact) -> None:
        """A process has told something of itself."""
        self.emit(a.WorkerSaid(trainer.name, fact))

    def _tell(self, worker: str, body: Directive | ErrandDone) -> None:
        trainer = self.trainers.get(worker)
        if trainer is None or not trainer.alive:
            return
        training = self.world.training(trainer.job)
        match body:
            case Attached():
                if trainer.welcome is None:
                    trainer.welcome = body
                    training.checkpoint_every = body.checkpoint_every_steps
                    training.build(trainer)
            case Granted():
                training.granted(trainer, body)
            case Formed():
                training.meets(trainer, body)
            case Retire():
                training.retire(trainer)
            case GiveUp():
                training.give_up(trainer, body)
            case CheckpointComplete():
                training.completed(trainer, body)
            case _:
                pass

    def _kill(self, worker: str, gently: bool) -> None:
        trainer = self.trainers.get(worker)
        if trainer is None or not trainer.alive:
            return
        if gently and trainer.acts:
            self.exits(trainer, -15)
        elif gently:
            self.world.timeline.after(GRACE_SECONDS, lambda: self.exits(trainer, -9))
        else:
            self.exits(trainer, -9)

    def exits(self, trainer: Trainer, code: int, raised: Raised | None = None) -> None:
        """Its process ends; the kernel tells the agent, as soon as that runs."""
        if not trainer.alive:
            return
        last = self.sample(trainer)
        self.world.training(trainer.job).end(trainer)
        if raised is None:
            dying = a.Dying(trainer.name, "mutex", last)
            self.world.timeline.after(DYING_SECONDS, lambda: self.emit(dying))
        gone = a.Gone(trainer.name, code, raised, "", last, "pidfd")
        self.world.timeline.after(REAP_SECONDS, lambda: self.emit(gone))

    def sample(self, trainer: Trainer) -> Sample:
        """What its ring says."""
        training = self.world.training(trainer.job)
        training.advance()
        return trainer.sample(self.world.timeline.now, training.step_seconds(trainer))

    def samples(self) -> tuple[Sample, ...]:
        """Of all processes that are there."""
        return tuple(self.sample(t) for _, t in sorted(self.trainers.items()) if t.alive and t.welcome is not None)

    # -- the whole node ------------------------------------------------------------------

    def power_off(self) -> None:
        """Everything on it is gone, and nobody is told."""
        if not self.power:
            return
        self.power, self.agent, self.frozen = False, None, False
        self._unseen.clear()
        for trainer in list(self.trainers.values()):
            if trainer.alive:
                self.world.training(trainer.job).end(trainer)
        self.trainers.clear()
        self.orders.clear()
        self.world.line(self).lose()

    def power_on(self) -> None:
        """It has been repaired."""
        if not self.power:
            self.power, self.slowness = True, 1.0
            self.start_agent()

    def freeze(self) -> None:
        """Nothing on it runs any more, for now."""
        if self.power and not self.frozen:
            self.frozen = True
            for trainer in self.trainers.values():
                if trainer.alive:
                    self.world.training(trainer.job).stop(trainer)

    def thaw(self) -> None:
        """It goes on."""
        if not self.frozen:
            return
        self.frozen = False
        cut_off = self.agent is not None and self.agent.cut_off.frozen
        for trainer in list(self.trainers.values()):
            if trainer.alive and trainer.stopped and not cut_off:
                self.world.training(trainer.job).go_on(trainer)
        unseen, self._unseen = self._unseen, []
        for seen in unseen:
            seen()
