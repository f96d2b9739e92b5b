"""Pictures of a study, as SVG and PNG: the same study gives the same bytes.

matplotlib is read only when something is drawn: it takes a second, and nothing else needs it.  Curves are means over
short stretches of time, named at the axis: a standstill of seconds in a month would not be seen otherwise, or would
hide all else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unicorn_mgr.simulator.history import Costs, Doing, History
from unicorn_mgr.simulator.scenario import DAY, Fault, Kind, Scenario
from unicorn_mgr.simulator.study import FIRST_ALLOCATION, Outcome, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRETCHES = 400
"""Into which the time of a scenario is divided."""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#332288", "#882255", "#44AA99")
"""Told apart with every common colour vision: Okabe and Ito's, then three of Tol's."""

NOBODY = "#DDDDDD"
NOT_TRAINING = "#777777"
CAUSES_MAX = 9
"""All others of a study are drawn as one."""

KINDS = {
    Kind.NODE: ("node lost", "#000000"),
    Kind.PROCESS: ("process ends", "#D55E00"),
    Kind.HANG: ("hang", "#CC79A7"),
    Kind.LINK: ("link breaks", "#56B4E9"),
    Kind.SLOW: ("node slow", "#E69F00"),
}


_TIMELESS: dict[str, dict[str, Any]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
"""By kind of file, what would make each one another."""


def draw(study: Study, folder: Path, kinds: Sequence[str] = tuple(_TIMELESS)) -> list[Path]:
    """All pictures of a study that has kept histories; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with _drawing():
        figures = {"waf": waf_over_time(study.plotted), "lost": lost_by_cause(study)}
        figures |= {f"allocation-{history.policy}": allocation(history) for history in study.plotted}
        for (name, figure), kind in product(figures.items(), kinds):
            written.append(folder / f"{name}.{kind}")
            figure.savefig(written[-1], metadata=_TIMELESS[kind])
    return written


@contextmanager
def _drawing() -> Iterator[None]:
    import matplotlib as mpl  # noqa: PLC0415 - see above

    mpl.use("agg")
    with mpl.rc_context():
        mpl.rcdefaults()  # not as this user has set it up
        mpl.rcParams.update(
            {
                "axes.grid": True,
                "axes.spines.right": False,
                "axes.spines.top": False,
                "figure.dpi": 100,
                "font.size": 9,
                "grid.alpha": 0.3,
                "legend.frameon": False,
                "savefig.dpi": 160,
                "svg.fonttype": "none",
                "svg.hashsalt": "unicorn-mgr",
            }
        )
        yield


# -- what is drawn --------------------------------------------------------------------------


def waf_over_time(histories: Sequence[History]) -> Figure:
    """One panel a policy, all on one scale, with the faults of all above them."""
    scenario = histories[0].scenario
    figure, axes = _panels(len(histories), 1.15, f"{scenario.name}: work done over time", faults_above=True)
    most = max(sum(work.weight * history.full[work.name] for work in scenario.jobs) for history in histories)
    unit, shown = _flops_unit(most)
    times, every = _stretches(scenario)
    _mark_faults(axes[0], histories[0].faults)
    for row, (panel, history) in enumerate(zip(axes[1:], histories, strict=True)):
        curve = [waf / unit for waf in _mean_of(history.waf_over_time(), scenario)]
        without = sum(w.weight * history.full[w.name] for w in scenario.jobs) / unit
        panel.fill_between(times, curve, step="mid", color=COLOURS[row % len(COLOURS)], alpha=0.85, linewidth=0)
        panel.axhline(without, color="#000000", linewidth=0.8, linestyle=":")
        panel.set_ylim(0.0, 1.1 * (most or unit) / unit)
        said = f"{history.policy}: {history.waf / unit:.3g} in the mean, {history.goodput:.1%} of the undisturbed"
        panel.set_title(said, loc="left", fontsize=9)
    figure.supylabel(f"WAF (weighted {shown}), mean over {every}", fontsize=9)
    _time_axis(axes, scenario)
    return figure


