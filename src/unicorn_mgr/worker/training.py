"""The training loop as the user sees it: `begin / next / backward / end`, and generators on top."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, overload

import torch

from unicorn_mgr.messages import FreshStart, LoopEnded
from unicorn_mgr.phases import Phase
from unicorn_mgr.worker.checks import LoopError, check_backward
from unicorn_mgr.worker.engine import Engine
from unicorn_mgr.worker.loop import FreshStartNeeded
from unicorn_mgr.worker.membership import GivenUp
from unicorn_mgr.worker.mistake import MistakeError
from unicorn_mgr.worker.pipeline import Pipeline, Share
from unicorn_mgr.worker.shares import Turn
from unicorn_mgr.worker.source import Addressable, Endless


class Entry(Protocol):
    """How this worker comes to be a member."""

    @property
    def rehearsal_step(self) -> int | None:
        """The step to rehearse first, if others are training already."""

    def prepare(self, count: int) -> None:
        """The loop begins: everything that must be the same on all workers is known now."""

    def enter(self) -> None:
        """Stand at the head of the loop, ready; return when admitted."""


class Checkpoints(Protocol):
    """What happens to the state between steps."""

    def at_head(self, engine: Engine) -> None:
        """A step has been applied."""

    def at_end(self, engine: Engine) -> None:
        """The last step has been applied, everywhere."""

    def at_standstill(self, engine: Engine) -> None:
        """All members stand still after the step that is applied: store it, and wait for what comes next."""

    def rescue(self, engine: Engine) -> None:
        """The job is given up: save what is applied."""


EXIT_LEFT = 0
EXIT_MISTAKE = 2
EXIT_GIVEN_UP = 1
EXIT_FRESH_START = 75


@contextlib.contextmanager
def departing(engine: Engine, checkpoints: Checkpoints) -> Iterator[None]:
    """Ways out of the library that end the process, each with what has to be said first."""
    try:
        yield
    except GivenUp as why:
        if why.save:
            checkpoints.rescue(engine)
        sys.stderr.write(f"unicorn: the job is given up: {why}\n")
        raise SystemExit(EXIT_GIVEN_UP) from None
    except FreshStartNeeded:
        engine.membership.tell(FreshStart("it has no state, its initial one is spoilt, and nobody else has any"))
        raise SystemExit(EXIT_FRESH_START) from None
    except MistakeError as wrong:
        engine.membership.tell(wrong.mistake)
        sys.stderr.write(f"unicorn: {wrong}\n")
        raise SystemExit(EXIT_MISTAKE) from None


class Step:
    """One optimizer step, as long as its micro-batches run and until it is applied."""

    def __init__(self, engine: Engine, checkpoints: Checkpoints, pipeline: Pipeline, rehearsal: bool) -> None:
        self.number: int = engine.step
        """The step's number, from 0; the same on every worker."""
        self.rehearsal = rehearsal
        """A joiner's dry run: nothing that happens in it remains."""
        self.metrics: dict[str, float] = {}
        """Means over the whole batch, each micro-batch once; filled when the micro-batches end."""
        self._engine = engine
        self._checkpoints = checkpoints
        self._pipeline = pipeline
        self._current: int | None = None
        self._done = True
        self._over = False

    def next(self) -> int | None:
        """The next micro-batch for this worker, or None when the gradient of the step is complete.

        After a fault numbers may come that another worker has lost.
        """
        if self._pipeline.stages:
            raise LoopError(
                f"step {self.number}: micro-batches one by one, but this job's model is a pipeline, which takes "
                "several at once: loop over step.shares(size) and call the schedule's step() with each"
            )
        found = self._take(1)
        self._current = found[0].number if found else None
        if found:
            self._engine.expect_backward()
        return self._current

    def _take(self, size: int) -> tuple[Turn, ...]:
        engine = self._engine
        self.check_sound()
        if self._over:
            raise LoopError(f"step {self.number}: its micro-batches have ended")
        if not self._done:
            raise LoopError(
                f"step {self.number}: micro-batch {self._current} was neither given to step.backward() "
                "nor to step.skip()"
            )
        with departing(engine, self._checkpoints):
            found = engine.take_rehearsed(size) if self.rehearsal else engine.take(size)
        self._over, self._done = not found, not found
        if self._over:
            assert engine.totals is not None
            self.metrics.update(engine.totals.metrics)
        return found

    def backward(
        self,
        loss: torch.Tensor,
        weight: float | torch.Tensor = 1.0,
        *,
        scaler: torch.amp.GradScaler | None = None,
        **metrics: float | torch.Tensor,
    ) -> None:
        """Run backward for the present micro-batch and count it.

        The gradient of the step is the sum over micro-batches divided by the summed weights:
        leave `weight` at 1 for a loss that is a mean, or give a summed loss and its number of
        tokens.  `metrics` are means over the micro-batch, named in `job.train(metrics=...)`.
        """
        engine, number = self._engine, self._current
        if number is None or self._done:
            raise LoopError(f"step {self.number}: a second backward in micro-batch {number}, or one outside of any")
        loss, weighs = check_backward(loss, weight, metrics, engine.replica.tail.names)
        engine.drills.reach("backward", self.number)
        self._done = True  # if backward raises, what has been accumulated can't be told apart any more
        engine.broken = f"backward of micro-batch {number} in step {self.number} raised"
        if not engine.opened.turn.counts:
            loss = loss * 0.0
        (loss if scaler is None else scaler.scale(loss)).backward()
        engine.replica.check_in_time()
        if self.counts:
            engine.replica.tail.add(loss, weighs, metrics)
        engine.broken = ""
        engine.opened.note(engine.opened.turn)
        engine.hold()
        engine.drills.reach("computed", self.number)

    def skip(self, number: int) -> None:
        """Leave the present micro-batch out, with weight 0."""
        if number != self._current or self._done:
            raise LoopError(f"step {self.number}: skip({number}), but the open micro-batch is {self._current}")
        if self._engine.place.size > 1:
            raise LoopError(
                f"step {self.number}: skip({number}), but the other workers of this replica wait for its part: "
                "multiply its loss by 0 and give it weight 0 instead"
            )
        self._done = True
        self._engine.opened.note(self._engine.opened.turn)
        self._engine.hold()

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale the gradient down to a norm of at most `max_norm`; returns the norm that it had.

        As torch.nn.utils.clip_grad_norm_, over the whole model however it is split over workers: all of them
        call it, after the micro-batches.
        """
        if not self._over:
            raise LoopError(f"step {self.number}: clip_grad_norm() before its micro-batches have ended")
        if not 0 < norm_type < math.inf:
            raise LoopError(f"clip_grad_norm: norm_type: {norm_type}: want a finite number above 0")
        return self._engine.unison.clip(self._engine.replica.gradients.parameters, max_norm, norm_type)

    @overload
    def micro_batches(self, source: None = None) -> Iterator[int]: ...

    @overload
    def micro_batches(self, source: Addressable | Iterable[Any]) -> Iterator[Any]: ...

    def micro_batches(self, source: Addressable | Iterable[Any] | None = None) -> Iterator[Any]:
        """Yield this worker's micro-batches: numbers, or the batches of `source`.

        A source is asked by number, so that whoever computes a micro-batch gets its samples.
        With `job.train(exact=False)` any iterable will do: it is begun again when it ends,
        and what another worker has lost is made up for with other samples.
        """
        engine = self._engine
        if source is None:
            while (number := self.next()) is not None:
                yield number
            return
        addressed = self._addressed(source)
        addressed.expect(self.number, engine.upcoming(), engine.following(), engine.settings.micro_batches)
        while (number := self.next()) is not None:
            yield addressed.batch(self.number, number)

    def shares(self, size: int, source: Addressable | Iterable[Any] | None = None) -> Iterator[Share]:
        """Yield this replica's micro-batches `size` at once, as a pipeline takes them.

        With each the schedule's `step()` is called once, with `n_microbatches=size` micro-batches end to end in
        the order of `share.numbers`; `share.batches` has those of `source`.  A share that lacks some is filled up
        with others that do not count.  All workers of a replica get the same.
        """
        engine = self._engine
        if not self._pipeline.stages:
            raise LoopError("shares: job.train was given no stages=; without a pipeline loop over step.micro_batches()")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise LoopError(f"shares: {size!r}: want as many as the schedule's n_microbatches")
        addressed = None if source is None else self._addressed(source)
        if addressed is not None:
            addressed.expect(self.number, engine.upcoming(), engine.following(), engine.settings.micro_batches)
        while found := self._take(size):
            batches = {n: addressed.batch(self.number, n) for n in (t.number for t in found)} if addressed else {}
            share = self._pipeline.open(engine, [batches[t.number] for t in found] if addressed else [])
            yield share
            self._pipeline.close()
            self._done = True

    def _addressed(self, source: Addressable | Iterable[Any]) -> Addressable:
        if isinstance(source, Addressable):
            return source
        if self._engine.settings.exact:
            raise LoopError(
                f"micro_batches: a {type(source).__name__} can't be asked for a micro-batch by its number; use "
                "unicorn.Source(dataset, batch_size=...), or give up exactness with job.train(exact=False)"
            )
        endless = self._engine.endless.get(id(source))
        if endless is None:
            endless = self._engine.endless[id(source)] = Endless(source)
        return endless

    def check_sound(self) -> None:
        """Raise `LoopError` if a backward has raised here: nothing of this worker may be reduced any more."""
        if self._engine.broken:
            raise LoopError(f"{self._engine.broken}; this worker can't go on")

    @property
    def current(self) -> int:
        """The number of the open micro-batch."""
        if self._current is None:
            raise LoopError(f"step {self.number}: no micro-batch is open")
        return self._current

    @property
    def counts(self) -> bool:
        """False for a micro-batch that another worker of this replica computes, too: it only keeps step."""
        return self._engine.opened.counts(self._engine.opened.turn)

    @property
    def complete(self) -> bool:
        """The micro-batches have ended."""
        return self._over


class Training:
    """The loop of one job.  Made by `job.train`."""

    def __init__(self, engine: Engine, entry: Entry, checkpoints: Checkpoints, pipeline: Pipeline) -> None:
        self._engine = engine
        self._pipeline = pipeline
        self._entry = entry
        self._checkpoints = checkpoints
        engine.on_standing = lambda: checkpoints.at_standstill(engine)
        self._begun = False
        self._entered = False
        self._step: Step | None = None
        self._ended = False

    @property
    def ended(self) -> bool:
        """The loop has come to its end, on every worker after the same step."""
        return self._ended

    @property
    def entered(self) -> bool:
        """The loop has begun."""
        return self._begun

    def steps(self, count: int) -> Iterator[Step]:
        """Yield the steps that are left of `count`, from where the job is."""
        while (step := self.begin(count)) is not None:
            yield step
            self.end(step)

    def begin(self, count: int) -> Step | None:
        """The next step, or None when all `count` are done or somebody has asked to stop.

        None comes only after a closing collective: every worker has applied the last step.
        """
        engine = self._engine
        if self._ended:
            raise LoopError("steps: the loop has ended; give the total number of steps to one loop")
        if self._step is not None:
            raise LoopError(f"step {self._step.number}: begin() before end()")
        if count < 0:
            raise LoopError(f"steps: {count} is negative")
        engine.count = count
        if not self._begun:
            self._begun = True
            self._entry.prepare(count)
            if self._entry.rehearsal_step is not None:
                engine.rehearse(self._entry.rehearsal_step)
                self._step = Step(engine, self._checkpoints, self._pipeline, rehearsal=True)
                return self._step
        if not self._entered:
            self._entered = True
            with departing(engine, self._checkpoints):
                self._entry.enter()
        with departing(engine, self._checkpoints):
            if engine.leaves():
                raise SystemExit(EXIT_LEFT)
            if engine.head():
                self._checkpoints.at_head(engine)
                self._step = Step(engine, self._checkpoints, self._pipeline, rehearsal=False)
                return self._step
            self._ended = True
            engine.membership.tell(LoopEnded(engine.applied))
            self._checkpoints.at_end(engine)
        return None

    def end(self, step: Step) -> None:
        """The body of the loop has come to its end: the step is applied."""
        engine = self._engine
        if step is not self._step:
            raise LoopError(f"step {step.number}: end() of a step that is not open")
        step.check_sound()
        if not step.complete:
            raise LoopError(f"step {step.number}: its loop over micro-batches was left before the end")
        engine.finish()
        self._step = None
        engine.ring.write(Phase.USER)

    def stop(self) -> None:
        """End the loop on every worker, after the same step: the next one."""
        self._engine.votes_to_stop = True


def as_list(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> list[torch.optim.Optimizer]:
    """One optimizer or several."""
    return [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
