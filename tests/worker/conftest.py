"""What the tests of the training library share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

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