def allocation(history: History) -> Figure:
    """Whose the GPUs are, stacked; those on which nobody trains at the moment are grey."""
    scenario = history.scenario
    title = f"{scenario.name}, {history.policy}: whose the GPUs are"
    figure, (marks, panel) = _panels(1, 3.2, title, faults_above=True)
    times, every = _stretches(scenario)
    _mark_faults(marks, history.faults)
    areas, names, colours = [], [], []
    for i, work in enumerate(scenario.jobs):
        for slots, colour in zip(mean_slots(history, i), (COLOURS[i % len(COLOURS)], NOT_TRAINING), strict=True):
            areas.append([count * scenario.gpus_per_slot for count in slots])
            colours.append(colour)
        last = i == len(scenario.jobs) - 1
        names += [f"{work.name} ({work.model})" if work.model else work.name, "held, not training" if last else "_"]
    areas.append([count * scenario.gpus_per_slot for count in _mean_of(history.idle, scenario)])
    names.append("idle")
    colours.append(NOBODY)
    panel.stackplot(times, areas, labels=names, colors=colours, linewidth=0)
    whole = scenario.capacity * scenario.gpus_per_slot
    panel.axhline(whole, color="#000000", linewidth=0.8, linestyle=":", label="all GPUs")
    panel.set_ylim(0, whole * 1.04)
    panel.set_ylabel(f"GPUs, mean over {every}")
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    _time_axis([marks, panel], scenario)
    return figure


def lost_by_cause(study: Study) -> Figure:
    """GPU-hours that faults have cost, one bar a policy."""
    figure, axes = _panels(1, 0.6 + 0.42 * len(study.outcomes), _seeds_said(study), faults_above=False)
    (panel,) = axes
    causes = _largest_causes(study)
    policies = [outcome.policy for outcome in study.outcomes]
    begins, gains = [0.0] * len(policies), [0.0] * len(policies)
    for i, cause in enumerate(causes):
        widths = [_lost(outcome.lost, cause, causes) for outcome in study.outcomes]
        colour = COLOURS[i % len(COLOURS)] if cause else NOBODY
        losses = [max(0.0, width) for width in widths]
        panel.barh(policies, losses, left=begins, color=colour, label=cause or "all others", height=0.7)
        begins = [a + b for a, b in zip(begins, losses, strict=True)]
        gains = [a + min(0.0, b) for a, b in zip(gains, widths, strict=True)]
    for row, (outcome, end, gain) in enumerate(zip(study.outcomes, begins, gains, strict=True)):
        panel.annotate(f" {end + gain:,.0f}{_withheld(outcome)}", (end, row), va="center", fontsize=8)
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.margins(x=0.12)
    panel.set_xlabel("lost GPU-hours (mean over the seeds)")
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    return figure


def _withheld(outcome: Outcome) -> str:
    """What no fault is the cause of would dwarf what faults are: it is told, not drawn."""
    withheld = outcome.lost.get(FIRST_ALLOCATION)
    return f", and {withheld.total:,.0f} by a smaller first allocation" if withheld is not None else ""


def _seeds_said(study: Study) -> str:
    seeds = f"{len(study.seeds)} seeds" if len(study.seeds) != 1 else f"seed {study.seeds[0]}"
    return f"{study.scenario.name}: GPU-hours lost by cause ({seeds})"


def _largest_causes(study: Study) -> list[str]:
    """Those that cost most, over all policies; the empty one stands for the others."""
    totals: dict[str, float] = {}
    for outcome in study.outcomes:
        for cause in outcome.lost.keys() - {FIRST_ALLOCATION}:
            totals[cause] = totals.get(cause, 0.0) + abs(outcome.lost[cause].total)
    ordered = sorted(totals, key=lambda cause: (-totals[cause], cause))
    return [*ordered[:CAUSES_MAX], ""] if len(ordered) > CAUSES_MAX else ordered


