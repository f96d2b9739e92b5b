"""What would be planned if something were otherwise: the present problem, changed in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from unicorn_mgr.coordinator.admission import Rejected, job_submitted, unknown, with_wishes
from unicorn_mgr.coordinator.rules.planning import demand_of, problem_of
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job
from unicorn_mgr.messages import Mistake, PlannedJob, PlanView, WhatIfAnswer, WhatIfRequest
from unicorn_mgr.planner.choices import standstill
from unicorn_mgr.planner.problem import Demand, Node, Plan, Problem
from unicorn_mgr.planner.table import without_slots

FORMS = '"lose NODE", "add N slots", "end JOB", "job JOB weight=W" (or min=, max=, priority=)'
_LOSE = re.compile(r"lose (\S+)")
_ADD = re.compile(r"add (\d+) slots?")
_END = re.compile(r"end (\S+)")
_JOB = re.compile(r"job (\S+) (weight|min|max|priority)=(\S+)")
SLOTS_ADDED_MAX = 100_000


def what_if(state: ClusterState, settings: Settings, asked: WhatIfRequest) -> tuple[Problem, Problem]:
    """The present problem and the imagined one.  Raises `Rejected`."""
    if not asked.changes and asked.job is None:
        raise Rejected(Mistake("what-if", "", f"want {FORMS}, or a job file to submit"))
    present = problem_of(state, settings)
    changed = imagined(state, present, asked.changes)
    if asked.job is not None:
        job_submitted(state, "what-if", asked.job, drills_allowed=True)  # refused as the real one would be
        new = demand_of(Job(asked.job.name, asked.job, 0.0), changed.nodes)
        changed = replace(changed, demands=(*changed.demands, new))
    return present, changed


def imagined(state: ClusterState, problem: Problem, changes: Sequence[str]) -> Problem:
    """The problem once all that has happened.  Raises `Rejected`."""
    texts = [" ".join(change.split()) for change in changes]
    # New slots first: what a job may become there depends on how many there are.
    for text in sorted(texts, key=lambda t: not t.startswith("add ")):
        if found := _LOSE.fullmatch(text):
            problem = _without(problem, found[1])
        elif found := _ADD.fullmatch(text):
            problem = _with_slots(state, problem, int(found[1]))
        elif found := _END.fullmatch(text):
            gone = _demand(problem, found[1])
            problem = replace(problem, demands=tuple(d for d in problem.demands if d is not gone))
        elif found := _JOB.fullmatch(text):
            problem = _with_wish(state, problem, found[1], found[2], found[3])
        else:
            raise Rejected(Mistake("what-if", text, f"want {FORMS}"))
    return problem


def _without(problem: Problem, name: str) -> Problem:
    node = problem.by_name.get(name)
    if node is None:
        raise unknown("node", name, problem.by_name)
    return without_slots(problem, node, node.slots)


def _with_slots(state: ClusterState, problem: Problem, slots: int) -> Problem:
    """On nodes like most of those that are there."""
    if not 1 <= slots <= SLOTS_ADDED_MAX:
        raise Rejected(Mistake("what-if", f"add {slots} slots", f"want 1 to {SLOTS_ADDED_MAX}"))
    kinds = Counter((n.device, n.speed, len(n.slots)) for n in problem.nodes)
    (device, speed, usual), _ = kinds.most_common(1)[0] if kinds else (("cpu", 1.0, slots), 1)
    added = [min(usual, slots - i) for i in range(0, slots, usual)]
    new = tuple(Node(f"new-{i}", tuple(range(n)), device, speed) for i, n in enumerate(added))
    nodes = (*problem.nodes, *new)
    larger = [replace(d, throughput=demand_of(state.jobs[d.job], nodes).throughput) for d in problem.demands]
    return replace(problem, nodes=nodes, demands=tuple(larger))


def _demand(problem: Problem, job: str) -> Demand:
    for demand in problem.demands:
        if demand.job == job:
            return demand
    raise unknown("job", job, [d.job for d in problem.demands])


def _with_wish(state: ClusterState, problem: Problem, name: str, wish: str, text: str) -> Problem:
    before = _demand(problem, name)
    job = state.jobs[name]
    wishing = replace(job, spec=with_wishes(job.spec, {wish: text}))
    after = replace(demand_of(wishing, problem.nodes), hit=before.hit, members=before.members)
    return replace(problem, demands=tuple(after if d is before else d for d in problem.demands))


def compared(present: Problem, changed: Problem, plan: Plan) -> WhatIfAnswer:
    """Per job what it has and what it would have."""
    before = {d.job: d for d in present.demands}
    after = {d.job: d for d in changed.demands}
    jobs = []
    for job in dict.fromkeys((*before, *after)):
        had = before[job].size if job in before else 0
        gets = len(plan.seats.get(job, {}))
        jobs.append(
            PlannedJob(
                job=job,
                size_before=had,
                size_after=gets,
                flops_before=_rate(before[job], had, after.get(job)) if job in before else 0.0,
                flops_after=_rate(after[job], gets) if job in after else 0.0,
                rated=(after.get(job) or before[job]).rated,
                standstill_seconds=_standstill(after[job], plan) if job in after else 0.0,
                reason=plan.reasons.get(job, "it has ended"),
            )
        )
    return WhatIfAnswer(tuple(jobs), view_of(plan))


def _rate(demand: Demand, size: int, wish: Demand | None = None) -> float:
    """Weighted as it is wished: another weight alone makes nothing more or less."""
    best = max((t for stairs in demand.throughput.values() for s, t in stairs if s <= size), default=0.0)
    return (wish or demand).weight * best


def _standstill(demand: Demand, plan: Plan) -> float:
    seats = plan.seats[demand.job]
    return 0.0 if dict(seats) == dict(demand.seats) and not demand.hit else standstill(demand, len(seats))


def view_of(plan: Plan, number: int = 0, asked_because: str = "") -> PlanView:
    """A plan's certificate."""
    return PlanView(
        number=number,
        asked_because=asked_because,
        answered=True,
        value=plan.value,
        bound=plan.bound,
        proven=plan.proven,
        solver=plan.solver,
        rung=plan.rung,
        seconds=plan.seconds,
        note=plan.note,
    )
