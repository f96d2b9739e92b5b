"""One flipped bit anywhere changes the checksum."""

from __future__ import annotations

import pytest
import torch

from unicorn_mgr.worker import checksum as module
from unicorn_mgr.worker.checksum import checksum


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.complex64])
@pytest.mark.parametrize("words_at_once", [1 << 23, 2])
def test_every_flipped_bit_is_found(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, words_at_once: int) -> None:
    monkeypatch.setattr(module, "_WORDS_AT_ONCE", words_at_once)
    tensor = torch.arange(9).to(dtype)
    intact = checksum([tensor])
    raw = tensor.view(torch.uint8)
    for at in range(raw.numel()):
        for bit in range(8):
            raw[at] ^= 1 << bit
            assert checksum([tensor]) != intact, f"bit {bit} of byte {at}"
            raw[at] ^= 1 << bit
    assert checksum([tensor]) == intact


def test_order_and_length_count() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    both = torch.cat([a, b])
    different = [[a, b], [b, a], [both], [both.flip(0)], [a], [a, b, b[:0]], [torch.zeros(2)], [torch.zeros(4)]]
    assert len({checksum(tensors) for tensors in different}) == len(different)


def test_memory_order_does_not_count() -> None:
    base = torch.randn(3, 4)
    assert checksum([base.t().contiguous().t()]) == checksum([base])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 0)])
def test_odd_shapes_have_one(shape: tuple[int, ...]) -> None:
    assert 0 <= checksum([torch.ones(shape, dtype=torch.bool)]) < 1 << 64
