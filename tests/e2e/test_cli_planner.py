"""The planner from the command line: job files, the plan and its reasons, and what would be if."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.harness import Cluster
from e2e.shell import Shell, keys

from unicorn_mgr.cli.jobfile import JobFile
from unicorn_mgr.coordinator.whatif import FORMS

MODEL = {"parameters": 1e9, "sequence_length": 1024, "global_batch": 8, "device": "H100"}


def written(folder: Path, name: str, **more: object) -> str:
    """A job file, and a program that moves as training does and is never done."""
    (folder / "wait.py").write_text("import time, unicorn_mgr\nunicorn_mgr.attach()\ntime.sleep(1000)\n")
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, "command": [sys.executable, "wait.py"], **more}))
    return str(path)


def comes_to_rest(cluster: Cluster, **sizes: int) -> None:
    """Jobs have so many slots and as many processes, and no question to the planner is open."""

    def rests(_: object) -> bool:
        view = cluster.look()
        jobs = [j for j in view.jobs if j.state != "ended"]
        found = {j.job: (j.size_wanted, sum(w.state == "attached" for w in j.workers)) for j in jobs}
        answered = view.plan is not None and view.plan.answered
        return answered and found == {job: (size, size) for job, size in sizes.items()}

    cluster.wait_for(f"{sizes}", rests)


@pytest.fixture(scope="module", autouse=True)
def gpt(shared: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A job on all four slots, that could use six."""
    said = Shell(shared)("submit", written(tmp_path_factory.mktemp("gpt"), "gpt", min=1, max=6, weight=2))
    assert (said.code, said.out) == (0, "gpt\n"), said
    comes_to_rest(shared, gpt=4)


@contextlib.contextmanager
def nothing_changes(cluster: Cluster) -> Iterator[None]:
    """Nothing is asked, decided or done."""
    before = len(cluster.events())
    yield
    assert cluster.events()[before:] == []


# -- the plan ---------------------------------------------------------------------------------


def test_the_plan_says_who_has_what_and_why(shell: Shell) -> None:
    with nothing_changes(shell.cluster):
        title, job, blank, certificate = shell("plan").out.splitlines()
        shown = shell.json("plan")
    assert title.split()[:6] == ["JOB", "STATE", "WEIGHT", "SLOTS", "MIN", "MAX"]
    assert job.split()[:6] == ["gpt", "starting", "2", "4", "1", "6"]
    assert job.endswith(shell.json("jobs", "gpt")[0]["reason"])
    assert blank == ""
    assert "proven best" in certificate
    assert sorted(shown) == keys("plan")
    assert sorted(shown["plan"]) == keys("certificate")
    assert {k: shown["plan"][k] for k in ("answered", "proven", "gap")} == {"answered": True, "proven": True, "gap": 0}
    (found,) = shown["jobs"]
    assert (found["job"], found["size_wanted"], found["weight"]) == ("gpt", 4, 2.0)


def test_a_wish_is_changed_and_planned_anew(shell: Shell) -> None:
    said = shell("set", "gpt", "weight=3", "priority=1", "max=3")
    assert (said.code, said.out, said.err) == (0, "gpt now wants weight=3, priority=1, max=3\n", "")
    comes_to_rest(shell.cluster, gpt=3)
    assert shell.json("plan")["jobs"][0]["weight"] == 3.0
    assert shell("set", "gpt", "weight=2", "priority=0", "max=6").code == 0
    comes_to_rest(shell.cluster, gpt=4)


def test_what_was_foretold_comes_true_when_the_job_is_submitted(shell: Shell, here: Path) -> None:
    file = written(here, "other", min=2, max=2, weight=5)
    foretold = shell.json("plan", "--what-if", f"submit {file}")
    sizes = {j["job"]: j["size_after"] for j in foretold["jobs"]}
    assert sizes == {"gpt": 2, "other": 2}
    assert shell("submit", file).out == "other\n"
    comes_to_rest(shell.cluster, **sizes)
    now = shell.json("plan")
    assert {j["job"]: j["reason"] for j in now["jobs"]} == {j["job"]: j["reason"] for j in foretold["jobs"]}
    shell("cancel", "other")
    comes_to_rest(shell.cluster, gpt=4)


