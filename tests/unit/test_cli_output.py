"""What people see: output once and whole, each change of a job in a line, tables that can be cut up."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from unicorn_mgr import messages as m
from unicorn_mgr.cli import show
from unicorn_mgr.cli.incidents import show_story
from unicorn_mgr.cli.jobs import show_job
from unicorn_mgr.cli.logs import worker_filter
from unicorn_mgr.cli.output import LINE_BYTES_MAX, Output
from unicorn_mgr.cli.progress import Progress
from unicorn_mgr.cli.status import show_status
from unicorn_mgr.model import Epoch

Shown = Callable[[], list[str]]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """Lines on stdout since the last time."""

    def lines() -> list[str]:
        return capsys.readouterr().out.splitlines()

    return lines


def wrote(worker: str, text: str, offset: int = 0) -> m.JobUpdate:
    return m.JobUpdate(None, worker, text.encode(), offset)


# -- output -----------------------------------------------------------------------------------


def test_lines_are_shown_when_they_are_whole(shown: Shown) -> None:
    output = Output()
    output.write(wrote("gpt/0.0", "step 1\nste"))
    output.write(wrote("gpt/1.0", "hello\n"))
    output.write(wrote("gpt/0.0", "p 2\n", 10))
    assert shown() == ["[gpt/0.0] step 1", "[gpt/1.0] hello", "[gpt/0.0] step 2"]


def test_a_last_line_without_an_end_is_shown_at_the_end(shown: Shown) -> None:
    output = Output()
    output.write(wrote("gpt/0.0", "bye"))
    assert shown() == []
    output.finish()
    output.finish()
    assert shown() == ["[gpt/0.0] bye"]


def test_what_is_told_again_is_not_shown_again(shown: Shown) -> None:
    """An agent or a coordinator that has restarted tells everything from the beginning."""
    output = Output()
    output.write(wrote("gpt/0.0", "one\ntwo\nth"))
    output.write(wrote("gpt/0.0", "one\n"))
    output.write(wrote("gpt/0.0", "two\nthree\nfour\n", 4))
    assert shown() == [f"[gpt/0.0] {word}" for word in ("one", "two", "three", "four")]


def test_what_is_missing_is_counted(shown: Shown) -> None:
    output = Output()
    output.write(wrote("gpt/0.0", "one\n"))
    output.write(wrote("gpt/0.0", "five\n", 104))
    assert shown() == ["[gpt/0.0] one", "[gpt/0.0] ... 100 bytes left out ...", "[gpt/0.0] five"]


def test_a_line_without_end_and_bytes_that_are_no_text(shown: Shown) -> None:
    output = Output()
    output.write(m.JobUpdate(None, "gpt/0.0", b"x" * (LINE_BYTES_MAX + 1), 0))
    output.write(m.JobUpdate(None, "gpt/0.0", b"\xff\n", LINE_BYTES_MAX + 1))
    assert shown() == [f"[gpt/0.0] {'x' * (LINE_BYTES_MAX + 1)}", "[gpt/0.0] \ufffd"]


@pytest.mark.parametrize(("asked", "wanted"), [("", "01"), ("1", "1"), ("1.0", "1"), ("gpt/1.0", "1"), ("1.1", "")])
def test_only_the_workers_that_are_asked_for(shown: Shown, asked: str, wanted: str) -> None:
    output = Output(only=worker_filter(asked))
    for seat in "01":
        output.write(wrote(f"gpt/{seat}.0", "hello\n"))
    assert shown() == [f"[gpt/{seat}.0] hello" for seat in wanted]


# -- progress ---------------------------------------------------------------------------------


class Coordinator:
    """Answers one question."""

    def __init__(self) -> None:
        self.incidents: tuple[m.IncidentView, ...] = ()
        self.asked = 0

    def look(self) -> m.ClusterView:
        self.asked += 1
        return m.ClusterView(incidents=self.incidents)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def progress(coordinator: Coordinator) -> Progress:
    return Progress(coordinator)  # type: ignore[arg-type]  # as much of a client as it asks


@pytest.fixture
def notes(capsys: pytest.CaptureFixture[str]) -> Shown:
    """Lines on stderr since the last time."""
    return lambda: [line.removeprefix("unicorn: ") for line in capsys.readouterr().err.splitlines()]


def job(state: str = "running", **fields: Any) -> m.JobView:
    return m.JobView("gpt", state, **{"size": 4, "size_wanted": 4, "size_max": 4, "epoch": Epoch(1, 1), **fields})


def test_each_change_is_said_once(progress: Progress, notes: Shown) -> None:
    progress.show(job("waiting", reason="waits for 2 slots more: its minimum is 2, and 1 of 3 slots is free"))
    progress.show(job("waiting", reason="waits for 2 slots more: its minimum is 2, and 1 of 3 slots is free"))
    progress.show(job("starting", epoch=Epoch()))
    progress.show(job(step=1))
    progress.show(job(step=2))
    progress.show(job(step=3, epoch=Epoch(1, 2), size=3))
    progress.show(job("ending", step=9))
    progress.show(job("ended", step=9, reason="finished after step 9"))
    assert progress.end() == 0
    assert notes() == [
        "gpt waits for 2 slots more: its minimum is 2, and 1 of 3 slots is free",
        "gpt is starting 4 workers",
        "gpt runs on 4 of 4 workers, epoch 1.1",
        "gpt runs on 3 of 4 workers, epoch 1.2",
        "gpt is ending",
        "gpt ended with exit code 0: finished after step 9",
    ]


def test_now_and_then_it_says_where_it_is(progress: Progress, notes: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("unicorn_mgr.cli.progress.time.monotonic", lambda: now)
    progress.show(job(step=1))
    now += 9.0
    progress.show(job(step=30, step_seconds=0.3))
    now += 1.0
    progress.show(job(step=33, step_seconds=0.3))
    now += 60.0
    progress.show(job(step=33, step_seconds=0.3))
    assert notes()[1:] == ["gpt has finished step 33, 0.3 s a step"]


def test_incidents_are_told_when_they_open_and_when_they_are_healed(
    progress: Progress, coordinator: Coordinator, notes: Shown
) -> None:
    seconds = {"total": 0.2214}
    earlier = m.IncidentView("inc-1", "gpt", worker="gpt/9.0", cause="task_hang", state="closed", seconds=seconds)
    opened = m.IncidentView(
        "inc-2", "gpt", worker="gpt/1.0", cause="process_died", severity="SEV2", detected_by="us", state="open"
    )
    other = m.IncidentView("inc-3", "bert", worker="bert/0.0", cause="exception", state="open")
    progress.show(job())
    assert coordinator.asked == 0
    coordinator.incidents = (earlier, opened, other)
    progress.show(job(incidents=1))
    closed = m.IncidentView(
        "inc-2", "gpt", worker="gpt/1.0", cause="process_killed", state="closed", seconds=seconds,
        micro_batches_recomputed=3,
    )  # fmt: skip
    coordinator.incidents = (earlier, closed, other)
    progress.show(job(incidents=1))
    progress.show(job(incidents=1))
    assert coordinator.asked == 2
    cost = "0.22 s to the next finished step, 0 steps lost, 3 micro-batches redone"
    assert notes()[1:] == [
        "inc-2: process_died of gpt/1.0 (SEV2, by us)",
        f"inc-2: process_killed of gpt/1.0 is healed: {cost}",
    ]


# -- tables -----------------------------------------------------------------------------------


def test_a_row_is_a_line_that_can_be_cut_up(shown: Shown) -> None:
    show.show_table(("NAME", ">STEP"), [("gpt", "7"), ("a-long-name", "1000")], "none")
    assert shown() == ["NAME         STEP", "gpt             7", "a-long-name  1000"]
    show.show_table(("NAME", ">STEP"), [], "no jobs")
    assert shown() == ["no jobs"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_same_words_stand_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdout", terminal)
    node = m.NodeView("node-0", "lost", "10.0.0.1", 8, 0, reason="silent for 30 s")
    show_status(m.ClusterView("c0ffee", 3, paused=True, observe=True, nodes=(node,), alarm="3 of 4 nodes fell silent"))
    text = terminal.getvalue()
    assert "\x1b[" in text
    for words in ("c0ffee", "term 3", "ALARM: 3 of 4", "`unicorn resume` ends it", "`unicorn observe off`", "node-0"):
        assert words in text


@pytest.mark.parametrize(
    ("columns", "shown"), [(200, ["A", "B", "C", "D"]), (30, ["A", "B", "D"]), (20, ["A", "D"]), (9, ["A", "D"])]
)
def test_on_a_narrow_terminal_the_least_is_left_out(
    monkeypatch: pytest.MonkeyPatch, columns: int, shown: list[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout", terminal)
    show.show_table(("A", "?B", "?>C", "D"), [("a", "b" * 10, "c" * 10, "why it is so")], "none")
    head = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()[0]
    assert head.split() == shown


def test_the_story_of_an_open_incident_of_a_node(shown: Shown) -> None:
    incident = m.IncidentView(
        "inc-7", node="node-3", cause="lost_connection", severity="SEV1", detected_by="node health monitoring",
        state="open", evidence="node node-3: silent for 30 s", opened_at=time.time(), would_have=True,
        story=("+0.000 s  node node-3: lost_connection",),
    )  # fmt: skip
    show_story(m.IncidentStory(incident))
    lines = shown()
    assert lines[0] == "inc-7: lost_connection of node node-3, SEV1, open"
    assert lines[1] == "observe mode: nothing was done about it"
    assert lines[4].endswith(", still open")
    assert "epoch" not in "\n".join(lines)


def test_an_incident_tells_of_each_part_where_it_has_come_from(shown: Shown) -> None:
    told = (m.StateSource(0, "memory", 2, 3_000_000, 0.25), m.StateSource(1, "live", 1, 1_500_000, 0.5))
    show_story(m.IncidentStory(m.IncidentView("inc-7", job="gpt", opened_at=1.0, source="memory", sources=told)))
    lines = shown()
    assert "state from snapshots in memory of the workers' own nodes" in lines
    at = lines.index("where state has come from")
    assert lines[at + 1 : at + 3] == [
        "  part 1 of 2: snapshots in memory of the workers' own nodes: 2 workers, 3.0 MB, 0.250 s",
        "  part 2 of 2: a live replica: 1 worker, 1.5 MB, 0.500 s",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.1234, "0.12 s"), (9.9, "9.90 s"), (11, "11 s"), (119, "119 s"), (121, "2 min"),
                           (7_199, "120 min"), (7_201, "2 h"), (200_000, "2 d")],
)  # fmt: skip
def test_a_duration_has_the_unit_that_fits(seconds: float, words: str) -> None:
    assert show.duration(seconds) == words


def test_counted_things() -> None:
    assert [show.count(n, what) for n, what in ((1, "step"), (2, "step"), (0, "entry"), (3, "micro-batch"))] == [
        "1 step",
        "2 steps",
        "0 entries",
        "3 micro-batches",
    ]


def test_a_long_reason_is_cut_to_its_first_line() -> None:
    assert show.one_line("every worker raised the same\nTraceback") == "every worker raised the same"
    assert len(show.one_line("x" * 1000)) == show.REASON_CHARACTERS_MAX


def test_a_job_says_how_far_its_checkpoints_are(capsys: pytest.CaptureFixture[str]) -> None:
    parts = (
        m.PartView("gpt/0.0", "n0", 20, "memory", 3.2),
        m.PartView("gpt/1.0", "n1", 20, "stored", 3.4),
        m.PartView("gpt/2.0", "n2", 10, "complete", 9.0),
    )
    show_job(job(checkpoint_url="/store", parts=parts, checkpoint_error="no space left on device"))
    lines = [line for line in capsys.readouterr().out.splitlines() if "checkpoint" in line or "storage" in line]
    assert lines == [
        "checkpoints: /store",
        "checkpoint of step 20: what gpt/0.0 has left on n0 is in memory, for 3 s on its way",
        "checkpoint of step 20: what gpt/1.0 has left on n1 is stored, for 3 s on its way",
        "checkpoint of step 10: what gpt/2.0 has left on n2 is stored, as all other parts are, for 9 s on its way",
        "storage: no space left on device",
    ]
