"""`make paper`: all comparisons of docs/simulation.md anew, tables between their marks and plots beside them.

Every history is lived in a process of its own seed, so the result does not depend on how many processes there are.
Sections may be named, e.g. `python tools/paper.py unicron-trace-b`; `--seeds` of the published run are in `SECTIONS`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import product
from pathlib import Path

from unicorn_mgr.simulator import costs, plots, scenario_file
from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.policies.registry import POLICIES
from unicorn_mgr.simulator.scenario import DAY
from unicorn_mgr.simulator.sensitivity import varied
from unicorn_mgr.simulator.study import Compared, Figures, Outcome, Situation, Spread, Study, compare, reduced

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "simulation.md"
PLOTS = ROOT / "docs" / "simulation"

OURS, BASELINE = "ours", "megatron"
CEILING = "nofault"
"""Lives as if nothing ever broke: no policy can be expected to do more."""
OTHERS = (
    *("megatron", "restart-fast", "waits", "spares", "elastic"),
    *("bamboo", "oobleck", "varuna", "clairvoyant", CEILING),
)
ABLATIONS = (OURS, "ours-no-planner", "ours-no-partial-reuse", "ours-no-live-state", "megatron")
LARGE = (OURS, "megatron", "restart-fast", "spares", "elastic")
SHARES = ("clairvoyant", "equal", "weight", "size")
CASES = tuple(f"unicron-case-{number}" for number in range(1, 6))


@dataclass(frozen=True, slots=True)
class Aim:
    """What is aimed at, of ours."""

    figure: str
    """ettr, or ratio over the baseline."""
    least: float


@dataclass(frozen=True, slots=True)
class Section:
    """One comparison: a scenario, who is compared, over how many seeds, and at how many the ends of all costs."""

    scenario: str
    policies: tuple[str, ...]
    seeds: int
    seeds_at_ends: int
    aim: Aim | None = None
    plotted: tuple[str, ...] = (OURS, "megatron", "spares", "elastic")


SECTIONS = {
    section.scenario: section
    for section in (
        Section("unicron-trace-a", (OURS, *OTHERS), 100, 10),
        Section("unicron-trace-b", (OURS, *OTHERS), 100, 10, Aim("ratio", 2.1)),
        Section("llama3-16k", LARGE, 3, 1),
        Section("byterobust-9600", LARGE, 3, 1, Aim("ettr", 0.995)),
        Section("fireflyer-10k", LARGE, 1, 1),
        Section("mtbf-10min", LARGE, 20, 10, Aim("ettr", 0.97)),
        Section("fthsdp-100k", LARGE, 1, 1, Aim("ettr", 0.95)),
    )
}
DAYS = {"fthsdp-100k": 1.0}
"""So much of a scenario: a day has eighty faults, and all seven take ten minutes for each history."""
ABLATED, ABLATED_SEEDS = ("unicron-trace-a", "unicron-trace-b"), 10
MOVED, MOVED_SEEDS, MOVED_POLICIES = "unicron-trace-b", 5, (OURS, "megatron", "elastic")

HEAD = (
    *("policy", "WAF over megatron", "at low to high costs", "ETTR", "at low to high costs", "worst hour"),
    *("goodput", "lacks of clairvoyant", "lost GPU-hours: detection", "transition", "slower", "twice"),
)

Lived = Callable[[Sequence["Run"]], list[Figures]]
"""Lives through runs, in any order, and returns their figures in theirs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One history."""

    scenario: str
    policy: str
    seed: int
    prices: Costs
    assumption: str = ""
    """As it is, or `varied` so: name and end."""


@cache
def loaded_once(name: str) -> scenario_file.Loaded:
    """A scenario, or its first days, read once in each process."""
    loaded = scenario_file.load(name)
    days = DAYS.get(name)
    return replace(loaded, scenario=replace(loaded.scenario, seconds=days * DAY)) if days else loaded


def live(run: Run) -> Figures:
    """In whatever process."""
    loaded = loaded_once(run.scenario)
    situation = Situation(loaded.scenario, loaded.faults, run.prices)
    if run.assumption:
        name, _, end = run.assumption.rpartition(" ")
        ends = next(e for e in varied(situation, costs.load("low"), costs.load("high")) if e.name == name)
        situation = ends.low if end == "low" else ends.high
    faults = tuple(situation.draw(run.seed))
    return reduced(POLICIES[run.policy]().live(situation.scenario, faults, situation.prices, run.seed))


def studied(section: Section, runs: Sequence[Figures]) -> Study:
    """What runs of one section say together."""
    loaded = loaded_once(section.scenario)
    compared = Compared(Situation(loaded.scenario, loaded.faults, costs.load()), BASELINE)
    compared.runs += runs
    return compared.study()


# -- sections -------------------------------------------------------------------------------


def comparison(section: Section, lived: Lived, seeds_max: int) -> str:
    """The table of a scenario, at the middle of all costs, with both ends in brackets."""
    found = {}
    for level, seeds in (("mid", section.seeds), ("low", section.seeds_at_ends), ("high", section.seeds_at_ends)):
        asked = product(range(min(seeds, seeds_max)), section.policies)
        runs = [Run(section.scenario, policy, seed, costs.load(level)) for seed, policy in asked]
        found[level] = studied(section, lived(runs))
    mid = found["mid"]
    ends = {o.policy: (o, high) for o, high in zip(found["low"].outcomes, found["high"].outcomes, strict=True)}
    rows = [_row(outcome, *ends[outcome.policy]) for outcome in mid.outcomes]
    over = f"seeds: {len(mid.seeds)}, {len(found['low'].seeds)} at the ends"
    scenario = mid.scenario
    said = f"{scenario.nodes:,} nodes, {scenario.capacity * scenario.gpus_per_slot:,} GPUs, "
    said += f"{scenario.seconds / DAY:g} days, {mid.faults:.0f} faults"
    parts = [f"{said}; {over}. {' '.join(scenario.source.split())}", markdown(HEAD, rows)]
    if scenario.extra:
        parts.append("Published: " + ", ".join(f"{name} {value:g}" for name, value in scenario.extra.items()) + ".")
    if section.aim is not None:
        parts.append(_aimed(section, section.aim, found, lived))
    return "\n\n".join(parts)


def _row(mid: Outcome, low: Outcome, high: Outcome) -> tuple[str, ...]:
    lost = mid.lost.values()
    hours = [sum(getattr(c, phase) for c in lost) for phase in ("detection", "transition", "sub_healthy", "repeated")]
    return (
        mid.policy,
        _spread(mid.ratio, "{:.3f}"),
        f"{low.ratio.mean:.3f} to {high.ratio.mean:.3f}" if low.ratio and high.ratio else "-",
        _spread(mid.ettr, "{:.2%}"),
        f"{low.ettr.mean:.2%} to {high.ettr.mean:.2%}",
        f"{mid.ettr_worst_hour.mean:.1%}",
        f"{mid.goodput.mean:.2%}",
        f"{mid.gap.mean:.2%}" if mid.gap is not None else "-",
        *(f"{value:,.0f}" for value in hours),
    )


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return "-"
    mean = form.format(spread.mean)
    return mean if spread.p5 == spread.p95 else f"{mean} ({form.format(spread.p5)} to {form.format(spread.p95)})"


def _aimed(section: Section, aim: Aim, found: Mapping[str, Study], lived: Lived) -> str:
    """Whether it is reached, over the whole range of costs; and, if not, which one alone keeps it from that."""

    def reached(study: Study) -> float:
        ours = next(o for o in study.outcomes if o.policy == OURS)
        spread = ours.ratio if aim.figure == "ratio" else ours.ettr
        assert spread is not None
        return spread.mean

    low, mid, high = (reached(found[level]) for level in costs.LEVELS)
    form = "{:.3f}" if aim.figure == "ratio" else "{:.2%}"
    what = "ratio over megatron" if aim.figure == "ratio" else "ETTR"
    said = f"**Aim: {what} of at least {form.format(aim.least)}.** Reached: {form.format(mid)} at middle costs, "
    said += f"{form.format(low)} at low and {form.format(high)} at high ones"
    if min(low, mid, high) >= aim.least:
        return f"{said}: met over the whole range."
    best = next((o.ratio for o in found["mid"].outcomes if o.policy == CEILING and aim.figure == "ratio"), None)
    said += f" ({form.format(best.mean)} if nothing ever broke)" if best is not None else ""
    met = "not met at any point" if max(low, mid, high) < aim.least else "met only at a part of the range"
    return f"{said}: {met}. {_blamed(section, reached, lived, form)}"


def _blamed(section: Section, reached: Callable[[Study], float], lived: Lived, form: str) -> str:
    """Costs at their high end, one at a time, all others in the middle; one seed."""
    middle, high = costs.load(), costs.load("high")
    names = [field.name for field in fields(Costs)]
    policies = (OURS, BASELINE)
    prices = [middle, *(replace(middle, **{name: getattr(high, name)}) for name in names)]
    runs = lived([Run(section.scenario, policy, 0, price) for price, policy in product(prices, policies)])
    values = [reached(studied(section, runs[i : i + 2])) for i in range(0, len(runs), 2)]
    worst = sorted(zip(values[1:], names, strict=True))[:3]
    told = ", ".join(f"{name} {getattr(high, name):g} ({form.format(value)})" for value, name in worst)
    return (
        f"Of single costs at their high ends these cost most: {told}; without them {form.format(values[0])} (seed 0)."
    )


def ablation(lived: Lived, seeds_max: int) -> str:
    """Ours without single parts."""
    head = ("policy", *(f"{name}: {figure}" for name in ABLATED for figure in ("WAF over megatron", "goodput", "ETTR")))
    columns = []
    for name in ABLATED:
        section = replace(SECTIONS[name], policies=ABLATIONS)
        asked = product(range(min(ABLATED_SEEDS, seeds_max)), ABLATIONS)
        study = studied(section, lived([Run(name, policy, seed, costs.load()) for seed, policy in asked]))
        columns.append(study.outcomes)
    rows = []
    for outcomes in zip(*columns, strict=True):
        figures = ((_spread(o.ratio, "{:.3f}"), f"{o.goodput.mean:.2%}", f"{o.ettr.mean:.2%}") for o in outcomes)
        rows.append((outcomes[0].policy, *(cell for cells in figures for cell in cells)))
    return markdown(head, rows)


def shares(lived: Lived, seeds_max: int) -> str:
    """WAF of the planner's shares over that of simple ones, nothing having happened."""
    del seeds_max
    policies = (OURS, *SHARES)
    rows: list[list[str]] = [["ours, PFLOP/s"], *([f"over {policy}"] for policy in SHARES)]
    for case in CASES:
        runs = {run.policy: run.waf for run in lived([Run(case, policy, 0, costs.load()) for policy in policies])}
        rows[0].append(f"{runs[OURS] / 1e15:.2f}")
        for row, policy in zip(rows[1:], SHARES, strict=True):
            row.append(f"{runs[OURS] / runs[policy]:.3f}")
    return markdown(("weighted throughput of ours", *(f"case {case[-1]}" for case in CASES)), rows)


