"""Submitted working directories, unpacked once per node and kept by their digest."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import tempfile
from pathlib import Path


class SnapshotError(Exception):
    """An archive that can't be used."""


def folder_of(data: Path, digest: str) -> Path:
    """Where an archive's files are, once they are there."""
    return data / "snapshots" / digest


def unpack(data: Path, digest: str, archive: bytes) -> Path:
    """Check and unpack an archive; the folder appears under its name only when it is complete."""
    if hashlib.sha256(archive).hexdigest() != digest:
        raise SnapshotError(f"snapshot: {digest}: the archive's digest does not fit")
    target = folder_of(data, digest)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=".unpacking-"))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
            files.extractall(fresh, filter="data")
        if not target.exists():
            fresh.rename(target)
    except (tarfile.TarError, OSError) as failed:
        raise SnapshotError(f"snapshot: {digest}: {failed}") from failed
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target
