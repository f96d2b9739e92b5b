"""What the benchmarks make of their samples."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import report, simulate
from benchmarks.move import Change, Cost, changed, undisturbed
from benchmarks.numbers import interval, percentile, ratio_of_medians, ratios, summary
from benchmarks.records import Finished, Trace, durations, missing_steps, redone, repeated_steps, traces
from benchmarks.result import Aim, Found, Machine, Result, Table, figures, markdown, plain, read

SAMPLES = st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=30)


# -- numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (25, 2.0), (50, 3.0), (90, 4.6), (95, 4.8), (100, 5.0)])
def test_a_percentile_lies_between_its_neighbours(percent: float, value: float) -> None:
    assert percentile([5.0, 3.0, 1.0, 4.0, 2.0], percent) == pytest.approx(value)


@given(SAMPLES)
def test_the_fiftieth_percentile_is_the_median(values: list[float]) -> None:
    assert percentile(values, 50) == pytest.approx(median(values))


@pytest.mark.parametrize("percent", [-1, 100.1])
def test_a_percentile_that_is_none_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="want 0 to 100"):
        percentile([1.0], percent)


@pytest.mark.parametrize(
    "statistic", [interval, summary, lambda v: percentile(v, 50), lambda v: ratio_of_medians(v, v)]
)
def test_no_samples_say_nothing(statistic: object) -> None:
    assert callable(statistic)
    with pytest.raises(ValueError, match="no samples"):
        statistic([])


def test_an_interval_covers_the_median_about_as_often_as_it_says() -> None:
    """Sets of samples around 10: the true median lies in nearly all intervals, and not in every one."""
    chance = random.Random(4)
    sets = [[chance.gauss(10.0, 2.0) for _ in range(25)] for _ in range(60)]
    covered = sum(low <= 10.0 <= high for low, high in (map(interval, sets)))
    assert 51 <= covered < 60


def test_an_interval_is_the_same_every_time_and_narrower_with_more_samples() -> None:
    few, many = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0] * 20
    assert interval(few) == interval(few)
    widths = [high - low for low, high in (interval(few), interval(many))]
    assert widths[1] < widths[0]


def test_what_slows_both_halves_of_a_pair_cancels_out() -> None:
    theirs = [1.0, 7.0, 2.0, 30.0]
    assert ratios([1.5 * t for t in theirs], theirs) == pytest.approx([1.5] * 4)


def test_halves_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="not pairs"):
        ratios([1.0, 2.0], [1.0])


def test_the_ratio_of_two_sets_lies_in_its_interval() -> None:
    ratio, (low, high) = ratio_of_medians([9.0, 10.0, 11.0, 12.0], [1.0, 2.0, 2.0, 3.0])
    assert ratio == pytest.approx(5.25)
    assert low <= ratio <= high
    assert low < high


# -- records --------------------------------------------------------------------------------


def write(folder: Path, worker: str, *lines: dict[str, object]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{worker}.jsonl").write_text(text + '{"what": "step", "st')  # killed in the middle of a line


def step(number: int, at: float) -> dict[str, object]:
    return {"what": "step", "step": number, "at": at, "size": 2}


def begun(number: int, micro_batch: int) -> dict[str, object]:
    return {"what": "micro_batch", "step": number, "number": micro_batch, "at": 0.0}


def test_records_tell_what_was_lost_repeated_and_begun_again(tmp_path: Path) -> None:
    write(tmp_path, "gpt-0.0", begun(0, 0), step(0, 1.0), begun(1, 0), begun(1, 1), step(1, 2.0), step(1, 3.0))
    write(tmp_path, "gpt-1.0", begun(0, 1), step(0, 1.1), begun(1, 1))
    seen = traces(tmp_path)
    assert redone(seen.values()) == 1
    assert repeated_steps(seen.values()) == 1
    assert missing_steps(seen.values(), last=3) == 2
    assert seen["gpt-1.0"].finished(0) == 1.1
    assert seen["gpt-1.0"].finished(1) is None
    following = seen["gpt-0.0"].next_after(1.0)
    assert following is not None
    assert following.at == 2.0


def test_a_step_counts_as_quiet_if_it_lies_in_a_window_from_beginning_to_end(tmp_path: Path) -> None:
    write(tmp_path, "gpt-0.0", *(step(n, float(n * n)) for n in range(6)))  # at 0, 1, 4, 9, 16, 25
    trace = traces(tmp_path)["gpt-0.0"]
    assert durations(trace, [(1.0, 10.0), (16.0, 30.0)]) == [3.0, 5.0, 9.0]
    assert durations(trace, [(1.5, 3.9)]) == []


# -- moves ----------------------------------------------------------------------------------


def ran(worker: str, *steps: tuple[float, int]) -> Trace:
    return Trace(worker, [Finished(number, at, size) for number, (at, size) in enumerate(steps)])


def test_a_move_costs_each_job_what_its_steps_took_beyond_undisturbed_ones() -> None:
    lines = {
        "one": [
            ran("stays", (0.0, 2), (1.0, 2), (2.0, 2), (5.0, 1), (7.0, 1), (9.5, 1)),
            ran("leaves", (0.0, 2), (1.0, 2), (2.0, 2)),
        ],
        "other": [
            ran("stays", (0.0, 1), (2.0, 1), (4.0, 1), (7.5, 2), (8.5, 2)),
            ran("comes", (7.6, 2), (8.6, 2)),
        ],
    }
    change = Change("other", {"one": 2, "other": 1}, calm_since=0.0, at=2.5)
    assert undisturbed([change], lines) == {("one", 2): [1.0, 1.0, 1.0, 1.0], ("other", 1): [2.0]}
    quiet = {("one", 2): 1.0, ("one", 1): 2.0, ("other", 1): 2.0, ("other", 2): 1.0}
    found = changed(change, 100.0, lines, quiet)
    # Both have finished a step at their new sizes at 7.5: the giver's steps until 9.5 count, the getter's until then.
    assert found.gives == Cost(still=1.0, lost=1.0 + 0.0 + 0.5)
    assert found.gets == Cost(still=2.5, lost=2.5)
    assert found.took == 5.0


# -- results --------------------------------------------------------------------------------


def result(name: str = "kill", quick: bool = False, busy: float = 0.0, **samples: object) -> Result:
    found = Found(
        (Table(("what", "s"), (("a step", "0.1"),)),),
        ("A note.",),
        (Aim("fast", "0.1 s", True), Aim("faster", "0.1 s", False)),
        dict(samples),
    )
    machine = Machine("a processor", 2, 16.0, "6.1", "3.11.7", "2.13.0", busy)
    return Result(name, "a title", f".venv/bin/python -m benchmarks {name}", quick, "2026-01-02", 3.0, machine, found)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = result(healed=[{"next_step": 0.1}])
    assert read(written.write(tmp_path)) == written


def test_a_section_says_what_was_missed_and_how_to_repeat_it() -> None:
    text = markdown(result())
    assert "| a step | 0.1 |" in text
    assert "- Reached: fast: 0.1 s." in text
    assert "- **Missed**: faster: 0.1 s." in text
    assert "`.venv/bin/python -m benchmarks kill`, 2026-01-02, 3 s, on a processor, 2 cores" in text
    assert "do not trust" not in text


def test_a_section_from_a_busy_machine_says_so() -> None:
    assert "45% of the machine was in use by others: do not trust the figures" in markdown(result(busy=0.45))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00012, "0.0001"),
        (0.0512, "0.051"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (1234.5, "1234"),
        (-0.5, "-0.500"),
    ],
)
def test_three_digits_are_shown(value: float, text: str) -> None:
    assert plain(value) == text


def test_no_samples_make_a_row_without_figures() -> None:
    assert figures([]) == ("0", "-", "-", "-")


def test_the_report_replaces_what_stands_between_its_marks_and_leaves_out_quick_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    monkeypatch.setattr(report, "README", readme)
    result("soak", quick=True).write(tmp_path)
    result("kill", healed=[{"next_step": 0.1}, {"next_step": 0.2}]).write(tmp_path)
    result("torchrun", restarted=[{"next_step": 3.0}, {"next_step": 6.0}]).write(tmp_path)
    report.write(tmp_path, ("kill", "torchrun", "soak"))
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "### soak" not in text
    assert "| torchrun | 4.50 s | 30.0 (15.0 to 60.0) |" in text
    assert text.index("### Compared") < text.index("### kill") < text.index("### torchrun")


def test_the_report_keeps_what_there_is_while_there_is_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("as it is")
    monkeypatch.setattr(report, "README", readme)
    assert "there are no results of full runs" in report.write(tmp_path, ("kill",))
    assert readme.read_text() == "as it is"


def test_a_readme_without_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="has lost the marks"):
        report.replaced("nothing to find here", "new")


def test_the_readme_has_its_marks() -> None:
    before = report.README.read_text()
    after = report.replaced(before, "other results")
    assert "other results" in after
    assert after.startswith(before.partition(report.BEGIN)[0])


# -- simulate -------------------------------------------------------------------------------


def test_a_cluster_that_is_grown_has_so_many_faults_and_keeps_its_jobs_within_it() -> None:
    scenario, faults = simulate.grown(30, 8)
    assert len(faults) == 8
    assert sum(job.size_max for job in scenario.jobs) <= scenario.capacity == 30
    assert all(fault.at + fault.repair_seconds < scenario.seconds for fault in faults)


def test_what_is_measured_is_of_the_process_that_lived_through_it() -> None:
    few, many = simulate._grown(12, 2), simulate._grown(12, 6)
    assert 0 < few.events < many.events
    assert 20 * 2**20 < few.memory_bytes <= many.memory_bytes
    assert many.seconds > 0
