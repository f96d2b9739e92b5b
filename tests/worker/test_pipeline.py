"""Shares of a step for a pipeline: torch's own schedules, both stages in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from worker.recipes import SEED, STEPS, difference
from worker.world import play

from unicorn_mgr.coordinator.triage import of_link, signature
from unicorn_mgr.model import Drill
from unicorn_mgr.phases import Phase
from unicorn_mgr.ring import SIZE_BYTES, RingWriter
from unicorn_mgr.worker.attach import Job, attach, raised_fact
from unicorn_mgr.worker.checks import LoopError, SettingError
from unicorn_mgr.worker.membership import Alone
from unicorn_mgr.worker.mesh import Inside
from unicorn_mgr.worker.pipeline import Pipeline
from unicorn_mgr.worker.shares import Turn, next_share, turns
from unicorn_mgr.worker.siblings import place_of
from unicorn_mgr.worker.training import Step, Training

MICRO_BATCHES, BATCH, WIDTH = 6, 3, 4
SCHEDULES = [
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    ScheduleDualPipeV,
]
"""All that take several stages of a worker."""

Tree = dict[str, Any]


@pytest.fixture(autouse=True, scope="module")
def _world_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Torch's stages want a process group, even where they send nothing."""
    place = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model(dropout: float = 0.0) -> nn.ModuleList:
    """Two stages; each has buffers, the second a parameter that nothing uses."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.Dropout(dropout))
    second = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.Dropout(dropout))
    second.register_parameter("unused", nn.Parameter(torch.ones(2)))
    return nn.ModuleList([first, second]).double()


def batch_of(step: int, number: int) -> Tensor:
    return torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + number))


def loss_fn(output: Tensor, wanted: Tensor) -> Tensor:
    return ((output - wanted) ** 2).sum()


def weight_of(number: int) -> float:
    return 1.0 + number


class Bench:
    """A model in two stages, and a loop that has begun."""

    def __init__(self, job: Job, dropout: float = 0.0, schedule: Any = ScheduleInterleaved1F1B, size: int = 2) -> None:
        self.model = model(dropout)
        self.stages = [PipelineStage(part, i, 2, torch.device("cpu")) for i, part in enumerate(self.model)]
        self.schedule = schedule(self.stages, size, loss_fn=loss_fn)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.size = size
        self.training: Training = job.train(
            self.model,
            self.optimizer,
            MICRO_BATCHES,
            stages=self.stages,
            metrics=["told"],
            seed=SEED,
            bucket_bytes=64,
        )

    def run(self, step: Step, share: Any) -> None:
        whole = torch.cat([batch_of(step.number, n) for n in share.numbers])
        self.schedule.step(whole, target=whole)
        share.weigh([weight_of(n) for n in share.numbers], told=[10.0 * n for n in share.numbers])

    def whole(self) -> Tree:
        metrics = []
        for step in self.training.steps(STEPS):
            for share in step.shares(self.size):
                self.run(step, share)
            step.clip_grad_norm(1.0)
            self.optimizer.step()
            metrics.append(dict(step.metrics))
            self.optimizer.zero_grad()
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "metrics": metrics}


def with_shares(job: Job, **settings: Any) -> Tree:
    with job:
        return Bench(job, **settings).whole()


def one_by_one(job: Job) -> Tree:
    """The same model without a pipeline."""
    parts = model()
    optimizer = torch.optim.AdamW(parts.parameters(), lr=0.1)
    training = job.train(parts, optimizer, MICRO_BATCHES, metrics=["told"], seed=SEED)
    metrics = []
    for step in training.steps(STEPS):
        for number in step.micro_batches():
            x = batch_of(step.number, number)
            step.backward(loss_fn(parts[1](parts[0](x)), x), weight=weight_of(number), told=10.0 * number)
        step.clip_grad_norm(1.0)
        optimizer.step()
        metrics.append(dict(step.metrics))
        optimizer.zero_grad()
    return {"model": parts.state_dict(), "optimizer": optimizer.state_dict(), "metrics": metrics}


# -- the numbers of a share -----------------------------------------------------------------


def test_a_share_that_lacks_some_is_filled_up_without_weight() -> None:
    todo = turns([4, 7, 9])
    assert next_share(todo, 2) == (Turn(4, (4,)), Turn(7, (7,)))
    assert next_share(todo, 2) == (Turn(9, (9,)), Turn(9, (), counts=False))
    assert not todo


def test_along_a_data_axis_a_share_takes_whole_rounds() -> None:
    """The workers of all stages have the same shares of rounds, and each round is held once."""
    numbers = [0, 3, 6, 9, 12]
    shares = [next_share(turns(numbers, 2, coordinate), 4) for coordinate in range(2)]
    assert [[turn.number for turn in share] for share in shares] == [[0, 6, 12, 0], [3, 9, 12, 3]]
    assert [[turn.counts for turn in share] for share in shares] == [
        [True, True, True, False],
        [True, True, False, False],
    ]
    assert [n for turn in shares[1] for n in turn.round] == numbers


# -- exactness ------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("members", "size"), [(1, 2), (1, 4), (2, 2), (3, 4)])
def test_shares_come_to_what_micro_batches_do(members: int, size: int, schedule: Any) -> None:
    """Whatever torch's schedule divides gradients by, its own first pass over the model, and buffers."""
    (plain,) = play(1, one_by_one).results.values()
    for found in play(members, partial(with_shares, schedule=schedule, size=size)).results.values():
        assert difference(found, plain) < 1e-12


