"""Mutants are what they say, planted bugs can be planted, and a hunt tells who is noticed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from mutation.__main__ import REASONS, drawn, mutant_change, planted_change, reasons_of, report
from mutation.hunt import REPOSITORY, Fate
from mutation.mutants import Mutant, function_of, mutants_of, mutated, put_in_place
from mutation.planted import PLANTED, Planted

SOURCE = '''
"""A module."""

LIMIT = 3

class Box:
    """A class."""

    def __init__(self) -> None:
        self.found = [1]

    @property
    def full(self) -> bool:
        return len(self.found) >= LIMIT

def least(numbers, limit=7):
    """Text."""
    if numbers and not limit == 2:
        return min(n for n in numbers if n < limit)
    return None
'''


def changed(source: str = SOURCE) -> list[tuple[str, str, str]]:
    return [(m.kind, m.before, m.after) for m in mutants_of(source, "box.py")]


def test_each_place_is_changed_in_each_way_once() -> None:
    assert changed() == [
        ("statement removed", "self.found = [1]", "pass"),
        ("off by one", "1", "2"),
        ("comparison flipped", "len(self.found) >= LIMIT", "len(self.found) > LIMIT"),
        ("comparison flipped", "len(self.found) >= LIMIT", "len(self.found) < LIMIT"),
        ("condition negated", "numbers and (not limit == 2)", "not (numbers and (not limit == 2))"),
        ("and and or", "numbers and (not limit == 2)", "numbers or not limit == 2"),
        ("condition negated", "not limit == 2", "not not limit == 2"),
        ("comparison flipped", "limit == 2", "limit != 2"),
        ("off by one", "2", "3"),
        ("statement removed", "return min((n for n in numbers if n < limit))", "pass"),
        ("function", "min((n for n in numbers if n < limit))", "max((n for n in numbers if n < limit))"),
        ("condition removed", "n < limit", "True"),
        ("comparison flipped", "n < limit", "n <= limit"),
        ("comparison flipped", "n < limit", "n >= limit"),
    ]


def test_what_is_not_computed_stays_as_it_is() -> None:
    assert changed('def f(x: "a < b" = 1 < 2) -> 3:\n    "one"\n    raise ValueError(f"{x + 1}")\n') == []


def test_a_mutant_is_one_change_at_its_line() -> None:
    whole = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants_of(SOURCE, "box.py"):
        other = ast.unparse(mutated(SOURCE, mutant)).splitlines()
        assert sum(a != b for a, b in zip(whole, other, strict=True)) == 1, mutant
        assert mutant.function in ("Box.__init__", "Box.full", "least")
        assert mutant.before.split("(")[0] in SOURCE.splitlines()[mutant.line - 1] or mutant.kind == "condition negated"


def test_a_mutant_of_another_file_is_refused() -> None:
    mutant = mutants_of(SOURCE, "box.py")[0]
    with pytest.raises(LookupError, match=r"box\.py is not the file"):
        mutated("x = 1\n", mutant)


def loaded(tmp_path: Path) -> ModuleType:
    path = tmp_path / "box.py"
    path.write_text(SOURCE)
    module = ModuleType("box")
    module.__file__ = str(path)
    exec(compile(SOURCE, str(path), "exec"), vars(module))
    return module


def test_a_function_that_somebody_has_imported_is_the_changed_one(tmp_path: Path) -> None:
    box = loaded(tmp_path)
    least, one = function_of(box, "least"), box.Box()
    assert least([8, 7, 5, 4]) == 4
    assert not one.full
    by = {(m.before, m.after): m for m in mutants_of(SOURCE, "box.py")}
    most = "min((n for n in numbers if n < limit))", "max((n for n in numbers if n < limit))"
    assert put_in_place(box, mutated(SOURCE, by[most])) == ["least"]
    assert least([8, 7, 5, 4]) == 5
    assert put_in_place(box, mutated(SOURCE, by["n < limit", "n <= limit"]), "least") == ["least"]
    assert least([8, 7, 5, 4]) == 4
    flipped = by["len(self.found) >= LIMIT", "len(self.found) < LIMIT"]
    assert put_in_place(box, mutated(SOURCE, flipped), "Box.full") == ["Box.full"]
    assert one.full


def test_the_same_seed_draws_the_same_mutants() -> None:
    first = drawn(1, 40)
    assert first == drawn(1, 40) != drawn(2, 40)
    assert len({m.path for m in first}) > 8
    assert {m.path for m in drawn(1, 40, "transition/")} == {"src/unicorn_mgr/transition/deal.py"}
    for mutant in first:
        source = (REPOSITORY / mutant.path).read_text()
        assert ast.dump(mutated(source, mutant)) != ast.dump(ast.parse(source))
        assert mutant_change(mutant).functions[0].endswith(f"{mutant.path}:{mutant.function}")


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_bug_can_be_planted(planted: Planted) -> None:
    assert planted_change(planted).functions
    assert len({p.name for p in PLANTED}) == len(PLANTED) >= 15


MEETING = """
from unicorn_mgr.coordinator.rendezvous import Rendezvous
from unicorn_mgr.messages import Published

