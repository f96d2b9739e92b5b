"""Tensors of which each worker of a replica holds a part.

Such a tensor is a `torch.distributed.tensor.DTensor`; it is known here by what it can do, so that a job
without any never loads torch.distributed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker holds of a tensor."""

    tensor: torch.Tensor


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether other workers of the replica hold other parts of it, or copies that torch knows of as such."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def part_of(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's part, in the same memory: the tensor itself if it has no others."""
    found: Any = tensor.detach()
    part: torch.Tensor = found.to_local() if is_sharded(tensor) else found
    return part


def as_part_of(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as `whole`, of which `part` is what this worker holds, in the same memory."""
    if not is_sharded(whole):
        return part
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - only a job that has some loads it

    layout: Any = whole
    return DTensor.from_local(
        part, layout.device_mesh, layout.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def restored(saved: Any, like: Any) -> Any:
    """A tree in which every `Part` is the tensor again that it was of, laid out as what is there now.

    `like` is the present tree, or one tensor that all parts are laid out as.
    """
    if isinstance(saved, Part):
        return as_part_of(like, saved.tensor) if isinstance(like, torch.Tensor) else saved.tensor
    if isinstance(saved, Mapping):
        return {k: restored(v, like.get(k) if isinstance(like, Mapping) else like) for k, v in saved.items()}
    if isinstance(saved, list | tuple):
        there = like if isinstance(like, list | tuple) and len(like) == len(saved) else [like] * len(saved)
        return type(saved)(restored(v, now) for v, now in zip(saved, there, strict=True))
    return saved


def axes_of(tensor: torch.Tensor) -> tuple[str, ...]:
    """The axes of its replica that a tensor is laid out over."""
    layout: Any = tensor
    return tuple(layout.device_mesh.mesh_dim_names or ()) if is_sharded(tensor) else ()


def share_of_norm(p: torch.Tensor, axes: Mapping[str, int], power: float) -> torch.Tensor:
    """What a worker adds to the sum of a gradient's powers over its replica, shape (): copies share one."""
    assert p.grad is not None
    copies = math.prod(axes.values())
    if is_sharded(p):
        layout: Any = p
        for name, placement in zip(layout.device_mesh.mesh_dim_names or (), layout.placements, strict=False):
            copies //= 1 if placement.is_replicate() else axes.get(name, 1)
    return part_of(p.grad).abs().pow(power).sum(dtype=torch.float64) / copies


def sum_gradients(model: torch.nn.Module) -> None:
    """Let FSDP2 add the gradients of a replica's workers up: it is weights that they are divided by, not workers."""
    modules: Any = model.modules()
    for module in modules:
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            # Else a factor for 32 and 16 bits becomes a kind of reduction that only NCCL has.
            module.set_force_sum_reduction_for_comms(True)
