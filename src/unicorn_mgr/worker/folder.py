"""A state as a folder in torch.distributed.checkpoint's format, and an index beside torch's own."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemWriter  # type: ignore[attr-defined]
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save

from unicorn_mgr.worker.attempts import one_line
from unicorn_mgr.worker.state import Packed
from unicorn_mgr.worker.storage import StorageError, plain_name

# It says so at every save and load, and that is what is wanted here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

_INDEX = "unicorn.json"
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
    index = {"skeleton": packed.skeleton, "tensors": [[name, *places[name]] for name in packed.names]}
    with (folder / _INDEX).open("w") as file:
        json.dump(index, file)
        file.flush()
        os.fsync(file.fileno())


def load_intact(folder: Path) -> Packed:
    """The files are as they were written: what goes wrong now goes wrong every time.  Raises `StorageError`."""
    try:
        return load_folder(folder)
    except (RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as wrong:
        raise StorageError(f"it can't be loaded: {one_line(wrong)}") from wrong


def load_folder(folder: Path) -> Packed:
    """A state from a checkpoint's files, of which nothing is unpickled but plain tensors."""
    if not (folder / _INDEX).exists():
        raise StorageError("it was not written by unicorn")
    index = json.loads((folder / _INDEX).read_text())
    names, tensors = [], []
    for name, file, offset, length in index["tensors"]:
        with (folder / plain_name(file)).open("rb") as data:
            data.seek(offset)
            part = io.BytesIO(data.read(length))
        names.append(name)
        tensors.append(torch.load(part, map_location="cpu", weights_only=True))
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        raise StorageError("it holds something that is not a tensor")
    return Packed(index["skeleton"], tuple(names), tuple(tensors))
