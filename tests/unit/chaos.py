"""Anything may happen to a coordinator's core, and then everything is well again."""

from __future__ import annotations

from unit.world import World, new_core

from unicorn_mgr import messages as m
from unicorn_mgr.coordinator.state import Job, WorkerPhase
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.model import Epoch, Lineage
from unicorn_mgr.phases import Phase

COMING = (WorkerPhase.ORDERED, WorkerPhase.STARTED, WorkerPhase.ATTACHED)


def restart(world: World, term: int) -> World:
    """The coordinator dies and another one recovers from the journal."""
    world.core = new_core(world.settings)
    for at, entry in world.journal:
        world.core.replay(entry, at)
    world.take()
    world.tell(e.TermStarted(term, 2_000.0))
    return world


# -- the safety phase: anything may break ---------------------------------------------------


ACTS = (
    "die",
    "raise",
    "ready",
    "resume",
    "wait",
    "symptom",
    "quiet",
    "read",
    "silent",
    "halt",
    "heard",
    "attach",
    "part",
)
WISHES = (
    "submit",
    "cancel",
    "drain",
    "undrain",
    "degrade",
    "pause",
    "unpause",
    "observe",
    "act",
    "restart",
    "ended",
    "progress",
)


def happen(world: World, act: str, n: int) -> None:
    """Something happens to the n-th worker, node or job there is."""
    workers = [w for job in world.state.jobs.values() for w in job.alive()]
    worker = workers[n % len(workers)].name if workers else "nobody/0.0"
    node = f"n{n % 3}"
    jobs = list(world.state.jobs) or ["nobody"]
    job = jobs[n % len(jobs)]
    epoch = world.state.jobs[job].epoch if job in world.state.jobs else Epoch()
    match act:
        case "die":
            world.die(worker, -9 if n % 2 else 0, step=n % 4, micro_batch=n % 3)
        case "raise":
            line = f'  File "train.py", line {n % 2}\n'
            world.tell(e.WorkerExited(m.Exited(worker, 1, m.Raised("ValueError", "no", line))))
        case "ready":
            world.begin(worker)
        case "resume" if job in world.state.jobs:
            world.resume(job, step=n)
        case "wait":
            world.wait([0.02, 0.2, 1.0, 30.0, 200.0][n % 5])
        case "part":
            _part(world, n)
        case "symptom":
            world.tell(e.WorkerTold(worker, m.Symptom(epoch, "reset")))
        case "quiet":
            world.tell(e.WorkerQuiet(m.Sample(worker, quiet_seconds=20.0), 10.0))
        case "read" if job in world.state.jobs:
            phases = (Phase.REDUCE, Phase.COMPUTE if n % 2 else Phase.REDUCE)
            places = [(name, phases[i % 2], 5) for i, name in enumerate(world.members(job))]
            world.reading(*places, job=job)
        case "silent":
            world.tell(e.NodeSilent(node, 3.0))
        case "halt":
            world.tell(e.JobHalted(job, 3.0))
        case "heard":
            world.tell(e.NodeHeard(node))
        case "attach":
            here = [w.name for w in world.state.on_node(node)]
            world.attach(node, workers=tuple(here[: n % 3]), incarnation=str(n % 2))
        case _:
            wish(world, act, n, worker, node, job)


def _part(world: World, n: int) -> None:
    """Of some checkpoint, of somebody who may be long dead."""
    workers = [w for job in world.state.jobs.values() for w in job.workers.values()]
    if not workers:
        return
    worker = workers[n % len(workers)]
    lineage = Lineage(0, world.state.jobs[worker.job].epoch)
    facts: tuple[m.LastingFact, ...] = (
        m.CheckpointHanded(n // 5, lineage, "/store"),
        m.CheckpointWritten(n // 5, lineage, "/store", handed=n % 2 == 0),
        m.CheckpointPublished(n // 5, "/store"),
        m.CheckpointFailed(n // 5, "no space left on device", superseded=n % 2 == 0),
    )
    world.tell(e.WorkerTold(worker.name, facts[n % 4]))


def wish(world: World, act: str, n: int, worker: str, node: str, job: str) -> None:
    match act:
        case "submit":
            world.submit(f"job-{n % 2}", 1 + n % 2, 3, observe=n % 5 == 0, restarts_max=n % 4)
        case "cancel":
            world.tell(e.JobCancelled(world.request(), job))
        case "drain":
            world.tell(e.NodeDrained(world.request(), node))
        case "undrain":
            world.tell(e.NodeUndrained(world.request(), node))
        case "degrade":
            world.tell(e.NodeDegraded(world.request(), node, 0.5, (7,) if n % 2 else ()))
        case "pause" | "unpause":
            world.tell(e.PauseSet(world.request(), paused=act == "pause" and n % 3 == 0))
        case "observe" | "act":
            world.tell(e.ObserveSet(world.request(), "" if n % 2 else job, observe=act == "observe" and n % 3 == 0))
        case "restart":
            restart(world, world.state.term + 1)
        case "ended":
            world.tell(e.WorkerTold(worker, m.LoopEnded(n)), e.WorkerExited(m.Exited(worker, 0)))
        case "progress":
            world.tell(e.JobProgressed(job, n, 0.1))


# -- the liveness phase: everything is well again -------------------------------------------


def heal(world: World, rounds: int = 12) -> None:
    """Operators lift what they have imposed; agents and workers do as they are told."""
    world.tell(e.PauseSet(world.request(), paused=False), e.ObserveSet(world.request(), "", observe=False))
    for name in world.state.jobs:
        world.tell(e.ObserveSet(world.request(), name, observe=False))
    for node in world.state.nodes.values():
        here = tuple(w.name for w in world.state.on_node(node.name))
        world.attach(node.name, workers=here, incarnation=node.incarnation)
        world.tell(e.NodeUndrained(world.request(), node.name))
        world.tell(e.NodeDegraded(world.request(), node.name, 1.0, ()))
    for _ in range(rounds):
        for job in [j for j in world.state.jobs.values() if not j.over]:
            _obey(world, job)
            if job.transition is not None:
                world.resume(job.name, step=50)
        world.wait(70.0)


def _obey(world: World, job: Job) -> None:
    for worker in list(job.workers.values()):
        ends = job.give_up is not None or not worker.alive or worker.loop_ended
        if worker.exited is not None:
            continue
        if ends or (worker.phase is WorkerPhase.LEAVING and worker.name not in job.members):
            world.tell(e.WorkerExited(m.Exited(worker.name, 0 if worker.alive else -15)))
        elif worker.phase in COMING:
            world.begin(worker.name)
        elif worker.name in job.members and job.loop_ended_step is not None:
            world.tell(e.WorkerTold(worker.name, m.LoopEnded(job.loop_ended_step)))
        elif worker.retiring and worker.phase is WorkerPhase.MEMBER:
            world.tell(e.WorkerTold(worker.name, m.Leaving(50)))


def check_well(world: World) -> None:
    """Every job has ended, waits for room, or runs at the size it was given, and no incident is open."""
    for job in world.state.jobs.values():
        if job.over or not job.seats:
            continue
        assert job.give_up is None
        assert not job.cancelled
        assert job.transition is None
        assert list(job.members) == [w.name for w in job.living_members()]
        assert len(job.members) == len(set(job.seats) - set(job.barred)), [(w.name, w.phase) for w in job.alive()]
        assert not job.incidents, [world.state.incidents[i].story for i in job.incidents]
    assert not world.state.node_incidents
