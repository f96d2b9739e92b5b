"""A file system for fsspec that fails when told to: `flaky://place`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FlakyFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """In memory, and each call may fail: `failures[name]` is what the next calls of `name` raise."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failures: ClassVar[dict[str, Iterator[Exception]]] = {}
    calls: ClassVar[list[str]] = []

    @classmethod
    def reset(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.failures.clear()
        cls.calls.clear()
        cls.clear_instance_cache()

    def _may_fail(self, name: str) -> None:
        self.calls.append(name)
        failure = next(self.failures.get(name, iter(())), None)
        if failure is not None:
            raise failure

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._may_fail("ls")
        return super().ls(path, detail, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        self._may_fail("cat_file")
        return super().cat_file(path, start, end, **options)

    def put_file(self, lpath: str, rpath: str, *arguments: Any, **options: Any) -> None:
        self._may_fail("put_file")
        super().put_file(lpath, rpath, *arguments, **options)

    def get_file(self, rpath: str, lpath: str, *arguments: Any, **options: Any) -> None:
        self._may_fail("get_file")
        super().get_file(rpath, lpath, *arguments, **options)

    def pipe_file(self, path: str, value: bytes, *arguments: Any, **options: Any) -> None:
        self._may_fail("pipe_file")
        super().pipe_file(path, value, *arguments, **options)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self._may_fail("rm")
        super().rm(path, recursive, maxdepth)


fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
