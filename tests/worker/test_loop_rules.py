"""The loop as scripts write it: what is allowed, and one clear line for what is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from worker.recipes import line, loss_of
from worker.world import play

from unicorn_mgr.messages import Formed, GiveUp, Granted, Published, Resumed
from unicorn_mgr.model import Drill, Epoch
from unicorn_mgr.ring import SIZE_BYTES, RingWriter
from unicorn_mgr.worker.attach import Job, attach
from unicorn_mgr.worker.checks import LoopError
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.link import Link
from unicorn_mgr.worker.membership import Clustered, Membership
from unicorn_mgr.worker.training import Step

MICRO_BATCHES = 3


class Bench:
    """A loop that has begun, and what it trains."""

    def __init__(self, membership: Membership | None = None, **settings: Any) -> None:
        self.model = line()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.job = attach()
        self.job._membership = membership or self.job._membership
        self.training = self.job.train(self.model, self.optimizer, MICRO_BATCHES, **settings)

    def begin(self, count: int = 5) -> Step:
        step = self.training.begin(count)
        assert step is not None
        return step

    def loss(self, number: int = 0) -> torch.Tensor:
        return loss_of(self.model, number)

    def whole_step(self, count: int = 5) -> Step:
        step = self.begin(count)
        while (number := step.next()) is not None:
            step.backward(self.loss(number))
        self.optimizer.step()
        self.training.end(step)
        return step


# -- what is allowed ------------------------------------------------------------------------


def test_begin_next_backward_and_end_do_what_the_generators_do() -> None:
    by_hand = Bench()
    numbers: list[int] = []
    while (step := by_hand.training.begin(4)) is not None:
        while (number := step.next()) is not None:
            numbers.append(number)
            assert step.current == number
            assert not step.complete
            step.backward(by_hand.loss(number))
        assert step.complete
        by_hand.optimizer.step()
        by_hand.training.end(step)
    by_generators = Bench()
    for step in by_generators.training.steps(4):
        for number in step.micro_batches():
            step.backward(by_generators.loss(number))
        by_generators.optimizer.step()
    assert numbers == [0, 1, 2] * 4
    assert torch.equal(by_hand.model.weight, by_generators.model.weight)
    assert by_hand.training.ended
    assert by_generators.training.ended


def _metrics(job: Job) -> list[dict[str, float]]:
    """Four steps: the weight of a number is number + 1, its loss per weight 10 number, its metric 100 number + step."""
    model = line()
    training = job.train(model, torch.optim.SGD(model.parameters(), lr=0.0), MICRO_BATCHES, metrics=["told", "drawn"])
    found = []
    for step in training.steps(4):
        assert step.metrics == {}
        for number in step.micro_batches():
            told = torch.tensor([100.0 * number + step.number])
            weight = number + 1
            loss = loss_of(model, number) * 0 + 10.0 * number * weight
            step.backward(loss, weight=torch.tensor(weight), told=told, drawn=number)
        found.append(dict(step.metrics))
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_metrics_are_means_over_the_whole_batch(size: int) -> None:
    weights = [1, 2, 3]
    mean = sum(w * n for n, w in enumerate(weights)) / sum(weights)
    expected = [{"loss": 10 * mean, "told": 100 * mean + step, "drawn": mean} for step in range(4)]
    for found in play(size, _metrics).results.values():
        assert found == [pytest.approx(e) for e in expected]


@pytest.mark.parametrize("size", [1, 2])
def test_stop_ends_the_loop_everywhere_after_the_next_step(size: int) -> None:
    def script(job: Job) -> list[int]:
        model = line()
        training = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), MICRO_BATCHES)
        done = []
        for step in training.steps(1000):
            for number in step.micro_batches():
                step.backward(loss_of(model, number))
            done.append(step.number)
            if step.number == 2 and job.is_leader:
                training.stop()
        assert training.ended
        return done

    for done in play(size, script).results.values():
        assert done == [0, 1, 2, 3]


def test_a_skipped_micro_batch_has_no_weight() -> None:
    bench = Bench()
    step = bench.begin()
    while (number := step.next()) is not None:
        if number == 1:
            step.skip(number)
        else:
            step.backward(bench.loss(number))
    assert bench.model.weight.grad is not None
    assert bench.model.weight.grad.tolist() == [[(1 + 3) / 2, 2.0]]


@pytest.mark.parametrize("size", [1, 2])
def test_poison_is_computed_by_nobody_in_any_step_of_a_fresh_life(size: int) -> None:
    """No survivor: all begin anew, in the state before the first step, with an epoch that names the poison."""
    computed: set[tuple[int, int]] = set()

    def script(job: Job) -> None:
        model = line()
        training = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), MICRO_BATCHES)
        for step in training.steps(4):
            for number in step.micro_batches():
                computed.add((step.number, number))
                step.backward(loss_of(model, number))

    poison = frozenset({(0, 1), (2, 0), (3, 2)})
    play(size, script, poison=poison)
    assert computed == {(s, n) for s in range(4) for n in range(MICRO_BATCHES)} - poison


def test_only_what_a_lost_member_was_to_compute_counts_as_recomputed() -> None:
    """The survivors share anew what is left of the step, too; that is nobody's loss."""

    def script(job: Job) -> None:
        model = line()
        training = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), 9)
        for step in training.steps(3):
            for number in step.micro_batches():
                step.backward(loss_of(model, number))

    played = play(3, script, {1: [Drill("exception", 1, "compute")]})
    told = [f for facts in played.facts.values() for f in facts if isinstance(f, Resumed) and f.epoch.number == 2]
    assert len(told) == 2
    assert sorted(n for f in told for n in f.recomputed) == [1, 4, 7]


