"""Pipelines: a share of micro-batches goes through the stages of torch.distributed.pipelining in one schedule.

The schedule is the user's and torch's own.  What has to be known of each micro-batch is learnt where a schedule
calls a stage, at the methods that torch names for those who write schedules: whose random state and buffers a
forward has, which loss belongs to which number, and which backward is the last, in which buckets may go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from unicorn_mgr.worker.checks import LoopError, SettingError, check_loss, check_weight
from unicorn_mgr.worker.engine import Engine
from unicorn_mgr.worker.shares import Turn
from unicorn_mgr.worker.siblings import Place

_CALLED = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk", "scale_grads")

Number = float | torch.Tensor


class Stage(Protocol):
    """What is used of a `torch.distributed.pipelining.PipelineStage`."""

    submod: torch.nn.Module
    stage_index: int
    num_stages: int

    @property
    def is_last(self) -> bool:
        """Its output is what the loss is of."""

    @property
    def has_backward(self) -> bool:
        """It trains; False while it is evaluated."""


class Share:
    """Micro-batches that a pipeline takes at once.  Made by `step.shares`."""

    def __init__(self, numbers: tuple[int, ...], counts: tuple[bool, ...], batches: list[Any]) -> None:
        self.numbers = numbers
        """In the order in which the schedule is to be given them; one that fills up comes again."""
        self.counts = counts
        """Of each whether it is this worker that counts it: with the last stage, once each."""
        self.batches = batches
        """Of each what the source has that `step.shares` was given."""
        self._weights: Sequence[Number] = [1.0] * len(numbers)
        self._metrics: dict[str, Sequence[Number]] = {}

    def weigh(self, weights: Sequence[Number], **metrics: Sequence[Number]) -> None:
        """What each of them weighs, 1 if this is not called, and its metrics: means over its weight.

        As `weight` and metrics of `step.backward`.  Only the worker with the last stage has to say it, before the
        next share.
        """
        for name, values in {"weights": weights, **metrics}.items():
            if len(values) != len(self.numbers):
                raise LoopError(f"weigh: {name}: {len(values)} values for {len(self.numbers)} micro-batches")
        self._weights, self._metrics = weights, metrics

    def told(self, chunk: int, names: Sequence[str]) -> tuple[float, dict[str, Number]]:
        """Weight and metrics of one of them.  Raises `LoopError` if they can't be counted."""
        metrics = {name: values[chunk] for name, values in self._metrics.items()}
        return check_weight(self._weights[chunk], metrics, names, "share.weigh"), metrics


class _Passage:
    """A share on its way through the stages of this worker."""

    def __init__(self, engine: Engine, stages: Sequence[Stage], batches: list[Any]) -> None:
        self._engine = engine
        self._opened = opened = engine.opened
        self._turns = opened.turns
        self.share = Share(
            tuple(turn.number for turn in opened.turns), tuple(opened.counts(turn) for turn in opened.turns), batches
        )
        self._left = {stage.stage_index: len(opened.turns) for stage in stages}
        """Of each stage how many have not been backward."""
        self._expected = False
        self._losses: dict[int, torch.Tensor] = {}

    @contextlib.contextmanager
    def forward(self, chunk: int, stage: int) -> Iterator[None]:
        """One goes forward through a stage."""
        turn = self._turn(chunk)
        self._opened.enter(turn, stage)
        self._engine.replica.buffers.lend()
        yield
        self._opened.note(turn)
        self.pause()

    def backward(self, chunk: int, loss: torch.Tensor | None) -> torch.Tensor | None:
        """One is about to go backward through a stage; returns the loss that it starts from, if it starts here."""
        turn = self._turn(chunk)
        self._opened.show(turn)
        self._engine.drills.reach("backward", self._engine.step)
        if loss is None:
            return None
        self._losses[chunk] = check_loss(loss).detach()
        return loss if turn.counts else loss * 0.0

    def expect(self, stage: int, hooked: bool) -> None:
        """The gradients of one in a stage are about to come; `hooked`: as autograd's own backward brings them."""
        if not hooked:
            self._engine.replica.gradients.detach()
        last = self._left[stage] == 1
        self._engine.expect_backward(last, anew=not self._expected)
        self._expected |= last
        self._left[stage] -= 1

    def pause(self) -> None:
        """A pass through a stage has returned: the schedule may have to wait for what another one makes of it."""
        if any(self._left.values()):
            self._opened.pause()

    def end(self) -> None:
        """The script has done with it: it is held, if all of it has run."""
        engine = self._engine
        if any(self._left.values()):
            raise self._mismatch()
        engine.replica.check_in_time()
        engine.replica.gradients.collect()
        tail = engine.replica.tail
        for chunk in (i for i, counted in enumerate(self.share.counts) if counted):
            weight, metrics = self.share.told(chunk, tail.names)
            tail.add(self._losses[chunk], weight, metrics)
        engine.broken = ""
        engine.hold()
        engine.drills.reach("computed", engine.step)

    def _turn(self, chunk: int) -> Turn:
        if chunk >= len(self._turns):
            raise self._mismatch()
        return self._turns[chunk]

    def _mismatch(self) -> LoopError:
        size = len(self._turns)
        return LoopError(
            f"step {self._engine.step}: a share of {size} micro-batches was not what the schedule has run: make it "
            f"with loss_fn= and n_microbatches={size}, and call its step() once with each share"
        )


