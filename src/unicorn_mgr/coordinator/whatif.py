"""What would be planned if something were otherwise: the present problem, changed in words."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from unicorn_mgr.coordinator.admission import Rejected, good_slots, job_submitted, speed_of, unknown, with_wishes
from unicorn_mgr.coordinator.outlook import problem_with
from unicorn_mgr.coordinator.rules.due import prospect
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job
from unicorn_mgr.coordinator.views import plan_view
from unicorn_mgr.messages import Mistake, PlannedJob, WhatIfAnswer, WhatIfRequest
from unicorn_mgr.model import axes_of
from unicorn_mgr.planner.choices import standstill
from unicorn_mgr.planner.problem import Demand, Node, Place, Plan, Problem, slowest
from unicorn_mgr.planner.reasons import rate_of

FORMS = (
    '"lose NODE" or "drain NODE", also "... domain DOMAIN", "degrade NODE speed=S" (or slots=N, or both), '
    '"add N slots", "end JOB", "submit FILE", "job JOB weight=W" (or min=, max=, priority=)'
)
SLOTS_ADDED_MAX = 10_000


def what_if(
    state: ClusterState, settings: Settings, present: Problem, asked: WhatIfRequest, now: float
) -> tuple[Problem, dict[str, str]]:
    """The present problem as it would be, and what that does to deadlines.  Raises `Rejected`.

    The coordinator does nothing else meanwhile, so only jobs that a change may concern are reckoned anew: of
    8,192 nodes with 100 jobs the loss of one takes some 0.02 s of CPU.
    """
    if not asked.changes and asked.job is None:
        raise Rejected(Mistake("what-if", "", f"want {FORMS}"))
    jobs = {d.job: state.jobs[d.job] for d in present.demands}
    imagined = Imagined(state, {n.name: n for n in present.nodes}, jobs)
    if asked.job is not None:
        job_submitted(state, "what-if", asked.job, drills_allowed=True)  # refused as the real one would be
        imagined.jobs[asked.job.name] = Job(asked.job.name, asked.job, 0.0)
    for change in asked.changes:
        imagined.change(change)
    then = imagined.reckoned(state.wall(now))
    changed = problem_with(state, settings, present, imagined.nodes.values(), then)
    return changed, {j.name: j.due_prospect for j in then}


@dataclass(slots=True)
class Imagined:
    """Nodes that plans count on, and jobs that want slots."""

    state: ClusterState
    nodes: dict[str, Node]
    jobs: dict[str, Job]
    gone: dict[tuple[str, str], str] = field(default_factory=dict)
    """By ("node" or "job", name), the change that has taken it away."""

    def change(self, change: str) -> None:
        """Let it have happened.  Raises `Rejected`."""
        text = " ".join(change.split())
        for form, happens in _CHANGES:
            if found := form.fullmatch(text):
                happens(self, text, *found.groups())
                return
        raise Rejected(Mistake("what-if", change, f"want {FORMS}"))

    def reckoned(self, wall: float) -> list[Job]:
        """The jobs, with what their deadlines then need."""
        most = sum(len(n.slots) for n in self.nodes.values())

        def due(job: Job) -> Job:
            slots, words = prospect(job, most, job.spec.deadline - wall)
            return replace(job, due_slots=slots, due_prospect=words)

        return [due(job) if job.spec.deadline else job for job in self.jobs.values()]

    def _lose(self, change: str, name: str) -> None:
        """To plans a node that is drained is gone as one that is lost."""
        del self.nodes[self._node(name).name]
        self.gone["node", name] = change

    def _lose_domain(self, change: str, domain: str) -> None:
        nodes = [n.name for n in self.nodes.values() if n.domain == domain]
        if not nodes:
            raise unknown("domain", domain, {n.domain for n in self.nodes.values() if n.domain})
        for name in nodes:
            self._lose(change, name)

    def _degrade(self, _change: str, name: str, wishes: str) -> None:
        node, known = self._node(name), self.state.nodes.get(name)
        there = tuple(sorted(s.index for s in known.slots)) if known is not None else node.slots
        held = set(known.offered).difference(node.slots) if known is not None else set()  # by jobs that are ending
        asked = dict(wish.split("=", 1) for wish in wishes.split())
        speed = speed_of(asked["speed"]) if "speed" in asked else node.speed
        good = good_slots(there, asked["slots"]) if "slots" in asked else node.slots
        self.nodes[name] = replace(node, speed=speed, slots=tuple(s for s in good if s not in held))

    def _add(self, change: str, number: str) -> None:
        """On nodes like most of those that are there."""
        slots = int(number)
        if not 1 <= slots <= SLOTS_ADDED_MAX:
            raise Rejected(Mistake("what-if", change, f"want 1 to {SLOTS_ADDED_MAX}"))
        kinds = Counter((n.device, n.speed, len(n.slots)) for n in self.nodes.values())
        (device, speed, usual), _ = kinds.most_common(1)[0] if kinds else (("cpu", 1.0, slots), 1)
        names = (name for i in itertools.count() if (name := f"new-{i}") not in self.nodes)
        for first in range(0, slots, usual):
            name = next(names)
            self.nodes[name] = Node(name, tuple(range(min(usual, slots - first))), device, speed)

    def _end(self, change: str, name: str) -> None:
        del self.jobs[self._job(name).name]
        self.gone["job", name] = change

    def _wish(self, _change: str, name: str, wish: str, value: str) -> None:
        job = self._job(name)
        self.jobs[name] = replace(job, spec=with_wishes(job.spec, {wish: value}))

    def _node(self, name: str) -> Node:
        known = self.state.nodes.get(name)
        if name in self.nodes:
            return self.nodes[name]
        self._refuse_if_gone("node", name)
        if known is not None:
            raise Rejected(Mistake("node", name, f"it is {known.phase}, and no plan counts on it"))
        raise unknown("node", name, self.nodes)

    def _job(self, name: str) -> Job:
        if name not in self.jobs:
            self._refuse_if_gone("job", name)
            raise unknown("job", name, self.jobs)
        return self.jobs[name]

    def _refuse_if_gone(self, field: str, name: str) -> None:
        if (field, name) in self.gone:
            raise Rejected(Mistake(field, name, f'it is gone after "{self.gone[field, name]}"'))


_CHANGES: tuple[tuple[re.Pattern[str], Callable[..., None]], ...] = (
    (re.compile(r"(?:lose|drain) (\S+)"), Imagined._lose),
    (re.compile(r"(?:lose|drain) domain (\S+)"), Imagined._lose_domain),
    (re.compile(r"degrade (\S+)((?: (?:speed|slots)=\S+)+)"), Imagined._degrade),
    (re.compile(r"add ([0-9]+) slots?"), Imagined._add),
    (re.compile(r"end (\S+)"), Imagined._end),
    (re.compile(r"job (\S+) (weight|min|max|priority)=(\S+)"), Imagined._wish),
)


def compared(present: Problem, changed: Problem, plan: Plan, prospects: Mapping[str, str]) -> WhatIfAnswer:
    """Per job what it has and what it would have, with the prospect for its deadline."""
    before = {d.job: d for d in present.demands}
    after = {d.job: d for d in changed.demands}
    now, then = present.by_name, changed.by_name
    jobs = []
    for job in dict.fromkeys((*before, *after)):
        had = before[job].size if job in before else 0
        gets = len(plan.seats.get(job, {}))
        then_is = _shaped(after[job], plan) if job in after else None
        jobs.append(
            PlannedJob(
                job=job,
                size_before=had,
                size_after=gets,
                flops_before=_rate(now, before[job], before[job].seats, after.get(job)) if job in before else 0.0,
                flops_after=_rate(then, then_is, plan.seats.get(job, {})) if then_is is not None else 0.0,
                rated=(after.get(job) or before[job]).rated,
                standstill_seconds=_standstill(after[job], plan) if job in after else 0.0,
                reason="; ".join(filter(None, (plan.reasons.get(job, "it has ended"), prospects.get(job)))),
                replica_after=axes_of(then_is.shape) if then_is is not None else {},
            )
        )
    return WhatIfAnswer(tuple(jobs), plan_view(plan))


def _rate(nodes: Mapping[str, Node], demand: Demand, seats: Mapping[int, Place], wish: Demand | None = None) -> float:
    """Weighted as it is wished: another weight alone makes nothing more or less."""
    return (wish or demand).weight * rate_of(demand, len(seats)) * slowest(nodes, seats.values())


def _shaped(demand: Demand, plan: Plan) -> Demand:
    """As it would be."""
    names = [demand.shape, *(form.name for form in demand.others)]
    return demand.formed(names.index(plan.shapes.get(demand.job, demand.shape)))


def _standstill(demand: Demand, plan: Plan) -> float:
    seats = plan.seats[demand.job]
    if demand.job in plan.shapes:
        return demand.reshaping
    if dict(seats) == dict(demand.seats) and not demand.hit:
        return 0.0
    staying = sum(seats.get(seat) == place for seat, place in demand.seats.items())
    return standstill(demand, len(seats), min(demand.members, staying))