def test_a_job_that_can_never_start_is_accepted_waits_and_says_for_what(shell: Shell, here: Path) -> None:
    assert shell("submit", written(here, "huge", min=100, max=200, priority=9)).out == "huge\n"
    comes_to_rest(shell.cluster, gpt=4, huge=0)
    reason = "waits for 96 slots more: its minimum is 100, and the whole cluster has room for 4"
    (huge,) = shell.json("jobs", "huge")
    assert (huge["state"], huge["reason"]) == ("waiting", reason)
    assert next(line for line in shell("plan").out.splitlines() if line.startswith("huge ")).endswith(reason)
    shell("cancel", "huge")
    comes_to_rest(shell.cluster, gpt=4)


def test_what_is_known_of_a_node_is_told_planned_with_and_shown(shell: Shell) -> None:
    def node(name: str) -> dict[str, Any]:
        return next(n for n in shell.json("nodes") if n["node"] == name)

    said = shell("degrade", "node-1", "--speed", "0.5")
    assert (said.code, said.out, said.err) == (0, "node node-1 offers 1 of 1 slots at speed 0.5\n", "")
    comes_to_rest(shell.cluster, gpt=3)  # four at half speed are worth less
    shell.cluster.wait_for("nobody on node-1", lambda _: node("node-1")["slots_used"] == 0)
    assert (node("node-1")["speed"], node("node-1")["reason"]) == (0.5, "degraded by an operator: speed 0.5")
    (agent,) = (a for a in shell.cluster.local.agents if a.name == "node-1")
    agent.command += ["--domain", "rack-7"]
    shell.cluster.kill_agent(1)
    shell.cluster.wait_for("node-1 in its rack", lambda _: node("node-1")["domain"] == "rack-7")
    assert node("node-1")["speed"] == 0.5, "its agent knows nothing of that"
    assert node("node-0")["domain"] is None
    assert shell("degrade", "node-1", "--speed", "1", "--slots", "1").code == 0
    comes_to_rest(shell.cluster, gpt=4)


def test_the_schema_of_job_files_is_printed(shell: Shell) -> None:
    assert json.loads(shell("schema").out) == JobFile.model_json_schema()


# -- what if ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        (["lose node-1"], {"gpt": (4, 3)}),
        (["drain node-1", "degrade node-2 speed=0.25"], {"gpt": (4, 2)}),
        (["add 8 slots"], {"gpt": (4, 6)}),
        (["job gpt weight=2"], {"gpt": (4, 4)}),
        (["submit other.yaml"], {"gpt": (4, 2), "other": (0, 2)}),
        (["end gpt"], {"gpt": (4, 0)}),
        (["submit other.yaml", "lose node-2", "job other max=4"], {"gpt": (4, 1), "other": (0, 2)}),
        (["submit huge.yaml"], {"gpt": (4, 4), "huge": (0, 0)}),
    ],
    ids=", ".join,
)
def test_what_would_be_is_told_and_nothing_touched(
    shell: Shell, here: Path, changes: list[str], sizes: dict[str, tuple[int, int]]
) -> None:
    written(here, "other", min=2, max=2, weight=5)
    written(here, "huge", min=100, max=200)
    words = [word for change in changes for word in ("--what-if", change)]
    with nothing_changes(shell.cluster):
        told = shell.json("plan", *words)
        title, *rows = shell("plan", *words).out.splitlines()
    assert sorted(told) == keys("what-if")
    assert sorted(told["plan"]) == keys("certificate")
    assert {j["job"]: (j["size_before"], j["size_after"]) for j in told["jobs"]} == sizes
    for job in told["jobs"]:
        assert (job["weighted_slots_after"] > 0) == (job["size_after"] > 0), "nobody has told its speed"
        assert job["weighted_flops_after"] is None
    assert title.split()[:3] == ["JOB", "NOW", "THEN"]
    assert {row.split()[0]: (int(row.split()[1]), int(row.split()[2])) for row in rows[: len(sizes)]} == sizes
    assert rows[-2].startswith("all jobs together: ")
    assert rows[-1].startswith("this plan ")


def test_what_a_deadline_would_need_is_told(shell: Shell, here: Path) -> None:
    """Its file tells what its work is; half a minute is too little for it, and years are enough."""
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    for name, deadline, said in (
        ("soon", soon, "its deadline can't be kept on the slots there are, so it is planned as if it had none"),
        ("later", "2099-01-01T00:00:00Z", "its deadline needs 1 slot"),
    ):
        written(here, name, model=MODEL, deadline=deadline, steps=100_000)
        with nothing_changes(shell.cluster):
            told = shell.json("plan", "--what-if", f"submit {name}.yaml")
        (job,) = (j for j in told["jobs"] if j["job"] == name)
        assert said in job["reason"]


# -- bad input --------------------------------------------------------------------------------

