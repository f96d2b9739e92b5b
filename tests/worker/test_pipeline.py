"""Shares of a step for a pipeline: torch's own schedules, both stages in this process."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
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
from unicorn_mgr.worker.shares import Turn, next_share, turns
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

pytestmark = pytest.mark.usefixtures("world_of_one")


class Adapter(nn.Module):
    """As adapters begin: one factor is zero, and so is the gradient of the other, which counts all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(WIDTH, 1))
        self.up = nn.Parameter(torch.zeros(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + x @ self.down @ self.up


def model(dropout: float = 0.0) -> nn.ModuleList:
    """Two stages; each has buffers, the second a parameter that nothing uses."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.Dropout(dropout))
    second = nn.Sequential(
        nn.Tanh(), Adapter(), nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.Dropout(dropout)
    )
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
    assert launched == [(1, 5)] * 3, "those of the second stage before the one that nothing fills"


def test_a_stage_that_waits_is_told_from_one_that_computes() -> None:
    """By whoever looks for the culprit of a hang, or for the micro-batch that kills."""
    line = nn.Linear(WIDTH, WIDTH).double()
    whole = nn.Sequential(line)
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
    line.register_forward_hook(lambda *_: look("forward"))
    line.weight.register_hook(lambda _: look("backward"))
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
