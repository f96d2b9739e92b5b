"""Samples belong to numbers: whoever asks, in whatever order, however they are loaded."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset
from worker.loading import Noisy
from worker.world import play

from unicorn_mgr.worker.attach import Job
from unicorn_mgr.worker.checks import LoopError, SettingError
from unicorn_mgr.worker.source import Addressable, Endless, Source

MICRO_BATCHES = 3


def source(batch_size: int = 2, seed: int = 0, size: int = 7) -> Source:
    found = Source(list(range(size)), batch_size, seed)
    found.expect(0, (), (), MICRO_BATCHES)
    return found


def samples(of: Source, steps: int) -> list[int]:
    """Laid end to end."""
    return [i for step in range(steps) for number in range(MICRO_BATCHES) for i in of.batch(step, number).tolist()]


@pytest.mark.parametrize(("batch_size", "size"), [(2, 7), (5, 7), (1, 1), (10, 7), (3, 6)])
def test_every_epoch_has_every_sample_once(batch_size: int, size: int) -> None:
    laid = samples(source(batch_size, size=size), steps=12)
    epochs = [laid[at : at + size] for at in range(0, len(laid) - size + 1, size)]
    assert len(epochs) >= 4
    for epoch in epochs:
        assert sorted(epoch) == list(range(size))


def test_every_epoch_has_an_order_of_its_own() -> None:
    laid = samples(source(size=50, batch_size=5), steps=10)
    assert laid[:50] != laid[50:100]


def test_the_order_follows_from_the_seed() -> None:
    assert samples(source(seed=1), 6) == samples(source(seed=1), 6)
    assert samples(source(seed=1), 6) != samples(source(seed=2), 6)


def test_a_batch_depends_on_its_number_alone() -> None:
    one, other = Source(Noisy(), 2, seed=4), Source(Noisy(), 2, seed=4)
    for s in (one, other):
        s.expect(0, (), (), MICRO_BATCHES)
    keys = [(step, number) for step in range(8) for number in range(MICRO_BATCHES)]
    forwards = {key: one.batch(*key) for key in keys}
    random.seed(99)
    torch.manual_seed(99)
    np.random.seed(99)
    for key in reversed(keys):
        assert torch.equal(other.batch(*key), forwards[key])
        assert torch.equal(other.batch(*key), forwards[key])


def test_loading_a_batch_draws_nothing_from_the_scripts_generators() -> None:
    def drawn() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    def seeded() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seeded()
    expected = drawn()
    seeded()
    noisy = Source(Noisy(), 2)
    noisy.expect(0, (), (), MICRO_BATCHES)
    noisy.batch(3, 1)
    assert drawn() == expected


def test_a_sample_that_raises_leaves_the_generators_alone() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            torch.rand(())
            raise OSError("no such sample")

    broken = Source(Broken(), 2)
    broken.expect(0, (), (), MICRO_BATCHES)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with pytest.raises(OSError, match="no such sample"):
        broken.batch(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_survives_being_sent_to_a_process() -> None:
    one = Source(Noisy(), 2, seed=4)
    one.expect(0, (), (), MICRO_BATCHES)
    sent = pickle.loads(pickle.dumps(one._loader))
    assert torch.equal(sent[5, 1], one.batch(5, 1))


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    """What loader processes gave."""
    script = Path(__file__).with_name("loading.py")
    run = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=100)
    assert run.stderr == ""
    found: dict[str, Any] = json.loads(run.stdout)
    return found


WAYS = [
    "no share",
    "a share now and then",
    "in order",
    "a share, then what another has lost",
    "the others' share",
    "steps left out",
    "a step again",
]


@pytest.mark.parametrize("way", WAYS)
def test_loading_ahead_gives_the_same(loaded: dict[str, Any], way: str) -> None:
    assert set(loaded) == set(WAYS)
    for ahead in loaded[way]["ahead"]:
        assert ahead == loaded[way]["at_once"]


def test_loading_ahead_draws_nothing_from_the_scripts_generators(loaded: dict[str, Any]) -> None:
    assert len({tuple(told["next"]) for told in loaded.values()}) == 1


def test_a_source_that_is_dropped_leaves_no_process(loaded: dict[str, Any]) -> None:
    assert {told["left"] for told in loaded.values()} == {0}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_samples_of_a_number_are_the_same_in_any_company(size: int) -> None:
    def script(job: Job) -> dict[tuple[int, int], list[list[float]]]:
        model = torch.nn.Linear(4, 1).double()
        training = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), MICRO_BATCHES)
        noisy, seen = Source(Noisy(), 2, seed=4), {}
        for step in training.steps(6):
            for batch in step.micro_batches(noisy):
                seen[step.number, step.current] = batch.tolist()
                step.backward(model(batch).mean())
        return seen

    reference = Source(Noisy(), 2, seed=4)
    reference.expect(0, (), (), MICRO_BATCHES)
    expected = {(s, n): reference.batch(s, n).tolist() for s in range(6) for n in range(MICRO_BATCHES)}
    together: dict[tuple[int, int], list[list[float]]] = {}
    for seen in play(size, script).results.values():
        assert not together.keys() & seen.keys()
        together |= seen
    assert together == expected


# -- sources that are not addressable -------------------------------------------------------


def test_an_endless_source_begins_again_and_goes_on_from_step_to_step() -> None:
    def script(job: Job) -> list[int]:
        model = torch.nn.Linear(1, 1)
        training = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2, exact=False)
        batches, seen = [torch.full((1, 1), float(i)) for i in range(3)], []
        for step in training.steps(4):
            for batch in step.micro_batches(batches):
                seen.append(int(batch))
                step.backward(model(batch).sum())
        return seen

    (seen,) = play(1, script).results.values()
    assert seen == [0, 1, 2, 0, 1, 2, 0, 1]


def test_an_endless_source_that_has_ended_for_good_says_so() -> None:
    once = Endless(x for x in [1])
    assert once.batch(0, 0) == 1
    with pytest.raises(LoopError, match="the generator is empty, or has ended and can't be begun again"):
        once.batch(0, 1)


def test_anything_with_its_two_methods_is_addressable() -> None:
    assert isinstance(Source([1], 1), Addressable)
    assert isinstance(Endless([1]), Addressable)
    assert not isinstance([1], Addressable)


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dataset": iter([1]), "batch_size": 1}, "Source: dataset: it has no length or no index"),
        ({"dataset": _Stream(), "batch_size": 1}, "Source: dataset: it has no length or no index"),
        ({"dataset": [], "batch_size": 1}, "Source: dataset: it is empty"),
        ({"dataset": [1], "batch_size": 0}, "Source: batch_size: 0: want a whole number, at least 1"),
        ({"dataset": [1], "batch_size": 1.5}, "Source: batch_size: 1.5: want a whole number, at least 1"),
        ({"dataset": [1], "batch_size": 1, "prefetch": -1}, "Source: prefetch: -1: want a whole number, at least 0"),
        ({"dataset": [1], "batch_size": 1, "workers": 0}, "Source: workers: 0: want a whole number, at least 1"),
        ({"dataset": [1], "batch_size": 1, "seed": None}, "Source: seed: None: want a whole number"),
    ],
)
def test_what_a_source_refuses(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as refused:
        Source(**arguments)
    assert str(refused.value).startswith(said)


def test_a_source_that_nobody_has_bound_says_so() -> None:
    with pytest.raises(LoopError, match=r"Source: give it to step.micro_batches\(source\)"):
        Source([1], 1).batch(0, 0)