@pytest.mark.parametrize("place", ["compute", "backward", "computed", "before_reduce", "in_reduce", "reduced"])
def test_micro_batches_of_a_lost_replica_are_shares_of_the_others(place: str) -> None:
    (plain,) = play(1, one_by_one).results.values()
    played = play(3, with_shares, drills={1: [Drill("exception", 2, place)]})
    assert len(played.results) == 2
    for found in played.results.values():
        assert difference(found, plain) < 1e-12


def test_random_state_belongs_to_number_and_stage() -> None:
    """Whatever the shares, and whoever computes them."""
    (alone,) = play(1, partial(with_shares, dropout=0.5, size=6)).results.values()
    lost = play(2, partial(with_shares, dropout=0.5, size=2), drills={1: [Drill("exception", 2, "compute")]})
    for found in lost.results.values():
        assert difference(found, alone) < 1e-12
    (other,) = play(1, one_by_one).results.values()
    assert difference(other["model"], alone["model"]) > 1e-3


def test_buckets_are_reduced_while_the_last_backward_of_their_stage_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(attach())
    engine = bench.training._engine
    launch = engine._launch
    running: list[tuple[int, int]] = []
    launched: list[tuple[int, int]] = []

    def follow(stage: Any) -> None:
        backward = stage.backward_one_chunk

        def run(chunk: int, **more: Any) -> None:
            running.append((stage.stage_index, len(engine._held) + chunk))
            backward(chunk, **more)
            running.clear()

        monkeypatch.setattr(stage, "backward_one_chunk", run)

    def note(bucket: Any) -> None:
        launched.extend(running if bucket.operation is None and not bucket.complete else [])
        launch(bucket)

    for stage in bench.stages:
        follow(stage)
    monkeypatch.setattr(engine, "_launch", note)
    step = bench.training.begin(1)
    assert step is not None
    for share in step.shares(2):
        bench.run(step, share)
    assert launched == [(1, 5)] * 2, "those of the second stage before the one that nothing fills"


def test_a_stage_that_waits_is_told_from_one_that_computes() -> None:
    """By whoever looks for the culprit of a hang, or for the micro-batch that kills."""
    whole = nn.Sequential(nn.Linear(WIDTH, WIDTH).double())
    seen: list[tuple[str, Phase, int]] = []

    def look(place: str) -> None:
        seen.append((place, ring.phase, ring.micro_batch))

    def loss_of(output: Tensor, wanted: Tensor) -> Tensor:
        look("between")
        return loss_fn(output, wanted)

    stage = PipelineStage(whole, 0, 1, torch.device("cpu"), input_args=batch_of(0, 0), output_args=batch_of(0, 0))
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of)
    training = attach().train(whole, torch.optim.SGD(whole.parameters(), lr=0.1), 2, stages=stage)
    ring = training._engine.ring
    whole[0].register_forward_hook(lambda *_: look("forward"))
    next(whole[0].parameters()).register_hook(lambda _: look("backward"))
    step = training.begin(1)
    assert step is not None
    for share in step.shares(2):
        x = torch.cat([batch_of(0, n) for n in share.numbers])
        schedule.step(x, target=x)
        look("after")
    assert seen == [
        ("forward", Phase.COMPUTE, 0),
        ("between", Phase.STAGE, 0),
        ("forward", Phase.COMPUTE, 1),
        ("between", Phase.STAGE, 1),
        ("backward", Phase.COMPUTE, 0),
        ("backward", Phase.COMPUTE, 1),
        ("after", Phase.COMPUTE, 1),
    ]


