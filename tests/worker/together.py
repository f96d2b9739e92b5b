"""The workers of a replica as threads of this process, without torch.distributed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from worker.checkpoints import PATIENCE_SECONDS

from unicorn_mgr.worker.siblings import Place

T = TypeVar("T")


class Meeting:
    """Where they agree."""

    def __init__(self, size: int) -> None:
        self.brought: list[tuple[int, ...]] = [()] * size
        self.all_here = threading.Barrier(size)

    def at_once(self, parts: Sequence[Callable[[], T]]) -> list[T]:
        """What each does, all at once; raises what one of them raised by itself."""

        def do(part: Callable[[], T]) -> T:
            try:
                return part()
            except BaseException:
                self.all_here.abort()  # nobody waits for one that has gone
                raise

        with ThreadPoolExecutor(len(parts)) as threads:
            done = [threads.submit(do, part) for part in parts]
        for each in done:
            if (failed := each.exception()) is not None and not isinstance(failed, threading.BrokenBarrierError):
                raise failed
        return [each.result() for each in done]


class Sibling:
    """One of them.  Implements `Siblings`."""

    def __init__(self, meeting: Meeting, place: Place) -> None:
        self.place = place
        self._meeting = meeting

    def largest(self, *values: int) -> tuple[int, ...]:
        self._meeting.brought[self.place.position] = values
        self._meeting.all_here.wait(PATIENCE_SECONDS)
        found = tuple(map(max, zip(*self._meeting.brought, strict=True)))
        self._meeting.all_here.wait(PATIENCE_SECONDS)
        return found

    def add(self, tensor: torch.Tensor, alike: bool = False) -> None:
        raise AssertionError(f"nobody adds {tensor}")
