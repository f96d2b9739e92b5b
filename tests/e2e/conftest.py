"""What tests of several modules share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import Cluster, cluster
from e2e.shell import Shell


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[Cluster]:
    """Two nodes of four slots."""
    with cluster(tmp_path_factory.mktemp("eight"), templates, nodes=2, slots=4) as found:
        yield found


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
