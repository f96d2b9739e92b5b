"""Two workers train together only if everything that must be the same is the same."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from unicorn_mgr.worker.fingerprint import fingerprint


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script with a module beside it, one in a package, one of the interpreter's and an installed one."""
    for place in ("train.py", "helper.py", "package/inner.py", ".venv/lib/site-packages/other.py", "unused.py"):
        path = tmp_path / "project" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {place}\n")
    (tmp_path / "elsewhere.py").write_text("# elsewhere\n")
    root = tmp_path / "project"
    imported = {
        "__main__": root / "train.py",
        "helper": root / "helper.py",
        "package.inner": root / "package/inner.py",
        "other": root / ".venv/lib/site-packages/other.py",
        "elsewhere": tmp_path / "elsewhere.py",
    }
    for name, path in imported.items():
        module = types.ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)
    return root


def taken(
    model: nn.Module | None = None,
    micro_batches: int = 4,
    seed: int = 1,
    steps: int = 10,
    metrics: tuple[str, ...] = (),
) -> dict[str, str]:
    return fingerprint(model or nn.Linear(2, 3), micro_batches, seed, steps, metrics)


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_the_same_is_the_same(project: Path) -> None:
    assert changed(taken(), taken()) == set()


@pytest.mark.parametrize("place", ["train.py", "helper.py", "package/inner.py"])
def test_a_change_of_the_projects_code_shows(project: Path, place: str) -> None:
    before = taken()
    (project / place).write_text("# changed\n")
    assert changed(before, taken()) == {"code"}


@pytest.mark.parametrize("place", [".venv/lib/site-packages/other.py", "unused.py", "../elsewhere.py"])
def test_a_change_of_other_code_does_not(project: Path, place: str) -> None:
    before = taken()
    (project / place).write_text("# changed\n")
    assert changed(before, taken()) == set()


def test_where_the_project_lies_does_not_show(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = taken()
    moved = project.rename(project.parent / "moved")
    for module in list(sys.modules.values()):
        place = getattr(module, "__file__", None)
        if isinstance(place, str) and place.startswith(str(project)):
            monkeypatch.setattr(module, "__file__", str(moved) + place.removeprefix(str(project)))
    assert changed(before, taken()) == set()


def test_a_project_under_a_link_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = project.parent / "link"
    link.symlink_to(project)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(link / "train.py"))
    before = taken()
    (project / "helper.py").write_text("# changed\n")
    assert changed(before, taken()) == {"code"}


def test_without_a_script_there_is_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    assert taken()["code"] == "interactive"


def renamed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3))


def turned() -> nn.Module:
    """The same parameters, the second one first."""
    module, made = nn.Module(), nn.Linear(2, 3)
    module.bias, module.weight = made.bias, made.weight
    return module


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        (lambda: taken(nn.Linear(2, 4)), {"parameters"}),
        (lambda: taken(nn.Linear(2, 3).double()), {"parameters"}),
        (lambda: taken(nn.Linear(2, 3).requires_grad_(requires_grad=False)), {"parameters"}),
        (lambda: taken(renamed()), {"parameters", "order"}),
        (lambda: taken(turned()), {"order"}),
        (lambda: taken(micro_batches=5), {"micro_batches"}),
        (lambda: taken(seed=2), {"seed"}),
        (lambda: taken(steps=11), {"steps"}),
        (lambda: taken(metrics=("accuracy",)), {"metrics"}),
    ],
)
def test_every_part_shows(project: Path, other: Callable[[], dict[str, str]], parts: set[str]) -> None:
    assert changed(taken(), other()) == parts


def test_buffers_show(project: Path) -> None:
    one, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    other.running_mean = torch.zeros(3, dtype=torch.float64)
    assert changed(taken(one), taken(other)) == {"buffers"}
