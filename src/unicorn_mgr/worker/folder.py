"""A state as a folder in torch.distributed.checkpoint's format, and an index beside torch's own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save

from unicorn_mgr.worker.attempts import one_line
from unicorn_mgr.worker.state import Packed
from unicorn_mgr.worker.storage import StorageError, plain_name

# It says so at every save and load, and that is what is wanted here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

INDEX = "unicorn.json"
"""The file that holds everything that is not a tensor, and where the tensors are."""


def write_folder(folder: Path, packed: Packed) -> None:
    """Everything is on disk when this returns."""
    tensors = dict(zip(packed.names, packed.tensors, strict=True))
    assert len(tensors) == len(packed.names), "two parts of the state have one name"
    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    _write_index(folder, packed, save(tensors, storage_writer=writer, no_dist=True))


def _write_index(folder: Path, packed: Packed, written: Metadata) -> None:
    """Where each tensor lies in torch's files, so that nobody has to unpickle torch's own index."""
    places = {at.fqn: [said.relative_path, said.offset, said.length] for at, said in written.storage_data.items()}
    kinds = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in packed.tensors]
    tensors = [[name, *places[name], *kind] for name, kind in zip(packed.names, kinds, strict=True)]
    with (folder / INDEX).open("w") as file:
        json.dump({"skeleton": packed.skeleton, "tensors": tensors}, file)
        file.flush()
        os.fsync(file.fileno())


def described(index: bytes) -> Packed:
    """What is in a folder, by its index: tensors without memory.  Raises `StorageError`."""
    with _intact():
        read = json.loads(index)
        kinds = [(name, getattr(torch, dtype), shape) for name, _, _, _, dtype, shape in read["tensors"]]
        tensors = tuple(torch.empty(shape, dtype=dtype, device="meta") for _, dtype, shape in kinds)
        return Packed(read["skeleton"], tuple(name for name, _, _ in kinds), tensors)


def load_intact(folder: Path) -> Packed:
    """A state from a checkpoint's files.  Raises `StorageError`."""
    with _intact():
        index = _read_index(folder)
        loaded = dict(_load(folder, index))
        return Packed(index["skeleton"], tuple(loaded), tuple(loaded.values()))


def load_some(folder: Path, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """One tensor after the other of those named.  Raises `StorageError`."""
    with _intact():
        yield from _load(folder, _read_index(folder), names)


@contextlib.contextmanager
def _intact() -> Iterator[None]:
    """The files are as they were written: what goes wrong now goes wrong every time."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as wrong:
        raise StorageError(f"it can't be loaded: {one_line(wrong)}") from wrong


def _read_index(folder: Path) -> dict[str, Any]:
    if not (folder / INDEX).exists():
        raise StorageError("it was not written by unicorn")
    found: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return found


def _load(
    folder: Path, index: dict[str, Any], names: Collection[str] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Nothing is unpickled but plain tensors."""
    for name, file, offset, length, *_ in index["tensors"]:
        if names is not None and name not in names:
            continue
        with (folder / plain_name(file)).open("rb") as data:
            data.seek(offset)
            part = io.BytesIO(data.read(length))
        loaded = torch.load(part, map_location="cpu", weights_only=True)
        if not isinstance(loaded, torch.Tensor):
            raise StorageError("it holds something that is not a tensor")
        yield name, loaded
