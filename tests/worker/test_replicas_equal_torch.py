"""Replicas of several workers train what a plain torch loop trains, wherever one of their workers is lost."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from worker.recipes import Build, Parts, difference, plain, script
from worker.world import Played, play

from unicorn_mgr.model import Drill, WorkerName
from unicorn_mgr.worker.attach import Job

TOLERANCE = 1e-12
DOUBLE = torch.float64
SHARD, TENSOR = {"shard": 2}, {"tensor": 2}

PLACES = [
    "head",
    "compute",
    "backward",
    "computed",
    "before_reduce",
    "first_bucket",
    "in_reduce",
    "reduced",
    "optimizer",
    "closing",
]


def parts(width: int = 4) -> Parts:
    model = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)).to(DOUBLE)

    def loss(step: int, number: int) -> tuple[Tensor, float]:
        generator = torch.Generator().manual_seed(1000 * step + number)
        found: Tensor = model(torch.randn(5, 3, dtype=DOUBLE, generator=generator))
        return found.square().sum(), 5.0

    return Parts(model, [torch.optim.AdamW(model.parameters(), lr=1e-2)], loss)


def sharded(job: Job) -> dict[str, Any]:
    """As with FSDP, whose workers sum their gradients in backward; here each holds all of the parameters."""
    siblings = job._siblings()

    def summed(gradient: Tensor) -> Tensor:
        total = gradient.clone()
        siblings.add(total)
        return total

    def build() -> Parts:
        found = parts()
        for p in found.model.parameters():
            p.register_hook(summed)
        return found

    return script(build)(job)


def uneven(position: int) -> Build:
    """Parts of different sizes, so that one worker has more buckets than the other."""
    return lambda: parts(width=(6, 3)[position])


def split(job: Job) -> dict[str, Any]:
    """As with tensor parallelism: both compute the same micro-batches, each for its part."""
    return script(uneven(job._siblings().place.position))(job)


def drill(step: int, place: str) -> list[Drill]:
    return [Drill("exception", step, place)]


def check_lost(played: Played[dict[str, Any]], *seats: int) -> None:
    assert sorted(WorkerName.parse(name).seat for name in played.lost) == list(seats)


def test_undisturbed() -> None:
    played = play(4, sharded, axes=SHARD)
    check_lost(played)
    assert all(difference(found, plain(parts)) <= TOLERANCE for found in played.results.values())


@pytest.mark.parametrize(("place", "victim"), list(zip(PLACES, cycle([2, 3]))))
def test_after_a_loss(place: str, victim: int) -> None:
    """The other of its replica goes with it, and the replica that is left completes the step."""
    played = play(4, sharded, {victim: drill(2, place)}, axes=SHARD)
    check_lost(played, 2, 3)
    assert len(played.results) == 2
    assert all(difference(found, plain(parts)) <= TOLERANCE for found in played.results.values())


@pytest.mark.parametrize("place", ["publish", "deal", "recompute"])
def test_after_another_loss_in_the_middle_of_healing(place: str) -> None:
    played = play(6, sharded, {3: drill(2, "computed"), 4: drill(2, place)}, axes=SHARD)
    check_lost(played, 2, 3, 4, 5)
    assert len(played.results) == 2
    assert all(difference(found, plain(parts)) <= TOLERANCE for found in played.results.values())


@pytest.mark.parametrize("place", ["computed", "first_bucket", "reduced"])
def test_parts_of_different_sizes(place: str) -> None:
    played = play(4, split, {1: drill(2, place)}, axes=TENSOR)
    check_lost(played, 0, 1)
    expected = [plain(uneven(position)) for position in range(2)]
    for name, found in played.results.items():
        assert difference(found, expected[WorkerName.parse(name).seat % 2]) <= TOLERANCE


def test_a_difference_is_noticed() -> None:
    """This file can fail: a gradient that is not summed over the replica, and the end differs."""
    played = play(4, script(parts), axes=SHARD)
    assert all(difference(found, plain(parts)) > 1e-3 for found in played.results.values())
