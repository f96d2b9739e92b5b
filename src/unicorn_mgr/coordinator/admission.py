"""What people ask for is checked before it becomes a fact: a refused wish changes nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unicorn_mgr.coordinator.shapes import in_shape
from unicorn_mgr.coordinator.state import ClusterState, NodePhase, Worker, WorkerPhase
from unicorn_mgr.coordinator.throughput import COUNTLESS, expected
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import (
    CancelJob,
    Command,
    DegradeNode,
    DrainNode,
    Inject,
    Mistake,
    SetObserve,
    SetPaused,
    SetWishes,
    UndrainNode,
)
from unicorn_mgr.model import AXES, FAULTS, PLACES, Drill, JobSpec, said
from unicorn_mgr.profiles.problem import ProfileError

NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?")
SIZE_MAX = 100_000
WEIGHT_MAX = 1e9
FLOPS_MAX = 1e30
"""Larger ones have no meaning, and their products soon none either."""

PRIORITY_MAX = 1_000_000
SLOTS_TRIED_MAX = 1_024
"""Sizes up to this many slots are looked at to find what is wrong with a job's throughput."""

NAMES_SHOWN = 10


class Rejected(Exception):
    """A wish that can't be granted; `mistake` names the field and the fix."""

    def __init__(self, mistake: Mistake, missing: bool = False) -> None:
        super().__init__(str(mistake))
        self.mistake = mistake
        self.missing = missing
        """It names something that is not there."""


def check_spec(spec: JobSpec) -> None:
    """Raise `Rejected` for the first field that can't be right."""
    for holds, field, value, fix in (*_of_training(spec), *_of_planning(spec)):
        if not holds:
            text = str(value)
            raise Rejected(Mistake(field, text if text.isprintable() else repr(text), fix))
    try:
        for shaped in [in_shape(spec, shape.axes) for shape in spec.shapes] or [spec]:
            expected(shaped, COUNTLESS, min(spec.size_max, SLOTS_TRIED_MAX))
    except ProfileError as wrong:
        field, _, rest = str(wrong).partition(": ")
        value, _, fix = rest.partition(": ")
        raise Rejected(Mistake(field, value if fix else "", fix or rest)) from wrong


Rules = Iterator[tuple[bool, str, object, str]]
"""What has to hold, the field, its value, and what is wanted instead."""


def _of_training(spec: JobSpec) -> Rules:
    name = "want 1 to 63 letters, digits, - and _, e.g. --name gpt-small"
    yield bool(NAME.fullmatch(spec.name)), "name", spec.name, name
    yield bool(spec.command), "command", "", "give it after --, e.g. -- python train.py"
    yield 1 <= spec.size_min <= SIZE_MAX, "min", spec.size_min, f"want 1 to {SIZE_MAX}"
    yield spec.size_min <= spec.size_max, "max", spec.size_max, f"want at least min, which is {spec.size_min}"
    yield spec.size_max <= SIZE_MAX, "max", spec.size_max, f"want at most {SIZE_MAX}"
    yield math.isfinite(spec.weight) and spec.weight > 0, "weight", spec.weight, "want a number above 0"
    yield (
        1 / WEIGHT_MAX <= spec.weight <= WEIGHT_MAX,
        "weight",
        spec.weight,
        f"want {1 / WEIGHT_MAX:g} to {WEIGHT_MAX:g}",
    )
    yield spec.directory.startswith("/"), "workdir", spec.directory, "want an absolute path"
    every, factor = spec.checkpoint_every_steps, spec.stall_factor
    yield every >= 0, "checkpoint_every", every, "want at least 0"
    yield spec.checkpoint_keep >= 1, "checkpoint_keep", spec.checkpoint_keep, "want at least 1"
    budget = spec.snapshot_budget
    yield _is_duration(budget), "snapshot_budget", budget, "want a share of the step time, e.g. 0.005; 0 is off"
    yield _is_duration(spec.stall_seconds), "stall_seconds", spec.stall_seconds, _DURATION
    yield _is_duration(spec.user_seconds), "user_seconds", spec.user_seconds, _DURATION
    yield factor == 0 or 1 <= factor < math.inf, "stall_factor", factor, "want a number of at least 1"
    yield spec.restarts_max >= 0, "restarts", spec.restarts_max, "want at least 0"
    yield spec.poison_deaths >= 0, "poison_deaths", spec.poison_deaths, "want at least 0"