def assumptions(lived: Lived, seeds_max: int) -> str:
    """Goodput with one assumption at either end, the largest swing of ours first."""
    loaded = loaded_once(MOVED)
    situation = Situation(loaded.scenario, loaded.faults, costs.load())
    ends = varied(situation, costs.load("low"), costs.load("high"))
    seeds = range(min(MOVED_SEEDS, seeds_max))
    names = ["", *(f"{each.name} {end}" for each in ends for end in ("low", "high"))]
    asked = list(product(names, MOVED_POLICIES, seeds))
    runs = lived([Run(MOVED, policy, seed, costs.load(), name) for name, policy, seed in asked])
    values: dict[tuple[str, str], float] = {}
    for (name, policy, _), run in zip(asked, runs, strict=True):
        values[name, policy] = values.get((name, policy), 0.0) + run.goodput / len(seeds)

    def swing(name: str) -> float:
        return abs(values[f"{name} low", OURS] - values[f"{name} high", OURS])

    rows = []
    for each in sorted(ends, key=lambda e: -swing(e.name)):
        cells = (
            f"{values[f'{each.name} low', policy]:.2%} to {values[f'{each.name} high', policy]:.2%}"
            for policy in MOVED_POLICIES
        )
        rows.append((each.name, f"{each.low_means} to {each.high_means}", *cells))
    rows.append(("as it is", "", *(f"{values['', policy]:.2%}" for policy in MOVED_POLICIES)))
    return markdown(("assumption", "from, to", *(f"goodput of {policy}" for policy in MOVED_POLICIES)), rows)


