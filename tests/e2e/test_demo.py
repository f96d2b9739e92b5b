"""The demo proves what it says, and its proofs can fail."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import unicorn_mgr
from unicorn_mgr.cli.demo import JOB, LIGHTER, LIGHTER_SIZE, SCENES, Demo, training_script
from unicorn_mgr.cli.demo_proof import (
    Change,
    Check,
    Records,
    changes,
    cost,
    counted_once,
    given_and_got_back,
    healed,
    same_weights,
)
from unicorn_mgr.cli.main import main
from unicorn_mgr.messages import EventLine, IncidentStory, IncidentView

SIZE = 2
MICRO_BATCHES = 2 * SIZE


@pytest.fixture(scope="module")
def folder(templates: Path) -> Iterator[Path]:
    """What a short demo has left: a job of two workers and a lighter one, a lost node, a few steps."""
    with tempfile.TemporaryDirectory(prefix="unicorn-d") as name:
        short = Demo(training_script(), Path(name), SIZE + LIGHTER_SIZE, SCENES[2:], calm_steps=3, templates=templates)
        assert short.perform(keep=False, live=False), "a check of the demo did not hold"
        yield Path(name)


def change(folder: Path, copy: Path, what: str) -> Check:
    """Change the records of a worker that lived from the beginning to the end, in one place; count again."""
    shutil.copytree(folder / JOB / "records", copy)
    path = copy / "gpt-1.0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    at = next(i for i, line in enumerate(lines) if "micro_batch" in line and line["step"] == 1)
    match what:
        case "forget":
            del lines[at]
        case "repeat":
            lines.insert(at, lines[at])
        case "do another's":
            lines.insert(at, {**lines[at], "micro_batch": (lines[at]["micro_batch"] + 1) % MICRO_BATCHES})
        case "go on":
            lines.insert(at, {**lines[at], "step": 10_000})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = Records(folder / JOB / "records").read().newest_step + 1
    return counted_once(Records(copy).read(), steps, MICRO_BATCHES)


def test_a_short_demo_holds_what_it_promises(folder: Path) -> None:
    for job, micro_batches in ((JOB, MICRO_BATCHES), (LIGHTER, 2 * LIGHTER_SIZE)):
        records = Records(folder / job / "records").read()
        assert counted_once(records, records.newest_step + 1, micro_batches).holds
    assert sorted(p.name for p in (folder / JOB / "weights").iterdir()) == ["gpt-0.1.pt", "gpt-1.0.pt"]
    assert len(list((folder / LIGHTER / "weights").iterdir())) == LIGHTER_SIZE, "who has left saves nothing"
    (incident,) = json.loads((folder / "incidents.json").read_text())
    assert incident["cause"] == "lost_connection"
    assert (
        'unicorn_incidents_total{cause="lost_connection",severity="SEV1"} 1.0' in (folder / "metrics.txt").read_text()
    )


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("nothing", ""),
        ("forget", "of step 1 was never computed"),
        ("repeat", "of step 1 was counted by each of gpt/1.0, gpt/1.0"),
        ("do another's", "of step 1 was counted by each of gpt/"),
        ("go on", "of step 10000 was computed, and there is none"),
    ],
)
def test_doctored_records_are_noticed(folder: Path, tmp_path: Path, what: str, told: str) -> None:
    check = change(folder, tmp_path / "records", what)
    assert check.holds == (what == "nothing")
    assert told in check.text


@pytest.mark.parametrize(
    ("computed", "applied", "holds"),
    [
        (["a", "b"], {"b": {0}}, True),  # b has done again what was lost with a
        (["a"], {"b": {0}}, True),  # a died when its part was with b already
        (["a", "b"], {"a": {0}, "b": {0}}, False),
        (["a", "b"], {"c": {0}}, False),
        ([], {"c": {0}}, False),
    ],
)
def test_what_a_dead_worker_has_computed_counts_at_most_once(
    tmp_path: Path, computed: list[str], applied: dict[str, set[int]], holds: bool
) -> None:
    records = Records(tmp_path, {(0, 0): computed} if computed else {}, applied)
    assert counted_once(records, 1, 1).holds == holds


def test_half_a_line_of_a_killed_worker_is_left_out(tmp_path: Path) -> None:
    whole = json.dumps({"worker": "gpt/0.0", "at": 1.0, "step": 0, "micro_batch": 0, "rehearsal": False})
    (tmp_path / "gpt-0.0.jsonl").write_text(f"{whole}\n{whole[:20]}")
    records = Records(tmp_path).read()
    assert records.computed == {(0, 0): ["gpt/0.0"]}
    assert records.read().computed == {(0, 0): ["gpt/0.0"]}, "read twice, taken once"


def test_a_changed_weight_is_noticed(folder: Path, tmp_path: Path) -> None:
    reference, found = folder / JOB / "undisturbed" / "alone.pt", tmp_path / "gpt-1.0.pt"
    weights = torch.load(folder / JOB / "weights" / "gpt-1.0.pt", weights_only=True)
    weights["norm.weight"][3] += 2e-12
    torch.save(weights, found)
    check = same_weights(training_script(), reference, [found], 1)
    assert not check.holds
    assert "2.0e-12" in check.text


def test_weights_that_are_no_numbers_or_not_there_are_noticed(folder: Path, tmp_path: Path) -> None:
    reference, found = folder / JOB / "undisturbed" / "alone.pt", tmp_path / "nan.pt"
    good = folder / JOB / "weights" / "gpt-1.0.pt"
    weights = torch.load(good, weights_only=True)
    weights["norm.weight"][3] = float("nan")
    torch.save(weights, found)
    assert not same_weights(training_script(), reference, [found, good], 2).holds
    assert same_weights(training_script(), reference, [good], 2) == Check(
        "weights", False, "1 of 2 workers have left theirs"
    )


KILLED = IncidentView("inc-1", JOB, "node-1", f"{JOB}/1.0", "process_killed", state="closed", opened_at=100.0)


@pytest.mark.parametrize(
    ("incidents", "told"),
    [
        ([KILLED], "1 for 1 faults, all healed"),
        ([], "no incident tells of process_killed"),
        ([KILLED, dataclasses.replace(KILLED, cause="task_hang")], "nobody did this: task_hang"),
        ([KILLED, KILLED], "nobody did this: process_killed"),
        ([dataclasses.replace(KILLED, state="open")], "not healed: inc-1"),
        ([dataclasses.replace(KILLED, steps_lost=2)], "2 steps were lost"),
    ],
)
def test_incidents_are_compared_with_what_was_done(incidents: list[IncidentView], told: str) -> None:
    check = healed(incidents, ["process_killed"])
    assert check.holds == (incidents == [KILLED])
    assert told in check.text


def assigned(job: str, slots: int, reason: str) -> EventLine:
    seats = {str(seat): [f"node-{seat}", 0] for seat in range(slots)}
    return EventLine(0, 100.0, "SlotsAssigned", "", json.dumps({"job": job, "seats": seats, "reason": reason}))


def test_changes_are_those_of_the_number_of_slots() -> None:
    lines = [assigned(JOB, 3, "all it wants"), assigned(JOB, 3, "other words"), assigned(JOB, 2, "has lost 1 slot")]
    assert changes(lines) == [Change(100.0, JOB, 0, 3, "all it wants"), Change(100.0, JOB, 3, 2, "has lost 1 slot")]


@pytest.mark.parametrize(
    ("sizes", "holds"),
    [((2, 1, 2), True), ((2, 1), False), ((2,), False), ((2, 0, 2), False), ((2, 1, 2, 1, 2), False), ((), False)],
)
def test_a_slot_must_be_given_and_come_back(sizes: tuple[int, ...], holds: bool) -> None:
    lines = [assigned(LIGHTER, size, f"gives 1 slot to {JOB}") for size in sizes]
    assert given_and_got_back(changes(lines), LIGHTER, JOB).holds == holds


def test_seconds_count_from_the_last_sign_of_life() -> None:
    seconds = {"detect": 0.5, "total": 2.0, "resize": 3.0}
    incident = dataclasses.replace(KILLED, closed_at=104.5, seconds=seconds)

    def line(at: float, kind: str, cause: str) -> EventLine:
        return EventLine(0, at, kind, "", json.dumps({"incident": "inc-1", "cause": cause}))

    first, named = line(100.0, "IncidentOpened", "process_died"), line(100.25, "IncidentRefined", "process_killed")
    found = cost(IncidentStory(incident, (first, named)), struck_at=99.0)
    assert (found.named, found.stepped, found.full) == (1.25, 2.5, 5.5)


def told_by_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["unicorn", "demo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert told_by_main(monkeypatch, capsys, "--nodes", "4") == "unicorn: nodes: 4: want 5 to 16\n"
    (tmp_path / "old").touch()
    told = told_by_main(monkeypatch, capsys, "--data", str(tmp_path))
    assert told == f"unicorn: data: {tmp_path}: it is not an empty directory; choose another\n"
    told = told_by_main(monkeypatch, capsys, "--data", f"/{'long' * 30}")
    assert told.endswith("too long for the sockets in it; want at most 70 characters\n")
    monkeypatch.setattr(unicorn_mgr, "__file__", str(tmp_path / "lib" / "unicorn_mgr" / "__init__.py"))
    told = told_by_main(monkeypatch, capsys)
    assert told.endswith("examples/gpt/train.py: not there; run it in a clone of the repository, by make demo\n")
    assert told.count("\n") == 1


def of_this_demo(folder: Path) -> list[str]:
    """Processes that are still there, by what they write to."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            output = str(Path(f"/proc/{pid}/fd/1").readlink())
            if output.startswith(str(folder)) and "/templates/" not in output:
                found.append(f"{pid} {output}")
    return found


def test_ctrl_c_leaves_nothing_behind() -> None:
    """In the middle of it all: coordinator, agents and workers are gone; templates end by themselves."""
    with tempfile.TemporaryDirectory(prefix="unicorn-d") as name:
        command = [sys.executable, "-m", "unicorn_mgr.cli", "demo", "--data", name]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert demo.stdout is not None
        for line in demo.stdout:
            if "kill -9 of gpt/1.0" in line:
                break
        assert len(of_this_demo(Path(name))) >= 1 + 5 + 5
        demo.send_signal(signal.SIGINT)
        told, _ = demo.communicate()
        assert demo.returncode == 130, told
        assert f"interrupted; what there is lies in {name}" in told
        assert not of_this_demo(Path(name))
