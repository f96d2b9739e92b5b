"""Random state belongs to (step, micro-batch): set, put back, sent, restored."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.attach import attach
from unicorn_mgr.worker.state import pack, unpack


def drawn() -> list[float]:
    """From every generator, and from those that keep half of what they make."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.random()),
        float(np.random.normal()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_a_seed_decides_all_generators() -> None:
    found = []
    for seed in (1, 1, 2):
        randomness.seed_all(seed)
        found.append(drawn())
    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])


def test_a_seed_belongs_to_its_job_step_and_number() -> None:
    seeds = {
        randomness.seed_of(seed, step, number) for seed in range(4) for step in range(-1, 20) for number in range(9)
    }
    assert len(seeds) == 4 * 21 * 9
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert randomness.seed_of(1, 2, 3) == 3751671686878481423  # on every machine and in every version


def test_what_was_captured_is_put_back() -> None:
    randomness.seed_all(1)
    drawn()
    captured = randomness.capture()
    expected = drawn()
    drawn()
    randomness.put_back(captured)
    assert drawn() == expected


def test_random_state_travels() -> None:
    randomness.seed_all(1)
    drawn()
    sent = pack(randomness.portable(randomness.capture()))
    expected = drawn()
    randomness.seed_all(2)
    randomness.restore(unpack(sent))
    assert drawn() == expected


def test_a_state_without_numpy_is_restored_where_numpy_is() -> None:
    """The sender had not imported it; what is here stays."""
    state: dict[str, Any] = randomness.portable(randomness.capture())
    del state["numpy"]
    np.random.seed(3)
    randomness.restore(state)
    found = np.random.random()
    np.random.seed(3)
    assert found == np.random.random()


def test_a_micro_batch_leaves_the_scripts_generators_alone() -> None:
    numbers = randomness.MicroBatchRandom(seed=5)
    randomness.seed_all(1)
    expected = drawn()
    randomness.seed_all(1)
    found = []
    for step, number in ((0, 0), (0, 1), (0, 0)):
        numbers.enter(step, number)
        found.append(drawn())
        numbers.leave()
        numbers.leave()
    assert drawn() == expected
    assert found[0] == found[2]
    assert found[0] != found[1]


def test_entering_again_without_leaving_keeps_what_was_outside() -> None:
    numbers = randomness.MicroBatchRandom(seed=5)
    randomness.seed_all(1)
    expected = drawn()
    randomness.seed_all(1)
    numbers.enter(0, 0)
    drawn()
    numbers.enter(0, 1)
    drawn()
    numbers.leave()
    assert drawn() == expected


def test_several_micro_batches_leave_the_scripts_generators_alone() -> None:
    model = torch.nn.Linear(1, 1)
    randomness.seed_all(1)
    expected = drawn() + drawn()
    randomness.seed_all(1)
    found = []
    with attach() as job:
        for step in job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3).steps(2):
            for _ in step.micro_batches():
                step.backward(model(torch.rand(1, 1)).sum())
                drawn()
            found += drawn()
    assert found == expected


@pytest.fixture(autouse=True)
def _untouched() -> Any:
    """Other tests draw as if these had not run."""
    outer = randomness.capture()
    yield
    randomness.put_back(outer)
