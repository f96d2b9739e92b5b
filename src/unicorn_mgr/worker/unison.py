"""What all workers of a replica do next is one decision."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unicorn_mgr.model import Epoch
from unicorn_mgr.worker.membership import GivenUp, Membership
from unicorn_mgr.worker.reports import Reports
from unicorn_mgr.worker.sharding import part_of, share_of_norm
from unicorn_mgr.worker.siblings import Siblings


class Unison:
    """The membership as the whole replica sees it."""

    def __init__(self, membership: Membership, siblings: Siblings, reports: Reports) -> None:
        self._membership = membership
        self._siblings = siblings
        self._reports = reports

    def newer(self) -> Epoch | None:
        """The membership that the replica goes over to now, if there is one.  Raises `GivenUp`.

        One of its workers may have heard of a membership, or of the end of the job, that the next one has not:
        to act on it alone would leave the others inside a collective for ever.
        """
        heard, membership = self._membership.newer() or Epoch(), self._membership
        over = membership.given_up() is not None
        term, number, any_over = self._siblings.largest(heard.term, heard.number, over)
        if any_over:
            membership.wait_out(lambda: membership.given_up() is not None)
            word = membership.given_up()
            assert word is not None
            raise GivenUp(word)
        return Epoch(term, number) if number else None

    def all_have(self, mine: bool) -> bool:
        """Whether every worker of the replica has got what it waited for."""
        (lacking,) = self._siblings.largest(not mine)
        return not lacking

    def leave(self, applied: int) -> bool:
        """True if the replica was asked to leave and is no member any more.

        An epoch without it is without all of its workers.  Whoever has heard of that speaks for the others, which
        may have heard only that they were needed for one more.
        """
        if not self.all_have(self._membership.asked_to_leave()):
            return False
        (excluded,) = self._siblings.largest(self._membership.leave(applied))
        return bool(excluded)

    def news_after(self, error: str) -> None:
        """Something has failed, here or on a sibling: only a newer membership leads on."""
        if error and not self._membership.overtaken():
            self._reports.symptom(error)
        self._membership.await_news()

    def clip(self, parameters: Sequence[torch.nn.Parameter], max_norm: float, norm_type: float) -> float:
        """Scale gradients down so that the norm of all that the replica holds is at most `max_norm`."""
        mine = [share_of_norm(p, self._siblings.place.axes, norm_type) for p in parameters if p.grad is not None]
        total = torch.stack([torch.zeros((), dtype=torch.float64), *(share.cpu() for share in mine)]).sum()
        self._siblings.add(total)
        norm: float = float(total) ** (1 / norm_type)
        if not norm <= max_norm:  # of gradients that are not numbers none is left that looks like one
            for p in parameters:
                if p.grad is not None:
                    part_of(p.grad).mul_(max_norm / (norm + 1e-6))
        return norm
