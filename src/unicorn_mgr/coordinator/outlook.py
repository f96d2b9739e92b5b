"""What the planner is asked, kept up with the state: an event has only that looked at again which it is about.

A cluster has thousands of slots, and an event concerns a few.  All that it does not concern stays the
same object, which costs nothing and is what the table of next events recognises a problem by.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from unicorn_mgr.coordinator.record_incidents import IncidentEvent
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.shapes import in_each_shape
from unicorn_mgr.coordinator.standstills import costs_of
from unicorn_mgr.coordinator.state import ClusterState, Job, JobPhase, NodePhase
from unicorn_mgr.coordinator.throughput import paces_in, rate_at, rated, staircases
from unicorn_mgr.coordinator.transfers import Bandwidths, bandwidths
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import Resumed
from unicorn_mgr.model import JobSpec, said
from unicorn_mgr.planner.problem import Demand, Form, Node, Place, Problem, in_whole_replicas

DOMAINS = 2
"""Failure domains that a job is spread over if it does not say: the loss of one leaves a copy of its state."""

DIGESTS = 1 << 64
"""Digests of nodes are summed, so that the sum of many follows from one that has changed."""


def wants_slots(job: Job) -> bool:
    """It takes part in planning."""
    return not (job.over or job.cancelled or job.give_up is not None or job.phase is JobPhase.ENDING)


def problem_with(
    state: ClusterState, settings: Settings, present: Problem, nodes: Iterable[Node], jobs: Iterable[Job]
) -> Problem:
    """What it would be asked if there were these nodes and jobs; what is as at present stays the same object."""
    before, cluster = {n.name: n for n in present.nodes}, Cluster(observe=state.observe, rates=bandwidths(state))
    for node in sorted(nodes, key=lambda n: n.name):
        cluster.put(node.name, node)
    # What jobs make of slots that are away for now is told, too: so plans can be made before one is lost or back.
    known = sum(len(n.slots) for n in state.nodes.values())
    cluster.slots = max(known, sum(len(n.slots) for n in cluster.nodes.values()))
    cluster.silent = {
        name for name in cluster.nodes if name in state.nodes and state.nodes[name].phase is NodePhase.SILENT
    }
    alike = _rounded_up(known) == _rounded_up(cluster.slots) and cluster.devices.keys() == {
        n.device for n in present.nodes
    }
    changed = {name for name in before.keys() | cluster.nodes.keys() if before.get(name) is not cluster.nodes.get(name)}
    demands = {d.job: d for d in present.demands if alike and changed.isdisjoint(name for name, _ in d.seats.values())}

    def demand(job: Job) -> Demand:
        same = demands.get(job.name) if job is state.jobs.get(job.name) else None
        return same or _demand(job, cluster)[0]

    return _problem(settings, tuple(cluster.nodes.values()), tuple(map(demand, jobs)))


def _problem(settings: Settings, nodes: tuple[Node, ...], demands: tuple[Demand, ...]) -> Problem:
    return Problem(
        nodes,
        demands,
        node_mtbf=settings.node_mtbf_seconds,
        objective="paper" if settings.paper_objective else "cost",
        hysteresis=settings.hysteresis,
    )


def job_of(event: e.Event) -> str:
    """The job that an event is about; empty: about a node, or the cluster."""
    worker = worker_of(event)
    return worker.rpartition("/")[0] if worker else getattr(event, "job", "")


def worker_of(event: e.Event) -> str:
    """The worker that an event is about; empty: about something else."""
    match event:
        case e.WorkerExited(exited):
            return exited.worker
        case e.WorkerQuiet(sample):
            return sample.worker
        case (
            e.WorkerStarted()
            | e.WorkerAttached()
            | e.WorkerDying()
            | e.WorkerTold()
            | e.WorkerOrdered()
            | e.WorkerCondemned()
            | e.WorkerDismissed()
            | e.WorkerOverstayed()
            | e.RetirementOrdered()
            | e.EvidenceTaken()
        ):
            return event.worker
        case _:
            return ""


_Unseen = IncidentEvent | e.JobProgressed | e.PlanWanted | e.PlanReady | e.PauseSet | e.BreakerTripped | e.BreakerReset
"""What plans do not depend on."""


# -- what is there --------------------------------------------------------------------------


@dataclass(slots=True)
class Cluster:
    """What jobs may run on."""

    nodes: dict[str, Node] = field(default_factory=dict)
    """Those with usable slots."""
    devices: Counter[str] = field(default_factory=Counter)
    """Of how many of these each type is."""
    silent: set[str] = field(default_factory=set)
    slots: int = 0
    """Also those that are away."""
    observe: bool = False
    """Failures are not acted upon."""
    rates: Bandwidths = field(default_factory=dict)
    """Of state that is moved."""

    def put(self, name: str, node: Node | None) -> Node | None:
        """A node is as it is now; None: it can't be used.  What was there, if that is the same still."""
        before = self.nodes.pop(name, None)
        after = before if node == before else node
        if before is not None:
            self.devices -= Counter((before.device,))
        if after is not None:
            self.devices[after.device] += 1
            self.nodes[name] = after
        return after

    def holds(self, place: Place) -> bool:
        """Whether a slot may be used."""
        node = self.nodes.get(place[0])
        return node is not None and place[1] in node.slots


