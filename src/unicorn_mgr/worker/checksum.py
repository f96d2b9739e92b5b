"""A checksum of tensors that finds one flipped bit, at memory speed."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_MASK = 0xFFFFFFFFFFFFFFFF


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """64 bits that depend on every bit of every tensor and on their order.

    A Fletcher sum over 8-byte words; int64 arithmetic wraps, which makes it one modulo 2**64.
    """
    total = 0
    for t in tensors:
        raw = t.detach().contiguous().reshape(-1).view(torch.uint8)
        padded = raw if raw.numel() % 8 == 0 else torch.cat([raw, raw.new_zeros(8 - raw.numel() % 8)])
        words = padded.view(torch.int64)
        place = torch.arange(1, words.numel() + 1, dtype=torch.int64, device=words.device)
        total = (total * 0x100000001B3 + int(words.sum()) * 31 + int((words * place).sum())) & _MASK
    return total