class Pipeline:
    """The stages of this worker; none where the model is no pipeline."""

    def __init__(self, stages: Stage | Sequence[Stage], model: torch.nn.Module, place: Place) -> None:
        """Follow the stages from now on.  Raises `SettingError` if they are not those of this worker."""
        self.stages = list(stages) if isinstance(stages, Sequence) else [stages]
        self._place = place
        self._open: _Passage | None = None

        _check(self.stages, model, place)
        for stage in self.stages:
            self._follow(stage)

    @property
    def tells(self) -> bool:
        """This worker knows the losses, and is the one of those that do that tells them."""
        return self._place.speaks and (not self.stages or any(stage.is_last for stage in self.stages))

    def open(self, engine: Engine, batches: list[Any]) -> Share:
        """A share has been taken."""
        self._open = _Passage(engine, self.stages, batches)
        # Should the schedule raise, what has been accumulated can't be told apart any more.
        engine.broken = (
            f"the share with micro-batches {self._open.share.numbers} in step {engine.step} was left before its end"
        )
        return self._open.share

    def close(self) -> None:
        """The script wants the next one."""
        assert self._open is not None
        self._open.end()
        self._open = None

    def _present(self) -> _Passage:
        if self._open is None:
            raise LoopError("a schedule's step() outside of step.shares(): to evaluate, call its eval()")
        return self._open

    def _follow(self, stage: Any) -> None:
        forward, backward = stage.forward_one_chunk, stage.backward_one_chunk
        of_weights = stage.backward_weight_one_chunk

        def forward_one_chunk(chunk: int, *args: Any, **more: Any) -> Any:
            if not stage.has_backward:
                return forward(chunk, *args, **more)
            with self._present().forward(chunk, stage.stage_index):
                return forward(chunk, *args, **more)

        def backward_one_chunk(
            chunk: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
        ) -> None:
            if not stage.has_backward:
                return
            passage = self._present()
            loss = passage.backward(chunk, loss)
            if full_backward:
                passage.expect(stage.stage_index, hooked=stage.dw_builder is None)
            backward(chunk, loss=loss, full_backward=full_backward, last_backward=last_backward)
            passage.pause()

        def backward_weight_one_chunk(chunk: int, last_backward: bool = False) -> None:
            if not stage.has_backward:
                return
            passage = self._present()
            passage.backward(chunk, None)
            passage.expect(stage.stage_index, hooked=False)
            of_weights(chunk, last_backward=last_backward)
            passage.pause()

        stage.forward_one_chunk = forward_one_chunk
        stage.backward_one_chunk = backward_one_chunk
        stage.backward_weight_one_chunk = backward_weight_one_chunk
        # It is summed weights that the gradient of a step is divided by, not micro-batches of a schedule.
        stage.scale_grads = lambda _: None


def _check(stages: Sequence[Stage], model: torch.nn.Module, place: Place) -> None:
    if place.stages > 1 and not stages:
        raise SettingError(
            f"train: stages: replicas of this job are pipelines of {place.stages} workers: give what this one "
            "computes, stages=PipelineStage(...)"
        )
    known = {id(p) for p in model.parameters()}
    for stage in stages:
        if not all(hasattr(stage, name) for name in _CALLED):
            raise SettingError(f"train: stages: a {type(stage).__name__}: want a torch PipelineStage")
        if stage.num_stages != len(stages) * place.stages:
            raise SettingError(
                f"train: stages: {stage.num_stages} in all and {len(stages)} of them here, where a replica has "
                f"{place.stages} workers along its pipeline: cut the model into {len(stages) * place.stages}, or "
                f"run it with a pipeline of {stage.num_stages / len(stages):g}"
            )
        if any(id(p) not in known for p in stage.submod.parameters()):
            raise SettingError(
                f"train: stages: stage {stage.stage_index} has parameters that are not the model's; their gradients "
                "would not be shared: make it part of the model"
            )
