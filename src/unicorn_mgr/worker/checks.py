"""What `job.train` and `step.backward` refuse, each in one line that says what to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch.nn.parameter import UninitializedParameter

from unicorn_mgr.model import DATA_AXES
from unicorn_mgr.worker.sharding import axes_of

_TAKEN = ("loss", "weight", "scaler")
"""Names of `step.backward`'s own arguments."""


class SettingError(ValueError):
    """`job.train` was given something it can't work with.  The message names it and says what to change."""


class LoopError(RuntimeError):
    """The loop is used in a way that could not be exact.  The message says what to change."""


def check_number(name: str, value: object, least: int | None = None) -> None:
    """Raise `SettingError` unless `value` is a whole number, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise SettingError(f"{name}: {value!r}: want a whole number{'' if least is None else f', at least {least}'}")


def check_metrics(names: Sequence[str]) -> None:
    """Raise `SettingError` unless `step.backward` can be given metrics of these names."""
    if isinstance(names, str):
        raise SettingError(f"train: metrics: {names!r}: want a list of names")
    for i, name in enumerate(names):
        if name in _TAKEN:
            raise SettingError(f"train: metrics: {name}: this name is taken")
        if name in names[:i]:
            raise SettingError(f"train: metrics: {name}: named twice")


def check_state(state: Mapping[str, object]) -> None:
    """Raise `SettingError` unless everything in `state` can be saved and loaded."""
    for name, item in state.items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise SettingError(f"train: state: {name}: an {type(item).__name__} has no state_dict and load_state_dict")


def check_model(model: torch.nn.Module, optimizers: Sequence[object], stages: int = 1) -> None:
    """Raise `SettingError` unless the gradients of `model` can be summed and `optimizers` can step with them."""
    parameters = dict(model.named_parameters())
    for name, p in parameters.items():
        if isinstance(p, UninitializedParameter):
            raise SettingError(f"model: {name} has no shape yet: run the model once before job.train")
        if p.layout is not torch.strided:
            raise SettingError(f"model: {name} has layout {p.layout}: want a dense parameter")
        if p.is_meta:
            raise SettingError(f"model: {name} is on device meta: give it memory before job.train")
    if not any(p.requires_grad for p in parameters.values()):
        cure = f": a pipeline of {stages} is too long, choose a shorter one with --replica" if stages > 1 else ""
        raise SettingError(f"model: it has no parameter that requires a gradient{cure}")
    known = {id(p) for p in parameters.values()}
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SettingError(f"train: optimizer: an {type(optimizer).__name__} is none")
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise SettingError("optimizer: SparseAdam wants sparse gradients, and they are summed dense: use Adam")
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if id(p) not in known:
                raise SettingError(
                    f"optimizer: it has a parameter of shape {tuple(p.shape)} that is not the model's; its gradient "
                    "would not be shared: make it part of the model"
                )


def check_split(model: torch.nn.Module, axes: Mapping[str, int]) -> None:
    """Raise `SettingError` for a parameter of which the workers of a replica would hold copies that drift apart.

    Along a data-like axis they compute different micro-batches, whose gradients torch sums only of what is laid
    out along it.
    """
    for axis in (a for a in DATA_AXES if axes.get(a, 1) > 1):
        for name, p in model.named_parameters():
            if p.requires_grad and axis not in axes_of(p):
                raise SettingError(
                    f"model: {name} is not split over the {axes[axis]} workers along {axis}: call "
                    f'fully_shard(model, mesh=job.replica_mesh("{axis}")) before job.train'
                )


def check_backward(
    loss: object, weight: object, metrics: Mapping[str, object], names: Sequence[str]
) -> tuple[torch.Tensor, float]:
    """The loss and the weight of a micro-batch; raises `LoopError` before anything has changed."""
    weighs = check_weight(weight, metrics, names, "step.backward")
    return check_loss(loss), weighs


def check_loss(loss: object) -> torch.Tensor:
    """The loss of a micro-batch; raises `LoopError` if backward can't start there."""
    if not isinstance(loss, torch.Tensor):
        raise LoopError(f"loss: a {type(loss).__name__}; want a tensor with one number")
    if loss.numel() != 1:
        raise LoopError(f"loss: it has shape {tuple(loss.shape)}; want one number")
    if not loss.requires_grad:
        raise LoopError("loss: it does not depend on any parameter that requires a gradient")
    return loss


def check_weight(weight: object, metrics: Mapping[str, object], names: Sequence[str], where: str) -> float:
    """The weight of a micro-batch, and that its metrics are those that were announced; raises `LoopError`."""
    if set(metrics) != set(names):
        raise LoopError(f"metrics: {where} got {sorted(metrics)}, job.train(metrics=...) said {sorted(names)}")
    for name, value in {"weight": weight, **metrics}.items():
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise LoopError(f"{name}: it has shape {tuple(value.shape)}; want one number")
    weighs = float(weight)  # type: ignore[arg-type]  # anything that is a number
    if not (math.isfinite(weighs) and weighs >= 0):
        raise LoopError(f"weight: {weighs}: want a finite number, not below 0")
    return weighs
