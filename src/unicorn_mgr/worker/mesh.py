"""The inside of a replica: torch's own process groups and device meshes, and how its workers agree.

Inside a replica everything is stock torch, made once in its life: a replica that loses a worker is started
again as a whole, so nothing in here is ever rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from unicorn_mgr.worker.checks import SettingError
from unicorn_mgr.worker.groups.gloo import NEVER, GlooOperation
from unicorn_mgr.worker.membership import Membership
from unicorn_mgr.worker.siblings import Place, place_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Inside:
    """The workers of one replica, in this process's default group.  Implements `Siblings`."""

    def __init__(self, axes: Mapping[str, int], position: int, membership: Membership) -> None:
        self.place: Place = place_of(axes, position)
        self._axes = dict(axes)
        self._membership = membership
        self._whole: DeviceMesh | None = None
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        if dist.get_world_size() != self.place.size:
            raise SettingError(
                f"replica_mesh: the process group has {dist.get_world_size()} ranks, a replica {self.place.size} "
                "workers: leave init_process_group to replica_mesh"
            )
        # Agreements are numbers of the host: no device has to be waited for.
        self._group = dist.new_group(backend="gloo", timeout=NEVER)
        self._group_alike = self._group if self.place.stages == 1 else self._connect_alike()

    def mesh(self, names: Sequence[str]) -> DeviceMesh:
        """The device mesh of these axes.  Raises `SettingError`."""
        for name in names:
            if name not in self._axes:
                raise SettingError(
                    f"replica_mesh: {name}: a replica of this job has {', '.join(self._axes)}: name one of these, or "
                    "add it to --replica"
                )
        axes = tuple(self._axes)
        ordered = tuple(name for name in axes if name in names)
        if tuple(names) != ordered:
            raise SettingError(f"replica_mesh: {', '.join(names)}: name axes in their order, {', '.join(ordered)}")
        if self._whole is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._whole = init_device_mesh(device, tuple(self._axes.values()), mesh_dim_names=axes)
        return self._whole if ordered in ((), axes) else self._whole[ordered]

    def largest(self, *values: int) -> tuple[int, ...]:
        """Of each value the largest that any worker has."""
        tensor = torch.tensor(values, dtype=torch.int64)
        self._reduce(tensor, dist.ReduceOp.MAX, self._group)
        return tuple(tensor.tolist())

    def add(self, tensor: torch.Tensor, alike: bool = False) -> None:
        """Sum a tensor over all workers, or over those of the same stage, in place."""
        on_host = tensor if tensor.device.type == "cpu" else tensor.cpu()
        self._reduce(on_host, dist.ReduceOp.SUM, self._group_alike if alike else self._group)
        if on_host is not tensor:
            tensor.copy_(on_host)

    def _connect_alike(self) -> dist.ProcessGroup:
        """The workers of this stage.  The groups of all stages are made by all, as torch wants it."""
        stage_of = [place_of(self._axes, position).stage for position in range(self.place.size)]
        groups = [
            dist.new_group([at for at, of in enumerate(stage_of) if of == stage], backend="gloo", timeout=NEVER)
            for stage in range(self.place.stages)
        ]
        mine: dist.ProcessGroup = groups[self.place.stage]
        return mine

    def _reduce(self, tensor: torch.Tensor, how: dist.ReduceOp.RedOpType, group: dist.ProcessGroup) -> None:
        work = dist.all_reduce(tensor, how, group=group, async_op=True)
        operation = GlooOperation(work, tensor, self._membership.wake)
        self._membership.wait_out(lambda: operation.done)
        if operation.error:
            # Mostly a sibling is gone: the coordinator waits a little to hear of it before it blames this one.
            raise RuntimeError(f"the workers of this replica can't reach each other: {operation.error}")