def _of_planning(spec: JobSpec) -> Rules:
    priority, needed, deadline = spec.priority, spec.throughput_min, spec.deadline
    yield 0 <= spec.replica_size <= SIZE_MAX, "replica_size", spec.replica_size, f"want 1 to {SIZE_MAX}"
    yield from _of_replica(spec)
    yield spec.replica_within in ("", "node", "domain"), "replica_within", spec.replica_within, "want node or domain"
    yield 0 <= spec.domains <= SIZE_MAX, "domains", spec.domains, f"want 1 to {SIZE_MAX}"
    yield abs(priority) <= PRIORITY_MAX, "priority", priority, f"want -{PRIORITY_MAX} to {PRIORITY_MAX}"
    yield 0 <= needed <= FLOPS_MAX, "throughput_min", needed, f"want a number of FLOP/s, 0 to {FLOPS_MAX:g}"
    for slots, rate in spec.throughput.items():
        yield rate <= FLOPS_MAX, f"throughput[{slots}]", rate, f"want at most {FLOPS_MAX:g} FLOP/s"
    yield 0 <= deadline < math.inf, "deadline", deadline, "want seconds since 1970"
    yield spec.steps >= 0, "steps", spec.steps, "want at least 1"
    yield (
        not deadline or spec.steps > 0,
        "steps",
        "",
        "missing; a deadline needs the number of steps to be done by then",
    )
    yield not spec.steps or deadline > 0, "deadline", "", "missing; steps are told to be done by then"