def test_batches_of_a_source_come_with_their_numbers() -> None:
    class Numbers:
        def expect(self, *_: Any) -> None:
            pass

        def batch(self, step: int, number: int) -> Tensor:
            return batch_of(step, number)

    bench = Bench(attach(), size=4)
    step = bench.training.begin(1)
    assert step is not None
    taken = []
    for share in step.shares(4, Numbers()):
        assert all(torch.equal(b, batch_of(0, n)) for b, n in zip(share.batches, share.numbers, strict=True))
        taken.append((share.numbers, share.counts))
        bench.run(step, share)
    assert taken == [((0, 1, 2, 3), (True,) * 4), ((4, 5, 4, 4), (True, True, False, False))]


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_a_stage_is_evaluated_between_steps(schedule: Any) -> None:
    """By the schedule's own eval(), which leaves nothing behind."""
    whole = nn.Sequential(*model())
    stage = PipelineStage(whole, 0, 1, torch.device("cpu"))
    made = schedule(stage, 2, loss_fn=loss_fn)
    training = attach().train(whole, torch.optim.SGD(whole.parameters(), lr=0.1), 3, stages=stage)
    losses = []
    for step in training.steps(3):
        for share in step.shares(2):
            x = torch.cat([batch_of(0, n) for n in share.numbers])
            made.step(x, target=x)
        training._engine.replica.state.optimizers[0].step()
        losses.append(step.metrics["loss"])
        before = {name: value.clone() for name, value in whole.state_dict().items()}
        whole.eval()
        made.eval(x, target=x)
        whole.train()
        assert difference(whole.state_dict(), before) == 0
    assert losses == sorted(losses, reverse=True)


class Breaks(nn.Module):
    """A model of which a device or a link breaks."""

    def forward(self, x: Tensor) -> Tensor:
        raise ConnectionResetError("Connection reset by peer")


def test_what_a_stage_raises_is_told_through_what_torch_makes_of_it() -> None:
    stage = PipelineStage(Breaks(), 0, 1, torch.device("cpu"), input_args=batch_of(0, 0), output_args=batch_of(0, 0))
    with pytest.raises(RuntimeError) as raised:
        ScheduleGPipe(stage, 1).step(batch_of(0, 0))
    fact = raised_fact(raised.value, raised.tb, RingWriter(bytearray(SIZE_BYTES)))
    assert fact.type == "RuntimeError"
    assert fact.message.endswith("; caused by ConnectionResetError: Connection reset by peer")
    assert signature(fact).endswith("in forward")
    assert of_link(fact), "it is not the program's fault"


# -- what is refused ------------------------------------------------------------------------


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
    inside = Inside({"shard": 1, "pipeline": 1}, 0, Alone())
    assert inside.mesh(["pipeline"]).mesh_dim_names == ("pipeline",)
    assert inside.mesh([]).mesh_dim_names == ("shard", "pipeline")
    with pytest.raises(SettingError) as raised:
        inside.mesh(["pipeline", "width"])
    assert str(raised.value) == (
        "replica_mesh: width: a replica of this job has shard, pipeline: name one of these, or add it to --replica"
    )


def test_meshes_come_in_the_order_in_which_they_are_named() -> None:
    inside = Inside({"shard": 1, "tensor": 1, "pipeline": 1}, 0, Alone())
    for names in (("shard", "pipeline"), ("pipeline", "shard"), ("pipeline", "tensor", "shard")):
        assert inside.mesh(names).mesh_dim_names == names
