"""docs/json.md and what `--json` prints are the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from unicorn_mgr import messages as m
from unicorn_mgr.cli import shapes, study_shapes
from unicorn_mgr.cli.incidents import PHASES
from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import JobPhase, NodePhase, WorkerPhase
from unicorn_mgr.coordinator.triage import NODE_HEALTH, PROPAGATION, STATISTICS, SUPERVISION
from unicorn_mgr.model import Epoch, Severity
from unicorn_mgr.simulator.history import Costs
from unicorn_mgr.simulator.scenario import Scenario
from unicorn_mgr.simulator.sensitivity import Swing
from unicorn_mgr.simulator.study import Figures, Outcome, Spread, Study
from unicorn_mgr.simulator.swarm import Verdict

DOCUMENT = (Path(__file__).parents[2] / "docs" / "json.md").read_text()

EVENT = m.EventLine(1, 5.0, "NodeHeard", "node n0 is heard again", '{"node": "n0"}')
PLAN = shapes.of_plan(m.ClusterView(jobs=(m.JobView("gpt", "waiting"),), plan=m.PlanView()))
WHAT_IF = shapes.of_what_if(m.WhatIfAnswer((m.PlannedJob("gpt"),), m.PlanView()))
SPREAD = Spread.of([0.9, 1.0])
LOST = {"ECC": Costs()}
RUN = Figures("ours", 1, 3, 1e15, 2e15, 0.9, 0.99, 0.8, LOST, 4, 0.5)
OUTCOME = Outcome("ours", SPREAD, SPREAD, SPREAD, SPREAD, SPREAD, None, LOST, 4.0, 0.5)
SCENARIO = Scenario("toy", "a toy", 2, 2, 8, 3_600.0, ())
SWING = Swing("repair time", "1/2", "x 2", {"ours": (0.9, 0.8, 0.7)})
STUDY = Study(SCENARIO, (1, 2), "megatron", 3.5, (OUTCOME,), (RUN,))
FULL: dict[str, Mapping[str, Any]] = {
    "cluster": shapes.of_cluster(m.ClusterView()),
    "plan": PLAN,
    "certificate": PLAN["plan"],
    "what-if": WHAT_IF,
    "node": shapes.of_node(m.NodeView()),
    "job": shapes.of_job(m.JobView()),
    "worker": shapes.of_worker(m.WorkerView()),
    "incident": shapes.of_incident(m.IncidentView()),
    "story": shapes.of_story(m.IncidentStory()),
    "event": shapes.of_event(EVENT),
    "setting": shapes.of_settings({})[0],
    "journal": shapes.of_journal(m.ClusterView(), "journal.sqlite", 1, 1),
    "study": study_shapes.of_study(STUDY, "mid", [SWING], []),
    "outcome": study_shapes.of_outcome(OUTCOME),
    "run": study_shapes.of_run(RUN),
    "swing": study_shapes.of_swing(SWING),
    "history": asdict(Verdict(1, [], "", [], 0, 0.0)),
    "seconds": PHASES,
}
EXTENDS = {"story": "incident", "journal": "cluster"}


def rows(heading: str) -> dict[str, list[str]]:
    """Key -> the other cells, of the table below a heading."""
    (section,) = re.findall(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return {key: rest for key, *rest in cells[2:]}


@pytest.mark.parametrize("name", FULL)
def test_every_key_is_documented_and_every_documented_key_is_there(name: str) -> None:
    documented = list(rows(name))
    if name in EXTENDS:
        documented = [*rows(EXTENDS[name]), *documented]
    assert sorted(documented) == sorted(FULL[name])


@pytest.mark.parametrize(("name", "shown"), [("plan", PLAN), ("what-if", WHAT_IF)])
def test_every_key_of_a_plans_jobs_is_documented_too(name: str, shown: Mapping[str, Any]) -> None:
    assert sorted(re.findall(r"`(\w+)`", rows(name)["jobs"][-1])) == sorted(shown["jobs"][0])


TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


@pytest.mark.parametrize("name", sorted(FULL.keys() - {"seconds"}))
def test_values_have_the_documented_types(name: str) -> None:
    for key, (kind, *_) in rows(name).items():
        allowed = tuple(t for word in kind.split(" or ") for t in TYPES[word])
        value = FULL[name][key]
        assert isinstance(value, allowed), (key, value, kind)
        assert bool in allowed or not isinstance(value, bool), (key, value, kind)


@pytest.mark.parametrize(
    ("heading", "key", "words"),
    [
        ("node", "state", NodePhase),
        ("job", "state", JobPhase),
        ("worker", "state", WorkerPhase),
        ("incident", "severity", Severity),
        ("incident", "detected_by", (NODE_HEALTH, SUPERVISION, PROPAGATION, STATISTICS)),
    ],
)
def test_every_word_a_value_can_be_is_documented(heading: str, key: str, words: Any) -> None:
    for word in words:
        assert str(word) in rows(heading)[key][-1]


def test_what_does_not_apply_is_null() -> None:
    fresh = shapes.of_job(m.JobView("gpt", "waiting"))
    nothing = ("epoch", "step", "step_seconds", "ettr", "checkpoint_step", "started_at", "ended_at", "exit_code")
    assert {key: fresh[key] for key in nothing} == dict.fromkeys(nothing)
    running = shapes.of_job(m.JobView("gpt", "running", step=0, epoch=Epoch(1, 2), started_at=9.0, checkpoint_step=0))
    assert (running["epoch"], running["step"], running["ettr"], running["checkpoint_step"]) == ("1.2", 0, 1.0, 0)
    assert running["exit_code"] is None
    assert shapes.of_job(m.JobView("gpt", "ended"))["exit_code"] == 0
    opened = shapes.of_incident(m.IncidentView(node="n0", epoch_before="0.0"))
    assert (opened["job"], opened["worker"], opened["closed_at"], opened["epoch_before"]) == (None, None, None, None)


def test_status_leaves_out_what_is_over() -> None:
    jobs = (m.JobView("old", "ended"), m.JobView("new", "running"))
    incidents = (m.IncidentView("inc-1", state="closed"), m.IncidentView("inc-2", state="open"))
    view = m.ClusterView(jobs=jobs, incidents=incidents)
    shown = shapes.of_cluster(view)
    assert [j["job"] for j in shown["jobs"]] == ["new"]
    assert [i["id"] for i in shown["incidents"]] == ["inc-2"]
    replayed = shapes.of_journal(view, "journal.sqlite", 2, 2)
    assert [j["job"] for j in replayed["jobs"]] == ["old", "new"]
    assert [i["id"] for i in replayed["incidents"]] == ["inc-1", "inc-2"]


def test_what_a_worker_has_told_is_an_object_like_any_other() -> None:
    line = m.EventLine(7, 5.0, "WorkerTold/LoopEnded", "", '["gpt/0.0", "{\\"step\\": 4}"]')
    assert shapes.of_event(line)["event"] == {"worker": "gpt/0.0", "fact": {"step": 4}}


def test_settings_say_what_runs_what_would_and_why() -> None:
    settings = shapes.of_settings({"restarts_max": 7.0})
    assert [s["name"] for s in settings] == list(Settings.model_fields)
    assert all(s["meaning"].endswith(".") for s in settings)
    by_name = {s["name"]: s for s in settings}
    assert (by_name["restarts_max"]["value"], by_name["restarts_max"]["default"]) == (7, 100)
    assert by_name["lease_seconds"]["value"] is None
