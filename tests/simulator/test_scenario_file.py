"""Scenario files: what they say becomes a scenario, and what is wrong with them is told by file, line and field."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from unicorn_mgr.simulator import scenario_file, traces
from unicorn_mgr.simulator.scenario import DAY, BadScenario, Kind

GOOD = """\
name: mine
nodes: 4
slots: 8
days: 2
domain_nodes: 2
repair: {kind: exponential, hours: 3}
jobs:
  - name: a
    throughput: {4: 1.0e15, 8: 2.0e15, 16: 3.0e15}
    replica: 4
  - name: b
    count: 2
    weight: 0.5
    min: 2
    max: 4
    flops_per_slot: 1.0e14
    micro_batches: 12
faults:
  - {cause: ECC, kind: node, per_day: 3}
  - {cause: flap, kind: link, times: 5, burst: {nodes: 2}, offenders: {nodes: 0.3, faults: 0.7}}
  - {cause: hot, kind: slow, times: 1, slowness: 2, repair: {kind: never}}
figures: {ettr: 0.97}
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refused(path: str) -> str:
    with pytest.raises(BadScenario) as wrong:
        scenario_file.load(path)
    assert "\n" not in str(wrong.value)
    return str(wrong.value)


# -- what they say -----------------------------------------------------------------------


def test_a_file_becomes_a_scenario(tmp_path: Path) -> None:
    loaded = scenario_file.load(written(tmp_path, GOOD))
    scenario = loaded.scenario
    assert (scenario.name, scenario.capacity, scenario.seconds) == ("mine", 32, 2 * DAY)
    assert (scenario.domain_nodes, scenario.spares, scenario.extra) == (2, 0, {"ettr": 0.97})
    a, b1, b2 = scenario.jobs
    assert (a.name, b1.name, b2.name) == ("a", "b-1", "b-2")
    assert (a.size_min, a.size_max, a.replica, a.weight) == (4, 16, 4, 1.0)
    assert (a.rate(3), a.rate(4), a.rate(9), a.useful(15)) == (0.0, 1e15, 2e15, 8)
    assert b1.throughput == ((2, 2e14), (3, 3e14), (4, 4e14))
    assert (b2.size_min, b2.size_max, b2.weight, b2.micro_batches) == (2, 4, 0.5, 12)
    faults = loaded.faults(3)
    assert faults == loaded.faults(3) != loaded.faults(4)
    assert sum(f.kind is Kind.LINK and len(f.nodes) == 2 for f in faults) >= 3
    assert [(f.slowness, f.repair_seconds) for f in faults if f.kind is Kind.SLOW] == [(2.0, math.inf)]


def test_a_slot_of_several_gpus_counts_its_throughput_in_slots(tmp_path: Path) -> None:
    model = "{parameters: 1.3e9, sequence_length: 2048, global_batch: 512, device: A800, tensor_parallel: 4}"
    text = "name: x\nnodes: 16\nslots: %d\ngpus_per_slot: %d\ndays: 1\njobs:\n  - {name: a, model: %s}\n"
    (small,) = scenario_file.load(written(tmp_path, text % (8, 1, model))).scenario.jobs
    (large,) = scenario_file.load(written(tmp_path, text % (1, 8, model))).scenario.jobs
    assert (small.replica, large.replica) == (4, 1)
    assert large.throughput
    assert all(rate <= small.rate(size * 8) <= 1.01 * rate for size, rate in large.throughput)
    assert small.state_bytes == large.state_bytes == 1.3e9 * 14
    assert small.step_flops == large.step_flops > 6 * 1.3e9 * 2048 * 512


def test_only_sizes_that_pay_are_kept(tmp_path: Path) -> None:
    text = GOOD.replace("    max: 4\n    flops_per_slot", "    max: 11\n    flops_per_slot")
    job = scenario_file.load(written(tmp_path, text)).scenario.jobs[1]
    assert [size for size, _ in job.throughput] == [2, 3, 4, 6], "of 12 micro-batches"


# -- what is wrong with them -------------------------------------------------------------

