"""What the tests of the training library share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, settings
from worker.checkpoints import FLAKY
from worker.flaky import FlakyFileSystem

from unicorn_mgr.worker import attempts

# A busy machine is no failure.
settings.register_profile("worker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("worker")


@pytest.fixture(autouse=True, scope="module")
def _one_thread_each() -> Iterator[None]:
    """Tensors here are tiny: a second thread would cost more than it brings, and count as one left behind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def world_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Torch's pipeline stages want a process group, even where they send nothing."""
    place = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def flaky_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty, and what fails there is tried again at once."""
    monkeypatch.setattr(attempts, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(attempts, "RETRY_SECONDS_MAX", 0.001)
    FlakyFileSystem.reset()
    yield
    FlakyFileSystem.reset()


@pytest.fixture(params=["directory", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where checkpoints go."""
    return str(tmp_path / "run") if request.param == "directory" else FLAKY
