"""Job files: all that `unicorn run` can say, and one clear line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unicorn_mgr.cli.common import Problem
from unicorn_mgr.cli.jobfile import JobFile, read_job
from unicorn_mgr.cli.main import run
from unicorn_mgr.cli.run import check
from unicorn_mgr.model import JobSpec, ModelDescription

WHOLE = """
name: gpt
command: [python, train.py, --lr, "0.1"]
env: {DATA: /data}
weight: 2
priority: 3
min: 8
max: 64
sizes: [8, 16, 32, 64]
replica_size: 8
replica_within: node
domains: 4
throughput: {8: 3.0e15, 16: 5.5e15}
throughput_min: 2.0e15
deadline: 2040-01-31T18:00:00+01:00
steps: 100000
model: {parameters: 7.0e9, sequence_length: 4096, global_batch: 512, device: H100, tensor_parallel: 8}
checkpoint: {url: checkpoints, every: 100, keep: 5}
skip_poison: true
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    (folder / "train.py").touch()
    return path


def read(folder: Path, text: str) -> JobSpec:
    return read_job(written(folder, text))


def test_a_whole_file(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE)
    assert (spec.name, spec.command) == ("gpt", ("python", "train.py", "--lr", "0.1"))
    assert spec.environment["DATA"] == "/data"
    assert spec.directory == str(tmp_path)
    assert (spec.weight, spec.priority, spec.size_min, spec.size_max) == (2.0, 3, 8, 64)
    assert (spec.sizes, spec.replica_size, spec.domains) == ((8, 16, 32, 64), 8, 4)
    assert spec.throughput == {8: 3e15, 16: 5.5e15}
    assert (spec.throughput_min, spec.deadline, spec.steps) == (2e15, 2_211_642_000.0, 100_000)
    assert spec.model == ModelDescription(7e9, 4096, 512, device="H100", tensor_parallel=8)
    assert spec.checkpoint_url == str(tmp_path / "checkpoints")
    assert (spec.checkpoint_every_steps, spec.checkpoint_keep) == (100, 5)
    assert spec.skip_poison
    check(spec)


def test_the_least_that_a_file_must_say(tmp_path: Path) -> None:
    spec = read(tmp_path, "name: gpt\ncommand: [python, train.py]\n")
    assert (spec.size_min, spec.size_max, spec.weight) == (1, 1, 1.0)
    check(spec)


def test_sizes_are_limits_where_no_others_are_told(tmp_path: Path) -> None:
    spec = read(tmp_path, "name: gpt\ncommand: [python, train.py]\nsizes: [16, 8]\n")
    assert (spec.size_min, spec.size_max) == (8, 16)
    check(spec)


