"""What `job.train` refuses, in one clear line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from worker.recipes import line, loss_of

from unicorn_mgr.messages import Attached, Axis, Fact, Mistake, Raised
from unicorn_mgr.ring import SIZE_BYTES, RingWriter
from unicorn_mgr.worker.attach import Job, attach
from unicorn_mgr.worker.checks import LoopError, SettingError, check_model, check_split
from unicorn_mgr.worker.training import Training


def train(model: nn.Module, optimizer: Any = None, micro_batches: int = 2, **settings: Any) -> Training:
    return attach().train(model, optimizer or torch.optim.SGD([torch.zeros(1)], lr=0.1), micro_batches, **settings)


def frozen() -> Training:
    return train(line().requires_grad_(requires_grad=False))


def stranger() -> Training:
    model, other = line(), line()
    return train(model, torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))


def lazy() -> Training:
    return train(nn.LazyLinear(1))


def sparse_parameter() -> Training:
    model = nn.Module()
    model.table = nn.Parameter(torch.eye(3).to_sparse())
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def sparse_adam() -> Training:
    model = nn.Embedding(3, 2, sparse=True)
    return train(model, torch.optim.SparseAdam(model.parameters()))


def on_meta() -> Training:
    model = nn.Linear(2, 1, device="meta")
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def twice() -> Training:
    job, model = attach(), line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.train(model, optimizer, 1)
    return job.train(model, optimizer, 1)


def with_setting(name: str, value: Any) -> Callable[[], Training]:
    model = line()
    return lambda: train(model, torch.optim.SGD(model.parameters(), lr=0.1), **{name: value})


REFUSED: dict[str, tuple[Callable[[], Training], str]] = {
    "nothing to train": (frozen, "model: it has no parameter that requires a gradient"),
    "a stranger": (
        stranger,
        "optimizer: it has a parameter of shape (1, 2) that is not the model's; its gradient would not be shared",
    ),
    "lazy": (lazy, "model: weight has no shape yet: run the model once before job.train"),
    "sparse": (sparse_parameter, "model: table has layout torch.sparse_coo: want a dense parameter"),
    "SparseAdam": (sparse_adam, "optimizer: SparseAdam wants sparse gradients, and they are summed dense: use Adam"),
    "meta": (on_meta, "model: weight is on device meta: give it memory before job.train"),
    "twice": (twice, "train: this job has a training loop already"),
    "no micro-batches": (with_setting("micro_batches", 0), "train: micro_batches: 0: want a whole number, at least 1"),
    "half micro-batches": (with_setting("micro_batches", 1.5), "train: micro_batches: 1.5: want a whole number"),
    "true": (with_setting("verify_every", True), "train: verify_every: True: want a whole number, at least 0"),
    "seed": (with_setting("seed", "x"), "train: seed: 'x': want a whole number"),
    "metric twice": (with_setting("metrics", ["a", "a"]), "train: metrics: a: named twice"),
    "metric loss": (with_setting("metrics", ["loss"]), "train: metrics: loss: this name is taken"),
    "metric weight": (with_setting("metrics", ["weight"]), "train: metrics: weight: this name is taken"),
    "metrics as text": (with_setting("metrics", "loss"), "train: metrics: 'loss': want a list of names"),
    "state": (with_setting("state", {"x": 3}), "train: state: x: an int has no state_dict and load_state_dict"),
    "no optimizer": (lambda: train(line(), [3]), "train: optimizer: an int is none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_setting_is_refused_in_one_line(name: str) -> None:
    act, said = REFUSED[name]
    with pytest.raises(ValueError) as refused:
        act()
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (
            SettingError("train: seed: 'x': want a whole number"),
            Mistake,
            "script: train: seed: 'x': want a whole number",
        ),
        (ValueError("planted"), Raised, "planted"),
        (LoopError("step 3: begin() before end()"), Raised, "step 3: begin() before end()"),
    ],
)
def test_what_no_restart_can_cure_is_told_as_a_mistake(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: type[Mistake | Raised], said: str
) -> None:
    told: list[Fact] = []
    job = attach()
    monkeypatch.setattr(job._membership, "tell", told.append)

    def script() -> None:
        with job:
            raise failure

    with pytest.raises(type(failure)):
        script()
    (fact,) = told
    assert type(fact) is kind
    assert said == (str(fact) if isinstance(fact, Mistake) else getattr(fact, "message", ""))


def test_a_parameter_that_is_unfrozen_later_is_refused() -> None:
    """It has no place in the buckets: every worker would step with a gradient of its own."""
    model = nn.Sequential(line(), line())
    model[0].requires_grad_(requires_grad=False)
    training = attach().train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)

    def two_steps() -> None:
        for step in training.steps(2):
            for number in step.micro_batches():
                step.backward(loss_of(model[0], number) + loss_of(model[1], number))
            model[0].requires_grad_(requires_grad=True)

    with pytest.raises(LoopError) as refused:
        two_steps()
    assert str(refused.value).startswith(
        "0.weight began to require a gradient after job.train: let it require one there, and freeze it afterwards"
    )


def test_a_parameter_may_be_frozen_for_a_while() -> None:
    model = nn.Sequential(line(), line())
    training = attach().train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    gradients = []
    for step in training.steps(3):
        model[0].requires_grad_(requires_grad=step.number != 1)
        for number in step.micro_batches():
            step.backward(loss_of(model[0], number) + loss_of(model[1], number))
        gradients.append(model[0].weight.grad is not None)
    assert gradients == [True, False, True]


def test_a_parameter_that_the_workers_of_a_replica_would_train_apart_is_refused() -> None:
    with pytest.raises(
        SettingError, match="model: weight is not split over the 2 workers along shard: call fully_shard"
    ):
        check_split(line(), {"shard": 2})
    check_split(line(), {"tensor": 2})
    check_split(line(), {})


def test_a_stage_without_parameters_is_one_clear_line() -> None:
    with pytest.raises(SettingError) as raised:
        check_model(nn.Identity(), [], stages=8)
    assert str(raised.value) == (
        "model: it has no parameter that requires a gradient: a pipeline of 8 is too long, choose a shorter one with "
        "--replica"
    )


def test_heads_that_cannot_be_shared_evenly_are_one_clear_line() -> None:
    job = Job(None, RingWriter(bytearray(SIZE_BYTES)), Attached("test", replica=(Axis("shard", 2), Axis("tensor", 4))))
    assert job.per_worker(12, "tensor") == 3
    assert job.per_worker(7, "pipeline") == 7
    assert attach().per_worker(7, "tensor") == 7
    with pytest.raises(SettingError) as raised:
        job.per_worker(6, "tensor")
    assert str(raised.value) == (
        "per_worker: 6 can't be shared evenly by 4 workers along tensor: choose --replica tensor= one of 1, 2, 3, 6"
    )