def _of_replica(spec: JobSpec) -> Rules:
    """Only whole replicas can be had."""
    if spec.shapes:
        yield from _of_shapes(spec)
    if not spec.replica:
        return
    yield from _of_axes("replica", spec.replica)
    size = math.prod(spec.replica.values())
    yield spec.replica_size == size, "replica_size", spec.replica_size, f"want {size}, as replica has"
    for field, slots in (("min", spec.size_min), ("max", spec.size_max)) if not spec.shapes else ():
        below = max(slots // size, 1) * size
        wanted = f"want whole replicas of {size} slots: {below} or {below + size}"
        yield slots % size == 0, field, slots, wanted


def _of_axes(field: str, axes: Mapping[str, int]) -> Rules:
    for axis, along in axes.items():
        yield axis in AXES, field, axis, f"want {' or '.join(AXES)}"
        yield 1 <= along <= SIZE_MAX, f"{field}.{axis}", along, "want at least 1"


def _of_shapes(spec: JobSpec) -> Rules:
    """Each of them has to have a size; and from one to another the state goes through storage."""
    shapes = [shape.axes for shape in spec.shapes]
    for number, axes in enumerate(shapes):
        field, size = f"shapes.{number}", math.prod(axes.values())
        yield bool(axes), field, "", "want axes and how many workers along each, e.g. {shard: 2}"
        yield from _of_axes(field, axes)
        yield axes not in shapes[:number], field, said(axes), "it is there twice"
        fits = -(-spec.size_min // size) * size <= spec.size_max if size > 0 else False
        limits = f"min {spec.size_min} to max {spec.size_max}"
        yield fits, field, said(axes), f"no multiple of its {size} slots lies from {limits}: want another min or max"
    yield spec.replica in shapes, "replica", said(spec.replica), f"want one of shapes: {' or '.join(map(said, shapes))}"
    yield not spec.sizes, "sizes", spec.sizes, "want none with shapes: each has its own, from min to max"
    through = "missing; a job of several shapes changes from one to another through what is stored there"
    yield len(shapes) == 1 or bool(spec.checkpoint_url), "checkpoint", "", through


_DURATION = "want a number of seconds, at least 0"


def _is_duration(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def job_submitted(state: ClusterState, request_id: str, spec: JobSpec, drills_allowed: bool) -> e.JobSubmitted:
    """The fact a submission becomes; a name may be used again when its job has ended."""
    check_spec(spec)
    present = state.jobs.get(spec.name)
    if present is not None and not present.over:
        raise Rejected(Mistake("name", spec.name, "a job of this name is running; cancel it or choose another name"))
    if spec.drills and not drills_allowed:
        raise Rejected(Mistake("drills", "", _NO_DRILLS))
    for drill in spec.drills:
        _check_drill(drill.drill)
    return e.JobSubmitted(request_id, spec.name, spec)


_NO_DRILLS = "this coordinator does not allow drills; start it with --allow-drills"


def commanded(state: ClusterState, request_id: str, command: Command, drills_allowed: bool) -> e.Fact:
    """The fact an operator's command becomes."""
    match command:
        case CancelJob(job):
            _running(state, job)
            return e.JobCancelled(request_id, job)
        case DrainNode(node):
            _known(state, node)
            if state.nodes[node].phase in (NodePhase.LOST, NodePhase.ISOLATED):
                phase = state.nodes[node].phase
                raise Rejected(Mistake("node", node, f"it is {phase} and holds nothing that could be drained"))
            return e.NodeDrained(request_id, node)
        case UndrainNode(node):
            _known(state, node)
            phase = state.nodes[node].phase
            kept_out = state.nodes[node].draining or state.nodes[node].quarantine
            if not kept_out and phase not in (NodePhase.DRAINING, NodePhase.DRAINED, NodePhase.ISOLATED):
                raise Rejected(Mistake("node", node, f"it is {phase}, neither drained, quarantined nor isolated"))
            return e.NodeUndrained(request_id, node)
        case DegradeNode():
            return _degraded(state, request_id, command)
        case SetWishes(job, wishes):
            _running(state, job)
            spec = with_wishes(state.jobs[job].spec, wishes)
            return e.WishesSet(request_id, job, spec.weight, spec.priority, spec.size_min, spec.size_max)
        case SetPaused(paused):
            return e.PauseSet(request_id, paused)
        case SetObserve(job, observe):
            if job:
                _running(state, job)
            return e.ObserveSet(request_id, job, observe)
        case Inject():
            return _drill(state, request_id, command, drills_allowed)


def _degraded(state: ClusterState, request_id: str, asked: DegradeNode) -> e.NodeDegraded:
    _known(state, asked.node)
    node = state.nodes[asked.node]
    if not asked.speed and not asked.slots:
        raise Rejected(Mistake("degrade", node.name, "say --speed, --slots or both"))
    speed = speed_of(asked.speed) if asked.speed else node.speed
    there = sorted(s.index for s in node.slots)
    good = good_slots(there, asked.slots) if asked.slots else node.good
    return e.NodeDegraded(request_id, node.name, speed, () if good == tuple(there) else good)


def speed_of(text: str) -> float:
    """How fast a node is against what it should be.  Raises `Rejected`."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1:
        raise Rejected(Mistake("speed", text, "want a number above 0, at most 1"))
    return speed


def good_slots(there: Sequence[int], text: str) -> tuple[int, ...]:
    """Slots of those that are there, by their number, the first ones, or by their indices.  Raises `Rejected`."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if len(numbers) == 1:
        chosen = list(there[: numbers[0]]) if 0 < numbers[0] <= len(there) else []
    else:
        chosen = sorted(set(numbers)) if set(numbers) <= set(there) else []
    if not chosen:
        fix = f"want how many, 1 to {len(there)}, or which of {_listed(map(str, there))}"
        raise Rejected(Mistake("slots", text, fix))
    return tuple(chosen)


WISHES = {
    "weight": ("weight", float),
    "priority": ("priority", int),
    "min": ("size_min", int),
    "max": ("size_max", int),
}
"""What may be changed while a job runs."""


def with_wishes(spec: JobSpec, wishes: Mapping[str, str]) -> JobSpec:
    """The job as it is to be.  Raises `Rejected`."""
    if not wishes:
        raise Rejected(Mistake("set", "", f"say what: {', '.join(f'{w}=VALUE' for w in WISHES)}"))
    changed: dict[str, Any] = {}
    for wish, text in wishes.items():
        if wish not in WISHES:
            raise Rejected(Mistake("set", wish, f"want one of {', '.join(WISHES)}"))
        field, kind = WISHES[wish]
        try:
            changed[field] = kind(text)
        except ValueError:
            raise Rejected(Mistake(wish, text, "want a number")) from None
    after = replace(spec, **changed)
    if "min" in wishes and "max" not in wishes and after.size_min > after.size_max:
        raise Rejected(Mistake("min", wishes["min"], f"want at most max, which is {after.size_max}"))
    check_spec(after)
    return after


def _drill(state: ClusterState, request_id: str, command: Inject, drills_allowed: bool) -> e.DrillOrdered:
    if not drills_allowed:
        raise Rejected(Mistake("inject", "", _NO_DRILLS))
    _check_drill(command.drill)
    _running(state, command.job)
    job = state.jobs[command.job]
    alive = {w.seat: w for w in job.alive()}
    if command.seat not in alive:
        seats = _listed(map(str, sorted(alive)))
        raise Rejected(Mistake("worker", str(command.seat), f"job {job.name} has workers {seats}"), missing=True)
    worker = alive[command.seat]
    _can_strike(state, worker, command.drill)
    return e.DrillOrdered(request_id, job.name, worker.name, command.drill)


def _can_strike(state: ClusterState, worker: Worker, drill: Drill) -> None:
    """A drill that would silently come to nothing is refused."""
    if not state.nodes[worker.node].drills:
        fix = f"the agent of node {worker.node} does not allow drills; start it with --allow-drills"
        raise Rejected(Mistake("worker", str(worker.seat), fix))
    from_outside = drill.fault in ("kill", "stop", "lose-node") and drill.step < 0 and not drill.phase
    if worker.phase is WorkerPhase.ORDERED:
        raise Rejected(Mistake("worker", str(worker.seat), f"{worker.name} has not started yet; try again"))
    if worker.phase is WorkerPhase.STARTED and not from_outside:
        fix = f"{worker.name} has not called unicorn.attach() yet; until then only kill, stop and lose-node strike it"
        raise Rejected(Mistake("fault", drill.fault, f"{fix}, without --at-step"))


def _check_drill(drill: Drill) -> None:
    if drill.fault not in FAULTS:
        raise Rejected(Mistake("fault", drill.fault, f"want one of {', '.join(FAULTS)}"))
    if drill.phase and drill.phase not in PLACES:
        raise Rejected(Mistake("place", drill.phase, f"want one of {', '.join(PLACES)}"))
    if not _is_duration(drill.seconds):
        raise Rejected(Mistake("seconds", str(drill.seconds), _DURATION))


def _running(state: ClusterState, job: str) -> None:
    if job not in state.jobs:
        raise unknown("job", job, state.jobs)
    if state.jobs[job].over:
        raise Rejected(Mistake("job", job, "it has ended"))


def _known(state: ClusterState, node: str) -> None:
    if node not in state.nodes:
        raise unknown("node", node, state.nodes)


def unknown(field: str, value: str, known: Iterable[str]) -> Rejected:
    """Somebody names what is not there."""
    fix = f"there is no such {field}; known: {_listed(sorted(known))}"
    return Rejected(Mistake(field, value, fix), missing=True)


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = len(found) - NAMES_SHOWN
    return ", ".join(found[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"