def prices() -> str:
    """Every cost with its range and its source."""
    rows = [
        (f"`{name}`", cost["unit"], *(f"{cost[level]:g}" for level in costs.LEVELS), " ".join(cost["source"].split()))
        for name, cost in costs.ranges().items()
    ]
    return markdown(("cost", "unit", *costs.LEVELS, "source"), rows)


def drawn(section: Section, folder: Path) -> str:
    """Plots of seed 0 at middle costs, as SVG."""
    loaded = loaded_once(section.scenario)
    situation = Situation(loaded.scenario, loaded.faults, costs.load())
    study = compare(situation, [POLICIES[name]() for name in section.plotted], [0], BASELINE, keeps_first=True)
    written = plots.draw(study, folder / section.scenario, ("svg",))
    return "\n\n".join(f"![{section.scenario}, {p.stem}](simulation/{section.scenario}/{p.name})" for p in written)


# -- the document ---------------------------------------------------------------------------


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def marks(name: str) -> tuple[str, str]:
    """Around what is written for a name."""
    return f"<!-- {name}: written by make paper -->", f"<!-- end of {name} -->"


def replaced(text: str, name: str, content: str) -> str:
    """The text with this between its marks."""
    begin, end = marks(name)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"paper: {name}: {DOCUMENT.name} has lost its marks {begin} and {end}")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def parts(lived: Lived, seeds_max: int, folder: Path) -> dict[str, Callable[[], str]]:
    """All there is to write, by name."""
    found: dict[str, Callable[[], str]] = {"costs": prices, "cases": partial(shares, lived, seeds_max)}
    found |= {"ablation": partial(ablation, lived, seeds_max), "assumptions": partial(assumptions, lived, seeds_max)}
    for name, section in SECTIONS.items():
        found[name] = partial(comparison, section, lived, seeds_max)
        found[f"{name}-plots"] = partial(drawn, section, folder)
    return found


def main() -> int:
    """Write what is asked for, or all; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools/paper.py", description="Write docs/simulation.md's results anew.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of it; all if none is given")
    parser.add_argument("--seeds", type=int, default=1_000, metavar="K", help="at most so many of each comparison")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N")
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.processes) as pool:

        def lived(runs: Sequence[Run]) -> list[Figures]:
            return list(_told(pool.map(live, runs), len(runs)))

        writers = parts(lived, asked.seeds, PLOTS)
        unknown = [name for name in asked.names if name not in writers]
        if unknown:
            sys.stderr.write(f"paper: names: {', '.join(unknown)}: want some of {', '.join(writers)}\n")
            return 2
        for name in asked.names or writers:
            print(f"{name} ...", file=sys.stderr, flush=True)
            content = writers[name]()
            DOCUMENT.write_text(replaced(DOCUMENT.read_text(), name, content))
    return 0


def _told(figures: Iterator[Figures], total: int) -> Iterator[Figures]:
    for number, run in enumerate(figures, 1):
        if sys.stderr.isatty():
            print(f"\r  {number} of {total}", end="" if number < total else "\n", file=sys.stderr, flush=True)
        yield run


if __name__ == "__main__":
    sys.exit(main())