WRONG = [
    ("slots: 8", "slots: 8\ncolour: red", 4, "colour: there is no such field"),
    ("slots: 8\n", "", 1, "slots: missing"),
    ("days: 2", "days: two", 4, "days: two: want a number"),
    ("days: 2", "days: -2", 4, "days: -2: want more than 0"),
    ("nodes: 4", "nodes: 4.5", 2, "nodes: 4.5: want a whole number"),
    ("per_day: 3", "per_day: -3", 19, "faults.0.per_day: -3: want at least 0"),
    ("per_day: 3", "per_day: .nan", 19, "faults.0.per_day: nan: want"),
    ("per_day: 3", "per_day: 3, times: 3", 19, "faults.0: want per_day, times or trace, one of them"),
    ("per_day: 3", "per_day: 9.0e9", 19, "faults.0.per_day: 1.8e+10 faults: want at most 1e+06"),
    ("kind: node", "kind: rack", 19, "faults.0.kind: rack: want 'node', 'process'"),
    ("cause: ECC, kind: node,", "cause: ECC,", 19, "faults.0.kind: missing: want one of node"),
    (
        "times: 5, burst: {nodes: 2}",
        "times: 5, burst: {nodes: 3}",
        20,
        "faults.1.burst.nodes: 3 nodes: the domain has 2",
    ),
    ("burst: {nodes: 2}", "burst: {nodes: 5, within: cluster}", 20, "faults.1.burst.nodes: 5 nodes: the cluster has 4"),
    ("domain_nodes: 2\n", "", 19, "faults.1.burst: the scenario has no domains"),
    ("domain_nodes: 2", "domain_nodes: 5", 5, "domain_nodes: 5 of 4 nodes"),
    ("days: 2", "days: 2\nspares: 4", 5, "spares: 4 of 4 nodes: want fewer"),
    ("per_day: 3", "times: 5, repair: {kind: never}", 19, "faults.0.times: 5 nodes are lost and never repaired"),
    ("hours: 3", "hours: -1", 6, "repair.hours: -1: want at least 0"),
    ("hours: 3", "sigma: 1", 6, "repair.hours: missing: exponential wants the mean"),
    ("hours: 3", "hours: 3, sigma: 1", 6, "repair.sigma: want it of lognormal only"),
    ("repair: {kind: exponential, hours: 3}\n", "", 18, "faults.0: a fault of kind node needs a repair"),
    ("slowness: 2, ", "", 21, "faults.2.slowness: want it of kind slow"),
    ("replica: 4", "replica: 8", 9, "jobs.0.throughput.4: 4 slots: want whole replicas, of 8"),
    ("16: 3.0e15", "64: 3.0e15", 9, "jobs.0.throughput.64: 64 slots: the cluster has 32"),
    ("16: 3.0e15", "16: -1", 9, "jobs.0.throughput.16: -1: want more than 0"),
    ("max: 4", "max: 40", 15, "jobs.1.max: 40 slots: the cluster has 32"),
    ("min: 2\n    max: 4", "min: 15\n    max: 15", 7, "jobs: their minima are 34 slots of 32"),
    ("min: 2", "min: 5", 11, "jobs.1: none of its sizes"),
    ("flops_per_slot: 1.0e14", "replica: 1", 11, "jobs.1: want model, throughput or flops_per_slot"),
    ("name: b\n    count: 2", "name: a", 11, "jobs.1.name: a: another job has this name"),
    ("weight: 0.5", "weight: 0.5\n    weight: 0.6", 14, "jobs.1.weight: in line 13 already: want it once"),
    ("name: mine", "name: my one", 1, "name: my one: want letters, digits"),
    ("faults:\n", "faults: 3\nmore:\n", 18, "faults: 3: want a list of models of faults"),
    ("days: 2", "days: [2", 5, "not YAML"),
]


