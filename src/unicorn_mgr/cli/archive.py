"""The working directory as it is submitted: source and small files, nothing else.

Workers run from this archive, so that editing a file under a running job changes nothing,
and a replacement started next week runs the same code.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pathspec

from unicorn_mgr.cli.common import Problem

FILE_BYTES_MAX = 1 << 20
TOTAL_BYTES_MAX = 32 << 20
FILES_MAX = 5_000

_ALWAYS_OUT = pathspec.PathSpec.from_lines(
    "gitignore",
    [
        ".*",
        "__pycache__/",
        "node_modules/",
        "venv/",
        "*.pyc",
        "*.so",
        "*.pt",
        "*.safetensors",
        "*.egg-info/",
        "runs/",
    ],
)


def pack(folder: Path) -> tuple[str, bytes]:
    """(digest, gzipped tar) of a folder's files.  Equal files give an equal digest.  Raises `Problem`."""
    raw = io.BytesIO()
    total = count = 0
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(_files(folder)):
            path = folder / name
            size = path.stat().st_size
            if size > FILE_BYTES_MAX:
                continue
            total, count = total + size, count + 1
            if total > TOTAL_BYTES_MAX or count > FILES_MAX:
                raise Problem(
                    f"workdir: {folder}: more than {FILES_MAX} files or {TOTAL_BYTES_MAX >> 20} MiB of small files; "
                    "list what is not code in .gitignore, or run it in place with --no-snapshot"
                )
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = size, 0o755 if os.access(path, os.X_OK) else 0o644
            entry.mtime = int(path.stat().st_mtime)
            archive.addfile(entry, io.BytesIO(path.read_bytes()[:size]))
    data = gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)
    return hashlib.sha256(data).hexdigest(), data


def _files(folder: Path) -> Iterator[str]:
    """Relative names: what git tracks or would track, else everything that is not hidden or built."""
    listed = _git_files(folder)
    if listed is None:
        listed = [str((Path(at) / name).relative_to(folder)) for at, names in _walk(folder) for name in names]
    for name in listed:
        path = folder / name
        if not _ALWAYS_OUT.match_file(name) and path.is_file() and not path.is_symlink():
            yield name


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for seen, (at, folders, names) in enumerate(os.walk(folder)):
        if seen > FILES_MAX:
            raise Problem(f"workdir: {folder}: more than {FILES_MAX} folders; run it in place with --no-snapshot")
        folders[:] = [f for f in folders if not _ALWAYS_OUT.match_file(f"{f}/")]
        yield at, names


def _git_files(folder: Path) -> list[str] | None:
    """None: not a git work tree, or no git here."""
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in found.stdout.decode(errors="surrogateescape").split("\0") if name]
