"""What must be the same on every worker of a job, as text that can be compared and shown."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from unicorn_mgr.worker.siblings import Siblings, of_each

_SUMS = 1 << 60
"""Digests are added up below this, so that siblings can tell each other theirs."""


def fingerprint(
    model: torch.nn.Module, micro_batches: int, seed: int, steps: int, metrics: Sequence[str]
) -> dict[str, str]:
    """Name and value of each thing; two workers train together only if all are equal."""
    parameters = {n: f"{tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in model.named_parameters()}
    buffers = {n: f"{tuple(b.shape)} {b.dtype}" for n, b in model.named_buffers()}
    return {
        "code": _code(),
        "parameters": _sum(parameters),
        "buffers": _sum(buffers),
        "order": _digest("\n".join((*parameters, *buffers)).encode()),
        "micro_batches": str(micro_batches),
        "seed": str(seed),
        "steps": str(steps),
        "metrics": ",".join(metrics),
        "torch": torch.__version__,
    }


def of_replica(mine: dict[str, str], siblings: Siblings) -> dict[str, str]:
    """That of all its workers.

    The stages of a pipeline hold different parameters; together they have those of the model that is not cut.
    """
    place = siblings.place
    if place.stages == 1:
        return mine
    stages = of_each(siblings, place.stage)

    def by_stage(name: str) -> dict[int, int]:
        return dict(zip(stages, of_each(siblings, int(mine[name], 16) % _SUMS), strict=True))

    sums = {name: _shown(sum(by_stage(name).values())) for name in ("parameters", "buffers")}
    return {**mine, **sums, "order": _digest(str(sorted(by_stage("order").items())).encode())}


def _sum(tensors: Mapping[str, str]) -> str:
    """A digest of what each of these is, in whatever order, to which those of others can be added."""
    return _shown(sum(int(_digest(f"{name} {what}".encode()), 16) for name, what in tensors.items()))


def _shown(total: int) -> str:
    return f"{total % _SUMS:015x}"


def _code() -> str:
    """A digest of the script and of the project's files that it has imported.

    The project is what lies beside the script or below: not the interpreter's library, not
    installed packages.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return "interactive"
    root = Path(main).resolve().parent
    files = {Path(main).resolve()}
    resolved = cache(os.path.realpath)  # a folder at a time: resolving every file takes 0.1 s
    for module in list(sys.modules.values()):
        place = getattr(module, "__file__", None)
        if isinstance(place, str) and place.endswith(".py") and "site-packages" not in place:
            folder, _, name = place.rpartition("/")
            path = Path(resolved(folder), name)
            if path.is_relative_to(root) and "site-packages" not in path.parts:
                files.add(path)
    parts = [f"{path.relative_to(root)} {_digest(path.read_bytes())}" for path in sorted(files) if path.exists()]
    return _digest("\n".join(parts).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