def test_nobody_meets():
    assert Rendezvous().publish("gpt", Published()) == (None, (), False)
"""

HUNT = """
import sys
from unicorn_mgr.coordinator import rendezvous
from mutation.hunt import Change, hunt, place_of
from mutation.__main__ import drawn, mutant_change

def loops():
    rendezvous.Rendezvous.publish.__code__ = forever.__code__
def forever(self, job, note):
    while True:
        pass
nobody = mutant_change(drawn(1, 1, "triage")[0])
publish = place_of("src/unicorn_mgr/coordinator/rendezvous.py", "Rendezvous.publish")
changes = [Change("none", (publish,), lambda: None), Change("loops", (publish,), loops), nobody]
fates = hunt(changes, lambda line: None, sys.argv[1:])
print(*((fate.killer.rpartition("::")[2], fate.tests > 0) for fate in fates), sep="\\n")
"""


def test_a_hunt_tells_who_is_noticed_who_never_ends_and_whom_nobody_calls(tmp_path: Path) -> None:
    test = tmp_path / "test_meeting.py"
    test.write_text(MEETING)
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY / "tests")])
    ran = subprocess.run(
        [sys.executable, "-c", HUNT, str(test)],
        env={**os.environ, "PYTHONPATH": paths, "MUTANTS_CPU_SECONDS": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    none, loops, nobody = ran.stdout.splitlines()[-3:]
    assert none == "('', True)"
    assert loops.endswith("(takes too much)', True)")
    assert nobody == "('', False)"


def test_a_report_lists_survivors_with_their_reasons() -> None:
    known, unknown, dead = (Mutant("src/unicorn_mgr/a.py", name, 5, "operator", "a + b", "a - b", 0) for name in "xyz")
    reasons = reasons_of(f"# comment\n{known.what}\n  it is\n  the same\n")
    assert reasons == {"src/unicorn_mgr/a.py x: a + b -> a - b": "it is the same"}
    fates = [Fate(""), Fate(""), Fate("", "tests/unit/test_a.py::test_b")]
    text = report(
        "Seed 7, commit abc",
        [Fate("planted: a bug", "tests/unit/test_a.py::test_b")],
        [known, unknown, dead],
        fates,
        reasons,
    )
    assert "Seed 7, commit abc: 1 of 3 mutants are noticed, 1 make no difference that matters, 1 need a test." in text
    assert "| a bug | `test_a.py: test_b` |" in text
    assert "| a.py:5 x | operator: `a + b` is `a - b` | it is the same |" in text
    assert "| a.py:5 y | operator: `a + b` is `a - b` | none yet |" in text


def test_every_reason_is_of_a_mutant_that_there_is() -> None:
    there = {mutant.what for mutant in drawn(1, 1_000_000)}
    gone = [what for what in reasons_of(REASONS.read_text()) if what not in there]
    assert not gone, "these mutants are no more: drop their reasons"
