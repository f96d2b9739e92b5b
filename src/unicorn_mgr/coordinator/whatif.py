"""What would be planned if something were otherwise: the present problem, changed in words."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from unicorn_mgr.coordinator.admission import Rejected, job_submitted, unknown, with_wishes
from unicorn_mgr.coordinator.outlook import problem_of, problem_with
from unicorn_mgr.coordinator.rules.due import prospect
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job
from unicorn_mgr.coordinator.views import plan_view
from unicorn_mgr.messages import Mistake, PlannedJob, WhatIfAnswer, WhatIfRequest
from unicorn_mgr.planner.choices import standstill
from unicorn_mgr.planner.problem import Demand, Node, Place, Plan, Problem, slowest

FORMS = '"lose NODE", "add N slots", "end JOB", "submit FILE", "job JOB weight=W" (or min=, max=, priority=)'
_LOSE = re.compile(r"lose (\S+)")
_ADD = re.compile(r"add ([0-9]+) slots?")
_END = re.compile(r"end (\S+)")
_JOB = re.compile(r"job (\S+) (weight|min|max|priority)=(\S+)")
SLOTS_ADDED_MAX = 10_000


def what_if(
    state: ClusterState, settings: Settings, asked: WhatIfRequest, now: float
) -> tuple[Problem, Problem, dict[str, str]]:
    """The present problem, the imagined one, and what it does to deadlines.  Raises `Rejected`."""
    if not asked.changes and asked.job is None:
        raise Rejected(Mistake("what-if", "", f"want {FORMS}"))
    present = problem_of(state, settings)
    imagined = Imagined({n.name: n for n in present.nodes}, {d.job: state.jobs[d.job] for d in present.demands})
    if asked.job is not None:
        job_submitted(state, "what-if", asked.job, drills_allowed=True)  # refused as the real one would be
        imagined.jobs[asked.job.name] = Job(asked.job.name, asked.job, 0.0)
    for change in asked.changes:
        imagined.change(change, state)
    jobs = imagined.reckoned(state.wall(now))
    changed = problem_with(state, settings, imagined.nodes.values(), jobs)
    return present, changed, {j.name: j.due_prospect for j in jobs}


@dataclass(slots=True)
class Imagined:
    """Nodes that plans count on, and jobs that want slots."""

    nodes: dict[str, Node]
    jobs: dict[str, Job]

    def change(self, change: str, state: ClusterState) -> None:
        """Let it have happened.  Raises `Rejected`."""
        text = " ".join(change.split())
        if found := _LOSE.fullmatch(text):
            self._lose(found[1], state)
        elif found := _ADD.fullmatch(text):
            self._add(int(found[1]))
        elif found := _END.fullmatch(text):
            del self.jobs[self._job(found[1]).name]
        elif found := _JOB.fullmatch(text):
            job = self._job(found[1])
            self.jobs[job.name] = replace(job, spec=with_wishes(job.spec, {found[2]: found[3]}))
        else:
            raise Rejected(Mistake("what-if", change, f"want {FORMS}"))

    def reckoned(self, wall: float) -> list[Job]:
        """The jobs, with what their deadlines then need."""
        most = sum(len(n.slots) for n in self.nodes.values())
        found = []
        for job in self.jobs.values():
            slots, words = prospect(job, most, job.spec.deadline - wall) if job.spec.deadline else (0, "")
            found.append(replace(job, due_slots=slots, due_prospect=words))
        return found

    def _lose(self, name: str, state: ClusterState) -> None:
        node = state.nodes.get(name)
        if name not in self.nodes and node is not None and not node.usable:
            raise Rejected(Mistake("node", name, f"it is {node.phase}, and no plan counts on it"))
        if name not in self.nodes:
            raise unknown("node", name, self.nodes)
        del self.nodes[name]

    def _add(self, slots: int) -> None:
        """On nodes like most of those that are there."""
        if not 1 <= slots <= SLOTS_ADDED_MAX:
            raise Rejected(Mistake("what-if", f"add {slots} slots", f"want 1 to {SLOTS_ADDED_MAX}"))
        kinds = Counter((n.device, n.speed, len(n.slots)) for n in self.nodes.values())
        (device, speed, usual), _ = kinds.most_common(1)[0] if kinds else (("cpu", 1.0, slots), 1)
        names = (name for i in itertools.count() if (name := f"new-{i}") not in self.nodes)
        for first in range(0, slots, usual):
            name = next(names)
            self.nodes[name] = Node(name, tuple(range(min(usual, slots - first))), device, speed)

    def _job(self, name: str) -> Job:
        if name not in self.jobs:
            raise unknown("job", name, self.jobs)
        return self.jobs[name]


def compared(present: Problem, changed: Problem, plan: Plan, prospects: Mapping[str, str]) -> WhatIfAnswer:
    """Per job what it has and what it would have, with the prospect for its deadline."""
    before = {d.job: d for d in present.demands}
    after = {d.job: d for d in changed.demands}
    now, then = present.by_name, changed.by_name
    jobs = []
    for job in dict.fromkeys((*before, *after)):
        had = before[job].size if job in before else 0
        gets = len(plan.seats.get(job, {}))
        jobs.append(
            PlannedJob(
                job=job,
                size_before=had,
                size_after=gets,
                flops_before=_rate(now, before[job], before[job].seats, after.get(job)) if job in before else 0.0,
                flops_after=_rate(then, after[job], plan.seats.get(job, {})) if job in after else 0.0,
                rated=(after.get(job) or before[job]).rated,
                standstill_seconds=_standstill(after[job], plan) if job in after else 0.0,
                reason="; ".join(filter(None, (plan.reasons.get(job, "it has ended"), prospects.get(job)))),
            )
        )
    return WhatIfAnswer(tuple(jobs), plan_view(plan))


def _rate(nodes: Mapping[str, Node], demand: Demand, seats: Mapping[int, Place], wish: Demand | None = None) -> float:
    """Weighted as it is wished: another weight alone makes nothing more or less."""
    best = max((t for stairs in demand.throughput.values() for s, t in stairs if s <= len(seats)), default=0.0)
    return (wish or demand).weight * best * slowest(nodes, seats.values())


def _standstill(demand: Demand, plan: Plan) -> float:
    seats = plan.seats[demand.job]
    if dict(seats) == dict(demand.seats) and not demand.hit:
        return 0.0
    staying = sum(seats.get(seat) == place for seat, place in demand.seats.items())
    return standstill(demand, len(seats), min(demand.members, staying))
