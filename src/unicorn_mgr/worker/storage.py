"""Where checkpoints are kept: a directory, or whatever fsspec reaches.

A checkpoint is a folder in torch.distributed.checkpoint's format and, beside it, a manifest
of the same name.  The manifest is written last and in one piece: without it the folder is
not a checkpoint.  It has the size and checksum of every file, so a torn or rotten one is
found before anything is loaded.

Of a model that is split over several workers each writes a part: a folder in that format and
a manifest of its own, both in the checkpoint's folder.  The checkpoint's manifest has the
files of all parts, and it is the only one that counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from unicorn_mgr.model import Epoch, Lineage

FORMAT = 1
_CHUNK_BYTES = 1 << 20


class StorageError(Exception):
    """A checkpoint that can't be used, or a place that can't be reached."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a published checkpoint."""

    step: int
    lineage: Lineage
    job_id: str
    fingerprint: dict[str, str]
    files: dict[str, dict[str, Any]]
    """Name -> bytes and blake2b."""
    axes: dict[str, int] = field(default_factory=dict)
    """What the model is split along, over how many workers each, the last running fastest; empty: it is not."""

    @property
    def name(self) -> str:
        """The folder's name, and the manifest's without its ending."""
        epoch = self.lineage.epoch
        return f"step-{self.step:010d}.{self.lineage.generation}-{epoch.term}-{epoch.number}"

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sorts from old to new: a newer lineage is newer whatever its step."""
        return (*self.lineage.order, self.step)

    def dump(self) -> bytes:
        """As JSON, with a checksum of itself."""
        epoch = self.lineage.epoch
        body = {
            "format": FORMAT,
            "step": self.step,
            "lineage": [self.lineage.generation, epoch.term, epoch.number],
            "job_id": self.job_id,
            "fingerprint": self.fingerprint,
            "files": self.files,
            "axes": list(self.axes.items()),
        }
        text = json.dumps(body, sort_keys=True)
        return json.dumps({"checksum": _digest(text.encode()), "manifest": text}).encode()

    @staticmethod
    def load(data: bytes) -> Manifest:
        """Inverse of `dump`.  Raises `StorageError`."""
        try:
            outer = json.loads(data)
            text = outer["manifest"]
            if outer["checksum"] != _digest(text.encode()):
                raise StorageError("its manifest is damaged")
            body = json.loads(text)
            if body["format"] != FORMAT:
                raise StorageError(f"its format is {body['format']}, this program knows {FORMAT}")
            generation, term, number = body["lineage"]
            lineage = Lineage(generation, Epoch(term, number))
            # One without axes is of a time when no model could be split.
            axes = dict(body.get("axes", {}))
            return Manifest(body["step"], lineage, body["job_id"], body["fingerprint"], body["files"], axes)
        except (KeyError, TypeError, ValueError) as wrong:
            raise StorageError(f"its manifest can't be read: {wrong}") from wrong


class Storage:
    """One job's checkpoints at one URL.  Raises `StorageError` for one that fsspec does not know."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as unknown:
            raise StorageError(str(unknown)) from unknown
        self._local = isinstance(self._fs, LocalFileSystem)

    @property
    def absolute(self) -> str:
        """The same place, whatever the working directory is."""
        return self._root if self._local else self.url

    def manifests(self) -> Iterator[tuple[str, Manifest | StorageError]]:
        """(name, manifest) of everything published, newest lineage and step first; damaged ones as errors."""
        found: list[tuple[str, Manifest | StorageError]] = []
        self._fs.invalidate_cache()
        paths = self._fs.ls(self._root, detail=False) if self._fs.exists(self._root) else []
        for path in sorted(paths):
            name = path.rpartition("/")[2]
            if not (name.startswith("step-") and name.endswith(".json")):
                continue
            try:
                found.append((name, Manifest.load(self._fs.cat_file(path))))
            except StorageError as wrong:
                found.append((name, wrong))
        found.sort(key=lambda item: _order_of(item[0].removesuffix(".json")) or (-1,), reverse=True)
        yield from found

    @contextlib.contextmanager
    def staging(self, name: str) -> Iterator[Path]:
        """A local folder to write a checkpoint or part into: its place itself, or one that `upload` sends there."""
        if self._local:
            place = Path(self._root) / name
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            yield place
        else:
            with tempfile.TemporaryDirectory(prefix="unicorn-checkpoint-") as folder:
                yield Path(folder)

    def upload(self, name: str, folder: Path) -> dict[str, dict[str, Any]]:
        """Bring a staged folder to its place; returns size and checksum of every file."""
        files = {}
        for path in sorted(folder.iterdir()):
            files[path.name] = {"bytes": path.stat().st_size, "blake2b": _digest_file(path)}
        if self._local:
            _sync(folder)
            _sync(folder.parent)
        else:
            self._fs.makedirs(f"{self._root}/{name}", exist_ok=True)
            for file in files:
                self._fs.put_file(str(folder / file), f"{self._root}/{name}/{file}")
        return files

    def publish(self, manifest: Manifest) -> None:
        """From now on this checkpoint exists."""
        self._write_whole(f"{self._root}/{manifest.name}.json", manifest)

    def publish_part(self, manifest: Manifest, position: int) -> None:
        """The part of the worker at this position is whole; `manifest` has its files, named as in the part."""
        files = {f"{part_name(position)}/{file}": said for file, said in manifest.files.items()}
        at = f"{self._root}/{manifest.name}/{part_name(position)}.json"
        self._write_whole(at, replace(manifest, files=files))

    def merged(self, manifest: Manifest) -> Manifest:
        """The same with the files of all its parts.  Raises `StorageError` if one is another checkpoint's."""
        files: dict[str, dict[str, Any]] = {}
        for position in range(math.prod(manifest.axes.values())):
            part = part_name(position)
            said = Manifest.load(self._fs.cat_file(f"{self._root}/{manifest.name}/{part}.json"))
            alike = replace(said, files={}) == replace(manifest, files={})
            if not alike or not all(file.startswith(f"{part}/") for file in said.files):
                raise StorageError(f"{part} of {manifest.name} is of another checkpoint")
            files |= said.files
        return replace(manifest, files=files)

    def _write_whole(self, target: str, manifest: Manifest) -> None:
        if not self._local:
            self._fs.pipe_file(target, manifest.dump())
            return
        fresh = Path(f"{target}.new")
        with fresh.open("wb") as file:
            file.write(manifest.dump())
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(target)
        _sync(fresh.parent)

    def read(self, manifest: Manifest, part: str, file: str) -> bytes:
        """One file of a checkpoint, or of a part, as it was written.  Raises `StorageError`."""
        path = f"{part}/{file}".lstrip("/")
        try:
            data: bytes = self._fs.cat_file(f"{self._root}/{manifest.name}/{path}")
        except FileNotFoundError as failed:
            raise StorageError(f"file {file} is missing") from failed
        if _digest(data) != manifest.files.get(path, {}).get("blake2b"):
            raise StorageError(f"file {file} is damaged")
        return data

    def read_range(self, manifest: Manifest, part: str, file: str, start: int, end: int) -> bytes:
        """Bytes of a file, which may not be as they were written.  Raises `StorageError`."""
        path = f"{self._root}/{manifest.name}/{part}/{file}" if part else f"{self._root}/{manifest.name}/{file}"
        try:
            data: bytes = self._fs.cat_file(path, start=start, end=end)
        except FileNotFoundError as failed:
            raise StorageError(f"file {file} is missing") from failed
        if len(data) != end - start:
            raise StorageError(f"file {file} is torn")
        return data

    @contextlib.contextmanager
    def checked(self, manifest: Manifest, part: str = "") -> Iterator[Path]:
        """A local folder with the files of a checkpoint, or of a part, as they were written.  Raises `StorageError`."""
        place = f"{self._root}/{manifest.name}/{part}".rstrip("/")
        files = manifest.files
        if part:
            files = {f.removeprefix(f"{part}/"): said for f, said in files.items() if f.startswith(f"{part}/")}
        with contextlib.ExitStack() as stack:
            if self._local:
                folder = Path(place)
            else:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unicorn-restore-")))
            for file, said in files.items():
                path = folder / plain_name(file)
                if not self._local:
                    self._fetch(f"{place}/{file}", path)
                if not path.exists():
                    raise StorageError(f"file {file} is missing")
                if path.stat().st_size != said["bytes"]:
                    raise StorageError(f"file {file} has {path.stat().st_size} of {said['bytes']} bytes")
                if _digest_file(path) != said["blake2b"]:
                    raise StorageError(f"file {file} is damaged")
            yield folder

    def prune(self, keep: int, lineage: Lineage) -> None:
        """Delete what is older than the newest `keep`, and what was never published; nothing of a newer lineage."""
        ours = [m for _, m in self.manifests() if isinstance(m, Manifest) and m.lineage.order <= lineage.order]
        for old in ours[keep:]:
            self._fs.rm_file(f"{self._root}/{old.name}.json")
            self._remove(old.name)
        published = {m.name for _, m in self.manifests() if isinstance(m, Manifest)}
        newest = ours[0] if ours else None
        for path in self._fs.ls(self._root, detail=False):
            name = path.rpartition("/")[2]
            order = _order_of(name)
            if order is not None and name not in published and newest is not None and order < newest.order:
                self._remove(name)

    def discard(self, name: str) -> None:
        """Remove a folder that was not published, of a checkpoint or of a part."""
        self._remove(name)

    def _fetch(self, source: str, target: Path) -> None:
        try:
            self._fs.get_file(source, str(target))
        except FileNotFoundError as failed:
            raise StorageError(f"file {target.name} is missing") from failed

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{name}", recursive=True)


def part_name(position: int) -> str:
    """Of the part that the worker at this position of its replica writes."""
    return f"part-{position}"


def plain_name(file: str) -> str:
    """`file`, which is read from storage, unless it leads out of its folder.  Raises `StorageError`."""
    if not file or file in (".", "..") or set(file) & {"/", "\\", "\0"}:
        raise StorageError(f"{file!r} is no file of a checkpoint")
    return file


def _order_of(name: str) -> tuple[int, int, int, int] | None:
    """The order of a checkpoint's folder, by its name."""
    stem, _, lineage = name.partition(".")
    parts = [*lineage.split("-"), stem.removeprefix("step-")]
    if not (stem.startswith("step-") and len(parts) == 4 and all(p.isdecimal() for p in parts)):
        return None
    generation, term, number, step = map(int, parts)
    return (generation, term, number, step)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _digest_file(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
