"""The product keeps the rules of its architecture, and each rule notices when it is broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from unit import architecture, set_order
from unit.architecture import FILE_LINES_MAX, FUNCTION_LINES_MAX, PACKAGE, Modules, of

import unicorn_mgr

REPOSITORY = Path(__file__).parents[2]

Rule = Callable[[Modules], Iterator[str]]

RULES: tuple[Rule, ...] = (
    architecture.direction,
    architecture.purity,
    architecture.torch_free,
    set_order.order,
    architecture.size,
    architecture.dead_files,
    architecture.dead_names,
    architecture.docstrings,
)


@cache
def product() -> Modules:
    return architecture.read(Path(unicorn_mgr.__file__).parent, architecture.PRODUCT)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_the_product_keeps_the_rule(rule: Rule) -> None:
    broken = list(rule(product()))
    assert not broken, "\n".join(["", *broken])


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "tests", "tools"])
def test_files_and_functions_beside_the_product_fit_as_well(folder: str) -> None:
    found = architecture.read(REPOSITORY / folder, folder)
    broken = list(architecture.size(found))
    assert found
    assert not broken, "\n".join(["", *broken])


def test_every_core_that_is_named_exists() -> None:
    for pattern in (*architecture.PURE, *architecture.WITHOUT_TORCH):
        found = [name for name in product() if architecture.matches(name, (pattern,))]
        assert found, f"{pattern} names no module: the rule would watch over nothing"


WITHOUT_TORCH = f"""
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(architecture.TORCH_EXTRA)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import {PACKAGE}.agent, {PACKAGE}.cli, {PACKAGE}.coordinator
for package in ({PACKAGE}.agent, {PACKAGE}.cli, {PACKAGE}.coordinator):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print("all imported")
"""


def test_coordinator_agent_and_command_line_run_where_torch_is_not_installed() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert ran.stdout == "all imported\n", (
        f"{ran.stderr}\nAn operator need not install torch: coordinator, agent and command line never import it"
    )


# -- the rules notice -----------------------------------------------------------------------


def broken(rule: Rule, **sources: str) -> list[str]:
    return list(rule(of(**sources)))


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ({"model": "from unicorn_mgr.messages import Sample", "messages": ""}, "model imports messages"),
        (
            {"worker__link": "from unicorn_mgr.coordinator.core import x", "coordinator__core": ""},
            "imports coordinator",
        ),
        ({"coordinator__core": "import unicorn_mgr.worker.link", "worker__link": ""}, "imports worker"),
        (
            {"agent__core": "def f():\n    from unicorn_mgr.coordinator import core", "coordinator__core": ""},
            ":2: agent",
        ),
        ({"messages": "if TYPE_CHECKING:\n    from unicorn_mgr.effects import x", "effects": ""}, "imports effects"),
        ({"agent__core": "from ..coordinator import core", "coordinator": "", "agent": ""}, "imports coordinator"),
        ({"newcomer": ""}, "no place among the layers"),
    ],
)
def test_an_import_against_the_direction_is_found(sources: dict[str, str], says: str) -> None:
    (found,) = broken(architecture.direction, **sources)
    assert says in found


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import time", "imports time"),
        ("import asyncio", "imports asyncio"),
        ("from os import environ", "imports os.environ"),
        ("def f():\n    import random", ":2: a core imports random"),
        ("from torch import nn", "imports torch.nn"),
        ("from datetime import datetime", "imports datetime"),
        ("import a_library_of_tomorrow", "imports a_library_of_tomorrow"),
        ("from unicorn_mgr.coordinator.driver import Driver", "coordinator.driver, which is not pure"),
        ("def f(path):\n    return open(path).read()", ":2: a core calls open()"),
        ("def f(name):\n    return hash(name)", "calls hash()"),
        ("import signal\nsignal.alarm(1)", "uses signal.alarm"),
    ],
)
def test_an_impure_core_is_found(source: str, says: str) -> None:
    (found,) = broken(architecture.purity, coordinator__core=source, coordinator__driver="import asyncio")
    assert says in found


def test_a_pure_core_and_an_impure_shell_are_fine() -> None:
    core = "import re, signal\nfrom unicorn_mgr.model import Epoch\nKILLED = signal.SIGKILL"
    assert not broken(
        architecture.purity, coordinator__core=core, coordinator__driver="import time", model="import enum"
    )


def test_torch_behind_two_imports_is_found() -> None:
    found = broken(
        architecture.torch_free,
        agent__service="from unicorn_mgr import ring",
        ring="def late():\n    from unicorn_mgr.worker import state",
        worker__state="import torch.nn",
    )
    assert len(found) == 1
    assert "agent.service > ring > worker.state > torch.nn" in found[0]


@pytest.mark.parametrize(
    "body",
    [
        "for x in {a, b}: use(x)",
        "for x in set(names): use(x)",
        "found = {n for n in names}\n    return [n for n in found]",
        "return list(frozenset(names))",
        "return ','.join({n for n in names})",
        "return (*set(names),)",
        "return [x for x in mine | {a}]",
        "return [x for x in one.keys() - other.keys()]",
        "return set(names).pop()",
        "return sum(w for w in set(weights))",
        "return [x for x in state.dirty]",
        "return tuple(makes_a_set(a))",
        "return next(iter(taken))",
    ],
)
def test_going_through_a_set_in_its_own_order_is_found(body: str) -> None:
    known = "class State:\n    dirty: set[str]\n\ndef makes_a_set(a) -> frozenset[str]:\n    return frozenset(a)\n"
    source = f"{known}\ndef f(state, names, a, b, mine, one, other, weights, taken: set[str]):\n    {body}\n"
    assert broken(set_order.order, coordinator__core=source), body


@pytest.mark.parametrize(
    "body",
    [
        "for x in sorted({a, b}): use(x)",
        "return a in set(names)",
        "return {n.job for n in set(names)}",
        "return any(n for n in set(names)) or len(set(names)) > 1",
        "for x in {a: b}: use(x)",
        "return [x for x in sorted(mine | {a})]",
        "return tuple(sorted(n for n in set(names)))",
    ],
)
def test_a_set_without_its_order_is_fine(body: str) -> None:
    source = f"def f(names, a, b, mine):\n    {body}\n"
    assert not broken(set_order.order, coordinator__core=source), body


def test_what_is_too_long_is_found() -> None:
    function = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
    (found,) = broken(architecture.size, worker__link=function)
    assert f"f has {FUNCTION_LINES_MAX + 1} lines" in found
    (found,) = broken(architecture.size, worker__link="x = 1\n" * (FILE_LINES_MAX + 1))
    assert f"{FILE_LINES_MAX + 1} lines" in found
    assert not broken(architecture.size, worker__link="x = 1\n" * FILE_LINES_MAX)


def test_a_file_that_nothing_uses_is_found() -> None:
    found = broken(
        architecture.dead_files,
        cli__main="from unicorn_mgr.agent import host\nSPAWN = 'unicorn_mgr.worker.template'",
        agent="",
        agent__host="",
        agent__forgotten="from unicorn_mgr.agent import host",
        worker="",
        worker__template="",
    )
    assert len(found) == 1
    assert "agent/forgotten.py" in found[0]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def forgotten():\n    pass", "forgotten"),
        ("def forgotten(n):\n    return forgotten(n - 1)", "forgotten"),
        ("LIMIT_SECONDS = 3", "LIMIT_SECONDS"),
        ("class Used:\n    def forgotten(self):\n        pass\nUsed()", "forgotten"),
        ("class Forgotten:\n    pass", "Forgotten"),
        ("class Settings(BaseModel):\n    forgotten_seconds: float = 1.0\nSettings()", "forgotten_seconds"),
    ],
)
def test_a_name_that_nothing_mentions_is_found(source: str, name: str) -> None:
    (found,) = broken(architecture.dead_names, worker__link=source)
    assert f"nothing mentions {name}." in found


def test_a_name_that_another_module_mentions_is_fine() -> None:
    assert not broken(
        architecture.dead_names,
        agent__host="def used():\n    pass",
        cli__main="from unicorn_mgr.agent.host import used",
    )


@pytest.mark.parametrize(
    "source", ["x = 1", '"""Words."""\n\ndef public():\n    pass', '"""Words."""\n\nclass C:\n    pass']
)
def test_a_missing_docstring_is_found(source: str) -> None:
    assert len(broken(architecture.docstrings, worker__link=source)) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_each_message_gives_the_reason(rule: Rule) -> None:
    long = "def f():\n" + "    x = 1\n" * 600
    planted = "import time, unicorn_mgr.agent.core, torch\nfor x in {'a', 'b'}:\n    print(x)\n"
    found = list(rule(of(coordinator__core=planted + long, agent__core="", cli__main="'''Words.'''")))
    assert found
    for message in found:
        place, _, reason = message.partition(": ")
        assert place.startswith("src/unicorn_mgr/")
        assert len(reason.split()) >= 12, message
