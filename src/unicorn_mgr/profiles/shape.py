"""A model and how it is trained: its useful work, its layout, and the memory that it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from unicorn_mgr.profiles.devices import Device, Level, device, level
from unicorn_mgr.profiles.problem import ProfileError, whole

Sharding = Literal["none", "optimizer", "full"]
"""What replicas hold parts of, not copies: nothing (plain data parallelism), the optimizer's
state (ZeRO-1, distributed optimizer), or all (FSDP, ZeRO-3)."""

SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "full")
HIDDEN_PER_LAYER = 128
"""Width over depth where neither is told: 128 in GPT-3, Llama 405B; 102 in Llama 70B; 128 in Llama 8B."""

WEIGHT_BYTES = 2.0
GRADIENT_BYTES = 4.0
OPTIMIZER_BYTES = 12.0
"""Adam: a copy of the weights and two moments, in 32 bits."""

ACTIVATION_BYTES = 34.0
ACTIVATION_BYTES_RECOMPUTED = 2.0
"""Per token, layer and unit of width (Korthikanti et al., 2022, with attention that keeps no matrix)."""

PARAMETERS_MAX = 1e15
LAYERS_MAX = 10_000
"""Ten times what anybody has trained; layouts are tried layer by layer."""

USABLE_SHARE = 0.92
"""Of a device's memory; the rest is taken by the runtime, communication buffers and fragmentation."""

NODE = 8
RECOMPUTING = 4 / 3
"""Work done over useful work: one more forward pass to a forward and a backward, which is two."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A training job as its throughput sees it.  Lengths in tokens, batches in sequences."""

    parameters: float
    sequence_length: int
    global_batch: int
    device: str
    active_parameters: float | None = None
    """That one token uses: fewer than `parameters` in a mixture of experts."""
    layers: int | None = None
    hidden: int | None = None
    micro_batch: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    """Devices, of different replicas, that share the experts of a mixture."""
    virtual_stages: int = 1
    """Parts of the model that each pipeline stage holds (interleaved schedule)."""
    precision: str = "bf16"
    sharding: Sharding = "optimizer"
    recompute: bool = False
    """Whether activations are computed again in the backward pass, not kept."""
    devices_per_node: int = NODE

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("parameters", "active_parameters"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ProfileError(f"{name}: {value!r}: want a number above 0, such as 7e9")
            if value is not None and value > PARAMETERS_MAX:
                raise ProfileError(f"{name}: {value:g}: want at most {PARAMETERS_MAX:g}")
        if self.active_parameters is not None and self.active_parameters > self.parameters:
            raise ProfileError(
                f"active_parameters: {self.active_parameters:g} are more than all, {self.parameters:g}: want fewer"
            )
        for name in ("sequence_length", "global_batch", "micro_batch", *_DEGREES, "virtual_stages", "devices_per_node"):
            whole(name, getattr(self, name))
        for name in ("layers", "hidden"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        if self.layers is not None and self.layers > LAYERS_MAX:
            raise ProfileError(f"layers: {self.layers}: want at most {LAYERS_MAX}")
        if self.sharding not in SHARDINGS:
            raise ProfileError(f"sharding: {self.sharding!r}: want one of {', '.join(SHARDINGS)}")
        if self.global_batch % self.micro_batch:
            raise ProfileError(
                f"micro_batch: {self.micro_batch} does not divide global_batch {self.global_batch}: want a divisor"
            )
        self.device_type.peak(self.level)

    @cached_property
    def device_type(self) -> Device:
        """The type of device it runs on."""
        return device(self.device)

    @cached_property
    def level(self) -> Level:
        """Bits of most matrix products."""
        return level(self.precision)

    @property
    def replica(self) -> int:
        """Devices that hold one copy of the model."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def micro_batches(self) -> int:
        """In a step, of all replicas together."""
        return self.global_batch // self.micro_batch

    @property
    def is_mixture(self) -> bool:
        """Whether it is a mixture of experts."""
        return self.active < self.parameters

    @property
    def held(self) -> float:
        """Parameters on each device, were nothing sharded among replicas; of a mixture nearly all are experts'."""
        return self.parameters / (self.tensor_parallel * self.pipeline_parallel * self.expert_parallel)

    @property
    def active(self) -> float:
        """Parameters that one token uses."""
        return self.active_parameters or self.parameters

    @cached_property
    def depth(self) -> int:
        """Layers, estimated where they are not told: parameters = 12 layers hidden^2."""
        if self.layers is not None:
            return self.layers
        twelfth = self.active / 12
        layers = (twelfth / HIDDEN_PER_LAYER**2) ** (1 / 3) if self.hidden is None else twelfth / self.hidden**2
        return max(1, round(layers))

    @cached_property
    def width(self) -> float:
        """Hidden size, estimated where it is not told."""
        return self.hidden or math.sqrt(self.active / (12 * self.depth))

    @cached_property
    def matrix_flops(self) -> float:
        """Useful work of a token with the model's weights."""
        return 6 * self.active

    @cached_property
    def attention_flops(self) -> float:
        """Useful work of a token with others before it: on average half of the sequence."""
        return 6 * self.depth * self.width * self.sequence_length

    @property
    def flops_per_token(self) -> float:
        """Useful work."""
        return self.matrix_flops + self.attention_flops

    @property
    def flops_per_step(self) -> float:
        """Useful work of a step."""
        return self.flops_per_token * self.sequence_length * self.global_batch

    def bytes_per_device(self, replicas: int) -> float:
        """What each device has to hold when so many replicas share the work."""
        whole_share = {
            "none": WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES,
            "optimizer": WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES / replicas,
            "full": (WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES) / replicas,
        }[self.sharding]
        state = whole_share * self.held
        # The first stage keeps as many micro-batches as there are stages, each of its share of the layers.
        tokens = self.micro_batch * self.sequence_length / self.context_parallel
        per_unit = ACTIVATION_BYTES_RECOMPUTED if self.recompute else ACTIVATION_BYTES
        return state + tokens * self.width * self.depth * per_unit / self.tensor_parallel

    def fits(self, replicas: int) -> bool:
        """Whether it fits into the devices' memory."""
        return self.bytes_per_device(replicas) <= USABLE_SHARE * self.device_type.memory_bytes


_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")


def fitting(shape: ModelShape, replicas: int = 1) -> ModelShape:
    """The same model laid out over the fewest devices that hold it: tensors are cut first, then layers."""
    for tensor, pipeline in _layouts(shape):
        laid_out = replace(shape, tensor_parallel=tensor, pipeline_parallel=pipeline)
        if laid_out.fits(replicas):
            return laid_out
    need = shape.bytes_per_device(replicas) * shape.tensor_parallel * shape.pipeline_parallel / 2**30
    raise ProfileError(
        f"parameters: {shape.parameters:g} take {need:,.0f} GiB, which no layout of {shape.depth} layers over "
        f"{shape.device_type.name} holds: want recompute, a smaller micro_batch or more context_parallel"
    )


def _layouts(shape: ModelShape) -> Iterator[tuple[int, int]]:
    tensor = 1
    while tensor < shape.devices_per_node:
        yield tensor, 1
        tensor *= 2
    for pipeline in range(1, shape.depth + 1):
        yield shape.devices_per_node, pipeline
