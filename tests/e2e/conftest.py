"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import Cluster
from e2e.shell import Shell


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shell(shared: Cluster) -> Iterator[Shell]:
    """A person before the module's cluster; what they have started ends with the test."""
    found = Shell(shared)
    yield found
    for started in found.started:
        with started:
            started.kill()
