"""What `unicorn simulate --json` prints of a comparison: the keys of docs/json.md, which stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from unicorn_mgr.cli.shapes import Shape
from unicorn_mgr.simulator.history import History
from unicorn_mgr.simulator.sensitivity import Swing
from unicorn_mgr.simulator.study import Figures, Outcome, Study


def of_study(study: Study, costs: str, swings: Sequence[Swing], notes: Sequence[str]) -> Shape:
    """`unicorn simulate --json`."""
    scenario = study.scenario
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "source": scenario.source or None,
        "nodes": scenario.nodes,
        "gpus": scenario.capacity * scenario.gpus_per_slot,
        "duration_seconds": scenario.seconds,
        "jobs": [work.name for work in scenario.jobs],
        "seeds": list(study.seeds),
        "costs": costs,
        "baseline": study.baseline or None,
        "faults": study.faults,
        "published": dict(scenario.extra),
        "policies": [of_outcome(outcome) for outcome in study.outcomes],
        "runs": [of_run(run) for run in study.runs],
        "sensitivity": [of_swing(swing) for swing in swings],
        "notes": list(notes),
    }


def of_outcome(outcome: Outcome) -> Shape:
    """One policy."""
    return {
        "policy": outcome.policy,
        "waf": asdict(outcome.waf),
        "goodput": asdict(outcome.goodput),
        "ettr": asdict(outcome.ettr),
        "ettr_worst_hour": asdict(outcome.ettr_worst_hour),
        "ratio": asdict(outcome.ratio) if outcome.ratio is not None else None,
        "gap": asdict(outcome.gap) if outcome.gap is not None else None,
        "lost_gpu_hours": {cause: asdict(lost) for cause, lost in outcome.lost.items()},
        "moves": outcome.moves,
        "idle_slots": outcome.idle_slots,
    }


def of_run(run: Figures) -> Shape:
    """One history, as a row of --csv, too."""
    lost = run.lost.values()
    return {
        "policy": run.policy,
        "seed": run.seed,
        "faults": run.faults,
        "waf": run.waf,
        "goodput": run.goodput,
        "ettr": run.ettr,
        "ettr_worst_hour": run.ettr_worst_hour,
        "detection_gpu_hours": sum(costs.detection for costs in lost),
        "transition_gpu_hours": sum(costs.transition for costs in lost),
        "sub_healthy_gpu_hours": sum(costs.sub_healthy for costs in lost),
        "repeated_gpu_hours": sum(costs.repeated for costs in lost),
        "moves": run.moves,
        "idle_slots": run.idle_slots,
    }


def of_swing(swing: Swing) -> Shape:
    """One assumption."""
    return {
        "assumption": swing.name,
        "low": swing.low_means,
        "high": swing.high_means,
        "goodput": {policy: list(ends) for policy, ends in swing.goodput.items()},
    }


def of_incidents(history: History) -> Iterator[Shape]:
    """Each fault of a history, as rows of --incidents."""
    for incident in history.incidents():
        fault, costs = incident.fault, incident.costs
        yield {
            "policy": history.policy,
            "seed": history.seed,
            "at": fault.at,
            "cause": fault.cause,
            "kind": str(fault.kind),
            "nodes": " ".join(map(str, fault.nodes)),
            "repair_seconds": fault.repair_seconds,
            "detection_flop": costs.detection,
            "transition_flop": costs.transition,
            "sub_healthy_flop": costs.sub_healthy,
            "repeated_flop": costs.repeated,
        }
