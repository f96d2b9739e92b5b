"""What must hold in every history, each in a class of its own.

They look at what really happens (which process applies which step) as much as at what the coordinator believes:
a belief that is consistent and wrong is what they are for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pydantic import TypeAdapter

from unicorn_mgr.coordinator.state import ClusterState
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import NO_STATE, Epoch
from unicorn_mgr.planner.problem import Place
from unicorn_mgr.simulator.trainer import Sum, Trainer

if TYPE_CHECKING:
    from unicorn_mgr.simulator.world import World

WAITING_MAX = 10_000
"""Messages that are under way, and moments at which somebody wants to do something."""

PROCESSES_PER_SLOT = 20
"""Of one job, remembered at a time; more means that ended ones are never forgotten."""

_STATE = TypeAdapter(ClusterState)


class Violation(Exception):
    """Something has happened that must not."""


@dataclass(frozen=True, slots=True)
class Decided:
    """An event is in the journal."""

    entry: e.Event


@dataclass(frozen=True, slots=True)
class Commanded:
    """The coordinator acts on what is in the journal."""

    action: e.Action


@dataclass(frozen=True, slots=True)
class Died:
    """The coordinator is gone, and all that it believed is in its journal."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A coordinator begins with what the journal leads to."""

    state: ClusterState


@dataclass(frozen=True, slots=True)
class Applied:
    """A process has applied a step."""

    trainer: Trainer
    step: int
    sums: tuple[Sum, ...]
    """Per bucket of its gradient, the micro-batches in it."""
    poison: frozenset[int]
    """Micro-batches of this step that are skipped."""


Happened = Decided | Commanded | Died | Replayed | Applied


class Checker(Protocol):
    """Sees all that happens; raises `Violation`."""

    def see(self, world: World, what: Happened) -> None:
        """The next thing has happened."""


class CountedOnce:
    """Every micro-batch of every finished step is in its gradient exactly once."""

    def see(self, world: World, what: Happened) -> None:
        """Each bucket has all numbers but those that are skipped."""
        del world
        if not isinstance(what, Applied):
            return
        who = f"{what.trainer.name} applies step {what.step}"
        workload = what.trainer.workload
        wanted = [n for n in range(workload.micro_batches) if n not in what.poison]
        if len(what.sums) != workload.buckets:
            raise Violation(f"{who} with {len(what.sums)} of {workload.buckets} buckets")
        for bucket, found in enumerate(what.sums):
            if sorted(found) != wanted:
                raise Violation(f"{who}: bucket {bucket} has {sorted(found)}")


class OneOwner:
    """On no slot do two processes have a job's state, be it that one has left and not yet ended."""

    def see(self, world: World, what: Happened) -> None:
        """Whoever finishes a step is alone on its slot."""
        del world
        if not isinstance(what, Applied):
            return
        machine = what.trainer.machine
        slot = machine.orders[what.trainer.name].slot
        for other in machine.trainers.values():
            trains = other.alive and other.applied > NO_STATE
            if other is not what.trainer and trains and machine.orders[other.name].slot == slot:
                raise Violation(f"{what.trainer.name} and {other.name} both train on {machine.name}, slot {slot}")


@dataclass
class EpochsGrow:
    """Epochs only grow, and nothing of an older one has an effect once a newer one has had any."""

    granted: dict[str, Epoch] = field(default_factory=dict)
    applied_in: dict[str, Epoch] = field(default_factory=dict)

    def see(self, world: World, what: Happened) -> None:
        """Grants rise, and no step is finished in an older epoch than one has been already."""
        del world
        if isinstance(what, Decided) and isinstance(what.entry, e.EpochGranted):
            job, epoch = what.entry.job, what.entry.epoch
            if epoch <= self.granted.get(job, Epoch()):
                raise Violation(f"job {job} is granted {epoch} after {self.granted[job]}")
            self.granted[job] = epoch
        if isinstance(what, Applied):
            trainer = what.trainer
            newest = self.applied_in.get(trainer.job, Epoch())
            if trainer.formed < newest:
                late = f"{trainer.name} applies step {what.step} in {trainer.formed}"
                raise Violation(f"{late}, after others did in {newest}")
            self.applied_in[trainer.job] = trainer.formed