def test_a_url_is_left_as_it_is(tmp_path: Path) -> None:
    spec = read(tmp_path, "name: gpt\ncommand: [python]\ncheckpoint: {url: 's3://bucket/gpt'}\n")
    assert spec.checkpoint_url == "s3://bucket/gpt"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: gpt\n", "command: {path}: missing; `unicorn schema` says what it is"),
        (
            "name: gpt\ncommand: [x]\ncolour: red\n",
            "colour: {path}: there is no such field; `unicorn schema` prints all",
        ),
        ("name: gpt\ncommand: [x]\nweight: heavy\n", "weight: heavy: want a number ({path})"),
        ("name: gpt\ncommand: [x]\nweight: -1\n", "weight: -1: want more than 0"),
        ("name: gpt\ncommand: [x]\nweight: .nan\n", "weight: nan: want a finite number"),
        ("name: gpt\ncommand: [x]\nmin: 1.5\n", "min: 1.5: want a whole number"),
        ("name: gpt\ncommand: [x]\nobserve: maybe\n", "observe: maybe: want true or false"),
        ("name: gpt\ncommand: [x]\nenv: {N: 4}\n", "env.N: 4: want text; put it in quotes ({path})"),
        ("name: gpt\ncommand: [x]\nmin: 0\n", "min: 0: want at least 1"),
        (
            "name: gpt\ncommand: [x]\nreplica: {width: 2}\n",
            "replica.width: width: want 'pipeline', 'shard' or 'tensor'",
        ),
        (
            "name: gpt\ncommand: python train.py\n",
            "command: python train.py: want a list, a word an item, e.g. [python, train.py] ({path})",
        ),
        ("name: gpt\ncommand: []\n", "command: []: want a list, a word an item, e.g. [python, train.py]"),
        ("name: gpt\ncommand: [x]\nsizes: 8\n", "sizes: 8: want a list of numbers of slots, e.g. [8, 16]"),
        ("name: gpt\ncommand: [x]\nsizes: [8, many]\n", "sizes.1: many: want a whole number"),
        (
            "name: gpt\ncommand: [x]\nreplica: 4\n",
            "replica: 4: want axes and how many workers along each, e.g. {{shard",
        ),
        (
            "name: gpt\ncommand: [x]\nshapes: {shard: 4}\n",
            "shapes: {{'shard': 4}}: want a list of what replica may be, e.g. [{{shard: 4}}, {{shard: 2}}]",
        ),
        (
            "name: gpt\ncommand: [x]\nshapes: [{shard: 4}]\nreplica: {shard: 2}\n",
            "replica: want none beside shapes: the first of these is what the job begins with",
        ),
        ("name: gpt\ncommand: [x]\nmodel: 7b\n", "model: 7b: want fields and values; `unicorn schema` prints which"),
        ("name: gpt\ncommand: [x]\nreplica: {shard: 0}\n", "replica.shard: 0: want at least 1"),
        (
            "name: gpt\ncommand: [x]\ndeadline: soon\n",
            "deadline: soon: want a date and time to come, with zone, e.g. 2040-",
        ),
        ("name: gpt\ncommand: [x]\ndeadline: 2040-01-31T18:00:00\n", "deadline: 2040-01-31 18:00:00: want a date and"),
        (
            "name: gpt\ncommand: [x]\ndeadline: 2001-01-31T18:00:00Z\n",
            "deadline: 2001-01-31 18:00:00+00:00: want a date",
        ),
        ("name: gpt\ncommand: [x]\nsteps: 0\n", "steps: 0: want at least 1"),
        ("name: gpt\ncommand: [x]\nmodel: {parameters: 1}\n", "model.sequence_length: {path}: missing"),
        ("- a\n- b\n", "job file: {path}: want fields and values; `unicorn schema` prints which"),
        ("a: [b\n", "job file: {path}: not YAML: while parsing a flow sequence"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(Problem) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(line.format(path=tmp_path / "job.yaml"))
    assert "\n" not in str(caught.value)


def test_a_job_begins_with_the_first_of_its_shapes(tmp_path: Path) -> None:
    text = "name: gpt\ncommand: [python, x.py]\nmin: 2\nmax: 4\nshapes: [{shard: 4}, {shard: 2, tensor: 1}]\n"
    spec = read(tmp_path, text)
    assert (spec.replica, spec.replica_size) == ({"shard": 4}, 4)
    assert [shape.axes for shape in spec.shapes] == [{"shard": 4}, {"shard": 2, "tensor": 1}]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"job file: .*: No such file or directory"):
        read_job(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("min: 4\nmax: 2\n", "max: 2: want at least min, which is 4"),
        ("deadline: 2040-01-31T18:00:00Z\n", "steps: missing; a deadline needs the number of steps"),
        ("steps: 100\n", "deadline: missing; steps are told to be done by then"),
        ("min: 4\nmax: 8\nsizes: [3]\n", "sizes: 3: want from 4 to 8"),
        ("min: 4\nmax: 8\nreplica_size: 4\nsizes: [6]\n", "sizes: 6: want multiples of 4 from 4 to 8"),
        (
            "max: 8\nsizes: [2, 8]\nthroughput: {4: 1.0e15}\n",
            "throughput: 4 slots are not allowed: take them out; sizes are 2, 8",
        ),
        ("weight: 1.0e+308\n", "weight: 1e+308: want 1e-09 to 1e+09"),
        ("throughput: {1: 1.0e+308}\n", "throughput[1]: 1e+308: want at most 1e+30 FLOP/s"),
        (
            "model: {parameters: 1.0e+300, sequence_length: 10, global_batch: 10, device: H100}\n",
            "parameters: 1e+300: want at most 1e+15",
        ),
        ("min: 1\nmax: 3\nreplica_size: 4\n", "max: no multiple of replica_size 4"),
        ("min: 4\nmax: 6\nreplica: {shard: 4}\n", "max: 6: want whole replicas of 4 slots: 4 or 8"),
        ("min: 1\nmax: 4\nreplica: {shard: 2}\n", "min: 1: want whole replicas of 2 slots: 2 or 4"),
        ("min: 4\nmax: 4\nreplica: {shard: 2}\nreplica_size: 4\n", "replica_size: 4: want 2, as replica has"),
        (
            "min: 2\nmax: 4\nshapes: [{shard: 4}, {shard: 2}]\n",
            "checkpoint: missing; a job of several shapes changes from one to another through what is stored there",
        ),
        (
            "min: 4\nmax: 5\ncheckpoint: {url: x}\nshapes: [{shard: 4}, {shard: 3}]\n",
            "shapes.1: shard=3: no multiple of its 3 slots lies from min 4 to max 5: want another min or max",
        ),
        ("max: 4\ncheckpoint: {url: x}\nshapes: [{shard: 4}, {shard: 4}]\n", "shapes.1: shard=4: it is there twice"),
        ("max: 4\ncheckpoint: {url: x}\nshapes: [{shard: 4}, {}]\n", "shapes.1: want axes and how many workers"),
        (
            "checkpoint: {url: x}\nsizes: [4]\nshapes: [{shard: 4}, {shard: 2}]\n",
            "sizes: (4,): want none with shapes: each has its own, from min to max",
        ),
        ("max: 4\nthroughput: {1: 1.0, 2: 0.5, 3: 2.0, 4: 3.0}\n", "throughput[2]: 0.5 is less than 1 with 1 slots"),
        ("max: 4\nthroughput: {1: 1.0, 4: 3.0}\n", "throughput: nothing for 2, 3 slots: add them"),
        (
            "max: 4\nmodel: {parameters: 1.0e9, sequence_length: 1, global_batch: 4, device: Abacus}\n",
            "device: 'Abacus' is not known: want one of",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_before_it_is_sent(tmp_path: Path, more: str, line: str) -> None:
    spec = read(tmp_path, f"name: gpt\ncommand: [python, train.py]\n{more}")
    with pytest.raises(Problem) as caught:
        check(spec)
    said = str(caught.value)
    assert said.replace("-", "_").startswith(line.replace("-", "_")), said
    assert "\n" not in said


def test_the_schema_tells_each_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"].keys() == JobFile.model_fields.keys()
    assert schema["required"] == ["name", "command"]
    assert schema["additionalProperties"] is False
    assert {"format": "date-time", "type": "string"} in schema["properties"]["deadline"]["anyOf"]


def test_the_example_can_be_submitted() -> None:
    spec = read_job(Path(__file__).parents[2] / "examples" / "gpt" / "job.yaml")
    check(spec)
    assert (spec.name, spec.weight, spec.size_min, spec.size_max) == ("gpt", 2.0, 1, 3)
