"""`unicorn plan`: who has what and why, and what would be if."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer

from unicorn_mgr.cli import shapes
from unicorn_mgr.cli.common import Client, CoordinatorOption, JsonOption, Problem, TlsOption
from unicorn_mgr.cli.jobfile import read_job
from unicorn_mgr.cli.show import duration, one_line, say, show_json, show_table
from unicorn_mgr.messages import ClusterView, JobView, PlannedJob, PlanView, WhatIfAnswer, WhatIfRequest
from unicorn_mgr.planner.reasons import worth

COLUMNS = ("JOB", "STATE", ">WEIGHT", ">SLOTS", "?>MIN", "?>MAX", "?ON", "REASON")
WHAT_IF_COLUMNS = ("JOB", ">NOW", ">THEN", ">WORTH NOW", ">WORTH THEN", "?>STANDSTILL", "REASON")

NODES_SHOWN = 4


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def plan(
        what_if: list[str] = typer.Option(
            [],
            "--what-if",
            metavar="CHANGE",
            help='Answer for this instead, and change nothing: "lose NODE", "drain NODE", "lose domain RACK", '
            '"degrade NODE speed=0.5", "add 8 slots", "end JOB", "job JOB weight=2", "submit FILE".  '
            "Several are taken together.",
        ),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
        as_json: bool = JsonOption,
    ) -> None:
        """Show the present plan and why it is so, or what would be planned if something were otherwise."""
        client = Client(coordinator, tls)
        if what_if:
            answer = client.call("WhatIf", _asked(what_if), WhatIfAnswer)
            if as_json:
                show_json(shapes.of_what_if(answer))
            else:
                _show_what_if(answer)
            return
        view = client.look()
        if as_json:
            show_json(shapes.of_plan(view))
        else:
            _show(view)


def _asked(changes: Sequence[str]) -> WhatIfRequest:
    files = [c.split(maxsplit=1)[1] for c in changes if c.startswith("submit ")]
    if len(files) > 1:
        raise Problem(f"what-if: submit {files[1]}: one job at a time")
    others = tuple(c for c in changes if not c.startswith("submit "))
    return WhatIfRequest(others, read_job(Path(files[0])) if files else None)


def _show(view: ClusterView) -> None:
    jobs = [j for j in view.jobs if j.state != "ended"]
    rows = [
        (
            j.job,
            j.state,
            f"{j.weight:g}",
            str(j.size_wanted),
            str(j.size_min),
            str(j.size_max),
            nodes_of(j),
            one_line(j.reason),
        )
        for j in jobs
    ]
    show_table(COLUMNS, rows, "no jobs; see `unicorn run --help`")
    if view.plan is not None:
        say()
        say(certificate(view.plan))


def nodes_of(job: JobView) -> str:
    """Where its workers are, with how many there, as far as there is room."""
    workers = Counter(w.node for w in job.workers if w.state != "leaving")
    told = [node if number == 1 else f"{node} x{number}" for node, number in sorted(workers.items())]
    more = len(told) - NODES_SHOWN
    return ", ".join(told[:NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def certificate(plan: PlanView) -> str:
    """How good a plan is, in a sentence."""
    took = f"plan {plan.number}" if plan.number else "this plan"
    if plan.rung == "shrink":
        return f"{took}: the solver failed, so who was hit shrinks and free slots are given in turn ({plan.note})"
    by = {"bounds": "bounds alone", "core": "a dynamic programme"}.get(plan.solver, plan.solver)
    how = {"table": "was foreseen", "ilp": f"was found by {by}", "greedy": "is the best that was found in time"}
    said = f"{took} {how.get(plan.rung, 'is by the policy in use')}"
    if plan.proven:
        return f"{said}, proven best, in {plan.seconds:.3f} s"
    gap = max(0.0, 1 - plan.value / plan.bound) if plan.bound > 0 else 0.0
    return f"{said}, at most {gap:.2%} short of the best, in {plan.seconds:.3f} s ({plan.note})"


def _show_what_if(answer: WhatIfAnswer) -> None:
    rows = [
        (
            j.job,
            str(j.size_before),
            str(j.size_after),
            worth(j.flops_before, j.rated),
            worth(j.flops_after, j.rated),
            duration(j.standstill_seconds) if j.standstill_seconds else "",
            one_line(j.reason),
        )
        for j in answer.jobs
    ]
    show_table(WHAT_IF_COLUMNS, rows, "no jobs")
    say()
    say(change_of_waf(answer.jobs))
    if answer.plan is not None:
        say(certificate(answer.plan))


def change_of_waf(jobs: Sequence[PlannedJob]) -> str:
    """What it does to the cluster as a whole."""
    now, then = sum(j.flops_before for j in jobs), sum(j.flops_after for j in jobs)
    rated = any(j.rated for j in jobs)
    share = f" ({then / now - 1:+.1%})" if now else ""
    unrated = [j.job for j in jobs if not j.rated] if rated else []
    note = f"; nobody has told the speed of {', '.join(unrated)}: a slot counts as 1 TFLOP/s" if unrated else ""
    return f"all jobs together: {worth(now, rated)} now, {worth(then, rated)} then{share}{note}"