WANT = f"want {FORMS}"
MISTAKES = {
    "plan --what-if=": f"what-if: {WANT}",
    "plan --what-if=rain": f"what-if: rain: {WANT}",
    "plan --what-if=submit": f"what-if: submit: {WANT}",
    "plan --what-if=lose_node-9": "node: node-9: there is no such node; known: node-0, node-1, node-2, node-3",
    "plan --what-if=end_gtp": "job: gtp: there is no such job; known: gpt",
    "plan --what-if=job_gtp_weight=2": "job: gtp: there is no such job; known: gpt",
    "plan --what-if=job_gpt_weight=-1": "weight: -1.0: want a number above 0",
    "plan --what-if=job_gpt_weight=nan": "weight: nan: want a number above 0",
    "plan --what-if=job_gpt_min=7": "min: 7: want at most max, which is 6",
    "plan --what-if=add_0_slots": "what-if: add 0 slots: want 1 to 10000",
    "plan --what-if=submit_nowhere.yaml": "job file: nowhere.yaml: No such file or directory",
    "plan --what-if=submit_gpt.yaml": "name: gpt: a job of this name is running; cancel it or choose another name",
    "plan --what-if=submit_hole.yaml": "throughput: nothing for 2 slots: add them, or set sizes: [1, 3]",
    "plan --what-if=submit_ok.yaml --what-if=submit_hole.yaml": "what-if: submit hole.yaml: one job at a time",
    "set gpt": "missing argument 'WISH=VALUE...'; see `unicorn set --help`",
    "set gpt weight": "set: weight: want WISH=VALUE, e.g. weight=2",
    "set gpt weight=-1": "weight: -1.0: want a number above 0",
    "set gpt weight=nan": "weight: nan: want a number above 0",
    "set gpt weight=heavy": "weight: heavy: want a number",
    "set gpt weight=2 weight=3": "set: weight=2 weight=3: say each wish once",
    "set gpt min=2 max=1": "max: 1: want at least min, which is 2",
    "set gpt colour=red": "set: colour: want one of weight, priority, min, max",
    "set gtp weight=2": "job: gtp: there is no such job; known: gpt",
    "degrade node-1": "degrade: node-1: say --speed, --slots or both",
    "degrade node-1 --speed=0": "speed: 0: want a number above 0, at most 1",
    "degrade node-1 --speed=half": "speed: half: want a number above 0, at most 1",
    "degrade node-1 --slots=2": "slots: 2: want how many, 1 to 1, or which of 0",
    "degrade node-9 --speed=1": "node: node-9: there is no such node; known: node-0, node-1, node-2, node-3",
    "submit nowhere.yaml": "job file: nowhere.yaml: No such file or directory",
    "submit gpt.yaml": "name: gpt: a job of this name is running; cancel it or choose another name",
    "submit bounds.yaml": "max: 1: want at least min, which is 3",
    "submit negative.yaml": "weight: -1: want more than 0 (negative.yaml)",
    "submit nan.yaml": "weight: nan: want a finite number (nan.yaml)",
    "submit late.yaml": "deadline: 2001-01-31T18:00:00Z: want a date and time to come, with zone, e.g. 2040-",
    "submit local.yaml": "deadline: 2040-01-31T18:00:00: want a date and time to come, with zone, e.g. 2040-",
    "submit endless.yaml": "steps: missing; a deadline needs the number of steps to be done by then",
    "submit hole.yaml": "throughput: nothing for 2 slots: add them, or set sizes: [1, 3]",
    "submit falling.yaml": "throughput[2]: 0.5 is less than 1 with 1 slots: want at least that, or 2 left out of ",
    "submit abacus.yaml": "device: 'Abacus' is not known: want one of V100-16GB, ",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_changes_nothing(shell: Shell, here: Path, words: str) -> None:
    written(here, "ok")
    written(here, "gpt")
    written(here, "hole", max=3, throughput={1: 1.0, 3: 2.0})
    written(here, "falling", max=3, throughput={1: 1.0, 2: 0.5, 3: 2.0})
    written(here, "bounds", min=3, max=1)
    written(here, "negative", weight=-1)
    written(here, "nan", weight=float("nan"))
    written(here, "late", deadline="2001-01-31T18:00:00Z", steps=10)
    written(here, "local", deadline="2040-01-31T18:00:00", steps=10)
    written(here, "endless", deadline="2040-01-31T18:00:00Z")
    written(here, "abacus", max=3, model={**MODEL, "device": "Abacus"})
    with nothing_changes(shell.cluster):
        assert shell(*(word.replace("_", " ") for word in words.split())).problem.startswith(MISTAKES[words])
