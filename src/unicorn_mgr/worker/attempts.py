"""Storage that fails or is full is tried again, with growing pauses."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_never,
    wait_exponential,
)
from tenacity.stop import stop_base
from torch.distributed.checkpoint.api import CheckpointException

from unicorn_mgr.worker.storage import StorageError

RETRY_SECONDS = 0.5
RETRY_SECONDS_MAX = 60.0

FAILURES = (Exception, CheckpointException)
"""Every file system raises what it likes, and torch something that is not even an `Exception`."""

_jitter = random.SystemRandom()
"""Not the module's generator, which is the script's."""


class Superseded(Exception):
    """Another lineage has taken the place over."""


def attempts(
    failed: Callable[[str], None], stop: stop_base = stop_never
) -> Iterator[contextlib.AbstractContextManager[object]]:
    """Attempts until one goes well, or ends by what no other attempt would change."""
    backoff = wait_exponential(RETRY_SECONDS, RETRY_SECONDS_MAX)

    def tell(state: RetryCallState) -> None:
        failed(one_line(state.outcome.exception() if state.outcome is not None else None))

    yield from Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, FAILURES) and not isinstance(e, Superseded | StorageError)),
        wait=lambda state: backoff(state) + _jitter.uniform(0, RETRY_SECONDS),
        stop=stop,
        before_sleep=tell,
        reraise=True,
    )


def one_line(error: BaseException | None) -> str:
    """The last line of what it says."""
    lines = str(error).strip().splitlines()
    return (lines[-1].strip() if lines else type(error).__name__)[:500]
