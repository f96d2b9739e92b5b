"""The constants of `predict`, fitted to published runs by `python -m benchmarks fit_throughput --data FILE`.

They multiply times at peak rates.  No constant belongs to one source or one model.  The runs,
gathered in November 2026, are those of

    Megatron-LM                   README, table of models and strong scaling
    MosaicML llm-foundry          benchmarks of MPT-1b to 70b on A100 and H100
    NVIDIA Megatron-Bridge        performance summaries 26.02 to 26.08, H100 to GB300
    torchtitan                    benchmarks of Llama 3 on H100 and H200
    BigScience tr11-176B          topology sweep and chronicles of BLOOM, A100

Device shares fitted to few jobs (mixtures of experts, 4 bits) are rough; scaling is what is known best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from unicorn_mgr.profiles.devices import Level


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides which share of its peak a device reaches."""

    family: str
    level: Level
    mixture: bool
    """Of experts: small matrices, and tokens sent to where their experts are."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Of all devices and models together, but for the share of the peak."""

    tensor: float
    """Of the all-reduces of tensor parallelism at full link bandwidth: 1 is none hidden, none slower."""
    data: float
    """Of sending gradients and weights once a step."""
    shards: float
    """Of gathering and scattering shards in each round: most is hidden behind computing."""
    waiting: float
    """Share of a step lost with each doubling of the nodes: the slowest of more decides."""
    reached: Mapping[Kind, float]
    """Share of the peak."""

    def share(self, kind: Kind) -> float:
        """Of the peak; for a kind that nobody has published, the median of those most like it."""
        if kind in self.reached:
            return self.reached[kind]
        alike = [s for k, s in self.reached.items() if (k.level, k.mixture) == (kind.level, kind.mixture)]
        alike = alike or [s for k, s in self.reached.items() if k.level == kind.level]
        return median(alike or self.reached.values())


FITTED = Constants(
    tensor=1.04,
    data=0.895,
    shards=0.0998,
    waiting=0.00945,
    reached={
        Kind("ampere", "16", mixture=False): 0.55,
        Kind("hopper", "16", mixture=False): 0.428,
        Kind("hopper", "8", mixture=False): 0.277,
        Kind("hopper", "16", mixture=True): 0.191,
        Kind("hopper", "8", mixture=True): 0.138,
        Kind("blackwell", "8", mixture=False): 0.343,
        Kind("blackwell", "4", mixture=False): 0.2,
        Kind("blackwell", "16", mixture=True): 0.202,
        Kind("blackwell", "8", mixture=True): 0.196,
    },
)