def _lost(lost: dict[str, Costs], cause: str, causes: Sequence[str]) -> float:
    if cause:
        return lost[cause].total if cause in lost else 0.0
    return sum(costs.total for other, costs in lost.items() if other not in (*causes, FIRST_ALLOCATION))


# -- curves ---------------------------------------------------------------------------------


def mean_slots(history: History, number: int) -> tuple[list[float], list[float]]:
    """Slots of a job, by its number in the scenario, in each stretch: on which it trains, and on which it does not."""
    scenario = history.scenario
    held = _mean_of([(at, slots[number]) for at, slots in history.allocation_over_time()], scenario)
    spans = history.spans(scenario.jobs[number].name)
    trains = _means(((a, b, float(c.slots)) for a, b, c in spans if c.doing is Doing.TRAINING), scenario.seconds)
    return trains, [max(0.0, all_of_it - part) for all_of_it, part in zip(held, trains, strict=True)]


def _mean_of(steps: Sequence[tuple[float, float]], scenario: Scenario) -> list[float]:
    ends = [*(at for at, _ in steps[1:]), scenario.seconds]
    spans = ((since, until, value) for (since, value), until in zip(steps, ends, strict=False))
    return _means(spans, scenario.seconds)


def _means(spans: Iterator[tuple[float, float, float]], seconds: float) -> list[float]:
    """Of what is constant in each span, over each stretch."""
    every = seconds / STRETCHES
    sums = [0.0] * STRETCHES
    for since, until, value in spans:
        first, last = int(since / every), min(STRETCHES - 1, int(until / every))
        for i in range(first, last + 1):
            sums[i] += value * max(0.0, min(until, (i + 1) * every) - max(since, i * every))
    return [total / every for total in sums]


# -- axes -----------------------------------------------------------------------------------


def _panels(count: int, height: float, title: str, *, faults_above: bool) -> tuple[Figure, list[Axes]]:
    """Below each other, on one axis of time."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - see above

    heights = [0.3] * faults_above + [height] * count
    figure = Figure(figsize=(8.0, 1.0 + sum(heights) + 0.12 * count), layout="constrained")
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    figure.suptitle(title, fontsize=11)
    return figure, [row[0] for row in grid]


def _mark_faults(panel: Axes, faults: Sequence[Fault]) -> None:
    """A tick for each fault, in the colour of what it does."""
    for kind, (said, colour) in KINDS.items():
        moments = [fault.at for fault in faults if fault.kind is kind]
        if moments:
            panel.eventplot(moments, colors=colour, lineoffsets=0.5, linelengths=1.0, linewidths=0.9, label=said)
    panel.set_axis_off()
    panel.set_ylim(0, 1)
    if faults:
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(KINDS), fontsize=8)


def _time_axis(panels: Sequence[Axes], scenario: Scenario) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415 - see above

    unit, said = (DAY, "days") if scenario.seconds >= 2 * DAY else (3_600.0, "hours")
    last = panels[-1]
    last.set_xlim(0, scenario.seconds)
    last.set_xlabel(f"time ({said})")
    wanted = MaxNLocator(nbins=9, steps=[1, 2, 5, 7, 10]).tick_values(0, scenario.seconds / unit)
    last.set_xticks([tick * unit for tick in wanted if 0 <= tick * unit <= scenario.seconds])
    last.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at / unit:g}"))


def _stretches(scenario: Scenario) -> tuple[list[float], str]:
    """Their middles, and how long each is, in words."""
    every = scenario.seconds / STRETCHES
    said = f"{every / 3600:.2g} h" if every >= 3600 else f"{every / 60:.2g} min" if every >= 60 else f"{every:.2g} s"
    return [(i + 0.5) * every for i in range(STRETCHES)], said


def _flops_unit(most: float) -> tuple[float, str]:
    return next(
        ((unit, said) for unit, said in ((1e18, "EFLOP/s"), (1e15, "PFLOP/s"), (1e12, "TFLOP/s")) if most >= unit),
        (1e9, "GFLOP/s"),
    )