@pytest.mark.parametrize(("old", "new", "line", "said"), WRONG, ids=[w[3] for w in WRONG])
def test_a_mistake_is_told_by_file_line_and_field(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    assert GOOD.count(old) == 1
    path = written(tmp_path, GOOD.replace(old, new))
    assert refused(path).startswith(f"{path}:{line}: {said}")


MODEL = """\
name: x
nodes: 2
slots: 8
days: 1
jobs:
  - name: a
    max: %d
    model:
      parameters: 175e9
      %s
"""
REST = "sequence_length: 2048\n      global_batch: 256\n      device: %s\n      tensor_parallel: 8"


@pytest.mark.parametrize(
    ("most", "rest", "line", "said"),
    [
        (16, REST % "H900", 12, "jobs.0.model.device: "),
        (16, REST % "A800", 8, "jobs.0.model: 1.75e+11 parameters do not fit on A800"),
        (16, "sequence_length: 2048", 8, "jobs.0.model.global_batch: missing"),
        (16, REST % "A800\n      colour: 3", 13, "jobs.0.model.colour: there is no such field"),
    ],
)
def test_a_model_that_cannot_be_is_told_as_well(tmp_path: Path, most: int, rest: str, line: int, said: str) -> None:
    path = written(tmp_path, MODEL % (most, rest))
    assert refused(path).startswith(f"{path}:{line}: {said}")


def test_an_unknown_name_lists_those_that_are_built_in() -> None:
    assert "unicron-trace-a, unicron-trace-b" in refused("mine")


def test_whoever_types_the_products_name_is_told_the_systems() -> None:
    assert "did you mean unicron-trace-a?" in refused("unicorn-trace-a")


@pytest.mark.parametrize("content", ["", "[]", "a", "\x00", "a: *b"])
def test_what_is_no_document_is_told(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, content)
    assert refused(path).startswith(path)


def test_a_folder_is_no_scenario(tmp_path: Path) -> None:
    assert refused(str(tmp_path)).startswith(str(tmp_path))


# -- traces ------------------------------------------------------------------------------

TRACED = """\
name: mine
nodes: 4
slots: 2
days: 3
jobs: [{name: a, throughput: {1: 1.0e12}}]
repair: {kind: fixed, hours: 1}
faults:
  - {trace: was.csv, kind: process, cause: known}
"""


def traced(folder: Path, rows: str, scenario: str = TRACED) -> str:
    (folder / "was.csv").write_text(rows)
    return written(folder, scenario)


def test_a_trace_is_read_beside_its_scenario(tmp_path: Path) -> None:
    rows = "# whose\nat,kind,cause,nodes,slot,repair_hours,count\n0,,,1,1,,\n60.5,node,ECC,2 3,,0.5,\n\n90,link,,,,,2\n"
    faults = scenario_file.load(traced(tmp_path, rows)).faults(1)
    assert [(f.at, f.cause, f.kind) for f in faults] == [
        (0.0, "known", Kind.PROCESS),
        (60.5, "ECC", Kind.NODE),
        (90.0, "known", Kind.LINK),
        (90.0, "known", Kind.LINK),
    ]
    assert (faults[0].nodes, faults[0].slot) == ((1,), 1)
    assert (faults[1].nodes, faults[1].repair_seconds) == ((2, 3), 1_800.0)


def test_dates_count_from_the_first_midnight(tmp_path: Path) -> None:
    rows = "at\n2024-02-28T12:00:00\n2024-02-29\n2024-03-01 06:00\n2024-03-09\n"
    faults = scenario_file.load(traced(tmp_path, rows)).faults(1)
    assert [f.at / DAY for f in faults] == [0.5, 1.0, 2.25], "what comes after the end is left out"


def test_what_a_trace_does_not_say_comes_from_the_scenario(tmp_path: Path) -> None:
    rows = "at,repair_hours\n5,never\n6,\n"
    faults = scenario_file.load(traced(tmp_path, rows, TRACED.replace("kind: process", "kind: node"))).faults(1)
    assert [f.repair_seconds for f in faults] == [math.inf, 3_600.0]


BAD_TRACES = [
    ("at\n10\n5\n", 3, "at: 5: before the line above it"),
    ("at,nodes\n10,4\n", 2, "nodes: '4': want a whole number from 0 to 3"),
    ("at,slot\n10,2\n", 2, "slot: '2': want a whole number from 0 to 1"),
    ("# a\nat\nsoon\n", 3, "at: 'soon': want a number of at least 0 or a date"),
    ("at\n-1\n", 2, "at: '-1': want a number"),
    ("at\n2024-01-02\n5\n", 3, "at: '5': want a date, as above"),
    ("at\n2024-01-02\n2024-01-03T00:00:00Z\n", 3, "at: 2024-01-03T00:00:00Z: want a zone in all lines or in none"),
    ("at,kind\n1,rack\n", 2, "kind: 'rack': want one of node"),
    ("at,kind\n1\n", 2, "1 values: want 2, for at, kind"),
    ("at,kind\n1,slow\n", 2, "no slowness"),
    ("at,repair_hours\n1,-2\n", 2, "repair_hours: '-2': want a number of at least 0 or never"),
    ("at,count\n1,-2\n", 2, "count: '-2': want a whole number"),
    ("when\n1\n", 1, "column 'when': want each of at"),
    ("at,at\n1,1\n", 1, "column 'at': want each of at"),
    ("cause\nx\n", 1, "no column at"),
    ('at,cause\n1,"x\n', 2, "unexpected end of data"),
    ("", 1, "want a first line of columns"),
]


@pytest.mark.parametrize(("rows", "line", "said"), BAD_TRACES, ids=[said for _, _, said in BAD_TRACES])
def test_a_line_of_a_trace_that_is_wrong_is_told(tmp_path: Path, rows: str, line: int, said: str) -> None:
    assert refused(traced(tmp_path, rows)).startswith(f"{tmp_path / 'was.csv'}:{line}: {said}")


def test_a_trace_that_is_missing_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, TRACED)
    assert refused(path).startswith(f"{path}:8: faults.0.trace: was.csv: there is no such file")


