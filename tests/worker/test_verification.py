"""Every so many steps the replicas compare checksums of their parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from worker.world import play

from unicorn_mgr.messages import ChecksumsDiffer
from unicorn_mgr.model import Epoch
from unicorn_mgr.worker.attach import Job


def training(spoilt_rank: int | None, spoil: Callable[[nn.Linear], None], disowned: list[int]) -> Callable[[Job], None]:
    """Six steps; one member's parameters are spoilt after step 2.  Whose state is not what most have is noted."""

    def script(job: Job) -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 2).double()
        loop = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, verify_every=2)
        loop._engine.on_disowned = lambda: disowned.append(job.rank)
        for step in loop.steps(6):
            for number in step.micro_batches():
                step.backward(model(torch.full((1, 2), number + 1.0, dtype=torch.float64)).sum())
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            if step.number == 2 and job.rank == spoilt_rank:
                with torch.no_grad():
                    spoil(model)

    return script


def flip_a_sign(model: nn.Linear) -> None:
    model.weight[0, 0] *= -1


def differences(size: int, spoilt_rank: int | None) -> tuple[list[ChecksumsDiffer], list[int]]:
    """What is told of them, and who has found that it is in the minority."""
    disowned: list[int] = []
    facts = play(size, training(spoilt_rank, flip_a_sign, disowned)).facts
    return [f for told in facts.values() for f in told if isinstance(f, ChecksumsDiffer)], disowned


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_minority_is_named(rank: int) -> None:
    assert differences(3, rank) == ([ChecksumsDiffer(Epoch(1, 1), 4, (f"test/{rank}.0",))], [rank])


def test_without_a_majority_nobody_is_named() -> None:
    assert differences(2, 1) == ([ChecksumsDiffer(Epoch(1, 1), 4, ())], [])


def test_equal_replicas_are_not_reported() -> None:
    assert differences(3, None) == ([], [])
