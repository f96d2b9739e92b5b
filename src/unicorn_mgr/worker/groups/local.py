"""A world of one: what a job without an agent, or with one worker left, reduces over."""

from __future__ import annotations

import torch

from unicorn_mgr.worker.groups import Operation


class _Done:
    done = True
    error = ""


class LocalGroup:
    """The group whose only member is this worker."""

    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> Operation:
        """The sum over one member is there already."""
        del tensor
        return _Done()

    def bury(self) -> None:
        """Nothing is open."""
