"""`unicorn simulate SCENARIO` and `--from-journal DIR`: a comparison as a person asks for it."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import unicorn
from unit.world import World

from unicorn_mgr.coordinator.store import Store
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.simulator import scenario_file
from unicorn_mgr.simulator.policies.registry import POLICIES

SCENARIO = """\
name: small
about: Two jobs on four nodes.
nodes: 4
slots: 2
days: 2
repair: {kind: fixed, hours: 3}
faults:
  - {times: 3, cause: ECC, kind: node}
  - {times: 5, cause: bug, kind: process}
jobs:
  - {name: big, weight: 2, min: 2, max: 4, throughput: {2: 2.0e+15, 4: 4.0e+15}}
  - {name: small, min: 2, max: 4, throughput: {2: 1.0e+15, 4: 2.0e+15}}
figures: {ettr: 0.97}
"""
TWO = ("--policy", "megatron,restart-fast")


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return str(path)


def simulate(*words: str) -> str:
    said = unicorn("simulate", *words)
    assert (said.code, said.err) == (0, "")
    return said.out


def simulated(*words: str) -> Any:
    return json.loads(simulate(*words, "--json"))


def test_two_policies_are_compared_seed_by_seed(scenario: str) -> None:
    found = simulated(scenario, *TWO, "--seed", "3", "--seeds", "4")
    assert (found["scenario"], found["gpus"], found["seeds"]) == ("small", 8, [3, 4, 5, 6])
    assert (found["baseline"], found["costs"], found["faults"]) == ("megatron", "mid", 8.0)
    assert found["published"] == {"ettr": 0.97}
    slow, fast = found["policies"]
    assert (slow["policy"], fast["policy"]) == ("megatron", "restart-fast")
    assert slow["ratio"]["mean"] == 1.0
    assert fast["ratio"]["mean"] > 1.0
    assert 0 < fast["lost_gpu_hours"]["bug"]["detection"] < slow["lost_gpu_hours"]["bug"]["detection"]
    assert [(run["policy"], run["seed"]) for run in found["runs"][:3]] == [
        ("megatron", 3),
        ("restart-fast", 3),
        ("megatron", 4),
    ]
    assert simulated(scenario, *TWO, "--seed", "3", "--seeds", "4") == found


def test_the_table_says_what_is_in_it(scenario: str) -> None:
    lines = simulate(scenario, *TWO, "--seeds", "2").splitlines()
    assert lines[0] == "small: 4 nodes, 8 GPUs, 2 jobs, 2 days"
    assert lines[1] == "seeds 0 to 1, 8 faults in the mean, mid costs"
    assert lines[3].split()[:5] == ["POLICY", "WAF", "RATIO", "GOODPUT", "ETTR"]
    assert [line.split()[0] for line in lines[4:6]] == ["megatron", "restart-fast"]
    assert any(line.startswith("LOST GPU-HOURS BY CAUSE") for line in lines)
    assert lines[-1] == "published: ettr 0.97"


def test_without_a_baseline_there_is_no_ratio(scenario: str) -> None:
    titles = simulate(scenario, "--policy", "restart-fast").splitlines()[3].split()
    assert titles[:3] == ["POLICY", "WAF", "GOODPUT"]
    assert simulated(scenario, "--policy", "restart-fast")["baseline"] is None
    assert simulated(scenario, "--policy", "restart-fast,nofault")["faults"] == 8.0


def test_a_baseline_is_compared_too(scenario: str) -> None:
    found = simulated(scenario, "--policy", "megatron", "--baseline", "restart-fast")
    assert [outcome["policy"] for outcome in found["policies"]] == ["megatron", "restart-fast"]
    assert found["policies"][0]["ratio"]["mean"] < 1.0


def test_low_costs_are_lower(scenario: str) -> None:
    low, high = (simulated(scenario, *TWO, "--costs", level)["policies"][0] for level in ("low", "high"))
    assert low["goodput"]["mean"] > high["goodput"]["mean"]


def test_rows_and_pictures_are_written(scenario: str, tmp_path: Path) -> None:
    rows, plots = tmp_path / "runs.csv", tmp_path / "plots"
    said = simulate(scenario, *TWO, "--seeds", "2", "--csv", str(rows), "--plot", str(plots))
    with rows.open() as file:
        read = list(csv.DictReader(file))
    assert [(row["policy"], row["seed"]) for row in read] == [
        (policy, seed) for seed in "01" for policy in ("megatron", "restart-fast")
    ]
    assert read[0]["goodput"] == str(simulated(scenario, *TWO, "--seeds", "2")["runs"][0]["goodput"])
    written = [line.removeprefix("written: ") for line in said.splitlines() if line.startswith("written: ")]
    assert sorted(map(Path, written)) == sorted([rows, *plots.iterdir()])
    assert (plots / "allocation-megatron.svg").exists()


def test_each_fault_has_its_row_and_its_cost(scenario: str, tmp_path: Path) -> None:
    simulate(scenario, *TWO, "--seeds", "2", "--incidents", str(tmp_path / "incidents.csv"))
    with (tmp_path / "incidents.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 8
    assert {row["cause"] for row in rows} == {"ECC", "bug"}
    bugs = [row for row in rows if row["cause"] == "bug" and row["seed"] == "0"]
    slow, fast = (sum(float(b["detection_flop"]) for b in bugs if b["policy"] == name) for name in TWO[1].split(","))
    assert 0 < fast < slow


def test_what_moves_it_most_is_told(scenario: str) -> None:
    found = simulated(scenario, *TWO, "--sensitivity")["sensitivity"]
    assert {swing["assumption"] for swing in found} == {
        "detection time",
        "transition time",
        "repair time",
        "burstiness",
        "checkpoint interval",
    }
    assert set(found[0]["goodput"]) == {"megatron", "restart-fast"}
    assert "GOODPUT IF ONE IS OTHERWISE" in simulate(scenario, *TWO, "--sensitivity")


def test_all_there_is_can_be_listed() -> None:
    found = simulated("--list")
    assert list(found["policies"]) == list(POLICIES)
    assert list(found["scenarios"]) == scenario_file.names()
    shown = simulate("--list")
    assert all(name in shown for name in (*POLICIES, *scenario_file.names()))
    assert json.loads(simulate("--schema"))["title"] == "ScenarioFile"


def test_a_mistake_in_a_scenario_names_its_line(scenario: str) -> None:
    Path(scenario).write_text(SCENARIO.replace("days: 2", "days: -2"))
    assert unicorn("simulate", scenario).problem == f"{scenario}:5: days: -2: want more than 0"


# -- a real journal -------------------------------------------------------------------------


@pytest.fixture
def data(world: World, tmp_path: Path) -> Iterator[Path]:
    """Of a coordinator that still holds it: a job has lost a worker, and healed."""
    world.train(throughput={1: 1e12, 2: 2e12, 3: 3e12})
    world.wait(3_600.0)
    world.die("gpt/1.0")
    world.regroup()
    world.wait(3_600.0)
    world.tell(e.JobProgressed("gpt", 9, 0.5))
    store = Store(tmp_path / "data")
    store.append([(at, 1e9 + at, entry) for at, entry in world.journal])
    yield store.folder
    store.close()


def test_a_journal_tells_what_others_would_have_cost(data: Path) -> None:
    found = simulated("--from-journal", str(data), *TWO)
    assert [outcome["policy"] for outcome in found["policies"]] == ["lived", "megatron", "restart-fast"]
    lived, megatron, _ = found["policies"]
    assert list(megatron["lost_gpu_hours"]) == ["process_killed"]
    assert lived["goodput"]["mean"] > megatron["goodput"]["mean"]
    assert (found["faults"], found["gpus"], found["jobs"]) == (1.0, 3, ["gpt"])
    assert any(note.startswith("without a checkpoint") for note in found["notes"])
    assert "lived" in simulate("--from-journal", str(data), *TWO, "--sensitivity").splitlines()[4]


def test_a_journal_is_read_and_nothing_else(data: Path) -> None:
    before = {path.name: path.read_bytes() for path in data.iterdir() if not path.name.endswith("-shm")}
    simulate("--from-journal", str(data), *TWO)
    assert {path.name: path.read_bytes() for path in data.iterdir() if not path.name.endswith("-shm")} == before


def test_a_foreign_file_and_an_empty_journal_are_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_text("not a database at all, and long enough to be looked at " * 20)
    assert unicorn("simulate", "--from-journal", str(tmp_path)).problem.startswith(
        f"journal: {tmp_path}/journal.sqlite: "
    )
    Store(tmp_path / "empty").close()
    problem = unicorn("simulate", "--from-journal", str(tmp_path / "empty")).problem
    assert problem.endswith("nothing has happened in it; give one of a cluster that has run jobs")


def test_where_the_beginning_is_gone_the_snapshot_is_the_beginning(world: World, tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    world.train(throughput={1: 1e12, 2: 2e12, 3: 3e12})
    store.append([(at, 1e9 + at, entry) for at, entry in world.journal])
    store.snapshot(world.state, world.now)
    known = len(world.journal)
    world.wait(3_600.0)
    world.die("gpt/1.0")
    world.regroup()
    world.wait(3_600.0)
    world.tell(e.JobProgressed("gpt", 9, 0.5))
    store.append([(at, 1e9 + at, entry) for at, entry in world.journal[known:]])
    with sqlite3.connect(store.folder / "journal.sqlite") as database:
        database.execute("DELETE FROM entries WHERE number <= 5")
    database.close()
    found = simulated("--from-journal", str(store.folder), *TWO)
    store.close()
    assert (found["faults"], found["jobs"]) == (1.0, ["gpt"])
    assert 3_600.0 <= found["duration_seconds"] < 2 * 3_600.0 + 60.0


def test_a_list_that_names_no_policy_is_refused(scenario: str) -> None:
    said = unicorn("simulate", scenario, "--policy", ",")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("unicorn: policy: ,: it names none; known: ours, ")


def test_two_tables_are_not_written_into_one_file(scenario: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    said = unicorn("simulate", scenario, *TWO, "--csv", str(path), "--incidents", str(path))
    assert (said.code, said.out) == (2, "")
    assert said.err == f"unicorn: incidents: {path}: --csv is written there; want another file\n"
    assert not path.exists()


def test_parts_of_an_hour_are_told(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(SCENARIO.replace("days: 2", "days: 0.01").replace("times: 5", "times: 1"))
    lines = simulate(str(path), "--policy", "restart-fast", "--baseline", "restart-fast").splitlines()
    bug = next(line for line in lines if line.startswith("bug"))
    assert 0 < float(bug.split()[1]) < 10
    assert "." in bug.split()[1]
