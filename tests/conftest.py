"""Fixtures that tests of several kinds share."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.harness import SCRIPT, Cluster, Undisturbed, cluster, environment


@pytest.fixture(scope="session")
def templates() -> Iterator[Path]:
    """Template processes for all clusters of this run; they end by themselves when idle."""
    with tempfile.TemporaryDirectory(prefix="unicorn-t") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The end of the same training in a world of one, where nothing can happen."""

    @cache
    def run(*arguments: str, script: Path = SCRIPT) -> dict[str, Any]:
        out = tmp_path_factory.mktemp("undisturbed")
        command = [sys.executable, str(script), "--out", str(out), *arguments]
        subprocess.run(command, check=True, env=environment(), capture_output=True)
        found: dict[str, Any] = torch.load(out / "weights-alone.pt", weights_only=True)
        return found

    return run


@pytest.fixture(scope="module")
def shared(templates: Path) -> Iterator[Cluster]:
    """A cluster of four nodes for a whole module."""
    with tempfile.TemporaryDirectory(prefix="unicorn-c") as folder, cluster(Path(folder), templates, nodes=4) as found:
        yield found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test proves nothing: the run fails."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("a test was skipped: that fails the run", red=True)
