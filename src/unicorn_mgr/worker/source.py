"""Batches addressed by (step, micro-batch), so that whoever computes a number gets its samples.

`Source` maps numbers to samples of a dataset.  The samples of all micro-batches, laid end to
end, run through the dataset epoch after epoch, each epoch in an order of its own; a batch at
the end of an epoch goes on into the next, so every epoch has every sample once.  Whatever a
dataset draws at random is seeded from (seed, step, number) as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.checks import LoopError, SettingError, check_number

Key = tuple[int, int]


@runtime_checkable
class Addressable(Protocol):
    """What `step.micro_batches(source)` needs of a source."""

    def expect(self, step: int, numbers: Sequence[int], following: Sequence[int], micro_batches: int) -> None:
        """`numbers` of `step` will be asked for, then probably `following` of the next."""

    def batch(self, step: int, number: int) -> Any:
        """The batch of one micro-batch: a pure function of (seed, step, number)."""


class Source:
    """Micro-batches of a dataset that has a length and can be indexed.

    With `prefetch` batches are loaded ahead, by `workers` processes of torch's DataLoader;
    a number that comes unexpectedly after a fault is loaded on the spot.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        seed: int = 0,
        prefetch: int = 0,
        workers: int = 1,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        check_number("Source: batch_size", batch_size, 1)
        check_number("Source: seed", seed)
        check_number("Source: prefetch", prefetch, 0)
        check_number("Source: workers", workers, 1)
        has_numbers = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if isinstance(dataset, IterableDataset) or not has_numbers:
            raise SettingError(
                "Source: dataset: it has no length or no index, so its samples have no numbers; "
                "pass an iterable to micro_batches() with job.train(exact=False)"
            )
        if len(dataset) == 0:
            raise SettingError("Source: dataset: it is empty")
        self._loader = _Loader(dataset, batch_size, seed, collate)
        self._prefetch = prefetch
        self._workers = workers
        self._ahead: _Ahead | None = None

    def expect(self, step: int, numbers: Sequence[int], following: Sequence[int], micro_batches: int) -> None:
        """Plan what to load ahead."""
        self._loader.micro_batches = micro_batches
        if self._prefetch:
            if self._ahead is None:
                self._ahead = _Ahead(self._loader, self._prefetch, self._workers)
            self._ahead.plan(step, numbers, following)

    def batch(self, step: int, number: int) -> Any:
        """The batch of one micro-batch."""
        if self._ahead is not None:
            found = self._ahead.take((step, number))
            if found is not None:
                return found[0]
        return self._loader[step, number]


class Endless:
    """An iterable without numbers, begun again whenever it ends.  Not exact: see `job.train(exact=False)`."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._present: Iterator[Any] = iter(())

    def expect(self, step: int, numbers: Sequence[int], following: Sequence[int], micro_batches: int) -> None:
        """Whatever comes next will come next."""
        del step, numbers, following, micro_batches

    def batch(self, step: int, number: int) -> Any:
        """The next batch, whatever the number."""
        del step, number
        for batch in self._present:
            return batch
        self._present = iter(self._batches)
        for batch in self._present:
            return batch
        raise LoopError(
            f"micro_batches: the {type(self._batches).__name__} is empty, or has ended and can't be begun again; "
            "give something that can, such as a DataLoader"
        )


class _Loader:
    """The dataset, indexed by (step, number).  Runs in the training process and in loader processes."""

    def __init__(self, dataset: Any, batch_size: int, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self.micro_batches = 0
        self._dataset = dataset
        self._batch_size = batch_size
        self._seed = seed
        self._collate = collate
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def __getitem__(self, key: Key) -> Any:
        step, number = key
        outer = randomness.capture()
        try:
            randomness.seed_all(randomness.seed_of(self._seed, step, number))
            return self._collate([self._dataset[i] for i in self.samples(step, number)])
        finally:
            randomness.put_back(outer)

    def samples(self, step: int, number: int) -> list[int]:
        """Indices of the samples of a micro-batch."""
        if not self.micro_batches:
            raise LoopError("Source: give it to step.micro_batches(source), or call its expect() first")
        size = len(self._dataset)
        first = (step * self.micro_batches + number) * self._batch_size
        return [int(self._order(p // size)[p % size]) for p in range(first, first + self._batch_size)]

    def _shuffled(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(randomness.seed_of(self._seed, -1, epoch))
        return torch.randperm(len(self._dataset), generator=generator)

    def __getstate__(self) -> dict[str, Any]:
        """A loader process started by spawn makes its own cache."""
        return {k: v for k, v in self.__dict__.items() if k != "_order"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._order = lru_cache(maxsize=2)(self._shuffled)


class _Ahead:
    """Batches under way in loader processes, in the order in which they were asked for.

    Nothing here refers back to it: whoever drops a source ends its processes at once.
    """

    def __init__(self, loader: _Loader, prefetch: int, workers: int) -> None:
        self._plan = _Plan()
        each = max(1, -(-prefetch // workers))
        loaders: DataLoader[Any] = DataLoader(
            loader,  # type: ignore[arg-type]  # as good as a Dataset, which has no more than its methods
            batch_size=None,
            sampler=self._plan.pull(),
            num_workers=workers,
            prefetch_factor=each,
            generator=torch.Generator(),  # of its own: nothing is drawn from the micro-batch's
        )
        self._open: Callable[[], Iterator[Any]] = lambda: iter(loaders)
        self._batches: Iterator[Any] | None = None

    def plan(self, step: int, numbers: Sequence[int], following: Sequence[int]) -> None:
        """What will be asked for: what is under way stays under way."""
        plan = self._plan
        plan.landed = {k: v for k, v in plan.landed.items() if k[0] >= step}
        plan.ahead = deque((step, n) for n in numbers)
        plan.next_step = step + 1
        plan.following = tuple(following) or tuple(numbers) or plan.following

    def take(self, key: Key) -> tuple[Any] | None:
        """The batch, in a tuple; None if it is not under way."""
        plan = self._plan
        if self._batches is None and plan.ahead:
            self._batches = self._open()
        if key not in plan.landed and key not in plan.flying:
            return None
        assert self._batches is not None
        while key not in plan.landed:
            batch = next(self._batches)
            plan.landed[plan.flying.popleft()] = batch
        return (plan.landed.pop(key),)


@dataclass(slots=True)
class _Plan:
    """What the loader processes do next, are doing, and have done."""

    ahead: deque[Key] = field(default_factory=deque)
    following: tuple[int, ...] = ()
    """Once everything ahead is under way: these numbers, step for step."""
    next_step: int = 0
    flying: deque[Key] = field(default_factory=deque)
    landed: dict[Key, Any] = field(default_factory=dict)

    def pull(self) -> Iterator[Key]:
        """The sampler: pulled by the DataLoader whenever there is room for one more."""
        while True:
            if not self.ahead:
                self.ahead.extend((self.next_step, n) for n in self.following)
                self.next_step += 1
            key = self.ahead.popleft()
            if key not in self.flying and key not in self.landed:
                self.flying.append(key)
                yield key
