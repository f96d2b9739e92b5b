"""`unicorn simulate SCENARIO`: what each policy makes of the same faults."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unicorn_mgr.cli.common import Problem
from unicorn_mgr.cli.replay import beginning, find
from unicorn_mgr.cli.shapes import Shape
from unicorn_mgr.cli.show import count, say, show_json, show_table
from unicorn_mgr.cli.study_shapes import of_incidents, of_run, of_study
from unicorn_mgr.coordinator.store import StoreError
from unicorn_mgr.planner.reasons import worth
from unicorn_mgr.simulator import costs, plots, scenario_file
from unicorn_mgr.simulator.history import History
from unicorn_mgr.simulator.journal import LIVED, Lived, retell
from unicorn_mgr.simulator.policies import Policy
from unicorn_mgr.simulator.policies.registry import POLICIES
from unicorn_mgr.simulator.scenario import DAY, BadScenario, Scenario
from unicorn_mgr.simulator.sensitivity import SITUATIONS, Swing, sensitivity
from unicorn_mgr.simulator.study import Outcome, Situation, Spread, Study, compare

BASELINE = "megatron"
"""Whose WAF others' is told over, if it is among those that are compared and no other is named."""

COLUMNS = (
    *("POLICY", ">WAF", ">RATIO", ">GOODPUT", ">ETTR", "?>WORST HOUR", "?>GAP"),
    *("?>DETECTION", "?>TRANSITION", "?>SLOWER", "?>TWICE", "?>MOVES", "?>IDLE"),
)
CAUSES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a comparison; empty and None: not given."""

    policy: str
    baseline: str
    seed: int | None
    seeds: int | None
    costs: str
    sensitivity: bool
    csv: Path | None
    incidents: Path | None
    plot: Path | None
    as_json: bool

    def policies(self) -> list[Policy]:
        """Those that are compared, each once."""
        names = [name.strip() for name in (self.policy or "all").split(",") if name.strip()]
        if self.policy and not names:
            raise Problem(f"policy: {self.policy}: it names none; known: {', '.join(POLICIES)}")
        names = list(POLICIES) if names == ["all"] else names
        names += [self.baseline] if self.baseline else []
        unknown = next((name for name in names if name not in POLICIES), None)
        if unknown is not None:
            field = "baseline" if unknown == self.baseline else "policy"
            raise Problem(f"{field}: {unknown}: there is no such policy; known: {', '.join(POLICIES)}")
        return [POLICIES[name]() for name in dict.fromkeys(names)]

    @property
    def over(self) -> str:
        """The baseline; empty if there is none."""
        return self.baseline or BASELINE

    @property
    def level(self) -> str:
        """Of costs."""
        level = self.costs or "mid"
        if level not in costs.LEVELS:
            raise Problem(f"costs: {level}: want one of {', '.join(costs.LEVELS)}")
        return level

    @property
    def all_seeds(self) -> range:
        """Those to live through."""
        first = self.seed or 0
        return range(first, first + (self.seeds or 1))


def show_schema() -> None:
    """What a scenario file may say."""
    show_json(scenario_file.schema())


def show_list(*, as_json: bool) -> None:
    """The scenarios that come with the package, and all policies."""
    scenarios = {name: _first_sentence(scenario_file.load(name).scenario.about) for name in scenario_file.names()}
    policies = {name: _first_sentence(make().__doc__) for name, make in POLICIES.items()}
    if as_json:
        show_json({"scenarios": scenarios, "policies": policies})
        return
    show_table(("SCENARIO", "WHAT IT IS"), scenarios.items(), "no scenarios")
    say()
    show_table(("POLICY", "WHAT IT DOES"), policies.items(), "no policies")


def _first_sentence(text: str | None) -> str:
    paragraph, _, _ = (text or "").strip().partition("\n\n")
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(".")


# -- comparing ------------------------------------------------------------------------------


def of_scenario(name: str, asked: Asked) -> None:
    """Compare policies in a scenario, and show what has come out."""
    policies, level = asked.policies(), asked.level
    try:
        loaded = scenario_file.load(name)
    except BadScenario as wrong:
        raise Problem(str(wrong)) from wrong
    situation = Situation(loaded.scenario, loaded.faults, costs.load(level))
    _compare_and_show(situation, policies, asked)


def of_journal(folder: Path, asked: Asked) -> None:
    """Compare what a real cluster has lived through with what other policies would have made of it."""
    policies, level = asked.policies(), asked.level
    if asked.seed is not None or asked.seeds is not None:
        raise Problem("simulate: --seed and --seeds: a journal's faults are dated, not drawn; leave them out")
    try:
        path = find(folder)
        found = retell(*beginning(path), str(path))
    except (StoreError, BadScenario) as wrong:
        raise Problem(str(wrong)) from wrong
    situation = Situation(found.scenario, lambda _: found.faults, costs.load(level))
    _compare_and_show(situation, [Lived(found.lived), *policies], asked, found.notes)


def _compare_and_show(
    situation: Situation, policies: Sequence[Policy], asked: Asked, notes: Sequence[str] = ()
) -> None:
    _check_places(asked)
    seeds = asked.all_seeds
    runs = len(policies) * len(seeds)
    incidents: list[Shape] = []

    def lived(history: History) -> None:
        forward()
        if asked.incidents is not None:
            incidents.extend(of_incidents(history))

    with _progress(runs * (1 + SITUATIONS * asked.sensitivity)) as forward:
        study = compare(situation, policies, seeds, asked.over, keeps_first=asked.plot is not None, lived=lived)
        imagined = [policy for policy in policies if policy.name != LIVED]
        swings = _swings(situation, imagined, seeds, forward) if asked.sensitivity else ()
    try:
        written = [*_write_csv([of_run(run) for run in study.runs], asked.csv), *_write_csv(incidents, asked.incidents)]
        written += plots.draw(study, asked.plot) if asked.plot is not None else ()
    except OSError as failed:
        raise Problem(f"simulate: {failed.filename}: {failed.strerror}; choose another place", 1) from failed
    if asked.as_json:
        show_json(of_study(study, asked.level, swings, notes))
        return
    _show(study, asked.level)
    _show_swings(swings)
    for note in notes:
        say(note)
    for path in written:
        say(f"written: {path}", style="dim")


def _swings(
    situation: Situation, policies: Sequence[Policy], seeds: range, forward: Callable[[], None]
) -> tuple[Swing, ...]:
    return sensitivity(situation, costs.load("low"), costs.load("high"), policies, seeds, lambda _: forward())


def _check_places(asked: Asked) -> None:
    """Before an hour of histories, not after it."""
    for path in (asked.csv, asked.incidents, asked.plot):
        if path is not None and not path.resolve().parent.is_dir():
            raise Problem(f"simulate: {path}: there is no folder {path.resolve().parent}; make it first")
    for name, path in (("csv", asked.csv), ("incidents", asked.incidents)):
        if path is not None and path.is_dir():
            raise Problem(f"{name}: {path}: it is a folder; want a file")
    if asked.csv is not None and asked.incidents is not None and asked.csv.resolve() == asked.incidents.resolve():
        raise Problem(f"incidents: {asked.incidents}: --csv is written there; want another file")
    if asked.plot is not None and asked.plot.exists() and not asked.plot.is_dir():
        raise Problem(f"plot: {asked.plot}: it is a file; want a folder")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("histories", total=total)
        yield lambda: bar.advance(task)


def _write_csv(rows: Sequence[Shape], path: Path | None) -> list[Path]:
    if path is None:
        return []
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return [path]


# -- showing --------------------------------------------------------------------------------


def _show(study: Study, level: str) -> None:
    scenario, seeds = study.scenario, study.seeds
    say(f"{scenario.name}: {_described(scenario)}", "bold")
    which = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    say(f"{which}, {study.faults:.4g} faults{' in the mean' if len(seeds) > 1 else ''}, {level} costs")
    say()
    columns = list(zip(COLUMNS, *(_row(outcome) for outcome in study.outcomes), strict=True))
    titles, *rows = zip(*(column for column in columns if any(column[1:])), strict=True)
    show_table(titles, rows, "no policies")
    say()
    ratio = f"RATIO: of WAF, over {study.baseline} in the same seed. " if study.baseline else ""
    gap = "GAP: to clairvoyant. " if any(outcome.gap for outcome in study.outcomes) else ""
    spread = "In brackets: 5th to 95th percentile of the seeds. " if len(seeds) > 1 else ""
    say(f"{ratio}{gap}{spread}DETECTION to TWICE: lost GPU-hours. IDLE: slots in the mean.")
    say()
    _show_causes(study)
    for figure, value in scenario.extra.items():
        say(f"published: {figure} {value:g}")


def _described(scenario: Scenario) -> str:
    gpus = scenario.capacity * scenario.gpus_per_slot
    return (
        f"{count(scenario.nodes, 'node')}, {gpus:,} GPUs, {count(len(scenario.jobs), 'job')}, "
        f"{scenario.seconds / DAY:.3g} days"
    )


def _row(outcome: Outcome) -> tuple[str, ...]:
    lost = outcome.lost.values()
    hours = (
        sum(c.detection for c in lost),
        sum(c.transition for c in lost),
        sum(c.sub_healthy for c in lost),
        sum(c.repeated for c in lost),
    )
    return (
        outcome.policy,
        worth(outcome.waf.mean, rated=True).replace(" weighted", ""),
        _spread(outcome.ratio, "{:.3f}"),
        _spread(outcome.goodput, "{:.2%}"),
        _spread(outcome.ettr, "{:.2%}"),
        f"{outcome.ettr_worst_hour.mean:.1%}",
        f"{outcome.gap.mean:.2%}" if outcome.gap is not None else "",
        *map(_hours, hours),
        f"{outcome.moves:,.0f}",
        f"{outcome.idle_slots:,.1f}",
    )


def _hours(value: float) -> str:
    """A cluster that has lived for minutes has lost parts of an hour."""
    return f"{value:,.0f}" if abs(value) >= 10 or abs(value) < 5e-5 else f"{value:.2g}"


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    mean = form.format(spread.mean)
    return mean if spread.p5 == spread.p95 else f"{mean} ({form.format(spread.p5)}-{form.format(spread.p95)})"


def _show_causes(study: Study) -> None:
    """Lost GPU-hours, a column a policy."""
    totals: dict[str, float] = {}
    for outcome in study.outcomes:
        for cause, lost in outcome.lost.items():
            totals[cause] = totals.get(cause, 0.0) + abs(lost.total)
    shown = sorted(totals, key=lambda cause: (-totals[cause], cause))[:CAUSES_SHOWN]
    rows = [
        [cause, *(_hours(o.lost[cause].total) if cause in o.lost else "0" for o in study.outcomes)] for cause in shown
    ]
    show_table(("LOST GPU-HOURS BY CAUSE", *(f">{o.policy}" for o in study.outcomes)), rows, "nothing was lost")
    if len(totals) > len(shown):
        say(f"and {count(len(totals) - len(shown), 'cause')} that cost less; --json has all", style="dim")


def _show_swings(swings: Sequence[Swing]) -> None:
    if not swings:
        return
    say()
    policies = list(swings[0].goodput)
    rows = [
        (swing.name, swing.low_means, swing.high_means, *(_swung(swing.goodput[policy]) for policy in policies))
        for swing in swings
    ]
    show_table(("GOODPUT IF ONE IS OTHERWISE", "LOW", "HIGH", *(f">{policy}" for policy in policies)), rows, "")


def _swung(ends: tuple[float, float, float]) -> str:
    return f"{ends[0]:.2%} - {ends[2]:.2%}"
