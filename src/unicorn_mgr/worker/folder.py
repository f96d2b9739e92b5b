"""A state as a folder in torch.distributed.checkpoint's format, and an index beside torch's own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save

from unicorn_mgr.worker.attempts import one_line
from unicorn_mgr.worker.checksum import checksum
from unicorn_mgr.worker.state import Packed, outlined
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


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor lies in torch's files."""

    name: str
    file: str
    offset: int
    length: int
    checksum: int
    """Of the tensor, so that it can be read without the rest of its file."""

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Index:
    """What is in a folder."""

    packed: Packed
    """Its tensors have no memory."""
    extents: tuple[Extent, ...]
    """Of each of them."""


def _write_index(folder: Path, packed: Packed, written: Metadata) -> None:
    """Where each tensor lies in torch's files, so that nobody has to unpickle torch's own index."""
    places = {at.fqn: [said.relative_path, said.offset, said.length] for at, said in written.storage_data.items()}
    tensors = [
        [name, *places[name], checksum([t]), str(t.dtype).removeprefix("torch."), list(t.shape)]
        for name, t in zip(packed.names, packed.tensors, strict=True)
    ]
    with (folder / INDEX).open("w") as file:
        json.dump({"skeleton": packed.skeleton, "tensors": tensors}, file)
        file.flush()
        os.fsync(file.fileno())


def read_index(data: bytes) -> Index:
    """The index of a folder.  Raises `StorageError`."""
    with _intact():
        read = json.loads(data)
        extents = tuple(Extent(name, plain_name(file), *at) for name, file, *at, _, _ in read["tensors"])
        packed = outlined(read["skeleton"], ((name, dtype, shape) for name, *_, dtype, shape in read["tensors"]))
        return Index(packed, extents)


def load_folder(folder: Path) -> Packed:
    """A state from a checkpoint's files, which are as they were written.  Raises `StorageError`."""
    if not (folder / INDEX).exists():
        raise StorageError("it was not written by unicorn")
    index = read_index((folder / INDEX).read_bytes())
    tensors = []
    for extent in index.extents:
        with (folder / extent.file).open("rb") as file:
            file.seek(extent.offset)
            tensors.append(_load(file.read(extent.length)))
    return Packed(index.packed.skeleton, index.packed.names, tuple(tensors))


def load_tensor(data: bytes, extent: Extent) -> torch.Tensor:
    """What lies there.  Raises `StorageError` if it is not what was written there."""
    tensor = _load(data)
    if checksum([tensor]) != extent.checksum:
        raise StorageError(f"{extent.name} is damaged")
    return tensor


def _load(data: bytes) -> torch.Tensor:
    """Nothing is unpickled but a plain tensor."""
    with _intact():
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(loaded, torch.Tensor):
        raise StorageError("it holds something that is not a tensor")
    return loaded


@contextlib.contextmanager
def _intact() -> Iterator[None]:
    """The files are as they were written: what goes wrong now goes wrong every time."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as wrong:
        raise StorageError(f"it can't be loaded: {one_line(wrong)}") from wrong