@dataclass
class PlansFit:
    """What is assigned is there, is nobody else's, and is no fewer slots than the job needs."""

    assigned: bool = False
    before: dict[str, set[int]] = field(default_factory=dict)

    def see(self, world: World, what: Happened) -> None:
        """Seats on slots that there are; once all jobs have theirs, on each slot one."""
        if not isinstance(what, Decided):
            return
        state, entry = world.control.state, what.entry
        if isinstance(entry, e.SlotsAssigned):
            self.assigned = True
            self._check(state, entry)
        elif self.assigned:
            self.assigned = False
            self._check_all(state)

    def _check(self, state: ClusterState, entry: e.SlotsAssigned) -> None:
        job = state.jobs[entry.job]
        lost = entry.reason.startswith("has lost")  # that is no plan: the planner is asked next
        fewer = len(entry.seats) + len(job.barred) < job.spec.size_min
        if fewer and not lost and not job.members and not set(entry.seats) <= self.before.get(job.name, set()):
            needs = f"{len(entry.seats)} slots and needs {job.spec.size_min}"
            raise Violation(f"job {entry.job} gets {needs}: {entry.reason}")
        self.before[job.name] = set(entry.seats)
        for seat, (name, slot) in entry.seats.items():
            if slot not in {s.index for s in state.nodes[name].slots}:
                raise Violation(f"job {entry.job}: seat {seat} is on {name}, which has no slot {slot}")

    def _check_all(self, state: ClusterState) -> None:
        owners: dict[tuple[str, int], str] = {}
        for job in state.jobs.values():
            if job.over or job.loop_ended_step is not None or job.cancelled or job.give_up is not None:
                continue  # it keeps its seats in mind until its last process is gone
            for seat, place in job.seats.items():
                if place in owners:
                    raise Violation(f"{place} is job {job.name}'s seat {seat} and {owners[place]}")
                owners[place] = f"job {job.name}'s seat {seat}"


@dataclass
class PlansVerified:
    """Only the answer to the newest question is applied, and only as long as it can be."""

    asked: int = 0
    planned: dict[str, set[Place]] = field(default_factory=dict)
    """By job, as the newest answer has it."""
    had: dict[str, set[Place]] = field(default_factory=dict)

    def see(self, world: World, what: Happened) -> None:
        """Whatever a job did not have before is in that answer, and on a node that may be used."""
        match what:
            case Decided(e.PlanWanted(number)):
                self.asked, self.planned = number, {}
            case Decided(e.PlanReady(number, seats)):
                if number != self.asked:
                    raise Violation(f"plan {number} is an answer to an older question than {self.asked}")
                self.planned = {job: set(mine.values()) for job, mine in seats.items()}
            case Decided(e.SlotsAssigned(job, seats)):
                gets = set(seats.values()) - self.had.get(job, set())
                self.had[job] = set(seats.values())
                if not gets <= self.planned.get(job, set()):
                    raise Violation(f"job {job} gets {sorted(gets)}, which no answer to question {self.asked} says")
                uncounted = sorted(p for p in gets if not world.control.state.nodes[p[0]].counts)
                if uncounted:
                    raise Violation(f"job {job} gets {uncounted}, on nodes that do not count")


@dataclass
class MinimumKept:
    """No job begins with fewer workers than it needs."""

    begun: set[str] = field(default_factory=set)

    def see(self, world: World, what: Happened) -> None:
        """The first membership of each life is large enough, unless it wants more since it was given its slots."""
        match what:
            case Decided(e.LifeEnded(job) | e.JobEnded(job)):
                self.begun.discard(job)
            case Decided(e.WishesSet(job=job)):
                self.begun.add(job)
            case Decided(e.EpochGranted(job, _, members)) if job not in self.begun:
                self.begun.add(job)
                found = world.control.state.jobs[job]
                if len(members) + len(found.barred) < found.spec.size_min:
                    raise Violation(f"job {job} begins with {len(members)} workers and needs {found.spec.size_min}")


@dataclass
class NothingForgotten:
    """The journal alone leads to the state that was lived, and so to all that was acknowledged."""

    lived: bytes | None = None

    def see(self, world: World, what: Happened) -> None:
        """The next coordinator believes what the one before did."""
        if isinstance(what, Died):
            self.lived = _STATE.dump_json(world.control.state)
        elif isinstance(what, Replayed):
            if self.lived is not None and _STATE.dump_json(what.state) != self.lived:
                raise Violation("the journal does not lead to the state that was lived")
            self.lived = None


