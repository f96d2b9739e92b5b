"""The last bucket of a step: everything that is not a gradient and must be agreed on.

A vector of float64: summed weights, summed losses, how many micro-batches are in, votes to
stop, the user's metrics, per parameter whether any micro-batch used it, and every
`verify_every` steps one checksum per replica.  It is reduced like a bucket of gradients, so a
step that is complete has all of it and a fault can't separate the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unicorn_mgr.worker.buckets import Bucket

_WEIGHT, _LOSS, _COUNT, _STOP, _METRICS = 0, 1, 2, 3, 4
_DIGITS = 5  # "is there", and a 64-bit checksum as four 16-bit digits, each exact in float64


@dataclass(frozen=True, slots=True)
class Totals:
    """What the tail says once it is complete."""

    weight: float
    count: int
    stop: bool
    metrics: dict[str, float]
    used: tuple[bool, ...]
    checksums: dict[int, int]
    """Per replica, on a step that verifies; empty otherwise."""


class Tail:
    """The tail of one training loop.  `bucket.local` has shape (length,), float64."""

    def __init__(
        self,
        metrics: Sequence[str],
        parameters: int,
        seats: int,
        device: torch.device,
        beside: tuple[int, int] = (0, 0),
    ) -> None:
        """`beside`: how many parameters other stages of a pipeline have, before this worker's and after them."""
        before, after = beside
        self.names = tuple(metrics)
        self._seats = seats
        used_at = _METRICS + len(self.names) + before
        self._used = slice(used_at, used_at + parameters)
        self._checks_at = used_at + parameters + after
        length = self._checks_at + seats * _DIGITS
        self.bucket = Bucket(torch.zeros(length, dtype=torch.float64, device=device))

    def add(self, loss: torch.Tensor, weight: float, metrics: dict[str, float | torch.Tensor]) -> None:
        """One micro-batch is done.  `loss` is its summed loss; metrics are means over its weight."""
        local = self.bucket.local
        local[_WEIGHT] += weight
        local[_LOSS] += loss.detach().reshape(())
        local[_COUNT] += 1
        for i, name in enumerate(self.names):
            value = metrics[name]
            local[_METRICS + i] += (value.detach().reshape(()) if isinstance(value, torch.Tensor) else value) * weight

    def seal(self, used: Sequence[bool], stop: bool) -> None:
        """Everything that is known only when the last micro-batch is done."""
        local = self.bucket.local
        local[_STOP] = float(stop)
        local[self._used] = torch.tensor(used, dtype=torch.float64, device=local.device)

    def put_checksum(self, seat: int, checksum: int) -> None:
        """This seat's checksum of the parameters, before it is sealed."""
        at = self._checks_at + seat * _DIGITS
        digits = [1.0, *(float((checksum >> (16 * d)) & 0xFFFF) for d in range(4))]
        self.bucket.local[at : at + _DIGITS] = torch.tensor(
            digits, dtype=torch.float64, device=self.bucket.local.device
        )

    def totals(self) -> Totals:
        """Read the complete tail."""
        found = self.bucket.reduced.tolist()
        weight = found[_WEIGHT]
        share = 1.0 / weight if weight else math.nan
        metrics = {"loss": found[_LOSS] * share}
        metrics.update({name: found[_METRICS + i] * share for i, name in enumerate(self.names)})
        checksums = {}
        for seat in range(self._seats):
            there, *digits = found[self._checks_at + seat * _DIGITS :][:_DIGITS]
            if there:
                checksums[seat] = sum(int(digit) << (16 * d) for d, digit in enumerate(digits))
        used = tuple(u > 0 for u in found[self._used])
        return Totals(weight, round(found[_COUNT]), found[_STOP] > 0, metrics, used, checksums)
