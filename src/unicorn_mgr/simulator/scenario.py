"""What is compared: a cluster, its jobs, and how its machines fail.  Values only; `faults` draws from them.

All policies of one comparison live through the same faults at the same moments, with the same jobs at the same
throughput; what differs is what they do about it, and what that costs.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property

DAY = 86_400.0


class BadScenario(ValueError):
    """What is wrong with a scenario, in a line: FILE:LINE: field: value: what is wanted."""


class Kind(enum.StrEnum):
    """What a fault does to the cluster, as every policy meets it."""

    NODE = "node"
    """A node is gone until it is repaired, with all that runs on it."""
    PROCESS = "process"
    """A process ends; its slot is fine."""
    HANG = "hang"
    """A process stands still and says nothing; its slot is fine."""
    LINK = "link"
    """A connection breaks, and the next one holds: nothing has died."""
    SLOW = "slow"
    """A node computes more slowly until it is repaired."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that breaks.  Seconds since the beginning."""

    at: float
    cause: str
    """As reports name it: ECC, NCCL timeout, ..."""
    kind: Kind
    nodes: tuple[int, ...]
    """Numbers of those that it hits; a burst hits several."""
    slot: int = 0
    """Of the first of them, where one process is hit."""
    repair_seconds: float = 0.0
    """Until its nodes are as before; infinite: never."""
    slowness: float = 1.0
    """Of SLOW: a step takes so many times longer."""


@dataclass(frozen=True)
class Work:
    """A job of the scenario.

    A slot stands for `Scenario.gpus_per_slot` GPUs; all sizes are in slots.
    """

    name: str
    throughput: tuple[tuple[int, float], ...]
    """Slots, and FLOP/s of all of them together: rising in both, only sizes that pay."""
    size_min: int
    size_max: int
    weight: float = 1.0
    replica: int = 1
    """Slots that hold one copy of the state: it has whole ones only."""
    step_flops: float = 1e18
    """Of one step, at any size."""
    micro_batches: int = 512
    """Of one step."""
    state_bytes: float = 1e9
    """Parameters and optimizer, one copy."""
    checkpoint_seconds: float = 1_800.0
    """Between two checkpoints in storage."""
    model: str = ""
    """Its name, for people."""

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(size for size, _ in self.throughput)

    def rate(self, slots: int) -> float:
        """FLOP/s on so many slots; 0 below its minimum."""
        at = bisect_right(self._sizes, slots)
        return self.throughput[at - 1][1] if at and slots >= self.size_min else 0.0

    def useful(self, slots: int) -> int:
        """The largest of its sizes that is no more than this; 0: none."""
        at = bisect_right(self._sizes, min(slots, self.size_max))
        return self._sizes[at - 1] if at and slots >= self.size_min else 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, its jobs and its faults."""

    name: str
    about: str
    nodes: int
    slots: int
    """Of each node."""
    gpus_per_slot: int
    seconds: float
    """How long it lasts."""
    jobs: tuple[Work, ...]
    domain_nodes: int = 0
    """Nodes of a rack; 0: none share one."""
    spares: int = 0
    """Nodes that a policy of fixed spares keeps out of the jobs."""
    source: str = ""
    """Where its figures come from."""
    extra: dict[str, float] = field(default_factory=dict)
    """Figures of the source that results are put beside."""

    @property
    def capacity(self) -> int:
        """Slots of the whole cluster."""
        return self.nodes * self.slots