def test_a_step_of_skipped_micro_batches_changes_nothing() -> None:
    bench = Bench()
    before = bench.model.weight.clone()
    step = bench.begin()
    while (number := step.next()) is not None:
        step.skip(number)
    assert bench.model.weight.grad is None
    assert math.isnan(step.metrics["loss"])
    bench.optimizer.step()
    bench.training.end(step)
    assert torch.equal(bench.model.weight, before)
    assert bench.whole_step().number == 1


def test_a_loss_may_have_one_element_and_any_float_dtype() -> None:
    bench = Bench()
    step = bench.begin()
    step.next()
    step.backward(bench.loss().reshape(1, 1).to(torch.bfloat16))
    assert step.next() == 1


def test_leaving_the_loop_early_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    with bench.job:
        for step in bench.training.steps(5):
            for number in step.micro_batches():
                step.backward(bench.loss(number))
            break
    assert not bench.training.ended
    assert capsys.readouterr().err.splitlines() == [
        "unicorn: the training loop was left early; training.stop() ends it everywhere"
    ]


def test_no_steps_at_all() -> None:
    bench = Bench()
    assert list(bench.training.steps(0)) == []
    assert bench.training.ended


# -- what is not ----------------------------------------------------------------------------


def in_micro_batch(act: Callable[[Bench, Step], object]) -> Callable[[], object]:
    """Do something wrong in the first micro-batch."""

    def run() -> object:
        bench = Bench(metrics=["told"])
        step = bench.begin()
        step.next()
        return act(bench, step)

    return run


def with_backward(**arguments: Any) -> Callable[[], object]:
    return in_micro_batch(lambda bench, step: backward_with(bench, step, **arguments))


def backward_with(bench: Bench, step: Step, **arguments: Any) -> None:
    """As it should be, but for `arguments`."""
    right: dict[str, Any] = {"loss": bench.loss(), "told": 0.0}
    step.backward(**(right | arguments))


def two_backwards(bench: Bench, step: Step) -> None:
    step.backward(bench.loss(), told=0)
    step.backward(bench.loss(), told=0)


def backward_too_late(bench: Bench, step: Step) -> None:
    step.skip(0)
    step.backward(bench.loss(), told=0)


def backward_at_the_end() -> None:
    bench = Bench()
    step = bench.begin()
    while (number := step.next()) is not None:
        step.skip(number)
    step.backward(bench.loss())


def next_after_the_end() -> None:
    bench = Bench()
    step = bench.begin()
    while (number := step.next()) is not None:
        step.skip(number)
    step.next()


def break_out_of_the_micro_batches() -> None:
    bench = Bench()
    for step in bench.training.steps(5):
        for number in step.micro_batches():
            step.backward(bench.loss(number))
            break


def begin_twice() -> None:
    bench = Bench()
    bench.begin()
    bench.begin()


def end_twice() -> None:
    bench = Bench()
    bench.training.end(bench.whole_step())


def another_loop() -> None:
    bench = Bench()
    for _ in range(2):
        for step in bench.training.steps(1):
            for number in step.micro_batches():
                step.backward(bench.loss(number))


def unaddressable() -> None:
    bench = Bench()
    next(iter(bench.begin().micro_batches([torch.ones(2)])))


