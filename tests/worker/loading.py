"""Batches loaded ahead by processes, against the same loaded on the spot; run as a script.

Loader processes are forked: that is not done from the process of the tests, which has threads.
Prints, as JSON, what each way of loading gave.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from unicorn_mgr.worker.source import Source

STEPS, MICRO_BATCHES = 6, 4

Keys = list[tuple[int, int]]


class Noisy(Dataset[torch.Tensor]):
    """A sample is its index and whatever the generators give."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
        return torch.tensor([index, *drawn], dtype=torch.float64)


def load(source: Source, keys: Keys, shares: dict[int, list[int]]) -> list[Any]:
    """Ask for `keys`; `shares` says what each step expects beforehand."""
    found, present = [], -1
    for step, number in keys:
        if step != present:
            present = step
            source.expect(step, shares[step], shares.get(step + 1, []), MICRO_BATCHES)
        found.append(source.batch(step, number).tolist())
    return found


def main() -> None:
    everything = {step: list(range(MICRO_BATCHES)) for step in range(STEPS)}
    halves = {step: [0, 2] for step in range(STEPS)}
    nothing: dict[int, list[int]] = {step: [] for step in range(STEPS)}
    rarely = {step: [1] if step == 3 else [] for step in range(STEPS)}
    ways = {
        "no share": (nothing, [(s, n) for s in (1, 4) for n in (2, 0)]),
        "a share now and then": (rarely, [(s, n) for s in range(STEPS) for n in (1, 2)]),
        "in order": (everything, [(s, n) for s in range(STEPS) for n in range(MICRO_BATCHES)]),
        "a share, then what another has lost": (
            halves,
            [(s, n) for s in range(STEPS) for n in ([0, 2, 1, 3] if s == 2 else [0, 2])],
        ),
        "the others' share": (halves, [(s, n) for s in range(STEPS) for n in (1, 3)]),
        "steps left out": (everything, [(s, n) for s in (0, 3, 5) for n in range(MICRO_BATCHES)]),
        "a step again": (everything, [(s, n) for s in (0, 1, 1, 0, 2) for n in range(MICRO_BATCHES)]),
    }
    told: dict[str, Any] = {}
    for name, (shares, keys) in ways.items():
        random.seed(5)
        torch.manual_seed(5)
        at_once = load(Source(Noisy(), batch_size=2, seed=3), keys, shares)
        ahead = [
            load(Source(Noisy(), batch_size=2, seed=3, prefetch=prefetch, workers=workers), keys, shares)
            for prefetch, workers in ((1, 1), (5, 2))
        ]
        told[name] = {
            "at_once": at_once,
            "ahead": ahead,
            "next": [random.random(), float(torch.rand(()))],
            "left": len(multiprocessing.active_children()),
        }
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
