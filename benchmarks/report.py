"""The newest results into README.md."""

from __future__ import annotations

from pathlib import Path

from benchmarks.result import markdown, read

README = Path(__file__).resolve().parent / "README.md"
BEGIN, END = "<!-- results: written by python -m benchmarks --report -->", "<!-- end of results -->"


def write(results: Path) -> str:
    """Replace the results part of the README; returns what to say of it."""
    found = [read(path) for path in sorted(results.glob("*.json"))]
    kept = [r for r in found if not r.quick]
    README.write_text(replaced(README.read_text(), "\n".join(markdown(r) for r in kept)))
    left_out = len(found) - len(kept)
    return f"{README}: {len(kept)} results" + (f"; {left_out} quick ones left out" if left_out else "")


def replaced(text: str, results: str) -> str:
    """The text with other results between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{README} has lost the marks around its results: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{results}\n{END}{after}"