def no_current() -> None:
    _ = Bench().begin().current


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "next before backward": (
        in_micro_batch(lambda _, step: step.next()),
        "step 0: micro-batch 0 was neither given to step.backward() nor to step.skip()",
    ),
    "two backwards": (
        in_micro_batch(two_backwards),
        "step 0: a second backward in micro-batch 0, or one outside of any",
    ),
    "backward of a skipped one": (in_micro_batch(backward_too_late), "step 0: a second backward in micro-batch 0"),
    "backward outside": (backward_at_the_end, "step 0: a second backward in micro-batch None, or one outside of any"),
    "backward before next": (
        lambda: Bench().begin().backward(torch.ones(())),
        "step 0: a second backward in micro-batch None, or one outside of any",
    ),
    "next after the end": (next_after_the_end, "step 0: its micro-batches have ended"),
    "skipping another": (in_micro_batch(lambda _, s: s.skip(1)), "step 0: skip(1), but the open micro-batch is 0"),
    "no micro-batch": (no_current, "step 0: no micro-batch is open"),
    "break": (break_out_of_the_micro_batches, "step 0: its loop over micro-batches was left before the end"),
    "begin twice": (begin_twice, "step 0: begin() before end()"),
    "end twice": (end_twice, "step 0: end() of a step that is not open"),
    "another loop": (another_loop, "steps: the loop has ended; give the total number of steps to one loop"),
    "negative": (lambda: Bench().training.begin(-1), "steps: -1 is negative"),
    "source without numbers": (
        unaddressable,
        "micro_batches: a list can't be asked for a micro-batch by its number; use unicorn.Source(",
    ),
    "loss of several": (with_backward(loss=torch.ones(2)), "loss: it has shape (2,); want one number"),
    "loss of no tensor": (with_backward(loss=0.5), "loss: a float; want a tensor with one number"),
    "loss without a gradient": (
        with_backward(loss=torch.ones(())),
        "loss: it does not depend on any parameter that requires a gradient",
    ),
    "metric missing": (
        in_micro_batch(lambda bench, step: step.backward(bench.loss())),
        "metrics: step.backward got [], job.train(metrics=...) said ['told']",
    ),
    "metric of several": (with_backward(told=torch.ones(2)), "told: it has shape (2,); want one number"),
    "weight of several": (
        with_backward(weight=torch.ones(2)),
        "weight: it has shape (2,); want one number",
    ),
    "weight below zero": (with_backward(weight=-1), "weight: -1.0: want a finite number, not below 0"),
    "weight not a number": (with_backward(weight=math.nan), "weight: nan: want a finite number, not below 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_says_what_to_change_in_one_line(name: str) -> None:
    act, said = WRONG[name]
    with pytest.raises(LoopError) as refused:
        act()
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"loss": torch.ones(2)}, {"told": torch.ones(2)}, {"weight": -1}, {"more": 1}])
def test_a_refused_backward_has_changed_nothing(wrong: dict[str, Any]) -> None:
    bench = Bench(metrics=["told"])
    step = bench.begin()
    step.next()
    with pytest.raises(LoopError):
        backward_with(bench, step, **wrong)
    step.backward(bench.loss(), told=0)
    while (number := step.next()) is not None:
        step.backward(bench.loss(number), told=0)
    assert bench.model.weight.grad is not None
    assert bench.model.weight.grad.tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize("again", [Step.next, lambda step: step.skip(1)])
def test_a_refused_turn_has_changed_nothing(again: Callable[[Step], object]) -> None:
    bench = Bench()
    step = bench.begin()
    step.next()
    with pytest.raises(LoopError):
        again(step)
    assert step.current == 0
    step.backward(bench.loss())
    while (number := step.next()) is not None:
        step.backward(bench.loss(number))
    assert bench.model.weight.grad is not None
    assert bench.model.weight.grad.tolist() == [[2.0, 2.0]]


class _Explodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("backward explodes")


def test_after_a_backward_that_raised_this_worker_reduces_nothing() -> None:
    """The script may swallow the exception: what was accumulated can't be told apart any more."""
    bench = Bench()
    step = bench.begin()
    step.next()
    with pytest.raises(RuntimeError, match="backward explodes"):
        step.backward(_Explodes.apply(bench.loss()))  # type: ignore[no-untyped-call]  # torch's
    with pytest.raises(LoopError, match="backward of micro-batch 0 in step 0 raised; this worker can't go on"):
        step.next()


@pytest.mark.parametrize("save", [True, False])
def test_a_job_given_up_during_backward_is_stored_at_the_next_call(tmp_path: Path, save: bool) -> None:
    """Backward runs to its end: an exception in a hook of it would leave gradients torn."""
    link, epoch = Link(tmp_path / "agent", "test/0.0", ""), Epoch(1, 1)
    link._hear(Granted(epoch, ("test/0.0",)))
    link._hear(Formed(epoch, (Published(epoch, worker="test/0.0"),)))
    membership = Clustered(link, "127.0.0.1", RingWriter(bytearray(SIZE_BYTES)), Drills())
    bench = Bench(membership)
    stored: list[int] = []
    bench.training._checkpoints.rescue = lambda engine: stored.append(engine.applied)  # type: ignore[method-assign]  # stands in
    bench.training._entry.enter = lambda: None  # type: ignore[method-assign]  # stands in
    bench.whole_step()
    step = bench.begin()
    for _ in range(MICRO_BATCHES):
        number = step.next()
        assert number is not None
        loss = bench.loss(number)
        if number == MICRO_BATCHES - 1:
            link._hear(GiveUp("enough", save))
        step.backward(loss)
    with pytest.raises(SystemExit):
        step.next()
    assert stored == ([0] if save else [])
    membership.donor._listener.close()


def test_a_second_gradient_after_a_launch_is_noticed() -> None:
    class Again(torch.autograd.Function):
        """A backward inside backward, as some checkpointing does it."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                bench.loss().backward()
            return gradient

    bench = Bench()
    step = bench.begin()

    def all_micro_batches() -> None:
        while (number := step.next()) is not None:
            step.backward(Again.apply(bench.loss(number)))  # type: ignore[no-untyped-call]  # torch's

    with pytest.raises(LoopError, match=r"got a second gradient in one backward.*job.train\(overlap=False\)"):
        all_micro_batches()