def _node(state: ClusterState, name: str, blocked: Set[Place]) -> Node | None:
    """Its slots that may be used."""
    node = state.nodes[name]
    if not node.counts:
        return None
    slots = tuple(s for s in node.offered if (name, s) not in blocked)
    return Node(name, slots, node.slots[0].device, node.speed, node.domain) if slots else None


def _blocking(job: Job) -> frozenset[Place]:
    """Slots that a job which is ending still holds."""
    if job.over or wants_slots(job):
        return frozenset()
    return frozenset((w.node, w.slot) for w in job.workers.values() if w.exited is None)


@dataclass(frozen=True, slots=True)
class Pace:
    """What a job does in each of its shapes, and what that follows from."""

    source: tuple[object, ...]
    present: Form
    others: tuple[Form, ...]


def _pace(job: Job, cluster: Cluster, before: Pace | None) -> Pace:
    """What it was if it follows from the same."""
    slots, devices = _rounded_up(cluster.slots), sorted(cluster.devices)
    source = (job.spec, job.micro_batches, _known_paces(job), slots, devices)
    if before is not None and before.source == source:
        return before

    def form(spec: JobSpec) -> Form:
        replica = spec.replica_size or 1
        size_min = -(-spec.size_min // replica) * replica
        return Form(said(spec.replica), replica, size_min, staircases(job, spec, slots, devices))

    others = (form(spec) for spec in in_each_shape(job.spec) if spec.replica != job.spec.replica)
    return Pace(source, form(job.spec), tuple(others))


def _known_paces(job: Job) -> tuple[tuple[tuple[int, float], ...], ...]:
    """By shape and size, whichever shape it has at present."""
    return tuple(tuple(paces_in(job, spec).items()) for spec in in_each_shape(job.spec))


def _rounded_up(slots: int) -> int:
    """To 3, 6, 12, and so on: when a node is new, jobs have mostly told already what they make of its slots."""
    most = 3
    while most <= slots:
        most *= 2
    return most


def _demand(job: Job, cluster: Cluster, before: Pace | None = None) -> tuple[Demand, Pace]:
    """A job's wish."""
    kept = [seat for seat, place in job.seats.items() if cluster.holds(place)]
    seated = [(w.node, w.slot) for w in job.living_members() if job.seats.get(w.seat) == (w.node, w.slot)]
    # Survivors go on below the minimum, too: to stop them would help nobody.
    pace = _pace(job, cluster, before)
    form = pace.present
    floor = min(form.size_min, in_whole_replicas(kept, form.replica)) if seated else 0
    if job.gang and any(w.alive for w in job.workers.values()):
        floor = len(kept)  # it would begin anew, and nobody knows what that costs it
    demand = Demand(
        job=job.name,
        size_min=form.size_min,
        floor=floor,
        suspendable=job.suspendable and not job.gang,
        size_max=job.spec.size_max,
        weight=job.spec.weight,
        priority=job.spec.priority,
        replica=form.replica,
        within="domain" if job.spec.replica_within == "domain" else "node",
        domains=job.spec.domains or DOMAINS,
        needed=max(job.spec.throughput_min, rate_at(job, job.due_slots)),
        throughput=form.throughput,
        rated=rated(job.spec),
        costs=costs_of(job, cluster.rates),
        seats=job.seats,
        members=sum(map(cluster.holds, seated)),
        # Of whom nobody is left begins anew, be it only when the last ones are fenced.
        hit=bool(seated and job.lost_members()) or len(kept) < len(job.seats),
        barred=frozenset(job.barred),
        occupied=frozenset(w.seat for w in job.alive()),
        warm=frozenset(job.warm),
        shape=form.name,
        others=() if _is_watched(job, cluster) else pace.others,
        may_grow=cluster.silent.isdisjoint(n for n, _ in job.seats.values()),
    )
    return demand, pace


def _is_watched(job: Job, cluster: Cluster) -> bool:
    """What has begun is not to be begun again as long as failures of it are only observed."""
    return (cluster.observe or job.observe) and bool(job.started_at)


# -- kept up --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A job, as it was when it was last looked at."""

    on: frozenset[str] = frozenset()
    """Nodes where it has seats or processes, or has had, or copies of its snapshots."""
    blocks: frozenset[Place] = frozenset()
    pace: Pace | None = None
    demand: Demand | None = None
    """None: it wants nothing."""
    wish: str = ""
    """What of it a plan is made for."""


class Outlook:
    """The problem of the moment.  Whoever changes the state says by what event."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cluster = Cluster()
        self._slots: dict[str, int] = {}
        """Of all nodes, used or not."""
        self._digest = 0
        """Of all nodes that may be used."""
        self._seen: dict[str, Seen] = {}
        self._stale_nodes: set[str] = set()
        self._stale_jobs: set[str] = set()
        self._all_stale = True
        self._problem = _problem(settings, (), ())
        self._situation = ""
        self._planned: object = None
        self._fitting: dict[str, tuple[object, object]] = {}
        """By job the demand and the nodes that this plan is known to fit."""

    def heed(self, event: e.Event) -> None:
        """This has happened."""
        job, node = job_of(event), getattr(event, "node", "")
        if isinstance(event, _Unseen) or (isinstance(event, e.WorkerTold) and isinstance(event.fact, Resumed)):
            return
        if job and not isinstance(event, e.SuspensionWithdrawn):
            self._stale_jobs.add(job)
        elif node:
            self._stale_nodes.add(node)
        else:
            self._all_stale = True  # also when a job takes back what others had been promised

    def problem(self, state: ClusterState) -> Problem:
        """What the planner is asked at this moment."""
        if self._all_stale or self._stale_nodes or self._stale_jobs:
            self._look_again(state)
        return self._problem

    def situation(self, state: ClusterState) -> str:
        """A digest of what a plan is made for: slots, wishes, pace.  What jobs have is not in it: plans change that."""
        self.problem(state)
        return self._situation

    def holds(self, place: Place) -> bool:
        """Whether a slot may be used."""
        return self._cluster.holds(place)

    def jobs_on(self, node: str) -> set[str]:
        """Jobs that have, or have had, anything on a node, and those that may have by now."""
        return self._on({node}) | self._stale_jobs

    def fits(self, state: ClusterState, plan: e.PlanReady) -> bool:
        """Whether a plan can be applied as it stands.

        Nobody else has its slots, its seats are free or the job's own, and whoever can't be stopped goes on.
        """
        problem, planned = self.problem(state), plan.seats
        if plan is not self._planned:
            places = [place for seats in planned.values() for place in seats.values()]
            if len(set(places)) < len(places):
                return False
            self._planned, self._fitting = plan, {}
        for demand in problem.demands:
            known = self._fitting.get(demand.job)
            if known is None or known[0] is not demand or known[1] is not problem.nodes:
                anew = plan.shapes.get(demand.job, demand.shape) != demand.shape
                if not self._fits(demand, planned.get(demand.job, {}), anew=anew):
                    return False
                self._fitting[demand.job] = (demand, problem.nodes)
        return True

    def _fits(self, demand: Demand, seats: Mapping[int, Place], *, anew: bool) -> bool:
        if demand.floor and not demand.suspendable and (anew or not seats):
            return False
        if anew:  # its seats are others by then
            return all(map(self.holds, seats.values()))
        for seat, place in seats.items():
            has_moved = seat in demand.occupied and demand.seats.get(seat) != place
            if not self.holds(place) or seat in demand.barred or has_moved:
                return False
        return True

    def _look_again(self, state: ClusterState) -> None:
        if self._all_stale:
            self._stale_nodes, self._stale_jobs = set(state.nodes), set(state.jobs)
            self._cluster.observe = state.observe
        rates = bandwidths(state)
        if rates != self._cluster.rates:
            self._cluster.rates, self._stale_jobs = rates, set(state.jobs)
        self._stale_jobs |= self._on(self._stale_nodes)
        self._stale_nodes |= self._blocked_anew(state)
        nodes = self._nodes_anew(state)
        self._stale_jobs |= self._on(self._stale_nodes)
        for name in sorted(self._stale_jobs):
            self._job_anew(state.jobs[name])
        demands = tuple(d for name in state.jobs if (d := self._seen[name].demand) is not None)
        self._stale_nodes, self._stale_jobs, self._all_stale = set(), set(), False
        found = _problem(self._settings, nodes, demands)
        self._problem = self._problem if found == self._problem else found
        # Whoever can't be stopped may be soon, which is news only to those that come before it.
        first = max((d.priority for d in demands), default=0)
        stays = [d.job for d in demands if d.priority < first and d.floor and not d.suspendable]
        wishes = ([self._seen[d.job].wish for d in demands], stays)
        self._situation = hashlib.sha256(repr((self._digest, wishes)).encode()).hexdigest()[:16]

    def _on(self, names: Set[str]) -> set[str]:
        """Jobs with anything on these nodes."""
        return {job for job, seen in self._seen.items() if not seen.on.isdisjoint(names)}

    def _blocked_anew(self, state: ClusterState) -> set[str]:
        """Nodes on which jobs that are ending hold other slots than before."""
        changed: set[Place] = set()
        for name in sorted(self._stale_jobs):
            before = self._seen.get(name, Seen())
            blocks = _blocking(state.jobs[name])
            changed |= blocks ^ before.blocks
            self._seen[name] = replace(before, blocks=blocks)
        return {node for node, _ in changed}

    def _nodes_anew(self, state: ClusterState) -> tuple[Node, ...]:
        """All that may be used, by name."""
        cluster, nodes = self._cluster, list(self._problem.nodes)
        blocked = {place for seen in self._seen.values() for place in seen.blocks}
        known = cluster.slots, sorted(cluster.devices)
        for name in sorted(self._stale_nodes):
            before = cluster.nodes.get(name)
            after = cluster.put(name, _node(state, name, blocked))
            (cluster.silent.add if state.nodes[name].phase is NodePhase.SILENT else cluster.silent.discard)(name)
            cluster.slots += len(state.nodes[name].slots) - self._slots.get(name, 0)
            self._slots[name] = len(state.nodes[name].slots)
            if after is not before:
                at = bisect_left(nodes, name, key=lambda n: n.name)
                nodes[at : at + (before is not None)] = [after] if after is not None else []
                self._digest = (self._digest + _digest(after) - _digest(before)) % DIGESTS
        if known != (cluster.slots, sorted(cluster.devices)):
            self._stale_jobs = set(state.jobs)  # all of them are asked what they make of more slots, or of others
        found = tuple(nodes)
        return self._problem.nodes if found == self._problem.nodes else found

    def _job_anew(self, job: Job) -> None:
        before = self._seen.get(job.name, Seen())
        processes = (w.node for w in job.workers.values() if w.exited is None)
        copies = (node for node, _ in job.backups.peers.values())
        on = frozenset([*(node for node, _ in job.seats.values()), *processes, *job.warm, *copies])
        if not wants_slots(job):
            self._seen[job.name] = Seen(on, before.blocks)
            return
        demand, pace = _demand(job, self._cluster, before.pace)
        if before.demand == demand:
            demand = before.demand
        self._seen[job.name] = Seen(on, before.blocks, pace, demand, _wish(job, demand))


def _digest(node: Node | None) -> int:
    return int.from_bytes(hashlib.sha256(repr(node).encode()).digest()[:8], "big") if node is not None else 0


def _wish(job: Job, d: Demand) -> str:
    """Not which of its shapes it has: a plan changes that."""
    sizes = sorted((form.name, form.replica, form.size_min) for form in (_present(d), *d.others))
    wishes = (d.job, d.size_max, d.weight, d.priority, d.needed, sizes, job.micro_batches, _known_paces(job))
    return repr((*wishes, sorted(d.barred), d.may_grow, d.suspendable))


def _present(d: Demand) -> Form:
    return Form(d.shape, d.replica, d.size_min)