@dataclass
class NothingUndone:
    """What is in storage is never done again: a job that begins anew goes on after it."""

    stored: dict[str, int] = field(default_factory=dict)
    """By job, the newest step that is known to be there."""
    begun_after: dict[str, int] = field(default_factory=dict)

    def see(self, world: World, what: Happened) -> None:
        """No step up to there is applied once a job has begun anew."""
        del world
        match what:
            case Decided(e.JobSubmitted(job=job)):
                self.stored.pop(job, None)
                self.begun_after.pop(job, None)
            case Decided(e.CheckpointCommitted(job, step) | e.JobSuspended(job, step)):
                self.stored[job] = max(step, self.stored.get(job, step))
            case Decided(e.LifeEnded(job)) if job in self.stored:
                self.begun_after[job] = self.stored[job]
            case Applied(trainer, step) if step <= self.begun_after.get(trainer.job, step - 1):
                after = self.begun_after[trainer.job]
                raise Violation(f"{trainer.name} applies step {step} again: what was after step {after} was stored")


class NothingPiles:
    """What is kept of jobs and their processes does not grow with what has happened to them."""

    def see(self, world: World, what: Happened) -> None:
        """Few more processes are remembered than there are slots, and nothing of a job that is over."""
        match what:
            case Decided(e.WorkerOrdered(worker)):
                job = world.control.state.jobs[worker.rpartition("/")[0]]
                if len(job.workers) > PROCESSES_PER_SLOT * job.spec.size_max:
                    raise Violation(f"job {job.name} remembers {len(job.workers)} processes")
                if world.timeline.waiting > WAITING_MAX:
                    raise Violation(f"{world.timeline.waiting} messages and timers are under way at once")
            case Commanded(e.ForgetJob(name)):
                self._check_forgotten(world, name)

    def _check_forgotten(self, world: World, name: str) -> None:
        control = world.control
        kept = [worker for worker in control.liveness.samples if worker.rpartition("/")[0] == name]
        if kept:
            raise Violation(f"samples of {kept} are kept, and job {name} is over")


ALL: tuple[type[Checker], ...] = (
    CountedOnce,
    OneOwner,
    EpochsGrow,
    PlansFit,
    PlansVerified,
    MinimumKept,
    NothingForgotten,
    NothingUndone,
    NothingPiles,
)
"""One of each for every history."""


def check_well(world: World) -> None:
    """When nothing has been broken for long every job runs as planned, has ended, or waits for room.

    Raises `Violation`.
    """
    state = world.control.state
    for node in state.nodes.values():
        if node.phase.value in ("silent", "lost"):
            raise Violation(f"node {node.name} is {node.phase.value} though it beats")
    waiting = {job.name for job in state.jobs.values() if not job.over and not job.seats}
    silent = [name for name in sorted(waiting) if not state.jobs[name].seats_reason.startswith("waits for")]
    if silent:
        raise Violation(f"job {silent[0]} has no slots, and nobody says what it waits for")
    opened = [i for i in state.incidents.values() if i.open and i.job not in waiting]
    if opened:
        raise Violation(f"incident {opened[0].id} is still open: {opened[0].story}")
    if state.planning.number and not state.planning.answered:
        raise Violation(f"question {state.planning.number} to the planner was never answered")
    for job in state.jobs.values():
        if not job.over:
            _check_job(world, job.name)


def _check_job(world: World, name: str) -> None:
    job = world.control.state.jobs[name]
    if job.give_up is not None or job.cancelled:
        raise Violation(f"job {name} should have ended: {job.give_up}")
    if not job.seats:
        return
    filled = set(job.seats) - set(job.barred)
    if not job.members and len(filled) < job.spec.size_min:
        raise Violation(f"job {name} holds {len(job.seats)} slots, needs {job.spec.size_min}, and never begins")
    if job.transition is not None:
        raise Violation(f"job {name} never came to the end of its transition to {job.epoch}")
    if len(job.living_members()) != len(filled):
        found = [(w.name, w.phase.value) for w in job.alive()]
        raise Violation(f"job {name} was given {sorted(job.seats)} and has {found}")
    training = world.training(name)
    training.advance()
    if training.run is None or training.run.broken:
        found = [(t.name, t.phase.name.lower()) for t in training.trainers.values() if t.alive]
        raise Violation(f"job {name} stands still: {found}")
