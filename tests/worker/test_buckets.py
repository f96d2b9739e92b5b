"""Buckets: every parameter in one, one dtype each; the tail: exact to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unicorn_mgr.worker.buckets import Bucket, GradientStore, layout
from unicorn_mgr.worker.tail import Tail

DTYPES = [torch.float64, torch.float32, torch.bfloat16]

_parameters = st.lists(
    st.builds(lambda n, dtype: nn.Parameter(torch.zeros(n, dtype=dtype)), st.integers(0, 40), st.sampled_from(DTYPES)),
    min_size=1,
    max_size=30,
)


@given(_parameters, st.integers(1, 300), st.integers(1, 300))
def test_every_parameter_is_in_one_bucket(parameters: list[nn.Parameter], first_bytes: int, bucket_bytes: int) -> None:
    first_bytes = min(first_bytes, bucket_bytes)
    plan = layout(parameters, first_bytes, bucket_bytes)
    assert sorted(i for members in plan for i in members) == list(range(len(parameters)))
    for b, members in enumerate(plan):
        assert members == sorted(members, reverse=True)
        assert len({parameters[i].dtype for i in members}) == 1
        sizes = [parameters[i].numel() * parameters[i].element_size() for i in members]
        assert len([s for s in sizes if s]) <= 1 or sum(sizes) <= (first_bytes if b == 0 else bucket_bytes)


@given(_parameters)
def test_one_large_bucket_a_dtype(parameters: list[nn.Parameter]) -> None:
    assert len(layout(parameters, 1 << 20, 1 << 20)) == len({p.dtype for p in parameters})


@pytest.mark.parametrize(("count", "buckets"), [(2, 1), (3, 2)])
def test_a_model_that_fits_into_one_bucket_is_not_parted(count: int, buckets: int) -> None:
    """A larger one begins with a small bucket, which is reduced early."""
    megabyte = 1 << 18
    store = GradientStore([nn.Parameter(torch.zeros(megabyte)) for _ in range(count)], bucket_bytes=2 << 20)
    assert len(store.buckets) == buckets
    assert store.buckets[0].local.numel() == (2 * megabyte if buckets == 1 else megabyte)
    store.close()


@given(_parameters, st.integers(1, 300))
def test_views_do_not_overlap(parameters: list[nn.Parameter], bucket_bytes: int) -> None:
    store = GradientStore(parameters, bucket_bytes)
    store.open()
    for i, p in enumerate(parameters):
        assert p.grad is not None
        p.grad.fill_(i % 100 + 1)
    for i, p in enumerate(parameters):
        assert p.grad is not None
        assert p.grad.eq(i % 100 + 1).all()
    assert sum(b.local.numel() for b in store.buckets) == sum(p.numel() for p in parameters)
    store.close()


class _Operation:
    def __init__(self) -> None:
        self.done = False
        self.error = ""


class _Group:
    size = 2

    def __init__(self) -> None:
        self.operations: list[_Operation] = []

    def all_reduce(self, tensor: torch.Tensor) -> _Operation:
        self.operations.append(_Operation())
        return self.operations[-1]

    def bury(self) -> None:
        """Nothing is open."""


def launched() -> tuple[Bucket, _Operation]:
    group, bucket = _Group(), Bucket(torch.ones(3))
    bucket.load()
    bucket.launch(group)
    return bucket, group.operations[0]


def test_a_bucket_is_complete_when_its_operation_has_ended_well() -> None:
    bucket, operation = launched()
    assert not bucket.settle()
    operation.done = True
    assert bucket.settle()
    assert bucket.complete


@pytest.mark.parametrize("done", [True, False])
def test_what_an_abandoned_operation_may_still_write_to_is_left_to_it(done: bool) -> None:
    bucket, operation = launched()
    operation.done, operation.error = done, "the peer has gone" if done else ""
    torn = bucket.reduced
    bucket.abandon()
    torn.fill_(99)
    assert not bucket.complete
    assert not bucket.settle()
    assert bucket.local.tolist() == [1, 1, 1]
    bucket.load()
    bucket.launch(_Group())
    assert bucket.reduced.tolist() == [1, 1, 1]


def test_what_was_complete_before_it_was_abandoned_counts() -> None:
    bucket, operation = launched()
    operation.done = True
    kept = bucket.reduced
    bucket.abandon()
    assert bucket.complete
    assert bucket.reduced is kept


def test_a_sum_is_kept_until_the_next_launch_of_its_bucket() -> None:
    bucket, operation = launched()
    operation.done = True
    bucket.settle()
    bucket.close()
    assert (bucket.kept, bucket.complete) == (True, False)
    bucket.open()
    assert bucket.kept
    bucket.load()
    bucket.launch(_Group())
    assert not bucket.kept


# -- the tail -------------------------------------------------------------------------------


def summed(tails: list[Tail]) -> Tail:
    """The first tail, complete over all."""
    tails[0].bucket.reduced.copy_(torch.stack([t.bucket.local for t in tails]).sum(dim=0))
    return tails[0]


def tail(seats: int = 3, parameters: int = 4) -> Tail:
    made = Tail(("accuracy",), parameters, seats, torch.device("cpu"))
    made.bucket.open()
    return made


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=3, max_size=3))
def test_checksums_of_all_seats_arrive_exactly(checksums: list[int]) -> None:
    tails = [tail() for _ in checksums]
    for seat, (made, checksum) in enumerate(zip(tails, checksums, strict=True)):
        made.seal([False] * 4, stop=False)
        made.put_checksum(seat, checksum)
    assert summed(tails).totals().checksums == dict(enumerate(checksums))


def test_a_seat_that_says_nothing_has_no_checksum() -> None:
    tails = [tail() for _ in range(3)]
    tails[2].put_checksum(2, 0)
    assert summed(tails).totals().checksums == {2: 0}


def test_totals_are_over_all_members() -> None:
    one, other = tail(), tail()
    one.add(torch.tensor(6.0), 2.0, {"accuracy": 0.5})
    one.add(torch.tensor([4.0]), 2.0, {"accuracy": torch.tensor([1.0])})
    other.add(torch.tensor(8.0), 4.0, {"accuracy": 0.25})
    one.seal([True, False, False, True], stop=False)
    other.seal([True, True, False, False], stop=True)
    totals = summed([one, other]).totals()
    assert (totals.weight, totals.count, totals.stop) == (8.0, 3, True)
    assert totals.metrics == {"loss": 18 / 8, "accuracy": (2 * 0.5 + 2 * 1.0 + 4 * 0.25) / 8}
    assert totals.used == (True, True, False, True)
    assert totals.checksums == {}


def test_sealing_twice_counts_once() -> None:
    made = tail()
    made.add(torch.tensor(1.0), 1.0, {"accuracy": 1.0})
    for _ in range(2):
        made.seal([True] * 4, stop=True)
        made.put_checksum(0, 5)
    totals = summed([made]).totals()
    assert totals.used == (True,) * 4
    assert totals.checksums == {0: 5}


def test_a_worker_with_smaller_parts_has_as_many_buckets_as_its_siblings() -> None:
    store = GradientStore(list(torch.nn.Linear(3, 2).parameters()))
    store.fill_up(3)
    assert [b.local.numel() for b in store.buckets] == [8, 0, 0]
    store.open()
    store.expect(last=True)
    assert store.head() == 0
