"""`make mutants`: draw mutants of the cores, run the tests on each, and say which survive.

python -m mutation [--seed 1] [--count 100] [--only SUBSTRING] [--report FILE]
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from mutation.hunt import REPOSITORY, Change, Fate, hunt, module_of, place_of
from mutation.mutants import Mutant, functions_of, mutants_of, mutated, put_in_place
from mutation.planted import PLANTED, Planted

PACKAGE = "src/unicorn_mgr"
CORES = (
    "coordinator/core.py", "coordinator/attention.py", "coordinator/checkpoints.py", "coordinator/fence.py",
    "coordinator/hearing.py", "coordinator/liveness.py", "coordinator/rendezvous.py", "coordinator/triage.py",
    "coordinator/record.py", "coordinator/record_incidents.py", "coordinator/record_jobs.py",
    "coordinator/record_workers.py", "coordinator/rules/*.py", "agent/core.py", "transition/deal.py",
    "planner/placement.py",
)  # fmt: skip
REASONS = Path(__file__).with_name("reasons.txt")
"""Why mutants that survive may: a line that says which, and an indented one with the reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1: something survives for no known reason."""
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="0: only planted bugs")
    parser.add_argument("--only", default="", help="of files whose path has this in it, and no planted bugs")
    parser.add_argument("--report", type=Path, help="write what was found there")
    asked = parser.parse_args(arguments)
    mutants = drawn(asked.seed, asked.count, asked.only)
    planted = () if asked.only else PLANTED
    began = time.monotonic()
    fates = hunt([*map(planted_change, planted), *map(mutant_change, mutants)], say)
    reasons = reasons_of(REASONS.read_text())
    text = report(
        f"Seed {asked.seed}, commit {commit()}", fates[: len(planted)], mutants, fates[len(planted) :], reasons
    )
    if asked.report is not None:
        asked.report.write_text(text)
    say(f"{text}\n{time.monotonic() - began:.0f} s")
    left = [f for f in fates[: len(planted)] if not f.killer]
    left += [f for m, f in zip(mutants, fates[len(planted) :], strict=True) if not f.killer and m.what not in reasons]
    return 1 if left else 0


def say(line: str) -> None:
    """Past whatever pytest captures."""
    sys.__stdout__.write(f"{line}\n") if sys.__stdout__ is not None else None
    sys.__stdout__.flush() if sys.__stdout__ is not None else None


def drawn(seed: int, count: int, only: str = "") -> list[Mutant]:
    """So many of all mutants of the cores: the same for a seed and a commit."""
    paths = sorted({p for pattern in CORES for p in (REPOSITORY / PACKAGE).glob(pattern)})
    shown = [p.relative_to(REPOSITORY).as_posix() for p in paths]
    every = [m for path in shown if only in path for m in mutants_of((REPOSITORY / path).read_text(), path)]
    chosen = Random(f"mutants {seed}").sample(every, min(count, len(every)))
    return sorted(chosen, key=lambda m: (m.path, m.number))


def mutant_change(mutant: Mutant) -> Change:
    """A mutant to put in place."""
    source = (REPOSITORY / mutant.path).read_text()

    def put() -> None:
        put_in_place(module_of(mutant.path), mutated(source, mutant), mutant.function)

    return Change(f"{mutant.path}:{mutant.line} {mutant.kind}: {mutant.before}  ->  {mutant.after}",
                  (place_of(mutant.path, mutant.function),), put)  # fmt: skip


def planted_change(planted: Planted) -> Change:
    """A bug to put in place."""
    path = f"{PACKAGE}/{planted.path}"
    source = (REPOSITORY / path).read_text()
    assert source.count(planted.before) == 1, f"{path} has {planted.before!r} {source.count(planted.before)} times"
    tree = ast.parse(source.replace(planted.before, planted.after))
    same = {name: ast.dump(f) for name, f in functions_of(ast.parse(source))}
    changed = [name for name, function in functions_of(tree) if ast.dump(function) != same[name]]
    assert changed, f"{planted.name}: changes no function"

    def put() -> None:
        for name in changed:
            put_in_place(module_of(path), tree, name)

    return Change(f"planted: {planted.name}", tuple(place_of(path, name) for name in changed), put)


def commit() -> str:
    """What the mutants are drawn from."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()


def reasons_of(text: str) -> dict[str, str]:
    """By mutant, why it may survive."""
    found: dict[str, str] = {}
    mutant = ""
    for line in text.splitlines():
        if line.startswith((" ", "\t")):
            found[mutant] = f"{found[mutant]} {line.strip()}".strip()
        elif line.strip() and not line.startswith("#"):
            mutant = line.strip()
            found[mutant] = ""
    return found


def report(
    drawn_from: str, planted: Sequence[Fate], mutants: Sequence[Mutant], fates: Sequence[Fate], reasons: dict[str, str]
) -> str:
    """In words; what is worth keeping of it is told in `docs/mutants.md`."""
    survivors = [m for m, f in zip(mutants, fates, strict=True) if not f.killer]
    known = [m for m in survivors if m.what in reasons]
    unknown = [m for m in survivors if m.what not in reasons]
    noticed = f"{len(fates) - len(survivors)} of {len(fates)} mutants are noticed"
    lines = [
        "# Are mistakes noticed?",
        "",
        "`make mutants SEED=1 COUNT=100` changes the cores in so many places, one at a time, as somebody who makes a",
        "mistake might, and runs on each the tests that reach it: core tests, stories, a few histories of the swarm.",
        "A mutant that no test notices is either no mistake at all, which the last column explains, or lacks a test.",
        "",
        f"{drawn_from}: {noticed}, {len(known)} make no difference that matters, {len(unknown)} need a test.",
    ]
    if planted:
        lines += ["", f"Planted bugs: {sum(bool(f.killer) for f in planted)} of {len(planted)} are found.", ""]
        lines += ["| bug | found by |", "|---|---|"]
        lines += [f"| {f.name.removeprefix('planted: ')} | {killer(f)} |" for f in planted]
    lines += ["", "| survives | change | reason |", "|---|---|---|"]
    for m in [*unknown, *known]:
        change = f"{m.kind}: `{m.before}` is `{m.after}`".replace("|", "\\|")
        where = f"{m.path.removeprefix(f'{PACKAGE}/')}:{m.line} {m.function}"
        lines.append(f"| {where} | {change} | {reasons.get(m.what, 'none yet')} |")
    return "\n".join(lines) + "\n"


def killer(fate: Fate) -> str:
    """A test, shortly."""
    name = fate.killer.rpartition("/")[2].replace("::", ": ", 1)
    return f"`{name}`" if fate.killer else "nobody"


if __name__ == "__main__":
    sys.exit(main())