# -- built in ----------------------------------------------------------------------------


def test_the_published_comparisons_are_built_in() -> None:
    wanted = {"byterobust-9600", "fireflyer-10k", "fthsdp-100k", "llama3-16k", "mtbf-10min"}
    unicron = {"unicron-trace-a", "unicron-trace-b", *(f"unicron-case-{i}" for i in range(1, 6))}
    assert set(scenario_file.names()) == wanted | unicron


@pytest.mark.parametrize("name", scenario_file.names())
def test_a_built_in_scenario_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    loaded = scenario_file.load(name)
    scenario = loaded.scenario
    assert scenario.name == name
    assert scenario.about
    assert re.search(r"arXiv:\d{4}\.\d{5}", scenario.source)
    assert loaded.faults(1) or name.startswith("unicron-case")
    if len(scenario.jobs) == 1:
        assert scenario.jobs[0].size_max == (scenario.nodes - scenario.spares) * scenario.slots


@pytest.mark.parametrize(
    ("name", "gpus", "days", "faults", "lost"),
    [
        ("unicron-trace-a", 128, 56, 43, 10),
        ("unicron-trace-b", 128, 7, 106, 26),
        ("llama3-16k", 16_384, 54, 419, 356),
        ("byterobust-9600", 9_600, 90, 175, 128),
    ],
)
def test_counts_are_the_published_ones(name: str, gpus: int, days: int, faults: int, lost: int) -> None:
    loaded = scenario_file.load(name)
    scenario, found = loaded.scenario, loaded.faults(5)
    assert (scenario.nodes - scenario.spares) * scenario.slots * scenario.gpus_per_slot == gpus
    assert scenario.seconds == days * DAY
    assert len(found) == faults
    assert sum(f.kind is Kind.NODE for f in found) == lost


def test_a_hundred_thousand_gpus_fail_each_eighteen_minutes_in_copies_of_8192() -> None:
    loaded = scenario_file.load("fthsdp-100k")
    (job,) = loaded.scenario.jobs
    assert job.size_max * loaded.scenario.gpus_per_slot == 12 * 8_192
    assert job.replica * loaded.scenario.gpus_per_slot == 8_192
    found = sum(len(loaded.faults(seed)) for seed in range(10)) / 10
    assert found == pytest.approx(7 * 80, abs=4 * math.sqrt(560 / 10))


def test_links_of_fireflyer_break_on_the_days_on_which_they_did() -> None:
    links = [f for f in scenario_file.load("fireflyer-10k").faults(2) if f.kind is Kind.LINK]
    days = [int(f.at // DAY) for f in links]
    assert len(days) == 213
    assert [days.count(day) for day in (0, 1, 38, 39, 79, 347)] == [1, 0, 8, 10, 10, 1]


def test_all_fields_are_described() -> None:
    schema = scenario_file.schema()
    for form in (schema, *schema["$defs"].values()):
        assert form["description"]
    forms = {"ScenarioFile": schema, **schema["$defs"]}
    del forms["Model"], forms["Kind"]  # job files have the one, docs the other
    undescribed = [
        f"{form}.{name}"
        for form in forms
        for name, field in forms[form]["properties"].items()
        if "description" not in field
    ]
    assert undescribed == []


# -- what is written about them ----------------------------------------------------------

GUIDE = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()


def test_the_example_of_the_guide_is_a_scenario(tmp_path: Path) -> None:
    (example, trace) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    loaded = scenario_file.load(written(tmp_path, example))
    assert [job.name for job in loaded.scenario.jobs] == ["large", "small-1", "small-2", "small-3"]
    assert {f.kind for f in loaded.faults(1)} == set(Kind)
    (tmp_path / "incidents.csv").write_text("at,count\n2024-01-01,3\n")
    path = written(tmp_path, example.partition("faults:")[0] + trace)
    assert len(scenario_file.load(path).faults(1)) == 3


def test_the_guide_names_all_that_is_built_in_and_every_column() -> None:
    for name in scenario_file.names():
        assert f"`{name}`" in GUIDE or name in {"unicron-case-2", "unicron-case-3", "unicron-case-4"}
    for column in traces.COLUMNS:
        assert f"`{column}`" in GUIDE
