"""What a pipeline is refused, each in one clear line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleGPipe
from worker.test_pipeline import Bench, batch_of, model

from unicorn_mgr.worker.attach import attach
from unicorn_mgr.worker.checks import LoopError, SettingError
from unicorn_mgr.worker.membership import Alone
from unicorn_mgr.worker.mesh import Inside
from unicorn_mgr.worker.pipeline import Pipeline
from unicorn_mgr.worker.siblings import place_of
from unicorn_mgr.worker.training import Step

pytestmark = pytest.mark.usefixtures("world_of_one")


def begun(size: int = 2) -> tuple[Bench, Step]:
    bench = Bench(attach(), size=size)
    step = bench.training.begin(1)
    assert step is not None
    return bench, step


def one_at_a_time() -> None:
    next(iter(begun()[1].micro_batches()))


def no_stages() -> None:
    parts = model()
    step = attach().train(parts, torch.optim.SGD(parts.parameters(), lr=0.1), 2).begin(1)
    assert step is not None
    next(iter(step.shares(2)))


def of_size(size: Any) -> None:
    next(iter(begun()[1].shares(size)))


def another_number(size: int) -> None:
    bench, step = begun()
    for share in step.shares(size):
        bench.run(step, share)


def no_loss_function() -> None:
    whole = nn.Sequential(*model())
    stage = PipelineStage(whole, 0, 1, torch.device("cpu"))
    step = attach().train(whole, torch.optim.SGD(whole.parameters(), lr=0.1), 2, stages=stage).begin(1)
    assert step is not None
    for share in step.shares(2):
        ScheduleGPipe(stage, 2).step(torch.cat([batch_of(0, n) for n in share.numbers]))


def outside() -> None:
    x = torch.cat([batch_of(0, 0), batch_of(0, 1)])
    begun()[0].schedule.step(x, target=x)


def left_out() -> None:
    for _ in begun()[1].shares(2):
        pass


def broken_off() -> None:
    bench, step = begun()
    for share in step.shares(2):
        bench.run(step, share)
        break
    bench.training.end(step)


def gone_on_after_an_exception() -> None:
    bench, step = begun()
    next(iter(step.shares(2)))
    with pytest.raises(RuntimeError):
        bench.schedule.step(batch_of(0, 0)[:2, :1])
    next(iter(step.shares(2)))


def weighed(weights: list[float], **metrics: list[float]) -> None:
    bench, step = begun()
    for share in step.shares(2):
        bench.run(step, share)
        share.weigh(weights, **metrics)


MISMATCH = (
    "step 0: a share of {} micro-batches was not what the schedule has run: make it with loss_fn= and "
    "n_microbatches={}, and call its step() once with each share"
)

WRONG: dict[str, tuple[Callable[[], None], str]] = {
    "micro_batches": (
        one_at_a_time,
        (
            "step 0: micro-batches one by one, but this job's model is a pipeline, which takes several at once: loop "
            "over step.shares(size) and call the schedule's step() with each"
        ),
    ),
    "no stages": (
        no_stages,
        "shares: job.train was given no stages=; without a pipeline loop over step.micro_batches()",
    ),
    "none at once": (partial(of_size, 0), "shares: 0: want as many as the schedule's n_microbatches"),
    "half at once": (partial(of_size, 1.5), "shares: 1.5: want as many as the schedule's n_microbatches"),
    "too many for the schedule": (partial(another_number, 3), MISMATCH.format(3, 3)),
    "too few for the schedule": (partial(another_number, 1), MISMATCH.format(1, 1)),
    "no loss function": (no_loss_function, MISMATCH.format(2, 2)),
    "not run": (left_out, MISMATCH.format(2, 2)),
    "outside of shares": (outside, "a schedule's step() outside of step.shares(): to evaluate, call its eval()"),
    "left early": (
        broken_off,
        "the share with micro-batches (0, 1) in step 0 was left before its end; this worker can't go on",
    ),
    "after an exception": (
        gone_on_after_an_exception,
        "the share with micro-batches (0, 1) in step 0 was left before its end; this worker can't go on",
    ),
    "weights": (partial(weighed, [1.0]), "weigh: weights: 1 values for 2 micro-batches"),
    "infinite": (partial(weighed, [1.0, float("inf")], told=[0, 0]), "weight: inf: want a finite number, not below 0"),
    "metrics": (
        partial(weighed, [1.0, 1.0], other=[0, 0]),
        "metrics: share.weigh got ['other'], job.train(metrics=...) said ['told']",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_each_mistake_is_one_clear_line(case: str) -> None:
    act, message = WRONG[case]
    with pytest.raises(LoopError) as raised:
        act()
    assert str(raised.value) == message


def train(stages: Any, parts: nn.Module) -> None:
    attach().train(parts, torch.optim.SGD(parts.parameters(), lr=0.1), 2, stages=stages)


def stage(of: nn.Module, count: int) -> PipelineStage:
    return PipelineStage(of, 0, count, torch.device("cpu"))


REFUSED: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "no stage": (lambda parts: train(parts, parts), "train: stages: a Linear: want a torch PipelineStage"),
    "too many": (
        lambda parts: train(stage(parts, 3), parts),
        (
            "train: stages: 3 in all and 1 of them here, where a replica has 1 workers along its pipeline: cut the "
            "model into 1, or run it with a pipeline of 3"
        ),
    ),
    "a stranger's": (
        lambda parts: train(stage(nn.Linear(1, 1), 1), parts),
        (
            "train: stages: stage 0 has parameters that are not the model's; their gradients would not be shared: make "
            "it part of the model"
        ),
    ),
    "none": (
        lambda parts: Pipeline([], parts, place_of({"pipeline": 2}, 1)),
        (
            "train: stages: replicas of this job are pipelines of 2 workers: give what this one computes, "
            "stages=PipelineStage(...)"
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stages_that_are_not_those_of_this_worker_are_refused(case: str) -> None:
    act, message = REFUSED[case]
    with pytest.raises(SettingError) as raised:
        act(nn.Linear(1, 1))
    assert str(raised.value) == message


def test_a_mesh_that_does_not_exist_is_one_clear_line() -> None:
    inside = Inside({"pipeline": 1, "shard": 1}, 0, Alone())
    assert inside.mesh(["pipeline"]).mesh_dim_names == ("pipeline",)
    assert inside.mesh([]).mesh_dim_names == ("pipeline", "shard")
    with pytest.raises(SettingError) as raised:
        inside.mesh(["pipeline", "width"])
    assert str(raised.value) == (
        "replica_mesh: width: a replica of this job has pipeline, shard: name one of these, or add it to --replica"
    )


def test_axes_are_named_in_their_order() -> None:
    """As torch wants it of its meshes; the workers along the last one are closest."""
    inside = Inside({"pipeline": 1, "shard": 1, "tensor": 1}, 0, Alone())
    for right in (["pipeline", "shard"], ["pipeline", "tensor"], ["shard"]):
        assert inside.mesh(right).mesh_dim_names == tuple(right)
    for wrong in (["shard", "pipeline"], ["shard", "pipeline", "shard"]):
        with pytest.raises(SettingError) as raised:
            inside.mesh(wrong)
        assert str(raised.value) == f"replica_mesh: {', '.join(wrong)}: name axes in their order, pipeline, shard"
