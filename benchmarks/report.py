"""The newest results into README.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.numbers import ratio_of_medians
from benchmarks.result import Result, markdown, plain, read

README = Path(__file__).resolve().parent / "README.md"
BEGIN, END = "<!-- results: written by python -m benchmarks --report -->", "<!-- end of results -->"


def write(results: Path, order: Sequence[str]) -> str:
    """Replace the results part of the README; returns what to say of it."""
    found = {r.name: r for r in map(read, sorted(results.glob("*.json")))}
    kept = {name: found[name] for name in order if name in found and not found[name].quick}
    if not kept:
        return f"{results}: there are no results of full runs there; {README} stays as it is"
    parts = [*compared(kept), *(markdown(r) for r in kept.values())]
    README.write_text(replaced(README.read_text(), "\n".join(parts)))
    return f"{README}: {', '.join(kept)}"


def replaced(text: str, results: str) -> str:
    """The text with other results between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{README} has lost the marks around its results: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{results}\n{END}{after}"


def compared(found: Mapping[str, Result]) -> list[str]:
    """Kill to next finished step: ours against each of the others that have been measured."""
    if "kill" not in found:
        return []
    ours = [h["next_step"] for h in found["kill"].found.samples["healed"]]
    rows = [f"| unicorn | {plain(median(ours))} s | 1 |"]
    for name, theirs in _others(found).items():
        ratio, (low, high) = ratio_of_medians(theirs, ours)
        rows.append(f"| {name} | {plain(median(theirs))} s | {plain(ratio)} ({plain(low)} to {plain(high)}) |")
    if len(rows) == 1:
        return []
    head = "| kill to next finished step | median | times ours (95 % interval) |"
    return ["### Compared", "", head, "| --- | --- | --- |", *rows, ""]


def _others(found: Mapping[str, Result]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    if "torchrun" in found:
        samples["torchrun"] = [r["next_step"] for r in found["torchrun"].found.samples["restarted"]]
    if "torchft" in found:
        for setting, recovered in found["torchft"].found.samples.items():
            samples[f"torchft, {setting}"] = [r["next_step"] for r in recovered]
    return samples
