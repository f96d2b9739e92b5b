"""Tensors of which each worker of a replica holds a part.

Such a tensor is a `torch.distributed.tensor.DTensor`; it is known here by what it can do, so that a job
without any never loads torch.distributed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from unicorn_mgr.model import STAGE_AXIS
from unicorn_mgr.transition.layout import Cut, Piece, box_after, whole


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker holds of a tensor."""

    tensor: torch.Tensor
    piece: Piece


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether other workers of the replica hold other parts of it, or copies that torch knows of as such."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def part_of(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's part, in the same memory: the tensor itself if it has no others."""
    found: Any = tensor.detach()
    part: torch.Tensor = found.to_local() if is_sharded(tensor) else found
    return part


def piece_of(tensor: torch.Tensor) -> Piece:
    """Which part of the tensor this worker holds.  Raises `ValueError` if its layout does not say so."""
    if not is_sharded(tensor):
        return whole(tuple(tensor.shape), tensor.element_size())
    layout: Any = tensor
    shape, lengths = tuple(tensor.shape), tuple(part_of(tensor).shape)
    box = box_after(shape, _cuts(layout))
    if box.lengths != lengths:
        raise ValueError(f"{lengths} of {shape} is not what {layout.placements} makes of it")
    return Piece(shape, box, tensor.element_size())


def _cuts(layout: Any) -> list[Cut]:
    """How a tensor has been cut, in that order: FSDP2 cuts last, though its axis comes first."""
    coordinate = layout.device_mesh.get_coordinate()
    cuts: list[Cut] = []
    for axis, placement in reversed(list(enumerate(layout.placements))):
        if placement.is_replicate():
            continue
        if not hasattr(placement, "dim"):
            raise ValueError(f"{placement} is no part of a tensor")
        cut = Cut(placement.dim, layout.device_mesh.size(axis), coordinate[axis])
        cuts.insert(len(cuts) if hasattr(placement, "split_factor") else 0, cut)
    return cuts


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

    def tensor_of(leaf: torch.Tensor | Part, now: Any) -> torch.Tensor:
        if isinstance(leaf, torch.Tensor):
            return leaf
        return as_part_of(now, leaf.tensor) if isinstance(now, torch.Tensor) else leaf.tensor

    return matched(saved, like, tensor_of)


def matched(saved: Any, like: Any, made: Callable[[torch.Tensor | Part, Any], Any]) -> Any:
    """A tree with what is made of each tensor or part, and of what is at its place in `like`."""
    if isinstance(saved, torch.Tensor | Part):
        return made(saved, like)
    if isinstance(saved, Mapping):
        return {k: matched(v, like.get(k) if isinstance(like, Mapping) else like, made) for k, v in saved.items()}
    if isinstance(saved, list | tuple):
        there = like if isinstance(like, list | tuple) and len(like) == len(saved) else [like] * len(saved)
        return type(saved)(matched(v, now, made) for v, now in zip(saved, there, strict=True))
    return saved


def axes_of(tensor: torch.Tensor) -> tuple[str, ...]:
    """The axes of its replica that a tensor is laid out over."""
    layout: Any = tensor
    return tuple(layout.device_mesh.mesh_dim_names or ()) if is_sharded(tensor) else ()


def share_of_norm(p: torch.Tensor, axes: Mapping[str, int], power: float) -> torch.Tensor:
    """What a worker adds to the sum of a gradient's powers over its replica, shape (): copies share one."""
    assert p.grad is not None
    copies = math.prod(size for name, size in axes.items() if name != STAGE_AXIS)
    if is_sharded(p):
        layout: Any = p
        for name, placement in zip(layout.device_mesh.mesh_dim_names or (), layout.placements, strict=False):
            copies //= 1 if placement.is_replicate() else axes.get(name, 1)
    # Half the bits hold neither the square of 300 nor that of 0.0001.
    norm: torch.Tensor = torch.linalg.vector_norm(part_of(p.grad).abs(), power, dtype=torch.float64)
    return norm.pow(power) / copies


def sum_gradients(model: torch.nn.Module) -> None:
    """Let FSDP2 add the gradients of a replica's workers up: it is weights that they are divided by, not workers."""
    modules: Any = model.modules()
    for module in modules:
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            # Else a factor for 32 and 16 bits becomes a kind of reduction that only NCCL has.
            module.set_force_sum_reduction_for_comms(True)
