"""What must be the same on every worker of a job, as text that can be compared and shown."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from unicorn_mgr.worker.siblings import Siblings, of_each


def fingerprint(
    model: torch.nn.Module, micro_batches: int, seed: int, steps: int, metrics: Sequence[str]
) -> dict[str, str]:
    """Name and value of each thing; two workers train together only if all are equal."""
    shapes = "\n".join(f"{n} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in model.named_parameters())
    buffers = "\n".join(f"{n} {tuple(b.shape)} {b.dtype}" for n, b in model.named_buffers())
    return {
        "code": _code(),
        "parameters": _digest(shapes.encode()),
        "buffers": _digest(buffers.encode()),
        "micro_batches": str(micro_batches),
        "seed": str(seed),
        "steps": str(steps),
        "metrics": ",".join(metrics),
        "torch": torch.__version__,
    }


def of_replica(mine: dict[str, str], siblings: Siblings) -> dict[str, str]:
    """That of all its workers: the stages of a pipeline hold different parameters, in each replica the same ones."""
    if siblings.place.stages == 1:
        return mine

    def together(digest: str) -> str:
        return _digest(str(of_each(siblings, int(digest, 16) >> 1)).encode())

    return {**mine, **{name: together(mine[name]) for name in ("parameters", "buffers")}}


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
