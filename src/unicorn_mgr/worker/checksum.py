"""A checksum of tensors that finds one flipped bit, at memory speed."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_MASK = 0xFFFFFFFFFFFFFFFF
_PRIME = 0x100000001B3
_WORDS_AT_ONCE = 1 << 23
"""Bounds the memory this takes, whatever the size of a tensor."""


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """64 bits that depend on every bit of every tensor and on their order.

    A sum over 8-byte words, each times an odd weight of its own; int64 arithmetic wraps, which
    makes it one modulo 2**64.  By an odd number no change of a word is multiplied to nothing;
    by an even one the change of a high bit, such as a float's sign, would be.
    """
    total = 0
    for t in tensors:
        raw = t.detach().contiguous().reshape(-1).view(torch.uint8)
        padded = raw if raw.numel() % 8 == 0 else torch.cat([raw, raw.new_zeros(8 - raw.numel() % 8)])
        total = total * _PRIME + raw.numel()
        for words in padded.view(torch.int64).split(_WORDS_AT_ONCE):
            weights = torch.arange(1, 2 * words.numel() + 1, 2, dtype=torch.int64, device=words.device)
            total = (total * _PRIME + int((words * weights).sum())) & _MASK
    return total
